package objects

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/outcome"
)

// A drain lets what was accepted run, with what that calls at this node, and takes nothing new.
func TestDrain(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	gate := make(chan struct{})
	inner := h.object(t, "inner", echo)
	o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
		<-gate
		got, err := h.request(ctx, inner, "from within")
		return Reply{Data: []byte(got)}, err
	}))
	results := make(chan error, 2)
	for range 2 {
		go func() {
			got, err := h.request(context.Background(), o, "")
			if err == nil && got != "from within" {
				err = fmt.Errorf("got %q", got)
			}
			results <- err
		}()
	}
	waitRunning(t, o)
	waitMail(t, o, 1)
	if err := o.me.SetTimer("x", 0, nil); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := h.rt.drain(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a drain that cannot end: %v", err)
	}
	wantOutcome(t, h.send(inner, "new"), outcome.ShuttingDown, outcome.NotAccepted)
	if because := inner.offer(newRemote(newInbound("new"))); because != whyDraining || because.refusal("", "", true).Kind != outcome.Unavailable {
		t.Errorf("refused with %d", because)
	}
	close(gate)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	for range 2 {
		if err := h.rt.drain(ctx); err != nil {
			t.Error(err)
		}
		if err := within(t, results, "what was accepted"); err != nil {
			t.Error(err)
		}
	}
	if err := o.between(context.Background(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("a turn of the framework after the drain: %v", err)
	}
}

// A stop while handlers block: their contexts end, what waits ends with a stated cause, and a handler that ignores its
// context is not waited for longer than the caller wants.
func TestStopWhileBusy(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2, Type{Name: "t"})
	gate := make(chan struct{})
	var cause atomic.Value
	deaf := h.object(t, "deaf", handle(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{Data: []byte("late")}, nil }))
	good := h.object(t, "good", handle(func(ctx context.Context, _ *Request) (Reply, error) {
		<-ctx.Done()
		cause.Store(context.Cause(ctx))
		return Reply{}, nil
	}))
	queued := h.object(t, "queued", echo)
	running, waiting := make(chan error, 2), make(chan error, 3)
	for i, o := range []*object{deaf, good} {
		go func() { _, err := h.request(context.Background(), o, ""); running <- err }()
		waitRunning(t, o)
		go func() { _, err := h.request(context.Background(), o, ""); waiting <- err }()
		waitMail(t, o, 1)
		_ = i
	}
	go func() { _, err := h.request(context.Background(), queued, ""); waiting <- err }()
	waitMail(t, queued, 1)
	brief, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := h.rt.stop(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a stop that cannot end: %v", err)
	}
	for range 3 {
		wantOutcome(t, within(t, waiting, "what waits"), outcome.ShuttingDown, outcome.Accepted)
	}
	if err := within(t, running, "the turn that heeds its context"); err != nil {
		t.Error(err)
	}
	if cause.Load() != errStopped {
		t.Errorf("the context ended with %v", cause.Load())
	}
	close(gate)
	if err := within(t, running, "the turn that does not"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	for range 2 {
		if err := h.rt.stop(ctx); err != nil {
			t.Error(err)
		}
	}
	wantOutcome(t, h.send(good, ""), outcome.ShuttingDown, outcome.NotAccepted)
	if c := h.counts(); c.Accepted != 5 || c.Run != 2 || c.Dropped != 3 || c.Owned != 0 {
		t.Errorf("counted %+v", c)
	}
}

// A stop while the lease has lapsed ends what waits for its return.
func TestStopWhileLapsed(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2, Type{Name: "t"})
	o := h.object(t, "o", handle(func(ctx context.Context, _ *Request) (Reply, error) { <-ctx.Done(); return Reply{}, nil }))
	errs := make(chan error, 2)
	go func() { _, err := h.request(context.Background(), o, ""); errs <- err }()
	waitRunning(t, o)
	go func() { _, err := h.request(context.Background(), o, ""); errs <- err }()
	waitMail(t, o, 1)
	h.lapse()
	wantOutcome(t, within(t, errs, "the running turn"), outcome.Unavailable, outcome.Accepted)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if err := h.rt.stop(ctx); err != nil {
		t.Error(err)
	}
	wantOutcome(t, within(t, errs, "what waits"), outcome.ShuttingDown, outcome.Accepted)
}
