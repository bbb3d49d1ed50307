package bed

import (
	"context"
	"sync"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
)

// Caller issues operations and records each of them.
type Caller struct {
	*history.Recorder
	via interface {
		Channel(name string) *channels.Channel
	}
	wg sync.WaitGroup
}

// NewCaller returns a caller that goes through via, a client or a node. The test waits for its operations at its end.
func NewCaller(t testing.TB, name string, via interface {
	Channel(name string) *channels.Channel
}) *Caller {
	c := &Caller{Recorder: history.NewRecorder(name), via: via}
	t.Cleanup(c.wg.Wait)
	return c
}

// Do says which operation is meant.
type Do struct {
	// RID names a node; empty for select-one.
	RID string
	// Send waits for acceptance only, Early asks for the notice.
	Send, Early bool
	// Channel is the channel; empty for that of the members.
	Channel string
	// Timeout bounds the operation. Default 5 s.
	Timeout time.Duration
	// Context is the caller's; Background when nil.
	Context context.Context
	Job     job.Job
}

func (d *Do) way() history.Way {
	switch {
	case d.Send:
		return history.Send
	case d.RID != "":
		return history.Direct
	case d.Early:
		return history.Early
	}
	return history.Request
}

// Call runs the operation to its end.
func (c *Caller) Call(t testing.TB, d Do) history.Op {
	t.Helper()
	return c.Get(c.run(d, c.begin(&d)))
}

// Go runs the operation beside the test and returns its identity; Wait waits for it.
func (c *Caller) Go(t testing.TB, d Do) string {
	t.Helper()
	id := c.begin(&d)
	c.wg.Go(func() { c.run(d, id) })
	return id
}

// Wait waits for everything that Go began.
func (c *Caller) Wait() { c.wg.Wait() }

func (c *Caller) begin(d *Do) string {
	if d.Timeout == 0 {
		d.Timeout = 5 * time.Second
	}
	if d.Context == nil {
		d.Context = context.Background()
	}
	if d.Channel == "" {
		d.Channel = Channel
	}
	return c.Begin(d.way(), d.RID, time.Now().Add(d.Timeout))
}

func (c *Caller) run(d Do, id string) string {
	ctx, cancel := context.WithTimeout(d.Context, d.Timeout)
	defer cancel()
	var trace channels.Trace
	opts := []channels.CallOption{channels.WithTrace(&trace)}
	if d.Early {
		opts = append(opts, channels.WithEarlyAcceptance())
	}
	d.Job.ID = id
	if d.Job.Do == "" {
		d.Job.Do = job.Reply
	}
	data := d.Job.Encode()
	ch := c.via.Channel(d.Channel)
	var reply channels.Reply
	var err error
	switch {
	case d.Send && d.RID != "":
		err = ch.At(d.RID).Send(ctx, data, opts...)
	case d.Send:
		err = ch.Send(ctx, data, opts...)
	case d.RID != "":
		reply, err = ch.At(d.RID).Request(ctx, data, opts...)
	default:
		reply, err = ch.Request(ctx, data, opts...)
	}
	c.End(id, reply.Data, err, trace)
	return id
}

// Steady issues one operation after the other, pause apart, until the returned function is called, which waits for the
// last one. The operations are chosen by next, by number.
func (c *Caller) Steady(workers int, pause time.Duration, next func(n int) Do) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := w; ; n += workers {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				d := next(n)
				c.run(d, c.begin(&d))
			}
		})
	}
	return sync.OnceFunc(func() { close(done); wg.Wait() })
}
