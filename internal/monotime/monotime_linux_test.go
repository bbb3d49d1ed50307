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
	before := read()
	now := Now()
	if after := read(); now < before || now > after {
		t.Errorf("%d is not between %d and %d", now, before, after)
	}
}
