package supervise

import (
	"context"
	"time"

	"natsfabric/internal/monotime"
)

// driftDivisor is how a monotonic clock may drift: one part in this many.
const driftDivisor = 5000

// clock is the store's clock as it was read once, carried on by this process's monotonic clock. The wall clock of the
// machine is never asked, so it may be hours off.
type clock struct {
	now   time.Time
	bound time.Duration
	read  monotime.Time
	mono  func() monotime.Time
}

// readClock asks the store for its time.
func readClock(ctx context.Context, k keys, mono func() monotime.Time) (clock, error) {
	now, bound, err := k.Now(ctx)
	return clock{now: now, bound: bound, read: mono(), mono: mono}, err
}

// at returns the store's time now, and the bound of its error.
func (c clock) at() (now time.Time, bound time.Duration) {
	passed := c.mono().Sub(c.read)
	return c.now.Add(passed), c.bound + passed/driftDivisor
}
