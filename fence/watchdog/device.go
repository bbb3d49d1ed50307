package watchdog

import (
	"fmt"
	"os"
	"time"
)

// DefaultDeviceLimit is after how long without food Linux's watchdog devices commonly bite.
const DefaultDeviceLimit = 60 * time.Second

// device is a Linux watchdog device.
type device struct {
	file  *os.File
	limit time.Duration
}

// OpenDevice opens a watchdog device, /dev/watchdog or /dev/watchdog0, which arms it: unless it is fed within limit the
// machine is reset. limit must be the device's own (wdctl shows it); 0 means DefaultDeviceLimit. A device belongs to one
// process at a time.
func OpenDevice(path string, limit time.Duration) (Dog, error) {
	if limit < 0 {
		return nil, fmt.Errorf("watchdog: limit %v is not allowed: it must be the device's own, or 0 for %v", limit, DefaultDeviceLimit)
	}
	if limit == 0 {
		limit = DefaultDeviceLimit
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	return &device{file: f, limit: limit}, nil
}

func (d *device) Limit() time.Duration { return d.limit }

func (d *device) Feed() error {
	_, err := d.file.Write([]byte{0})
	return err
}

// Disarm writes the magic V before it closes: without it the closed device bites all the same. Drivers that were loaded
// with nowayout never let go.
func (d *device) Disarm() error {
	_, err := d.file.Write([]byte{'V'})
	if closed := d.file.Close(); err == nil {
		err = closed
	}
	return err
}
