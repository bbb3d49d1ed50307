package objects

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// An object that closes itself ends after its turn; what comes meanwhile is refused, and when the close fails it goes
// on and tries again.
func TestCloseItself(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	var fails atomic.Int32
	fails.Store(1)
	closing := make(chan struct{}, 10)
	gate := make(chan struct{})
	h.onClose = func(context.Context, *object, CloseReason) error {
		closing <- struct{}{}
		<-gate
		if fails.Add(-1) >= 0 {
			return errors.New("store down")
		}
		return nil
	}
	c := &closer{}
	o := h.object(t, "o", c)
	if _, err := h.request(context.Background(), o, "close"); err != nil {
		t.Fatal(err)
	}
	within(t, closing, "the first close")
	kept := make(chan error, 1)
	go func() { _, err := h.request(context.Background(), o, "kept"); kept <- err }()
	waitMail(t, o, 1)
	gate <- struct{}{}
	if err := within(t, kept, "the message while a close failed"); err != nil {
		t.Error(err)
	}
	within(t, closing, "the second close")
	refused := newInbound("refused")
	o.offer(newRemote(refused))
	gate <- struct{}{}
	err := within(t, refused.failed, "the message during the close")
	wantOutcome(t, err, outcome.Unavailable, outcome.NotAccepted)
	if refused.accepted.Load() {
		t.Error("it was accepted")
	}
	if why, ok := h.closedWhy("o"); !ok || why != CloseSelf || c.why.Load() != CloseSelf {
		t.Errorf("closed by %q, the object heard %v", why, c.why.Load())
	}
}

// closer closes itself when it is told, and hears why it is closed.
type closer struct{ why atomic.Value }

func (c *closer) Handle(_ context.Context, req *Request) (Reply, error) {
	if string(req.Data()) == "close" {
		req.Self().Close()
		req.Self().Close()
	}
	return Reply{}, nil
}

func (c *closer) Closing(ctx context.Context, _ *Self, why CloseReason) error {
	if _, err := fence.FromContext(ctx); err != nil {
		return err
	}
	c.why.Store(why)
	return nil
}

// An idle Instance Spot is closed; one that has turns is not.
func TestIdleRemoval(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Class: kvlocation.ClassInstanceSpot, IdleAfter: 200 * time.Millisecond})
	gate := make(chan struct{})
	busy := h.object(t, "busy", handle(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{}, nil }))
	ended := make(chan error, 1)
	go func() { _, err := h.request(context.Background(), busy, ""); ended <- err }()
	waitRunning(t, busy)
	begun := time.Now()
	idle := h.object(t, "idle", echo)
	if _, err := h.request(context.Background(), idle, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if why, ok := h.closedWhy("idle"); !ok || why != CloseIdle {
			return fmt.Errorf("closed: %v, %q", ok, why)
		}
		return nil
	})
	if since := time.Since(begun); since < 100*time.Millisecond {
		t.Errorf("closed after %v", since)
	}
	if _, ok := h.closedWhy("busy"); ok {
		t.Error("closed within a turn")
	}
	close(gate)
	if err := within(t, ended, "the turn"); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		if _, ok := h.closedWhy("busy"); !ok {
			return errors.New("what has become idle is still open")
		}
		if n := h.rt.clock.count(); n != 0 {
			return fmt.Errorf("%d timers are left", n)
		}
		return nil
	})
}

// dueNow makes the time of a timer come.
func (c *clock) dueNow(t *timer) {
	c.mu.Lock()
	heap.Remove(&c.heap, t.index)
	t.state, t.due = timerDue, tick()
	c.mu.Unlock()
	c.fire(t)
}

// What had a turn a moment ago is not idle, nor is what has one: the look at it closes it only after its time.
func TestIdleIsMeasuredFromTheLastTurn(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Class: kvlocation.ClassInstanceSpot, IdleAfter: time.Hour})
	o := h.object(t, "o", echo)
	rests := func(o *object) {
		t.Helper()
		eventually(t, func() error {
			if _, ok := o.idleSince(); !ok {
				return errors.New("busy")
			}
			return nil
		})
	}
	look := func(since time.Duration) {
		t.Helper()
		rests(o)
		o.mu.Lock()
		o.idle = tick().add(-since)
		o.mu.Unlock()
		h.rt.clock.dueNow(o.timers.own[0])
	}
	look(time.Hour - time.Minute)
	if c := h.rt.clock; c.count() != 1 || c.heap[0].due > tick().add(time.Minute) {
		t.Error("the next look is not when its time is over")
	}
	if _, err := h.request(context.Background(), o, ""); err != nil {
		t.Fatal(err)
	}
	look(time.Hour)
	eventually(t, func() error {
		if why, ok := h.closedWhy("o"); !ok || why != CloseIdle {
			return errors.New("not closed")
		}
		return nil
	})
	gate := make(chan struct{})
	busy := h.object(t, "busy", handle(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{}, nil }))
	ended := make(chan error, 1)
	go func() { _, err := h.request(context.Background(), busy, ""); ended <- err }()
	waitRunning(t, busy)
	h.rt.clock.dueNow(busy.timers.own[0])
	close(gate)
	if err := within(t, ended, "the turn"); err != nil {
		t.Error(err)
	}
	rests(busy)
	if _, err := h.request(context.Background(), busy, ""); err != nil {
		t.Errorf("after a look within a turn: %v", err)
	}
}

