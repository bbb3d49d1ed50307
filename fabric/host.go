package fabric

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/kvlocation"
)

// hostEvent is what the host goroutine is told: an event of the life cycle, or that everything has to be verified.
type hostEvent struct {
	e      event
	reason string
	err    error
	verify bool
	ping   bool            // nothing is to be done but to answer
	conn   context.Context // the connection's, of evVerified
	done   chan struct{}   // closed when the event has been handled, if not nil
}

// post hands an event to the host goroutine. It blocks only when 16 events wait already; the longest that goroutine
// waits is for the server to have read a change of subscriptions, 5 s at most.
func (n *Node) post(ev hostEvent) {
	select {
	case n.events <- ev:
	case <-n.stopped:
	}
}

// host is the one goroutine that reacts to the connection and the lease. Verification runs beside it
// and reports back, so that a second loss of the connection is seen at once.
func (n *Node) host(ctx context.Context) {
	defer close(n.stopped)
	leaseEvents := n.lease.Events()
	tenure := n.beginTenure()
	defer func() { tenure.end() }()
	beats, quiet := n.beats()
	defer quiet()
	verified := make(chan error, 1)
	var running context.CancelFunc // cancels the verification under way; nil when there is none
	var current context.Context    // the connection's context of the verification under way
	var again bool                 // another verification is to follow it
	verify := func() {
		if running != nil {
			running()
			again = true
			return
		}
		current = n.link.connection()
		vctx, cancel := context.WithCancel(current)
		running = cancel
		go func() { verified <- n.verify(vctx) }()
	}
	defer func() {
		if running != nil {
			running()
			<-verified
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beats:
			n.beat()
		case ev := <-n.events:
			switch {
			case ev.ping:
			case ev.verify:
				verify()
			case ev.e == evFatal:
				n.fatal(ev.reason, ev.err)
			case ev.e == evVerified:
				n.ready(ev.conn, ev.reason)
			case ev.e == evDoubt:
				n.doubt(ev.reason)
			case ev.e == evBlocked && n.inDoubt.Load():
				n.apply(evBlockedInDoubt, ev.reason, nil)
			default:
				n.apply(ev.e, ev.reason, nil)
			}
			if ev.done != nil {
				close(ev.done)
			}
		case ev, open := <-leaseEvents:
			switch {
			case !open:
				leaseEvents = nil // after its terminal event
			case ev.Kind == kvlocation.LeaseLapsed:
				n.doubt("lease lapsed")
			case ev.Kind == kvlocation.LeaseStreamMissing:
				n.doubt("a stream of the store is missing")
				verify() // until it is there again, or the store is another one
			case ev.Kind == kvlocation.LeaseRegained:
				tenure.end()
				if n.fencer != nil {
					n.fencer.Regained()
				}
				n.objects.Regained()
				tenure = n.beginTenure()
				verify()
			default:
				n.fatal(ev.Kind.String(), ev.Err)
			}
		case err := <-verified:
			running()
			running = nil
			if again {
				again = false
				verify()
				continue
			}
			if err == nil {
				n.ready(current, "verified again")
			}
		}
	}
}

// verifyPause is the time between two attempts to become ready again.
const verifyPause = 500 * time.Millisecond

// verify repeats the handshake with the store until it succeeds or ctx ends: the lease is renewed and the store's
// identity compared (FO-3.2c), the whole descriptor list is read again (FO-7d), and the node's own descriptor is
// published. Serving again is the host goroutine's decision.
func (n *Node) verify(ctx context.Context) error {
	for first := true; ; first = false {
		err := n.lease.Verify(ctx)
		if err == nil {
			err = n.dir.Resync(ctx)
		}
		if err == nil {
			err = n.publish(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		if first {
			n.log.Warn("verification failed, trying again until it succeeds", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(verifyPause):
		}
	}
}

// tenure is the time of one lease generation. What runs in its name ends with it (FO-7c), on a goroutine of its own: the
// host's may be waiting for a server that does not answer, which is what makes leases lapse.
type tenure struct {
	stop  func() bool
	ended chan struct{} // closed when what ran has been told
}

// beginTenure follows the present lease generation; one that has lapsed already ends at once.
func (n *Node) beginTenure() tenure {
	t := tenure{ended: make(chan struct{})}
	t.stop = context.AfterFunc(n.lease.Context(), func() {
		defer close(t.ended)
		n.objects.Lapsed()
		n.router.CancelHandlers(kvlocation.ErrOwnershipLost)
		if n.fencer != nil {
			n.fencer.Lost("by the node's own clock", n.running)
		}
	})
	return t
}

// end waits until what ran has been told, if the lease generation is over, and ceases to follow it.
func (t tenure) end() {
	if !t.stop() {
		<-t.ended
	}
}

// ready puts the node into service after a verification on connection conn. Only the host goroutine calls it, but the
// doubt that undoes the verification may have been handled before: a connection that is lost ends its context, and a
// lease that lapses refuses, before the host is told. What brings either back brings another verification.
func (n *Node) ready(conn context.Context, reason string) {
	if conn.Err() != nil || !n.lease.Held() {
		return
	}
	n.inDoubt.Store(false)
	n.apply(evVerified, reason, nil)
	if n.State().Serves() {
		n.setServing(true)
	}
}

// doubt takes the node out of service until it has been verified again. A node that relocates keeps its state meanwhile.
func (n *Node) doubt(reason string) {
	n.inDoubt.Store(true)
	if n.State().Serves() {
		n.setServing(false)
	}
	n.apply(evDoubt, reason, nil)
}

// fatal ends the node's service for good. Its resources are given back by Shutdown.
func (n *Node) fatal(reason string, err error) {
	n.setServing(false)
	n.apply(evFatal, reason, err)
}

// setServing opens or drains the subscriptions. A failure means that the connection is lost, which the link reports.
func (n *Node) setServing(on bool) {
	if err := n.router.SetServing(on); err != nil {
		n.log.Debug("subscriptions not changed", zap.Bool("serving", on), zap.Error(err))
	}
}

// apply moves the host state and logs the change.
func (n *Node) apply(e event, reason string, err error) {
	ch, changed := n.state.apply(e, reason, err)
	if !changed {
		return
	}
	fields := []zap.Field{zap.String("from", string(ch.From)), zap.String("to", string(ch.To)), zap.String("reason", reason)}
	if err != nil {
		n.log.Error("host state", append(fields, zap.Error(err))...)
		return
	}
	n.log.Info("host state", fields...)
}

// asyncError gets the connection's asynchronous errors: slow consumers and refused permissions.
func (n *Node) asyncError(sub *nats.Subscription, err error) {
	n.router.AsyncError(sub, err)
	n.link.logAsync(sub, err)
}
