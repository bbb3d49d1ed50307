package channels

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/monotime"
)

const (
	// freezeAfter is the age of the last tick above which this process counts as having been frozen.
	freezeAfter = time.Second
	// thawPing bounds the wait for the PONG after a freeze; then the connection is replaced.
	thawPing = 5 * time.Second
	// wallTolerance is how far the wall clock and Go's monotonic clock may drift apart between two ticks before
	// neither is trusted: the machine was suspended, or the wall clock was set.
	wallTolerance = 250 * time.Millisecond
)

// beat is one tick of the router's ticker, with all clocks read at that instant.
type beat struct {
	at      time.Time // wall and Go's monotonic clock
	mono    monotime.Time
	store   time.Time
	bound   time.Duration
	storeOK bool
	gap     atomic.Bool // somebody has noticed that the next tick came too late
}

// fresh returns the time since the beat, as long as Go's clocks alone can tell it. They are six times cheaper to
// read than the clock that counts suspension, and a message is judged on its way in.
func (b *beat) fresh(now time.Time) (since time.Duration, ok bool) {
	since = now.Sub(b.at)
	wall := time.Duration(now.UnixNano() - b.at.UnixNano())
	return since, since <= freezeAfter && (wall-since).Abs() <= wallTolerance
}

// pulse is the router's ticker as others see it: it tells a freeze, and the store's time between two ticks.
type pulse struct {
	clock Clock
	last  atomic.Pointer[beat]
	n     atomic.Uint32 // ticks
	gaps  atomic.Uint64 // freezes noticed; each makes a generation of messages to be suspicious of
	// thawing is true while some subscription may hold messages from before the end of a freeze.
	thawing atomic.Bool
}

func (p *pulse) init(c Clock) {
	p.clock = c
	p.last.Store(p.newBeat())
}

func (p *pulse) newBeat() *beat {
	b := &beat{at: time.Now(), mono: monotime.Now()}
	if p.clock != nil {
		b.store, b.bound, b.storeOK = p.clock.Now()
	}
	return b
}

func (p *pulse) tick() uint32 { return p.n.Load() }

// frozen returns the beat after which this process was frozen, or nil.
func (p *pulse) frozen(now time.Time) *beat {
	b := p.last.Load()
	if _, ok := b.fresh(now); ok || monotime.Since(b.mono) <= freezeAfter {
		return nil
	}
	return b
}

// past reports whether a deadline on the store's clock has certainly passed. What has clearly not passed by the last
// tick's reading is decided here; all else by the clock, which is lenient after a jump.
func (p *pulse) past(now, deadline time.Time) bool {
	b := p.last.Load()
	if since, ok := b.fresh(now); ok && b.storeOK && b.store.Add(since).Before(deadline) {
		return false
	}
	return p.clock != nil && p.clock.Past(deadline)
}

// storeDeadline turns a local deadline into one on the store's clock, late by the clock's error so that nobody cuts
// it short; the zero time when the store's clock is not known.
func (p *pulse) storeDeadline(local time.Time) time.Time {
	now := time.Now()
	b := p.last.Load()
	if since, ok := b.fresh(now); ok && b.storeOK {
		return b.store.Add(since + local.Sub(now) + b.bound)
	}
	if p.clock == nil {
		return time.Time{}
	}
	store, bound, ok := p.clock.Now()
	if !ok {
		return time.Time{}
	}
	return store.Add(local.Sub(now) + bound)
}

// localDeadline is the inverse of storeDeadline; ok is false when the store's clock is not known.
func (p *pulse) localDeadline(deadline time.Time) (local time.Time, ok bool) {
	now := time.Now()
	b := p.last.Load()
	if since, ok := b.fresh(now); ok && b.storeOK {
		return now.Add(deadline.Sub(b.store) - since + b.bound), true
	}
	if p.clock == nil {
		return local, false
	}
	store, bound, ok := p.clock.Now()
	return now.Add(deadline.Sub(store) + bound), ok
}

// beat is called by the ticker.
func (r *Router) beat() {
	if b := r.pulse.last.Load(); monotime.Since(b.mono) > freezeAfter {
		r.noticeFreeze(b)
	}
	r.pulse.n.Add(1)
	r.pulse.last.Store(r.pulse.newBeat())
}

// noticeFreeze notes that this process was frozen after beat b. It is called by whoever sees it first: the ticker, or
// a message's admission.
func (r *Router) noticeFreeze(b *beat) {
	if !b.gap.CompareAndSwap(false, true) {
		return
	}
	r.pulse.gaps.Add(1)
	r.log.Warn("this process was frozen; until its subscriptions are known to be current, it refuses requests without a deadline",
		zap.Duration("gap", monotime.Since(b.mono)))
	if r.pulse.thawing.CompareAndSwap(false, true) {
		if !r.spawn(r.thaw) {
			r.pulse.thawing.Store(false)
		}
	}
}

// thaw finds out, per subscription, up to which message it may hold what was sent before the end of a freeze: what it
// has when the PONG of a fresh PING was read.
func (r *Router) thaw() {
	for r.ctx.Err() == nil {
		gap := r.pulse.gaps.Load()
		began := r.epochBeginning()
		ctx, cancel := context.WithTimeout(r.ctx, thawPing)
		err := r.nc.FlushWithContext(ctx)
		cancel()
		if err == nil {
			r.intakes.mark(gap)
			r.pulse.thawing.Store(false)
			if r.pulse.gaps.Load() == gap || !r.pulse.thawing.CompareAndSwap(false, true) {
				return
			}
			continue
		}
		if r.ctx.Err() != nil {
			return
		}
		if errors.Is(err, context.DeadlineExceeded) && r.nc.IsConnected() {
			r.replaceConnection("after a freeze of this process the server answered no PING within " + thawPing.String())
		}
		select { // a connection that was lost or replaced comes back as a new epoch
		case <-began:
		case <-time.After(thawPing):
		case <-r.ctx.Done():
		}
	}
}

// replaceConnection asks for a new connection, where somebody is there to ask.
func (r *Router) replaceConnection(reason string) {
	if r.cfg.ReplaceConnection == nil {
		return
	}
	r.counters.replacements.Add(1)
	r.log.Warn("the connection is to be replaced", zap.String("reason", reason))
	r.cfg.ReplaceConnection(reason)
}

// epochBeginning returns a channel that is closed when the next epoch begins.
func (r *Router) epochBeginning() <-chan struct{} {
	r.waiters.mu.Lock()
	defer r.waiters.mu.Unlock()
	return r.epochBegan
}
