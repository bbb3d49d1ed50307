package watchdog

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// ErrNoSystemd says that the process was not started by systemd with what is asked for.
var ErrNoSystemd = errors.New("watchdog: systemd did not start this process with a notification socket")

// Notify sends a state to systemd, as sd_notify(3) does: "READY=1", "STOPPING=1", "STATUS=...". ErrNoSystemd says that there
// is no socket in NOTIFY_SOCKET. The message is handed to the kernel; there is no answer.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return ErrNoSystemd
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // a leading @ is the abstract name space
	if err != nil {
		return fmt.Errorf("watchdog: notify %q: %w", state, err)
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyTime)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("watchdog: notify %q: %w", state, err)
	}
	return nil
}

// notifyTime bounds a message to a systemd whose queue is full.
const notifyTime = time.Second

// systemd is the Dog of a systemd unit with WatchdogSec=.
type systemd struct{ limit time.Duration }

// Systemd returns the dog of the unit that this process is: its limit is the unit's WatchdogSec=. ErrNoSystemd says that
// there is none for this process.
func Systemd() (Dog, error) {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || usec <= 0 || os.Getenv("NOTIFY_SOCKET") == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil, ErrNoSystemd
	}
	return &systemd{limit: time.Duration(usec) * time.Microsecond}, nil
}

func (s *systemd) Limit() time.Duration { return s.limit }
func (s *systemd) Feed() error          { return Notify("WATCHDOG=1") }

// Disarm tells systemd that the process stops: from then on its stop time counts, not the watchdog.
func (s *systemd) Disarm() error { return Notify("STOPPING=1") }
