package monotime

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On Linux the clock is the one that counts suspension, not Go's own and not the wall clock.
func TestNowIsTheBootClock(t *testing.T) {
	read := func() Time {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			t.Fatal(err)
		}
		return Time(time.Duration(ts.Nano()))
	}
	check := func() {
		t.Helper()
		before := read()
		now := Now()
		if after := read(); now < before-Time(time.Millisecond) || now > after {
			t.Errorf("%d is not between %d and %d", now, before, after)
		}
	}
	check()
	// As if the machine had slept for an hour since the boot clock was asked: wall time has moved on, and Go's
	// monotonic time has not.
	s := last.Load()
	last.Store(&suspended{total: s.total - time.Hour, gap: s.gap - time.Hour})
	check()
}
