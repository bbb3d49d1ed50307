package kvlocation

import (
	"errors"
	"fmt"

	"natsfabric/outcome"
)

// ErrConflict is in the chain of an error that says: the write was definitely not applied, because the key had
// another revision than the write expected. The error's acceptance is NotAccepted.
var ErrConflict = errors.New("the key has another revision")

// conflictError is what a definitely lost compare-and-set returns as its cause.
type conflictError struct {
	key      string
	expected uint64
	current  uint64 // 0: the key has no message at all
}

func (e *conflictError) Error() string {
	return fmt.Sprintf("%s is at revision %d, not %d", e.key, e.current, e.expected)
}

func (e *conflictError) Is(target error) bool { return target == ErrConflict }

func refused(op, target string, err error) *outcome.Error {
	return outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, target, "", err)
}

func notConfigured(op, target string, err error) *outcome.Error {
	return outcome.Wrap(op, outcome.NotConfigured, outcome.NotAccepted, target, "", err)
}

func unavailable(op, target string, err error) *outcome.Error {
	return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, target, "", err)
}

// notFound is the error of a read of something that is not there.
func notFound(op, target, detail string) *outcome.Error {
	return outcome.New(op, outcome.NotFound, outcome.NotAccepted, target, detail)
}
