package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"natsfabric/fence"
	"natsfabric/outcome"
)

// Child is a worker that runs as a child process of the one that restarts it. It checks the order's token: once a newer one
// was seen, an order that comes late restarts nothing.
//
// Concurrency: every method may be called from any goroutine.
type Child struct {
	worker string
	make   func() *exec.Cmd
	guard  *fence.Guard
	out    tail

	mu     sync.Mutex
	cmd    *exec.Cmd     // guarded by mu; nil before the first start
	ended  chan struct{} // guarded by mu; closed when cmd has ended
	starts int           // guarded by mu
	closed bool          // guarded by mu
}

// NewChild returns the child of a worker; command makes the process anew for each start. Its standard output and error
// are kept for Collect, beside where command sends them.
func NewChild(worker string, command func() *exec.Cmd) *Child {
	return &Child{worker: worker, make: command, guard: fence.NewGuard("child process of "+worker, "")}
}

// Start starts the process, for the first time or after it has ended. What it has started itself is killed when it ends. An
// error says that nothing was started: the process runs, the child was closed, or the system refused.
func (c *Child) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil && !ended(c.ended) {
		return fmt.Errorf("process %d runs: it is started again once it has ended", c.cmd.Process.Pid)
	}
	return c.startLocked()
}

func (c *Child) startLocked() error {
	if c.closed {
		return errors.New("the child was closed")
	}
	cmd := c.make()
	cmd.Stdout, cmd.Stderr = both(cmd.Stdout, &c.out), both(cmd.Stderr, &c.out)
	inOwnGroup(cmd)
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = time.Second // what it has started may keep its output open
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	c.cmd, c.ended = cmd, ended
	c.starts++
	go func() {
		_ = cmd.Wait() // how it ended is nobody's business here
		// What it left behind ends with it. Later the ID of its group may be somebody else's.
		_ = killGroup(cmd)
		close(ended)
	}()
	return nil
}

// Restart kills the process and what it has started, waits until it is gone, and starts it anew. Broken: the order was
// late, or the process could not be killed. Unknown: it is gone, and could not be started, or ctx ended meanwhile.
func (c *Child) Restart(ctx context.Context, o Order) Result {
	if o.Worker != c.worker {
		return Result{Broken, fmt.Sprintf("this is the child of worker %q", c.worker)}
	}
	touched := false
	err := c.guard.DoToken(ctx, o.Token, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cmd != nil {
			if !ended(c.ended) {
				if err := killGroup(c.cmd); err != nil && !errors.Is(err, os.ErrProcessDone) && !ended(c.ended) {
					return err
				}
			}
			touched = true
			select {
			case <-c.ended:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		touched = true
		return c.startLocked()
	})
	var stale *fence.StaleError
	switch {
	case err == nil:
		return Result{Done, fmt.Sprintf("process %d", c.PID())}
	case errors.As(err, &stale):
		return Result{Broken, clip("refused: "+err.Error(), maxDetail)}
	case touched:
		return Result{Unknown, clip(err.Error(), maxDetail)}
	}
	return Result{Broken, clip(err.Error(), maxDetail)}
}

// Collect returns the end of what the process, and those before it, have written.
func (c *Child) Collect(context.Context, string) (string, error) { return c.out.String(), nil }

// PID is the process's ID, 0 before the first start.
func (c *Child) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Starts counts how often the process was started.
func (c *Child) Starts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts
}

// Signal sends a signal to the process.
func (c *Child) Signal(sig os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return outcome.New("signal", outcome.InvalidOperation, outcome.NotAccepted, c.worker, "the child was never started")
	}
	return c.cmd.Process.Signal(sig)
}

// Close kills the process and what it has started, and waits for it. It may be called any number of times.
func (c *Child) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.cmd == nil {
		return
	}
	if !ended(c.ended) {
		_ = killGroup(c.cmd) // it may be ending
	}
	<-c.ended
}

func ended(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
