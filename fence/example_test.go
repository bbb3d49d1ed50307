package fence_test

import (
	"context"
	"fmt"

	"natsfabric/fence"
)

// turn stands for a turn of an object; in a handler the context comes with the token.
type turn struct{ token fence.Token }

func (t turn) FenceToken() (fence.Token, error) { return t.token, nil }

// The owner with 33 is paused; the next one, with 34, raises the guard and writes; then 33 wakes up.
func ExampleGuard() {
	guard := fence.NewGuard("balance", "")
	owner := func(sequence uint64) context.Context {
		return fence.NewContext(context.Background(), turn{fence.Token{Source: "shop/actor/alice", Epoch: 1, Generation: 9, Sequence: sequence}})
	}
	balance := 0
	fmt.Println(guard.Raise(owner(34)))
	fmt.Println(guard.Do(owner(34), func() error { balance = 10; return nil }))
	fmt.Println(guard.Do(owner(33), func() error { balance = -1; return nil }))
	fmt.Println(balance)
	// Output:
	// <nil>
	// <nil>
	// guarded write resource "balance": Rejected (NotAccepted): stopped by the token: shop/actor/alice:0000000000000001-0000000000000009-0000000000000021 is lower than shop/actor/alice:0000000000000001-0000000000000009-0000000000000022, which the resource has seen
	// 10
}
