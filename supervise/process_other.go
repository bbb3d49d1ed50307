//go:build !unix

package supervise

import "os/exec"

// inOwnGroup leaves the command as it is: this system has no process groups, so only the process itself is killed.
func inOwnGroup(*exec.Cmd) {}

// killGroup kills a process that inOwnGroup prepared.
func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }
