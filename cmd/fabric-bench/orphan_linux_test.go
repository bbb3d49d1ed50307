package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// TestChildrenDieWithTheParent kills the program while it measures: no child may outlive it.
func TestChildrenDieWithTheParent(t *testing.T) {
	t.Parallel()
	p := fabrictest.StartProcess(t, exec.Command(fabrictest.BuildBinary(t, "."),
		"--scenario=channel", "--pairs=1000", "--slice=1m", "--dir="+t.TempDir()))
	p.WaitOutput(t, "channel: channel, 16 bytes")
	children := childrenOf(t, p.PID())
	if len(children) != 4 {
		t.Fatalf("a server, two members and a caller make four children, there are %d", len(children))
	}
	p.Kill()
	fabrictest.Eventually(t, 30*time.Second, "every child has ended", func() bool {
		for _, pid := range children {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !bytes.Contains(stat, []byte(") Z ")) { // a zombie has ended
				return false
			}
		}
		return true
	})
}

// childrenOf lists the processes whose parent has this ID.
func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// PID (name) state parent ...
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
