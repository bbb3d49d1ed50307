package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/supervise"
)

// relocation is the relocation of the whole node, of which there is one at a time.
type relocation struct {
	mu      sync.Mutex
	under   bool                    // one is under way
	ends    bool                    // the node shuts down: no more
	abandon context.CancelCauseFunc // ends the one that is under way
	wg      sync.WaitGroup
}

// begin takes the one place, or says why not.
func (r *relocation) begin(ctx context.Context) (context.Context, relocate.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ends:
		return nil, relocate.ShutdownRequested
	case r.under:
		return nil, relocate.OperationInProgress
	}
	r.under = true
	ctx, r.abandon = context.WithCancelCause(ctx)
	r.wg.Add(1)
	return ctx, ""
}

func (r *relocation) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under = false
	r.abandon(nil)
	r.wg.Done()
}

// stop lets the one that is under way end as ShutdownRequested, waits for that, and lets none begin.
func (r *relocation) stop() {
	r.mu.Lock()
	r.ends = true
	if r.under {
		r.abandon(relocate.ErrShutdown)
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// Relocate moves every object of this node to other nodes, as mode says, and returns once all have moved or what is left
// cannot. While it runs the node is Relocating: it is chosen for no new object and is no target of a move, and goes on
// serving what it still owns, its channels and its sessions. What cannot move goes on too.
//
// The Result's Outcome is Relocated, and the state too: nothing is left but to call [Node.Shutdown], which waits until the
// old routes are no longer used and ends no call of what has moved. Or it is Blocked, with the reason and the list of
// what stayed and why, and the node is Serving again. To be blocked is no error. A second Relocate meanwhile is Blocked by
// OperationInProgress, one while the node is not Serving by RuntimeNotReady, and one that Shutdown comes upon by
// ShutdownRequested. When ctx ends, no further move begins, those under way end by their own rules, and the result is
// Blocked by DeadlineExceeded.
//
// The error is InvalidOperation for a mode that is not allowed; nothing was begun.
func (n *Node) Relocate(ctx context.Context, mode relocate.Mode) (relocate.Result, error) {
	if err := mode.Validate(n.cfg.AppVersion); err != nil {
		return relocate.Result{}, outcome.Wrap("relocate", outcome.InvalidOperation, outcome.NotAccepted, n.target(), "", err)
	}
	if n.State() == kvlocation.StateRelocated {
		return relocate.Result{Outcome: relocate.Relocated}, nil
	}
	ctx, busy := n.relocating.begin(ctx)
	if busy != "" {
		return relocate.Result{Outcome: relocate.Blocked, Reason: busy}, nil
	}
	defer n.relocating.end()
	n.tell(evRelocate, "relocating: "+mode.String())
	switch s := n.State(); s {
	case kvlocation.StateRelocating:
	case kvlocation.StateDraining: // Shutdown came between
		return relocate.Result{Outcome: relocate.Blocked, Reason: relocate.ShutdownRequested}, nil
	default:
		return relocate.Result{Outcome: relocate.Blocked, Reason: relocate.RuntimeNotReady, Detail: "the node is " + string(s)}, nil
	}
	n.objects.SetPlacing(false)
	n.mark(ctx, supervise.ActionRelocate, mode.String())
	if err := n.relist(ctx); err != nil {
		why := relocate.StoreUnavailable
		switch {
		case errors.Is(context.Cause(ctx), relocate.ErrShutdown):
			why = relocate.ShutdownRequested
		case ctx.Err() != nil:
			why = relocate.DeadlineExceeded
		}
		return n.blocked(ctx, relocate.Result{Outcome: relocate.Blocked, Reason: why, Detail: err.Error()}), nil
	}
	result, err := n.mover.Host(ctx, mode)
	if err != nil || result.Outcome != relocate.Relocated {
		return n.blocked(ctx, result), err
	}
	n.tell(evRelocated, fmt.Sprintf("%d units have moved", result.Moved))
	if err := n.relist(ctx); err != nil {
		n.log.Warn("the descriptor does not say Relocated yet", zap.Error(err))
	}
	return result, nil
}

// blocked puts the node into service again.
func (n *Node) blocked(ctx context.Context, result relocate.Result) relocate.Result {
	n.tell(evBlocked, fmt.Sprintf("relocation blocked by %s: %d units have moved, %d stay", result.Reason, result.Moved, result.KeptCount))
	if n.State() == kvlocation.StateDraining {
		return result
	}
	n.objects.SetPlacing(true)
	ctx, cancel := boundedBy(ctx, tidyTime)
	defer cancel()
	if err := n.relist(ctx); err != nil {
		n.log.Warn("the descriptor does not say Serving yet", zap.Error(err))
	}
	n.unmark(ctx)
	return result
}

// tell lets the host goroutine handle an event, and returns once it has.
func (n *Node) tell(e event, reason string) {
	done := make(chan struct{})
	n.post(hostEvent{e: e, reason: reason, done: done})
	select {
	case <-done:
	case <-n.stopped:
	}
}

// Move moves one object of this node, an Actor or a Spot, to the node that is named, or to the one that fits best when to
// is empty, and returns once it serves there. generation names one incarnation; 0 means whichever is here. A Spot whose
// members are SpotWide moves with them.
//
// Errors are those of relocate.Service.Move. NotAccepted: the object goes on here. Unknown: it was given up, and the target has
// not said that it took it; the record says where it is. relocate.ReasonOf tells the reason.
func (n *Node) Move(ctx context.Context, key kvlocation.ObjectKey, generation uint64, to string) (relocate.Moved, error) {
	return n.mover.Move(ctx, key, generation, to)
}

// Relocation returns the node's part in moves, for progress, watching and counters. Its life is the node's; it must not be
// closed, and [Node.Relocate] takes the place of its Host.
func (n *Node) Relocation() *relocate.Service { return n.mover }

// target names the node in errors.
func (n *Node) target() string { return fmt.Sprintf("node %q", n.cfg.RID) }

// followReserve is what an orderly end keeps for the rest of it when its context has a deadline.
const followReserve = 2 * time.Second

// settle lets the clients of this node's sessions go, and waits, within ctx, until senders no longer use the old routes to
// what has moved away and no answer is owed: what comes by such a route after the node has gone is refused, and what is
// owed would be lost.
func (n *Node) settle(ctx context.Context) {
	if d, ok := ctx.Deadline(); ok {
		left := time.Until(d)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left-min(followReserve, left/2))
		defer cancel()
	}
	if err := n.sessions.Drain(ctx); err != nil {
		n.log.Warn("stopping although clients' sessions are still here", zap.Error(err))
	}
	if err := n.objects.Settled(ctx); err != nil {
		n.log.Warn("stopping although messages for objects that have moved may still come here", zap.Error(err))
	}
}
