// Package watchdog lets something outside of the process stop it when it hangs (FE-13): systemd, or the machine's watchdog
// device.
//
// # Overview
//
// A [Feeder] runs a health check again and again, and feeds a [Dog] after each one that passed in time. What hangs (the
// check, the process, the whole machine) feeds no more, and the dog bites: systemd kills and restarts the service
// (WatchdogSec= in its unit), the device resets the machine.
//
//	dog, err := watchdog.Systemd() // or watchdog.OpenDevice("/dev/watchdog", 0)
//	...
//	feeder, err := watchdog.Feed(watchdog.Config{Dog: dog, Healthy: node.Healthy})
//	defer feeder.Stop()
//
// # Guarantees
//
//   - Nothing is fed unless a check that began after the last feeding has passed within Config.Limit.
//   - Stop disarms the dog; a process that ends without it is bitten.
//
// # Non-guarantees
//
// The check decides what hanging means: one that only returns nil shows that the Go scheduler runs. Until the dog bites, the
// process does what it does: fencing tokens guard the data meanwhile.
package watchdog
