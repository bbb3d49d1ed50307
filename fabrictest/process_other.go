//go:build !unix

package fabrictest

import (
	"os"
	"os/exec"
	"testing"
)

func ownGroup(*exec.Cmd) {}

func killGroup(p *os.Process) { _ = p.Kill() }

// Freeze fails the test: this system has no SIGSTOP.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	t.Fatalf("fabrictest: programs can't be frozen on this system")
}

// Thaw fails the test: this system has no SIGCONT.
func (p *Process) Thaw(t testing.TB) {
	t.Helper()
	t.Fatalf("fabrictest: programs can't be thawed on this system")
}

// lockFile does nothing: two test processes that build the same program at once
// both build it.
func lockFile(string) (unlock func(), err error) { return func() {}, nil }
