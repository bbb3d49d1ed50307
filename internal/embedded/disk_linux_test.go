package embedded_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"natsfabric/internal/embedded"
)

// What really happens on such disks; mounting needs privileges.
func TestStartOnBadDisks(t *testing.T) {
	t.Parallel()
	mount := func(size string) string {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, size); err != nil {
			cannotMount(t, fmt.Sprintf("can't mount: %v", err))
		}
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
		return dir
	}
	full := mount("size=64k")
	readOnly := mount("size=1m")
	if err := syscall.Mount("", readOnly, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		cannotMount(t, fmt.Sprintf("can't mount read-only: %v", err))
	}
	for dir, want := range map[string]string{full: "disk of the store directory is full", readOnly: "read-only file system"} {
		s, err := embedded.Start(testContext(t), embedded.Config{Port: -1, StoreDir: dir})
		if err == nil {
			s.Shutdown()
			t.Errorf("%s: started", want)
			continue
		}
		var se *embedded.StartError
		if !errors.As(err, &se) || se.Subject != dir || !strings.Contains(se.Reason, want) {
			t.Errorf("want %q: %v", want, err)
		}
		t.Log(err)
	}
	if left, _ := os.ReadDir(full); len(left) != 0 {
		t.Errorf("left behind: %v", left)
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
