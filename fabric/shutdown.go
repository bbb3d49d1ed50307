package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/supervise"
)

// Shutdown ends the node in order: it refuses what is new, finishes what it accepted, removes its descriptor, gives
// its lease back and leaves no goroutine. When ctx ends first, what still runs is cancelled and the error says so; the
// node is stopped all the same. It may be called any number of times: later calls wait for the first one.
//
// A relocation that is under way ends as ShutdownRequested; what has not moved stays this process run's. Clients of
// sessions are told to go away and have Sessions.GoAway for it. After a relocation Shutdown first waits, within ctx, until
// nobody uses the old routes any more (Relocation.FollowTime after the last move at the latest) and no answer of what has
// moved is owed, so that no call of it ends with this node.
func (n *Node) Shutdown(ctx context.Context) error {
	n.shutdownOnce.Do(func() {
		defer close(n.shutdownDone)
		n.mark(ctx, supervise.ActionShutdown, "orderly end")
		if n.State() == kvlocation.StateRelocated {
			n.settle(ctx)
		}
		n.apply(evShutdown, "shutdown", nil)
		n.relocating.stop()
		n.shutdownErr = n.release(ctx)
		how := "shutdown complete"
		if n.shutdownErr != nil {
			how = "shutdown, not in order"
		}
		n.apply(evStopped, how, nil)
	})
	<-n.shutdownDone
	return n.shutdownErr
}

// tidyTime bounds what comes before the end of what runs, so that a store that does not answer takes none of its time; and what comes
// after it when the caller's context has ended already. While the caller waits, the latter has lastTime.
const (
	tidyTime = 2 * time.Second
	lastTime = 10 * time.Second
)

// release gives back, newest first, whatever open has taken.
func (n *Node) release(ctx context.Context) error {
	var errs []error
	if n.objects != nil && n.lease.Admit() == nil && n.link.nc.IsConnected() {
		dctx, cancel := boundedBy(ctx, tidyTime)
		if err := n.publishLeaving(dctx); err != nil { // the node itself refuses what is new, and in the end there is no descriptor
			n.log.Warn("the descriptor does not say Draining", zap.Error(err))
		}
		cancel()
	}
	if n.sessions != nil {
		errs = append(errs, n.sessions.Close(ctx))
	}
	if n.admin != nil {
		n.admin.close(ctx)
	}
	if n.mover != nil { // while others can still answer, and be answered
		errs = append(errs, n.mover.Close(ctx))
	}
	if n.router != nil {
		errs = append(errs, n.finish(ctx))
	}
	if n.admin != nil {
		n.admin.wait()
	}
	if n.stop != nil {
		n.stop()
		<-n.stopped
		n.keeping.Wait()
	}
	if n.fencer != nil {
		n.fencer.Close()
	}
	if n.worker.agent != nil {
		actx, cancel := atTheEnd(ctx)
		errs = append(errs, n.worker.agent.Close(actx))
		cancel()
	}
	if n.dir != nil {
		errs = append(errs, n.dir.Close())
	}
	if n.lease != nil {
		tctx, cancel := atTheEnd(ctx)
		errs = append(errs, n.depart(tctx))
		cancel()
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.link != nil {
		n.link.close()
	}
	return errors.Join(errs...)
}

// finish takes nothing more, and ends the turns, the calls and what is served: the objects first, since they call
// others and are called by nobody any more. What the end of ctx cuts off is counted before it is cancelled.
func (n *Node) finish(ctx context.Context) error {
	rctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var cut error
	counted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(counted)
		cut = n.cutOff(ctx)
		cancel(ctx.Err())
	})
	n.setServing(false)
	var err error
	if n.objects != nil {
		err = n.objects.Close(rctx)
	}
	err = errors.Join(err, n.router.Close(rctx))
	if !stop() {
		<-counted
		err = errors.Join(cut, err)
	}
	return err
}

// cutOff is the error that names the requests and turns that are under way; nil when there are none.
func (n *Node) cutOff(ctx context.Context) error {
	var parts []string
	note := func(what, name string, running, waiting int) {
		if running+waiting == 0 {
			return
		}
		n.log.Warn("requests that were accepted are cut off", zap.String(what, name), zap.Int("running", running), zap.Int("waiting", waiting))
		parts = append(parts, fmt.Sprintf("%s %q: %d running, %d waiting", what, name, running, waiting))
	}
	served := n.router.Metrics().Served
	for _, name := range slices.Sorted(maps.Keys(served)) {
		note("channel", name, served[name].Running, served[name].Queued)
	}
	if n.objects != nil {
		for _, t := range n.objects.Metrics().Types {
			note(string(t.Class)+" type", t.Name, t.Running, int(t.Accepted-t.Run-t.Expired-t.Dropped))
		}
	}
	if parts == nil {
		return nil
	}
	return outcome.Wrap("shutdown", outcome.DeadlineExceeded, outcome.Accepted, fmt.Sprintf("node %q", n.cfg.RID),
		strings.Join(parts, "; "), fmt.Errorf("%w: %w", ErrCutOff, ctx.Err()))
}

// depart gives the lease back and removes the descriptor, so that a successor need not wait and callers hear NotFound
// instead of Unavailable. A node that ended because it may not go on has neither any more.
func (n *Node) depart(ctx context.Context) error {
	held := n.lease.Held()
	err := n.lease.Release(ctx)
	if !held || err != nil {
		return err
	}
	err = n.store.ForgetNode(ctx, n.cfg.RID)
	if errors.Is(err, kvlocation.ErrNodeAlive) || errors.Is(err, outcome.NotFound) {
		return nil // a successor is there already, or nothing was ever published
	}
	return err
}

// atTheEnd returns a context for the time that ctx has left, but for tidyTime at least and lastTime at most.
func atTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	d := lastTime
	if end, ok := ctx.Deadline(); ctx.Err() != nil {
		d = tidyTime
	} else if ok {
		d = min(max(time.Until(end), tidyTime), lastTime)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// boundedBy returns a context that ends with ctx or after d, whichever is first, but leaves d when ctx has ended.
func boundedBy(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
