package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/channels"
)

// lineTimeout bounds one line's request.
const lineTimeout = 2 * time.Second

// tick is how often the pacer hands out lines and the progress line is written.
const (
	paceTick     = 5 * time.Millisecond
	progressTick = 200 * time.Millisecond
)

// outcomeOf is how one line ended.
type outcomeOf struct {
	verdict    Verdict
	err        error
	reselected int
	refused    int
	ended      int // how many times it ended; the proof demands one
}

// driver sends every line and keeps how each ended.
type driver struct {
	s      *stage
	lines  []string
	out    []outcomeOf // by line number less one; each entry belongs to the worker that has its line
	counts *counts

	sent, failed atomic.Int64
	fate         map[string]string // of each node; written by the fault goroutine, read after it
}

func newDriver(s *stage) *driver {
	return &driver{
		s: s, lines: s.o.Lines, out: make([]outcomeOf, len(s.o.Lines)), counts: newCounts(s, len(s.o.Lines)),
		fate: map[string]string{steadyNode: "served to the end"},
	}
}

// run sends every line, with the faults half way, and returns when the last line has ended.
func (d *driver) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	half := make(chan struct{})
	back := make(chan struct{})

	var workers, others sync.WaitGroup
	for range d.s.o.Concurrency {
		workers.Go(func() {
			for i := range work {
				d.send(ctx, i)
			}
		})
	}
	others.Go(func() {
		defer close(back)
		select {
		case <-half:
		case <-ctx.Done():
			return
		}
		if err := d.faults(ctx); err != nil {
			cancel(err)
		}
	})
	progress, stopProgress := context.WithCancel(ctx)
	others.Go(func() { d.progress(progress) })

	err := d.pace(ctx, work, half, back)
	close(work)
	workers.Wait()
	d.counts.finish(ctx)
	stopProgress()
	others.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// pace hands out the lines at the rate. Half way it lets the faults happen, and it holds the last tenth of the lines
// until the thawed node serves again, so that the table shows it.
func (d *driver) pace(ctx context.Context, work chan<- int, half, back chan struct{}) error {
	halfAt, holdAt := len(d.lines)/2, len(d.lines)-len(d.lines)/10
	ticker := time.NewTicker(paceTick)
	defer ticker.Stop()
	start, counted := time.Now(), 0
	for i := range d.lines {
		switch i {
		case halfAt:
			close(half)
		case holdAt:
			select {
			case <-back:
			case <-ctx.Done():
			}
		}
		for float64(counted) >= time.Since(start).Seconds()*float64(d.s.o.Rate) {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		waiting := time.Now()
		select {
		case work <- i:
			counted++
		case <-ctx.Done():
			return ctx.Err()
		}
		// What could not be sent while every sender waited is not made up for in a burst.
		if stood := time.Since(waiting); stood > 100*time.Millisecond {
			start = start.Add(stood)
		}
	}
	return nil
}

// send sends one line and keeps how it ended.
func (d *driver) send(ctx context.Context, i int) {
	request, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	var trace channels.Trace
	d.sent.Add(1)
	reply, err := d.s.client.Channel(Channel).Request(request, encodeLine(i+1, d.lines[i]), channels.WithTrace(&trace))
	o := &d.out[i]
	o.err, o.reselected, o.refused = err, trace.Reselected, len(trace.Refused)
	if err == nil {
		o.verdict, o.err = decodeVerdict(reply.Data)
	}
	o.ended++
	if o.err == nil {
		d.counts.begin(ctx, i, o.verdict)
	} else {
		d.failed.Add(1)
	}
}

// faults freezes one node and kills another. It returns when the first one, thawed, serves again, and when the objects
// of the second one have been released.
func (d *driver) faults(ctx context.Context) error {
	frozen, killed := d.s.proc(frozenNode), d.s.proc(killedNode)
	if err := frozen.freeze(); err != nil {
		return fmt.Errorf("freeze %s: %w", frozenNode, err)
	}
	frozen.set("frozen")
	d.s.o.Tell("froze %s (SIGSTOP) and killed %s (SIGKILL)", frozenNode, killedNode)
	killed.kill()
	killed.set("killed")
	d.fate[killedNode] = "killed half way"
	released := make(chan error, 1)
	go func() { released <- d.counts.release(ctx, killed) }()
	return errors.Join(d.thaw(ctx, frozen), <-released)
}

// thaw thaws the frozen node after a while, and returns when it serves again.
func (d *driver) thaw(ctx context.Context, frozen *process) error {
	select {
	case <-time.After(FreezeTime):
	case <-ctx.Done():
		return nil // the frozen node is killed with the rest
	}
	if err := frozen.thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", frozenNode, err)
	}
	frozen.set("thawed")
	d.s.o.Tell("thawed %s (SIGCONT) after %v: its lease had ended, it has to become ready again", frozenNode, FreezeTime)
	thawed := time.Now()
	wait, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	if err := d.s.awaitNode(wait, frozenNode); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	took := time.Since(thawed).Round(10 * time.Millisecond)
	frozen.set("ok")
	d.s.o.Tell("%s serves again, %v after the thaw; its objects go on under the same generations", frozenNode, took)
	d.fate[frozenNode] = fmt.Sprintf("frozen for %v, served again %v later", FreezeTime, took)
	return nil
}

// progress writes the progress line until ctx ends.
func (d *driver) progress(ctx context.Context) {
	ticker := time.NewTicker(progressTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		states := make([]string, 0, len(nodes))
		for _, rid := range nodes {
			states = append(states, rid+" "+d.s.proc(rid).status())
		}
		d.s.o.Progress(fmt.Sprintf("%d/%d, %d failed | %s | %s",
			d.sent.Load(), len(d.lines), d.failed.Load(), d.counts.progress(), strings.Join(states, " ")))
	}
}
