package objects

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"natsfabric/outcome"
)

// patience is how long a turn that needs a gap between two turns of another object waits for it. Then it ends, so that
// what waits for it comes to its turn, and it is tried again: two objects that wait for each other get out of it so.
const patience = 100 * time.Millisecond

// errBusy is in the chain of the error of an interrupt that did not come to its turn.
var errBusy = errors.New("the present turn of the object has not ended")

// interrupt runs f as the object's next turn, before what waits in the mailbox. When f has not begun within patience, or
// when ctx ends, it never will, and the error is *outcome.Error, Unavailable and NotAccepted, with errBusy. Once it has
// begun, interrupt waits for its end, however long that takes, and returns its error.
func (o *object) interrupt(ctx context.Context, f func(context.Context) error) error {
	const (
		waiting uint32 = iota
		begun
		given // up
	)
	var gate atomic.Uint32
	done := make(chan error, 1)
	e := newOwn(mailFramework)
	e.own().run = func(tctx context.Context) error {
		if !gate.CompareAndSwap(waiting, begun) {
			return nil
		}
		err := error(outcome.New("turn", outcome.InternalFailure, outcome.Accepted, o.target(), "the turn did not return"))
		defer func() { done <- err }()
		err = f(tctx)
		return nil
	}
	if !o.offerFirst(e) {
		e.release()
		return busy(o)
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
	case <-ctx.Done():
	}
	if gate.CompareAndSwap(waiting, given) {
		return busy(o)
	}
	return <-done
}

func busy(o *object) error {
	return outcome.Wrap("turn", outcome.Unavailable, outcome.NotAccepted, o.target(), "", errBusy)
}

// offerFirst puts a turn of the framework before what waits. An object that is not open, or full, takes none.
func (o *object) offerFirst(e *envelope) bool {
	if o.rt.closedFor(e.kind, true) != whyNot {
		return false
	}
	o.mu.Lock()
	if o.state != objectOpen || o.box.room(e, &o.reg.Type) != whyNot {
		o.mu.Unlock()
		return false
	}
	e.word |= envAccepted
	o.box.putBack(e)
	o.wakeLocked()
	return true
}
