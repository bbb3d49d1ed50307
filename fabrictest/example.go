package fabrictest

import (
	"fmt"
	"os"
	"testing"
)

// Example calls f with a testing.TB that works outside of a test: in a testable
// example, or in a program that wants a throw-away server. Cleanups run when f
// has returned; Fatal and its like panic after the cleanups.
func Example(f func(t testing.TB)) {
	t := &exampleTB{}
	defer t.cleanup()
	f(t)
}

// exampleTB is a testing.TB for one goroutine. What it does not override is
// nil and panics: skipping, environment, attributes.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (t *exampleTB) cleanup() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		f := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		defer t.cleanup() // the others run even when f panics
		f()
	}
}

func (t *exampleTB) Cleanup(f func())          { t.cleanups = append(t.cleanups, f) }
func (t *exampleTB) Helper()                   {}
func (t *exampleTB) Name() string              { return "Example" }
func (t *exampleTB) Failed() bool              { return false }
func (t *exampleTB) Log(args ...any)           { fmt.Fprintln(os.Stderr, args...) }
func (t *exampleTB) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (t *exampleTB) Error(args ...any)         { panic(fmt.Sprint(args...)) }
func (t *exampleTB) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (t *exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (t *exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func (t *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "fabrictest-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
