//go:build !unix

package demo

import (
	"errors"
	"syscall"
)

var errNoSignals = errors.New("this system cannot freeze a process: the demo needs a Unix system")

func ownGroup() *syscall.SysProcAttr { return nil }

func (p *process) freeze() error { return errNoSignals }
func (p *process) thaw() error   { return errNoSignals }
