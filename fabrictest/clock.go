package fabrictest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockVariable is read by programs built with the flags of clockFlags: how far
// their wall clock is ahead, in nanoseconds.
const clockVariable = "FABRICTEST_CLOCK_AHEAD"

// WithClocks makes the wall clock of the i-th server of a cluster (the only one
// of StartServer) go ahead of the machine's by the i-th duration, or behind it
// when negative. It needs AsProcess. The first use builds the server with
// another time.Now, which takes the go command a minute or so.
func WithClocks(ahead ...time.Duration) Option {
	return func(s *settings) { s.clocks = ahead }
}

// BuildWithClock is BuildBinary for a program with another time.Now, as the
// servers of WithClocks have it. ClockAhead says how far its clock is ahead.
func BuildWithClock(t testing.TB, pkg string) string {
	t.Helper()
	return BuildBinary(t, pkg, clockFlags(t)...)
}

// ClockAhead is the environment variable, NAME=value, that makes the wall clock
// of a program that BuildWithClock has built go ahead of the machine's, or
// behind it when negative.
func ClockAhead(d time.Duration) string { return fmt.Sprintf("%s=%d", clockVariable, d) }

// clockAhead is the offset of the i-th server.
func (s *settings) clockAhead(i int) time.Duration {
	if i < len(s.clocks) {
		return s.clocks[i]
	}
	return 0
}

// The change to the standard library: time.Now adds an offset to the wall
// clock, timers and the monotonic clock stay as they are.
const (
	nowBefore  = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowAfter   = nowBefore + "\tsec, nsec = fabrictestShift(sec, nsec)\n"
	clockShift = `package time

import "syscall"

var fabrictestAhead = func() (ns int64) {
	s, _ := syscall.Getenv("` + clockVariable + `")
	neg := len(s) > 0 && s[0] == '-'
	if neg {
		s = s[1:]
	}
	for _, c := range []byte(s) {
		ns = ns*10 + int64(c-'0')
	}
	if neg {
		ns = -ns
	}
	return ns
}()

func fabrictestShift(sec int64, nsec int32) (int64, int32) {
	ns := int64(nsec) + fabrictestAhead%1e9
	sec += fabrictestAhead / 1e9
	switch {
	case ns < 0:
		sec, ns = sec-1, ns+1e9
	case ns >= 1e9:
		sec, ns = sec+1, ns-1e9
	}
	return sec, int32(ns)
}
`
)

// clockFlags returns flags for go build that give a program the other time.Now.
func clockFlags(t testing.TB) []string {
	t.Helper()
	root, err := goCommand("env", "GOROOT")
	if err != nil {
		t.Fatalf("fabrictest: %v", err)
	}
	pkg := filepath.Join(strings.TrimSpace(root), "src", "time")
	source, err := os.ReadFile(filepath.Join(pkg, "time.go"))
	if err != nil {
		t.Fatalf("fabrictest: WithClocks needs Go's source: %v", err)
	}
	changed := strings.Replace(string(source), nowBefore, nowAfter, 1)
	if changed == string(source) {
		t.Fatalf("fabrictest: WithClocks does not know this Go release's time.Now")
	}
	// The same place every time: the path is part of what is built once.
	dir := filepath.Join(cacheDir(), "clock")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(pkg, "time.go"):       filepath.Join(dir, "time.go"),
		filepath.Join(pkg, "fabrictest.go"): filepath.Join(dir, "fabrictest.go"),
	}})
	if err != nil {
		t.Fatalf("fabrictest: %v", err)
	}
	for name, text := range map[string]string{
		"time.go":       changed,
		"fabrictest.go": clockShift,
		"overlay.json":  string(overlay),
	} {
		if err := writeWhole(filepath.Join(dir, name), text); err != nil {
			t.Fatalf("fabrictest: %v", err)
		}
	}
	return []string{"-overlay=" + filepath.Join(dir, "overlay.json")}
}

// writeWhole writes a file that others may read at any time.
func writeWhole(name, text string) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, name)
}
