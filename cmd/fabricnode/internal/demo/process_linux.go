package demo

import "syscall"

// ownGroup keeps a terminal's Ctrl-C away from a node, which the demo ends itself, and ends the node with the demo
// even while it is frozen.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
