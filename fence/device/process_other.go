//go:build !linux

package device

import (
	"errors"
	"os"
)

var terminate = os.Interrupt

var errSystem = errors.New("what processes there are is not known on this system")

func identity() (machine, boot string, err error) { return "", "", errSystem }

func processState(int) (start string, alive bool, err error) { return "", false, errSystem }
