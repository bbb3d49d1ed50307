package fabrictest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// built remembers what this test run has built, by package and flags.
var built struct {
	sync.Mutex
	paths map[string]string
}

// BuildBinary builds a main package, named by import path or relative to the
// test's directory, with the go command, and returns the path of a copy that
// lives as long as the test. Flags like "-tags=x" or "-overlay=file" go to go
// build; without "-race" among them the program is built without the race
// detector, also in a test run with it, unless the environment variable
// FABRICTEST_RACE is 1. Each package is built once in a test run, and linked
// again in a later one only if it has changed.
func BuildBinary(t testing.TB, pkg string, flags ...string) string {
	t.Helper()
	if os.Getenv("FABRICTEST_RACE") == "1" {
		flags = append([]string{"-race"}, flags...)
	}
	built.Lock()
	defer built.Unlock()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatalf("fabrictest: build %s: %v", pkg, err)
	}
	key := strings.Join(append([]string{wd, pkg}, flags...), "\x00")
	path, ok := built.paths[key]
	if !ok {
		path, err = build(pkg, flags)
		if err != nil {
			t.Fatalf("fabrictest: build %s: %v", pkg, err)
		}
		if built.paths == nil {
			built.paths = make(map[string]string)
		}
		built.paths[key] = path
	}
	// A link of its own: another test run may replace the file meanwhile.
	own := filepath.Join(t.TempDir(), filepath.Base(path))
	if os.Link(path, own) != nil {
		if err := copyFile(path, own); err != nil {
			t.Fatalf("fabrictest: build %s: %v", pkg, err)
		}
	}
	return own
}

// build builds into the user's cache directory, where the go command leaves a
// program as it is when it is up to date.
func build(pkg string, flags []string) (string, error) {
	listed, err := goCommand("list", "-f", "{{.Dir}}\n{{.ImportPath}}", pkg)
	if err != nil {
		return "", err
	}
	dir, importPath, _ := strings.Cut(strings.TrimSpace(listed), "\n")
	id := sha256.Sum256([]byte(strings.Join(append([]string{dir}, flags...), "\x00")))
	cache := filepath.Join(cacheDir(), fmt.Sprintf("%x", id[:8]))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(cache, filepath.Base(importPath)+exeSuffix())
	args := append([]string{"build", "-race=false", "-o", path}, flags...)
	_, err = goCommand(append(args, pkg)...)
	return path, err
}

// cacheDir is where programs are kept from one test run to the next.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "fabrictest")
}

func goCommand(args ...string) (string, error) {
	var out, errOut strings.Builder
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String(), nil
}

func exeSuffix() string {
	if os.PathSeparator == '\\' {
		return ".exe"
	}
	return ""
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	return err
}
