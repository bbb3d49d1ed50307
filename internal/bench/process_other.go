//go:build !linux

package bench

import (
	"os/exec"
	"time"
)

// ownGroup does nothing here: children end with their standard input.
func ownGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // it may have ended just now

// processorTime is not measured here.
func processorTime() (used time.Duration, ok bool) { return 0, false }

// residentMemory is not measured here.
func residentMemory() (bytes int64, ok bool) { return 0, false }
