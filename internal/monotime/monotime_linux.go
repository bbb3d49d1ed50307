package monotime

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// moved is how far wall time may drift from monotonic time before the boot clock is asked again. A suspend moves
	// it by its whole length; setting the clock by NTP moves it by at most half a millisecond a second.
	moved = 10 * time.Millisecond
	// exact is the longest time between the two readings that enclose one of the boot clock, tried readings times.
	exact    = 50 * time.Microsecond
	readings = 16
)

// suspended is the time that this machine was suspended since start, as it was measured last.
type suspended struct {
	total time.Duration
	// gap is wall time less monotonic time, when that was measured.
	gap time.Duration
}

var last atomic.Pointer[suspended]

// now is Go's own monotonic clock, which costs no system call, plus the time suspended. The boot clock, which costs
// one, is asked only when wall time says that the machine may have slept.
func now() time.Duration {
	t := time.Now()
	mono := t.Sub(start)
	gap := time.Duration(t.UnixNano()) - mono
	s := last.Load()
	if s == nil || (gap-s.gap).Abs() > moved {
		s = measure(s, gap)
	}
	return mono + s.total
}

// measure reads the boot clock. The reading is too low by at most the time since before it, never too high; so an
// earlier, higher one stays, and time does not go back.
func measure(s *suspended, gap time.Duration) *suspended {
	total := time.Duration(-1 << 62)
	for range readings {
		before := time.Since(start)
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			total = 0 // a kernel without the clock
			break
		}
		after := time.Since(start)
		total = max(total, time.Duration(ts.Nano())-after)
		if after-before < exact {
			break
		}
	}
	if s != nil {
		total = max(total, s.total)
	}
	next := &suspended{total: total, gap: gap}
	if !last.CompareAndSwap(s, next) {
		return last.Load() // somebody else has measured at the same time
	}
	return next
}
