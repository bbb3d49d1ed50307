//go:build unix

package supervise

import (
	"os/exec"
	"syscall"
)

// inOwnGroup lets the end of the command's context kill the whole process group, not only its first process.
func inOwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// killGroup kills a process that inOwnGroup started, with its group.
func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
