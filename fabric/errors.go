package fabric

import (
	"errors"
	"fmt"

	"natsfabric/outcome"
)

// ErrConnect is in the chain of the error of Start, ConnectClient and Dial when NATS could not be reached.
var ErrConnect = errors.New("cannot reach NATS")

// ErrCutOff is in the chain of the error of Shutdown when its context ended before the requests that the node had
// accepted: they were cancelled.
var ErrCutOff = errors.New("accepted requests were cut off")

// misconfigured is the error of a configuration that is not allowed; nothing was begun.
func misconfigured(what, name string, err error) error {
	return outcome.Wrap("configure", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("%s %q", what, name), "", err)
}

// asError returns err as an *outcome.Error, wrapping what is not one.
func asError(op, target string, err error) *outcome.Error {
	var e *outcome.Error
	if errors.As(err, &e) {
		return e
	}
	return outcome.Wrap(op, outcome.KindOf(err), outcome.Accepted, target, "", err)
}
