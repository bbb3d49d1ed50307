//go:build unix

package supervise

import (
	"os/exec"
	"syscall"
)

// inOwnGroup lets the end of the command's context kill the whole process group, not only its first process.
func inOwnGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if cmd.Cancel != nil { // it was made with a context
		cmd.Cancel = func() error { return killGroup(cmd) }
	}
}

// killGroup kills a process that inOwnGroup started, with its group.
func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
