package fence

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
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

// It is not stopped when the turns end in time or the lease comes back, and once at most.
func TestSelfFencer(t *testing.T) {
	t.Parallel()
	var did, running atomic.Int32
	f, err := NewSelfFencer(SelfFence{After: 300 * time.Millisecond, Do: func(string) { did.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	count := func() int { return int(running.Load()) }

	running.Store(2)
	f.Lost("1", count)
	running.Store(0)
	f.done.Wait()
	if did.Load() != 0 {
		t.Fatal("stopped although the turns have ended")
	}

	running.Store(1)
	f.Lost("2", count)
	f.Regained()
	f.done.Wait()
	if did.Load() != 0 {
		t.Fatal("stopped although the lease came back")
	}

	f.Lost("3", count)
	f.Lost("3 again", count)
	fabrictest.Eventually(t, 10*time.Second, "the node to stop itself", func() bool { return did.Load() > 0 })
	f.done.Wait()
	if did.Load() != 1 {
		t.Fatalf("stopped %d times", did.Load())
	}

	f.Lost("4", count)
	f.Close()
	f.Close()
	f.Lost("5", count)
	if did.Load() != 1 {
		t.Fatal("stopped after Close")
	}
	if _, err := NewSelfFencer(SelfFence{After: -1}); err == nil {
		t.Fatal("a time below 0 is allowed")
	}
}
