//go:build !unix

package demo

import (
	"errors"

	"natsfabric/supervise"
)

func freezeChild(*supervise.Child) error {
	return errors.New("the demo needs a Unix system, because of the signals")
}