// An idle close that finds mail does not begin, and one that fails is not tried again before the object is idle again.
func TestIdleCloseGivesWay(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Class: kvlocation.ClassInstanceSpot, IdleAfter: time.Hour})
	j := &journal{}
	o := h.object(t, "o", j)
	gate := make(chan struct{})
	errs := make(chan error, 2)
	go func() { errs <- o.between(context.Background(), func(context.Context) error { <-gate; return nil }) }()
	waitRunning(t, o)
	reason := CloseIdle
	o.closing.Store(&reason) // as stillIdle leaves it, with mail that comes behind
	go func() { _, err := h.request(context.Background(), o, "behind"); errs <- err }()
	waitMail(t, o, 1)
	close(gate)
	for range 2 {
		if err := within(t, errs, "the mail"); err != nil {
			t.Error(err)
		}
	}
	if _, ok := h.closedWhy("o"); ok {
		t.Error("closed with mail in its box")
	}
	failed := make(chan struct{}, 1)
	h.mu.Lock()
	h.onClose = func(context.Context, *object, CloseReason) error {
		failed <- struct{}{}
		return errors.New("store down")
	}
	h.mu.Unlock()
	o.askClose(CloseIdle)
	within(t, failed, "the close")
	if _, err := h.request(context.Background(), o, "after"); err != nil {
		t.Error(err)
	}
	if n := h.rt.clock.count(); n != 1 { // the look at its idleness
		t.Errorf("%d timers", n)
	}
}

// exits ends its goroutine in its callbacks.
type exits struct {
	journal
	activations atomic.Int32
}

func (x *exits) Activate(context.Context, *Self) error {
	if x.activations.Add(1) == 1 {
		goruntime.Goexit()
	}
	return nil
}

func (x *exits) Closing(context.Context, *Self, CloseReason) error { goruntime.Goexit(); return nil }

// A callback that ends its goroutine has failed, like one that panics: nothing is lost, and nothing stays half done.
func TestCallbacksThatExit(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	x := &exits{}
	o := h.creating(t, "o")
	first := newInbound("first")
	o.open(x, 1, 1, h.lease.Load(), newRemote(first))
	wantOutcome(t, within(t, first.failed, "the first message's end"), outcome.Unavailable, outcome.Accepted)
	if _, err := h.request(context.Background(), o, "second"); err != nil {
		t.Error(err)
	}
	closing := make(chan struct{}, 10)
	h.mu.Lock()
	h.onClose = func(context.Context, *object, CloseReason) error { closing <- struct{}{}; return nil }
	h.mu.Unlock()
	o.askClose(CloseAsked)
	within(t, closing, "the close") // the host's gives up when Closing fails
	if _, err := h.request(context.Background(), o, "third"); err != nil {
		t.Error(err)
	}
	within(t, closing, "the close that is tried again")
	if got := fmt.Sprint(x.entries()); got != "[second third]" {
		t.Errorf("ran %s", got)
	}
	if c := h.counts(); c.Accepted != 3 || c.Run != 2 || c.Dropped != 1 || c.Panics < 2 {
		t.Errorf("counted %+v", c)
	}
}

// A one-way message that was held and accepted counts as accepted: a close that fails, or one that succeeds, does not
// make it disappear.
func TestAcceptedWhileHeld(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	var closes atomic.Int32
	h.onClose = func(context.Context, *object, CloseReason) error {
		if closes.Add(1) == 1 {
			return errors.New("the store does not answer")
		}
		return nil
	}
	j := &journal{}
	o := h.creating(t, "o")
	errs := make(chan error, 2)
	for i, data := range []string{"close", "behind"} {
		go func() { errs <- h.send(o, data) }()
		waitMail(t, o, i+1)
	}
	o.open(handle(func(ctx context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "close" {
			req.Self().Close()
		}
		return j.Handle(ctx, req)
	}), 11, 1, h.lease.Load(), nil)
	for range 2 {
		if err := within(t, errs, "the acceptance"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if c := h.counts(); c.Accepted != 2 || c.Run != 2 || closes.Load() != 2 {
			return fmt.Errorf("%d closes, counted %+v", closes.Load(), c)
		}
		return nil
	})
	if got := fmt.Sprint(j.entries()); got != "[close behind]" {
		t.Errorf("ran %s", got)
	}
}

// A message whose notice is being sent is ended once, whatever happens to its object meanwhile: a close that fails, and
// a drop while that is being put right.
func TestNoticeDuringAClose(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	o := h.object(t, "o", &journal{})
	closing, fail := make(chan struct{}), make(chan struct{})
	h.mu.Lock()
	h.onClose = func(context.Context, *object, CloseReason) error {
		close(closing)
		<-fail
		return errors.New("store down")
	}
	h.mu.Unlock()
	first := slowNotice{newInbound("first"), make(chan struct{}), make(chan struct{})}
	offered := make(chan why, 2)
	go func() { offered <- o.offer(newRemote(first)) }()
	within(t, first.begun, "the first notice")
	reason := CloseSelf
	o.closing.Store(&reason)
	go func() { offered <- whyNot; o.offerOwn(mailClose) }()
	// The mail that asks for the close stands behind the first message, whose notice is not out: no turn begins.
	eventually(t, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.box.tail == nil || o.box.tail.kind != mailClose {
			return errors.New("not asked")
		}
		return nil
	})
	close(first.end)
	within(t, closing, "the close")
	held := slowNotice{newInbound("held"), make(chan struct{}), make(chan struct{})}
	if because := o.offer(newRemote(held)); because != whyNot {
		t.Fatal(because)
	}
	close(fail)
	within(t, held.begun, "the notice of what was held")
	h.rt.drop(o, errClosed(o))
	close(held.end)
	wantOutcome(t, within(t, held.failed, "the end of what was held"), outcome.Unavailable, outcome.Accepted)
	for range 2 {
		within(t, offered, "the offers")
	}
	if c := h.counts(); c.Accepted != 2 || c.Run+c.Dropped != 2 {
		t.Errorf("counted %+v", c)
	}
	if len(held.failed)+len(held.replied) != 0 {
		t.Error("answered twice")
	}
}
