package kvlocation

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/internal/monotime"
)

const (
	// MaxSkew is how far this machine's wall clock may be from the store's before it is reported.
	MaxSkew = time.Second
	// driftDivisor lets an estimate's error bound grow by 1/5000 (200 ppm) of its age: quartz clocks drift by less.
	driftDivisor = 5000
)

// Clock is the store's clock as this process knows it. Deadlines travel on it, so that two nodes whose wall clocks
// differ judge a deadline alike.
//
// Concurrency: every method may be called from any goroutine. Now and Past take no lock and allocate nothing.
type Clock struct {
	ttl   time.Duration
	mu    sync.Mutex // serializes Observe
	est   atomic.Pointer[estimate]
	jumps atomic.Uint64
}

// estimate is one belief about the store's clock; it is not changed after it was published.
type estimate struct {
	reading
	// lenient is the reading that shows the earliest store time among those that a jump replaced. It is believed
	// beside the present one until lenientUntil.
	lenient      reading
	lenientUntil monotime.Time
}

// reading is one measurement: store time = monotonic time + offset, give or take bound, as of at.
type reading struct {
	offset time.Duration
	bound  time.Duration
	at     monotime.Time
}

func (r reading) now(m monotime.Time) time.Time {
	return time.Unix(0, int64(m)+int64(r.offset))
}

func (r reading) boundAt(m monotime.Time) time.Duration {
	return r.bound + max(0, m.Sub(r.at))/driftDivisor
}

// earliest is the earliest store time that r allows at m.
func (r reading) earliest(m monotime.Time) time.Time { return r.now(m).Add(-r.boundAt(m)) }

// NewClock returns a clock that knows nothing yet. After a jump of the store's clock (another leader with another
// wall clock) the more lenient of the old and the new reading holds for ttl.
func NewClock(ttl time.Duration) *Clock { return &Clock{ttl: ttl} }

// Now returns the store's time and the bound of its error: the true value lies within now-bound and now+bound.
// ok is false before the first measurement.
func (c *Clock) Now() (now time.Time, bound time.Duration, ok bool) {
	e := c.est.Load()
	if e == nil {
		return time.Time{}, 0, false
	}
	m := monotime.Now()
	return e.now(m), e.boundAt(m), true
}

// Past reports whether deadline, on the store's clock, has certainly passed. It is false while that is in doubt:
// before the first measurement, within the error bound, and for one TTL after a jump when only one of the two
// readings says so.
func (c *Clock) Past(deadline time.Time) bool {
	e := c.est.Load()
	if e == nil {
		return false
	}
	m := monotime.Now()
	if !e.earliest(m).After(deadline) {
		return false
	}
	return m >= e.lenientUntil || e.lenient.earliest(m).After(deadline)
}

// Observe feeds one measurement: at some instant between sent and received the store's clock showed server.
// A measurement that is less exact than what is known already, and agrees with it, changes nothing.
func (c *Clock) Observe(sent, received monotime.Time, server time.Time) {
	if received < sent || server.IsZero() {
		return
	}
	half := received.Sub(sent) / 2
	mid := sent.Add(half)
	r := reading{offset: time.Duration(server.UnixNano() - int64(mid)), bound: half, at: received}

	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.est.Load()
	if old == nil {
		c.est.Store(&estimate{reading: r})
		return
	}
	next := &estimate{reading: r, lenient: old.lenient, lenientUntil: old.lenientUntil}
	oldBound := old.boundAt(received)
	switch diff := (r.offset - old.offset).Abs(); {
	case diff <= oldBound+r.bound:
		if oldBound <= r.bound {
			return
		}
	default:
		c.jumps.Add(1)
		if received >= old.lenientUntil || old.earliest(received).Before(old.lenient.earliest(received)) {
			next.lenient = old.reading
		}
		next.lenientUntil = received.Add(c.ttl)
	}
	c.est.Store(next)
}

// ReadClock feeds c with one reading of the store's clock, as a program does that holds no lease.
//
// Errors are *outcome.Error: Unavailable when the store does not answer before ctx ends, or within Config.Timeout when it has no
// deadline.
func (s *Store) ReadClock(ctx context.Context, c *Clock) error {
	return s.insist(ctx, func(ctx context.Context) error {
		bi, err := s.info(ctx, s.nodes)
		if err == nil {
			c.Observe(bi.sent, bi.received, bi.time)
		}
		return err
	})
}

// Skew returns how far the store's clock is ahead of this machine's wall clock (negative: behind), as far as it is
// certain: the error bound is taken off. ok is false before the first measurement.
func (c *Clock) Skew() (skew time.Duration, ok bool) {
	now, bound, ok := c.Now()
	if !ok {
		return 0, false
	}
	switch d := time.Until(now); {
	case d > bound:
		return d - bound, true
	case d < -bound:
		return d + bound, true
	}
	return 0, true
}

// Jumps returns how many measurements contradicted what was known before.
func (c *Clock) Jumps() uint64 { return c.jumps.Load() }
