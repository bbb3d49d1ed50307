//go:build !unix

package supervise

import "errors"

func freezeWorker(*Child) error { return errors.New("this system can't freeze a process") }
