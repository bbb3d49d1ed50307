//go:build unix

package supervise

import "syscall"

func freezeWorker(c *Child) error { return c.Signal(syscall.SIGSTOP) }
