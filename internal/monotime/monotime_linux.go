package monotime

import (
	"time"

	"golang.org/x/sys/unix"
)

func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(start) // a kernel without CLOCK_BOOTTIME
	}
	return time.Duration(ts.Nano())
}
