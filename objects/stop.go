package objects

import (
	"context"
	"errors"
	"fmt"

	"natsfabric/outcome"
)

// errStopped is the cause with which the contexts of turns end when their node stops.
var errStopped = errors.New("the node is shutting down")

// drain refuses new mail and waits until what was accepted has run, what that calls at this node included. Timers stop.
// Turns of the framework may still be made (to close objects). The error says that ctx ended before.
func (rt *runtime) drain(ctx context.Context) error {
	rt.draining.Store(true)
	rt.clock.stop()
	if err := rt.sched.quiet(ctx); err != nil {
		active, _ := rt.sched.counts()
		return fmt.Errorf("%d objects still have mail or a turn: %w", active, err)
	}
	return nil
}

// stop ends every object: what has not run ends with ShuttingDown and Accepted, the contexts of running turns end, and
// those turns are waited for until ctx ends. The records stay as they are. It may be called any number of times. The
// error says how many turns did not end; their goroutines stay until their handlers return.
func (rt *runtime) stop(ctx context.Context) error {
	rt.draining.Store(true)
	rt.stopped.Store(true)
	rt.clock.stop()
	rt.each(func(o *object) {
		rt.drop(o, outcome.New("turn", outcome.ShuttingDown, outcome.Accepted, o.target(), "its node stopped before the turn"))
	})
	rt.period.Load().cancel(errStopped) // after the drops, so that a turn that ends of it is not followed by another
	if err := rt.sched.stop(ctx); err != nil {
		_, turns := rt.sched.counts()
		return fmt.Errorf("%d turns have not ended: %w", turns, err)
	}
	return nil
}
