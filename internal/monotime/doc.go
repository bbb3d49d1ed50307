// Package monotime is a monotonic clock that also counts the time in which the machine was suspended, where the
// system has one (CLOCK_BOOTTIME). Leases and freezes are judged on it: Go's own monotonic clock stands still
// during suspend, so a laptop or a paused virtual machine would wake up believing in a lease that is long gone.
package monotime
