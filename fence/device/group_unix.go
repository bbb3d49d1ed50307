//go:build unix

package device

import (
	"os/exec"
	"syscall"
)

// endWithChildren puts the program into a process group of its own, which ends as a whole.
func endWithChildren(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
