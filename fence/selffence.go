package fence

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// DefaultSelfFence is how long turns may go on after the lease was lost, unless SelfFence says otherwise.
const DefaultSelfFence = 10 * time.Second

// SelfFenceExit is the exit code of a process that has stopped itself.
const SelfFenceExit = 75

// SelfFence is what a node does about itself when its lease is lost and its running turns do not end (FE-13): a turn that
// ignores its cancelled context may go on to act on what the node no longer owns, and only the end of the process stops
// what no guard checks.
type SelfFence struct {
	// After is how long the turns may take to end after the lease was lost. 0 means DefaultSelfFence.
	After time.Duration
	// Do stops the process. Nil writes the reason to standard error and exits with SelfFenceExit, without any of the
	// orderly steps that a hung process could hang in.
	Do func(reason string)
}

// SelfFencer watches over one node.
//
// Concurrency: its methods may be called from any goroutine.
type SelfFencer struct {
	cfg SelfFence

	mu    sync.Mutex
	stop  chan struct{} // guarded by mu; ends the present countdown; nil without one
	done  sync.WaitGroup
	close bool // guarded by mu
}

// NewSelfFencer returns one that counts nothing yet. The error is of the configuration.
func NewSelfFencer(cfg SelfFence) (*SelfFencer, error) {
	if cfg.After < 0 {
		return nil, fmt.Errorf("SelfFence.After %v is not allowed: it must be 0 for %v, or above", cfg.After, DefaultSelfFence)
	}
	if cfg.After == 0 {
		cfg.After = DefaultSelfFence
	}
	if cfg.Do == nil {
		cfg.Do = func(reason string) {
			fmt.Fprintln(os.Stderr, reason)
			os.Exit(SelfFenceExit)
		}
	}
	return &SelfFencer{cfg: cfg}, nil
}

// selfFenceLook is how often the running turns are counted.
const selfFenceLook = 20 * time.Millisecond

// Lost says that the lease was lost for the given reason. running returns how many turns run; it must not block. When they
// have not all ended after SelfFence.After, SelfFence.Do is called, once. A second Lost while the first one counts changes
// nothing.
func (f *SelfFencer) Lost(reason string, running func() int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop != nil || f.close {
		return
	}
	stop := make(chan struct{})
	f.stop = stop
	f.done.Go(func() {
		if f.count(stop, running) {
			f.cfg.Do(fmt.Sprintf("fence: the node stops itself: its lease was lost (%s), and %d turns have not ended within %v", reason, running(), f.cfg.After))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.stop == stop {
			f.stop = nil
		}
	})
}

// count reports whether turns still run when the time is up.
func (f *SelfFencer) count(stop <-chan struct{}, running func() int) bool {
	end := time.NewTimer(f.cfg.After)
	defer end.Stop()
	look := time.NewTicker(selfFenceLook)
	defer look.Stop()
	for running() > 0 {
		select {
		case <-stop:
			return false
		case <-look.C:
		case <-end.C:
			return running() > 0
		}
	}
	return false
}

// Regained says that the lease is held again: a turn that still runs is adopted with its object, or refused by what it
// does next.
func (f *SelfFencer) Regained() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.halt()
}

func (f *SelfFencer) halt() {
	if f.stop != nil {
		close(f.stop)
		f.stop = nil
	}
}

// Close ends a countdown and waits for it. It may be called any number of times, but not by SelfFence.Do.
func (f *SelfFencer) Close() {
	f.mu.Lock()
	f.close = true
	f.halt()
	f.mu.Unlock()
	f.done.Wait()
}
