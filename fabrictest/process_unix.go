//go:build unix

package fabrictest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// Freeze stops the program where it stands (SIGSTOP) and returns when it does.
// The kernel goes on to take what others send to it.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	Eventually(t, killTimeout, p.name+" frozen", p.frozen)
}

// Thaw lets a frozen program go on (SIGCONT).
func (p *Process) Thaw(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGCONT)
}

// frozen reports whether all threads are stopped. Where the system doesn't tell
// (no /proc), it is taken as done.
func (p *Process) frozen() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
	if err != nil {
		return true
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the command in parentheses, which may hold anything.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && !bytes.HasPrefix(stat[i:], []byte(") T")) {
			return false
		}
	}
	return true
}

// lockFile keeps other processes that lock the same file waiting.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
