package relocate

import (
	"context"
	"errors"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

var (
	errClosing     = errors.New("the node's relocation has ended")
	errUnitTimeout = errors.New("the unit's time is over")
	errTargetGone  = errors.New("the target has not said that it has committed, and its record cannot be read or does not say so")
	errNoTarget    = errors.New("no node can take it")
	errLeaving     = errors.New("the node moves its own objects away, and takes no others")
	errInProgress  = errors.New("the objects of this node are being moved already")
)

// failure is a failed move, with the reason that people see.
type failure struct {
	reason Reason
	cause  error
}

func (f *failure) Error() string { return string(f.reason) + ": " + f.text() }

// text leaves out what the error of the move around it says, and the reason. It adds where the object is, if the cause knows.
func (f *failure) text() string {
	text := f.cause.Error()
	var e *outcome.Error
	if errors.As(f.cause, &e) && e.Op == "move" && e.Error() == text {
		if text = e.Detail; e.Cause != nil && text != "" {
			text += ": "
		}
		if e.Cause != nil {
			text += e.Cause.Error()
		}
	}
	if at, ok := objects.RouteOf(f.cause); ok && at.RID != "" {
		text += ": it is at node " + at.RID
	}
	return text
}

// detailOf is the text of an error that stands beside the object's key and the reason.
func detailOf(err error) string {
	var f *failure
	if errors.As(err, &f) {
		return f.text()
	}
	return err.Error()
}

func (f *failure) Unwrap() error { return f.cause }

// moveError is the error of a move.
func moveError(key kvlocation.ObjectKey, acc outcome.Acceptance, detail string, cause error) error {
	f, ok := cause.(*failure)
	if !ok {
		f = &failure{reasonFor(cause), cause}
	}
	kind := outcome.Unavailable
	var e *outcome.Error
	switch {
	case errors.As(cause, &e):
		kind = e.Kind
	case f.reason == DeadlineExceeded:
		kind = outcome.DeadlineExceeded
	case f.reason == ShutdownRequested:
		kind = outcome.ShuttingDown
	}
	return outcome.Wrap("move", kind, acc, key.String(), detail, f)
}

// ReasonOf is the reason of a failed Move; RelocationFailed for any other error, empty for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return reasonFor(err)
}

// reasonFor finds the reason in an error's chain.
func reasonFor(err error) Reason {
	var (
		f *failure
		e *outcome.Error
	)
	switch {
	case errors.As(err, &f):
		return f.reason
	case errors.Is(err, objects.ErrMoveDisabled), errors.Is(err, objects.ErrMember):
		return RelocationDisabled
	case errors.Is(err, objects.ErrStateVersion), errors.Is(err, objects.ErrNoMover):
		return StateIncompatible
	case errors.Is(err, ErrShutdown), errors.Is(err, errClosing):
		return ShutdownRequested
	case errors.Is(err, errInProgress):
		return OperationInProgress
	case errors.Is(err, errNoTarget), errors.Is(err, errLeaving), channels.IsNobody(err):
		return TargetUnavailable
	case errors.Is(err, errUnitTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, outcome.DeadlineExceeded):
		return DeadlineExceeded
	case errors.Is(err, kvlocation.ErrOwnershipLost):
		return RuntimeNotReady
	case errors.As(err, &e) && e.Kind == outcome.Unavailable && (e.Op == "read" || e.Op == "write" || isVerb(e.Op)):
		return StoreUnavailable
	}
	return RelocationFailed
}

// isVerb reports whether an error's operation is a record write of a move.
func isVerb(op string) bool {
	switch kvlocation.Verb(op) {
	case kvlocation.VerbPrepare, kvlocation.VerbAccept, kvlocation.VerbAbort, kvlocation.VerbCommit, kvlocation.VerbAdopt:
		return true
	}
	return op == "relay"
}
