package fence

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// selfFenceChild is the process of a node whose lease is lost while a turn does not end.
func selfFenceChild() {
	f, err := NewSelfFencer(SelfFence{After: 200 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	f.Lost("no renewal", func() int { return 1 })
	<-time.After(time.Minute) // the turn that hears nothing
	fmt.Println("still here")
}

// stopsItself is FE-13 with a real process.
func stopsItself(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FENCE_TEST_CHILD=selffence")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != SelfFenceExit {
		t.Fatalf("the process ended with %v: %s", err, out)
	}
}

// It is not stopped when the turns end in time or the lease comes back, and once at most. The time is the bubble's own.
func TestSelfFencer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 15*selfFenceLook + selfFenceLook/2
		var did, running atomic.Int32
		f, err := NewSelfFencer(SelfFence{After: after, Do: func(string) { did.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		count := func() int { return int(running.Load()) }
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		want := func(n int32, what string) {
			t.Helper()
			if did.Load() != n {
				t.Fatalf("%s: stopped %d times, want %d", what, did.Load(), n)
			}
		}

		running.Store(2)
		f.Lost("1", count)
		pass(after - time.Millisecond)
		running.Store(0) // between the last look and the end
		pass(2 * after)
		want(0, "the turns have ended")

		running.Store(1)
		f.Lost("2", count)
		pass(after / 2)
		f.Regained()
		pass(2 * after)
		want(0, "the lease came back")

		f.Lost("3", count)
		pass(after / 2)
		f.Lost("3 again", count)
		pass(after/2 - time.Millisecond)
		want(0, "its time is not over")
		pass(2 * time.Millisecond)
		want(1, "its time is over")
		pass(2 * after)
		want(1, "it was lost twice")

		f.Lost("4", count)
		f.Close()
		f.Close()
		pass(2 * after)
		f.Lost("5", count)
		pass(2 * after)
		want(1, "it was closed")
		if _, err := NewSelfFencer(SelfFence{After: -1}); err == nil {
			t.Fatal("a time below 0 is allowed")
		}
	})
}
