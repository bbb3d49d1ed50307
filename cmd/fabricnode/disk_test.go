package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunDiskFull: a worker whose embedded server's disk fills up ends, and says what to do. It must not go on as if it
// waited for something: nats-server does not write to that stream again, however much space there is later.
func TestRunDiskFull(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk).CombinedOutput(); err != nil {
		cannotMount(t, fmt.Sprintf("mounting is not permitted here (run as root): %v: %s", err, out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	n := startNode(t, program(t), "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", filepath.Join(disk, "data"),
		"--lease-ttl", "6s", "--lease-renew", "500ms", "--lease-margin", "1s")
	fill, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 64<<10); err == nil; {
		_, err = fill.Write(block) // until there is no space left
	}
	fill.Close()
	if code := n.Wait(t).ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if out := n.Output(); !strings.Contains(out, "the disk is full") || !strings.Contains(out, "free space, then start this process again") {
		t.Errorf("it does not say what happened and what to do:\n%s", out)
	}
}

// cannotMount skips a test that needs to mount, and fails it in CI, where a missing privilege must not hide a test.
func cannotMount(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
