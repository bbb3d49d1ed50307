package watchdog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("WATCHDOG_TEST_CHILD") != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// child is a service: ready, and fed as long as it runs.
func child() {
	dog, err := Systemd()
	if err == nil {
		_, err = Feed(Config{Dog: dog, Healthy: func(context.Context) error { return nil }})
	}
	if err == nil {
		err = Notify("READY=1")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-time.After(time.Minute)
}

// listen stands in for systemd's end of the socket.
func listen(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// hear reads one message; "" when none comes in time.
func hear(t *testing.T, c *net.UnixConn, within time.Duration) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 256)
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); !errors.Is(err, ErrNoSystemd) {
		t.Fatalf("without a socket: %v", err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@fence-watchdog-%d", os.Getpid())} {
		c := listen(t, name)
		t.Setenv("NOTIFY_SOCKET", name)
		if err := Notify("READY=1"); err != nil {
			t.Fatal(err)
		}
		if got := hear(t, c, time.Minute); got != "READY=1" {
			t.Fatalf("%s: heard %q", name, got)
		}
	}
	for _, env := range [][2]string{{"0", ""}, {"x", ""}, {"1000000", "1"}} {
		t.Setenv("WATCHDOG_USEC", env[0])
		t.Setenv("WATCHDOG_PID", env[1])
		if _, err := Systemd(); !errors.Is(err, ErrNoSystemd) {
			t.Errorf("%q: %v", env, err)
		}
	}
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	if dog, err := Systemd(); err != nil || dog.Limit() != 3*time.Second {
		t.Errorf("%v, %v", dog, err)
	}
}

func TestConformance(t *testing.T) {
	// FE-13: a real process that hangs feeds no more, and what watches it from outside stops it.
	t.Run("FE-13", func(t *testing.T) {
		const limit = 3 * time.Second
		name := filepath.Join(t.TempDir(), "notify")
		c := listen(t, name)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WATCHDOG_TEST_CHILD=1", "NOTIFY_SOCKET="+name, fmt.Sprintf("WATCHDOG_USEC=%d", limit.Microseconds()), "WATCHDOG_PID=")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { cmd.Process.Kill() })
		ready := false
		for fed := 0; fed < 3 || !ready; {
			switch got := hear(t, c, time.Minute); got {
			case "WATCHDOG=1":
				fed++
			case "READY=1":
				ready = true
			default:
				t.Fatalf("heard %q", got)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for hear(t, c, limit) != "" { // what was sent before
		}
		if err := cmd.Process.Kill(); err != nil { // as systemd does then
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the frozen process is not gone")
		}
	})
}

// A check that fails or hangs keeps the dog hungry; one that passes again feeds it; Stop disarms it.
func TestFeeder(t *testing.T) {
	dog := &countingDog{limit: 300 * time.Millisecond}
	var mode atomic.Int32 // 0 healthy, 1 failing, 2 hanging
	hung := make(chan struct{}, 1)
	release := make(chan struct{})
	var unfed, ill atomic.Int32
	f, err := Feed(Config{Dog: dog, Unfed: func(error) { unfed.Add(1) }, Healthy: func(ctx context.Context) error {
		switch mode.Load() {
		case 1:
			ill.Add(1)
			return errors.New("ill")
		case 2:
			hung <- struct{}{}
			<-release // it ignores its context
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "feedings", func() bool { return dog.fed.Load() >= 2 })
	mode.Store(1)
	eventually(t, "a failed check", func() bool { return ill.Load() >= 1 }) // no one before it is under way any more
	before := dog.fed.Load()
	failed := unfed.Load()
	eventually(t, "more failed checks", func() bool { return unfed.Load() >= failed+3 })
	if n := dog.fed.Load(); n != before {
		t.Fatalf("fed %d times while ill", n-before)
	}
	mode.Store(2)
	<-hung
	before = dog.fed.Load()
	<-time.After(2 * dog.limit)
	if n := dog.fed.Load(); n != before {
		t.Fatalf("fed %d times while the check hung", n-before)
	}
	mode.Store(0)
	close(release)
	eventually(t, "a feeding after the check came back", func() bool { return dog.fed.Load() > before })
	if dog.disarmed.Load() != 0 {
		t.Fatal("disarmed before Stop")
	}
	for range 2 {
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if dog.disarmed.Load() != 1 {
		t.Fatalf("disarmed %d times", dog.disarmed.Load())
	}
	for _, c := range []Config{{}, {Dog: dog}, {Dog: dog, Healthy: func(context.Context) error { return nil }, Every: dog.limit},
		{Dog: dog, Healthy: func(context.Context) error { return nil }, Every: dog.limit / 3, Limit: -1}} {
		if _, err := Feed(c); err == nil {
			t.Errorf("%+v is allowed", c)
		}
	}
}

// A check that passes when its time is over feeds nobody.
func TestLateCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog := &countingDog{limit: 3 * time.Second}
		var late atomic.Int32
		f, err := Feed(Config{Dog: dog, Unfed: func(error) { late.Add(1) }, Healthy: func(context.Context) error {
			<-time.After(1500 * time.Millisecond) // its limit is a second
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
		if dog.fed.Load() != 0 || late.Load() < 3 {
			t.Errorf("fed %d times, %d checks were late", dog.fed.Load(), late.Load())
		}
	})
}

// A file stands in for the device: food, and the magic close in the end.
func TestDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "watchdog")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dog, err := OpenDevice(path, 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Feed(Config{Dog: dog, Healthy: func(context.Context) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	read := func() []byte { b, _ := os.ReadFile(path); return b }
	eventually(t, "food in the device", func() bool { return len(read()) >= 2 })
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	got := read()
	if n := len(got) - 1; string(got[n:]) != "V" || !bytes.Equal(got[:n], bytes.Repeat([]byte{0}, n)) {
		t.Fatalf("the device got %q", got)
	}
	if _, err := OpenDevice(filepath.Join(t.TempDir(), "none"), 0); !os.IsNotExist(errors.Unwrap(err)) || !strings.Contains(err.Error(), "watchdog") {
		t.Fatalf("a device that is not there: %v", err)
	}
	if _, err := OpenDevice(path, -1); err == nil {
		t.Fatal("a limit below 0 is allowed")
	}
}

type countingDog struct {
	limit         time.Duration
	fed, disarmed atomic.Int32
}

func (d *countingDog) Limit() time.Duration { return d.limit }
func (d *countingDog) Feed() error          { d.fed.Add(1); return nil }
func (d *countingDog) Disarm() error        { d.disarmed.Add(1); return nil }

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}
