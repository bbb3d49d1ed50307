package bench

import (
	"os/exec"
	"syscall"
	"time"
)

// ownGroup puts the child into a process group of its own: an interrupt at the terminal reaches the parent alone,
// which then stops its children in order. The kernel kills the child when the parent dies.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may have ended just now

// processorTime is what this process has used so far.
func processorTime() (used time.Duration, ok bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
