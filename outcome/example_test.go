package outcome_test

import (
	"context"
	"errors"
	"fmt"

	"natsfabric/outcome"
)

// What a caller does after a failure depends on its kind and on what is known about acceptance.
func Example() {
	call := func() error {
		return outcome.Wrap("request", outcome.Unavailable, outcome.Unknown, `channel "work"`,
			"the connection was lost after the request was published", context.Canceled)
	}

	err := call()
	switch {
	case errors.Is(err, outcome.NotAccepted):
		fmt.Println("did not run and will not")
	case errors.Is(err, outcome.Accepted):
		fmt.Println("a member took it")
	case errors.Is(err, outcome.Unknown):
		fmt.Println("may have run: ask the application's own records")
	}
	fmt.Println(errors.Is(err, context.Canceled), outcome.KindOf(err))
	fmt.Println(err)
	// Output:
	// may have run: ask the application's own records
	// true Unavailable
	// request channel "work": Unavailable (Unknown): the connection was lost after the request was published: context canceled
}
