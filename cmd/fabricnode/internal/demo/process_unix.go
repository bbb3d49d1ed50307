//go:build unix && !linux

package demo

import "syscall"

// ownGroup keeps a terminal's Ctrl-C away from a node, which the demo ends itself.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
