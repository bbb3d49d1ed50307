//go:build unix

package demo

import (
	"syscall"

	"natsfabric/supervise"
)

func freezeChild(c *supervise.Child) error { return c.Signal(syscall.SIGSTOP) }
