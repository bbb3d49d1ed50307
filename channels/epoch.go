package channels

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

// handOverTries bounds the wait, in milliseconds, for answers that the client library had read already.
const handOverTries = 100

// replyPendingBytes bounds what the client library holds of replies that were read and not yet handed over.
const replyPendingBytes = 256 << 20

// epoch is one life of the connection, with its own reply prefix (FO-3.2c).
type epoch struct {
	n      uint64
	prefix string
	sub    *nats.Subscription
}

// Disconnected tells the router that the connection was lost. Every operation that waits ends at once: Unavailable,
// with acceptance Accepted after a notice and Unknown otherwise (FO-3.2d). Until Reconnected, operations are refused
// with Unavailable and NotAccepted. It is called from the connection's disconnect handler.
func (r *Router) Disconnected() {
	r.epochMu.Lock()
	defer r.epochMu.Unlock()
	r.closeEpochLocked()
	r.intakes.abandonLeaving()
}

// Reconnected tells the router that the connection is back. It begins a new epoch: a new reply prefix, and no peer
// counts as ready before another hello (FO-3.2c). It is called from the connection's reconnect handler. The error
// says why there is no new epoch: the connection is closed again, or the router is.
func (r *Router) Reconnected() error {
	r.epochMu.Lock()
	defer r.epochMu.Unlock()
	r.closeEpochLocked()
	if err := r.openEpochLocked(); err != nil {
		r.log.Warn("no new connection epoch", zap.Error(err))
		return err
	}
	return nil
}

// Epoch returns the number of the present connection epoch, counted from 1; 0 while disconnected.
func (r *Router) Epoch() uint64 {
	r.waiters.mu.Lock()
	defer r.waiters.mu.Unlock()
	if r.waiters.epoch == nil {
		return 0
	}
	return r.waiters.epoch.n
}

func (r *Router) closeEpochLocked() {
	t := &r.waiters
	t.mu.Lock()
	old := t.epoch
	t.ending = true
	t.mu.Unlock()
	if old != nil {
		old.handOver()
	}
	t.mu.Lock()
	t.epoch, t.ending = nil, false
	ended := t.sweepLocked(endDisconnected)
	t.mu.Unlock()
	if old == nil {
		return
	}
	r.counters.endedByDisconnect.Add(uint64(ended))
	r.links.forgetReady()
	// The subscription of the epoch that just ended stays until the next one ends, to count what still arrives
	// there; never more than one stays.
	if r.retired != nil {
		r.unsubscribe(r.retired.sub)
	}
	r.retired = old
}

// handOver lets the answers that had been read before the connection was lost reach their operations: they were first.
func (e *epoch) handOver() {
	for range handOverTries {
		if pending, _, err := e.sub.Pending(); err != nil || pending == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (r *Router) openEpochLocked() error {
	n := r.lastEpoch + 1
	e := &epoch{n: n, prefix: r.base + ".r" + r.run + strconv.FormatUint(n, 10)}
	sub, err := r.nc.Subscribe(e.prefix+".>", func(m *nats.Msg) { r.arrived(e, m) })
	if err != nil {
		return fmt.Errorf("subscribing to the reply subject: %w", err)
	}
	if err := sub.SetPendingLimits(2*r.cfg.MaxInFlight, replyPendingBytes); err != nil {
		return err
	}
	e.sub = sub
	r.waiters.mu.Lock()
	defer r.waiters.mu.Unlock()
	if r.waiters.closed {
		r.unsubscribe(sub)
		return errClosed
	}
	r.lastEpoch = n
	r.waiters.epoch = e
	close(r.epochBegan)
	r.epochBegan = make(chan struct{})
	return nil
}

// arrived takes a message on an epoch's reply prefix. It runs on the subscription's one goroutine.
func (r *Router) arrived(e *epoch, m *nats.Msg) {
	token, notice, ok := wire.ParseAnswer(m.Subject, len(e.prefix))
	if !ok {
		r.counters.strayAnswers.Add(1)
		return
	}
	switch r.waiters.deliver(e, token, notice, m) {
	case deliveredLate:
		r.counters.lateReplies.Add(1)
	case deliveredLateNotice:
		r.counters.lateNotices.Add(1)
	case deliveredStale:
		r.counters.staleReplies.Add(1)
	}
}

// unsubscribe gives up a subscription of which nothing more is wanted.
func (r *Router) unsubscribe(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil && !r.nc.IsClosed() {
		r.log.Debug("unsubscribing", zap.String("subject", sub.Subject), zap.Error(err))
	}
}
