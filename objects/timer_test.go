package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/outcome"
)

// Timers run once, in the order of their times, as turns; what is cancelled or set anew does not.
func TestTimers(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	j := &journal{}
	o := h.object(t, "o", j)
	set := func(name string, after time.Duration, data string) {
		t.Helper()
		if err := o.me.SetTimer(name, after, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	// Each but a has to be set, or cancelled, before the first of them is due.
	set("c", 1500*time.Millisecond, "3")
	set("cancelled", 500*time.Millisecond, "no")
	set("a", time.Hour, "no")
	set("b", time.Second, "2")
	set("a", 0, "1")
	if !o.me.CancelTimer("cancelled") || o.me.CancelTimer("cancelled") || o.me.CancelTimer("nobody") {
		t.Error("cancelling says something else")
	}
	eventually(t, func() error {
		if got := fmt.Sprint(j.entries()); got != "[timer a=1 timer b=2 timer c=3]" {
			return errors.New(got)
		}
		return nil
	})
	eventually(t, func() error {
		h.rt.clock.mu.Lock()
		none := o.timers == nil
		h.rt.clock.mu.Unlock()
		if c := h.counts(); c.Timers != 3 || c.Accepted != 0 || o.timerCount() != 0 || !none || h.rt.clock.count() != 0 {
			return fmt.Errorf("counted %+v, %d timers of the object (none: %v), %d of all", c, o.timerCount(), none, h.rt.clock.count())
		}
		return nil
	})
}

// A timer that is due while a turn runs waits in the mailbox, beyond its bounds, and can still be cancelled or set anew.
func TestDueTimerIsMail(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Mailbox: 1})
	gate := make(chan struct{})
	j := &journal{}
	o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "block" {
			<-gate
		}
		return j.Handle(ctx, req)
	}))
	for _, data := range []string{"block", "mail"} {
		if err := h.send(o, data); err != nil {
			t.Fatal(err)
		}
		waitRunning(t, o)
	}
	for _, name := range []string{"runs", "cancelled", "anew"} {
		if err := o.me.SetTimer(name, 0, []byte("1")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if n := h.rt.clock.count(); n != 0 {
			return fmt.Errorf("%d timers are not due", n)
		}
		return nil
	})
	if !o.me.CancelTimer("cancelled") {
		t.Error("a due timer could not be cancelled")
	}
	if err := o.me.SetTimer("anew", time.Millisecond, []byte("2")); err != nil {
		t.Fatal(err)
	}
	close(gate)
	eventually(t, func() error {
		if got := fmt.Sprint(j.entries()); got != "[block mail timer runs=1 timer anew=2]" {
			return errors.New(got)
		}
		return nil
	})
}

// While the lease has lapsed no timer runs. What became due runs after the adoption, and once the object is gone nothing
// does.
func TestTimersStopWithOwnership(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	j := &journal{}
	o := h.object(t, "o", j)
	if err := o.me.SetTimer("x", 500*time.Millisecond, nil); err != nil { // which the lapse has to come before
		t.Fatal(err)
	}
	h.lapse()
	eventually(t, func() error {
		if h.rt.snapshot().Queued != 1 {
			return errors.New("the due timer does not wait")
		}
		return nil
	})
	if len(j.entries()) != 0 {
		t.Errorf("ran %v while the lease had lapsed", j.entries())
	}
	// The adoption fails once: the timer is tried again.
	failed := make(chan struct{}, 1)
	h.mu.Lock()
	h.onAdopt = func(context.Context, *object) error {
		select {
		case failed <- struct{}{}:
			return errors.New("store down")
		default:
			return nil
		}
	}
	h.mu.Unlock()
	h.regain()
	eventually(t, func() error {
		if got := fmt.Sprint(j.entries()); got != "[timer x=]" {
			return errors.New(got)
		}
		return nil
	})
	if h.adoptions("o") != 2 {
		t.Errorf("adopted %d times", h.adoptions("o"))
	}
	if err := o.me.SetTimer("y", 0, nil); err != nil {
		t.Fatal(err)
	}
	h.rt.drop(o, errClosed(o))
	if h.rt.clock.count() != 0 {
		t.Error("a timer outlives its object")
	}
	wantOutcome(t, o.me.SetTimer("z", 0, nil), outcome.Unavailable, outcome.NotAccepted)
}

// Timers are bounded, and wrong ones are refused.
func TestTimerBounds(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", MailboxBytes: 10})
	o := h.object(t, "o", echo)
	for _, c := range []struct {
		name  string
		after time.Duration
		data  int
		kind  outcome.Kind
	}{
		{"", 0, 0, outcome.InvalidOperation}, {strings.Repeat("x", 256), 0, 0, outcome.InvalidOperation},
		{"a", -1, 0, outcome.InvalidOperation}, {"a", 0, 11, outcome.CapacityExceeded},
	} {
		wantOutcome(t, o.me.SetTimer(c.name, c.after, make([]byte, c.data)), c.kind, outcome.NotAccepted)
	}
	for i := range MaxTimers {
		if err := o.me.SetTimer(fmt.Sprint(i), time.Hour, nil); err != nil {
			t.Fatal(err)
		}
	}
	wantOutcome(t, o.me.SetTimer("one more", time.Hour, nil), outcome.CapacityExceeded, outcome.NotAccepted)
	if err := o.me.SetTimer("7", time.Hour, nil); err != nil {
		t.Error(err)
	}
}
