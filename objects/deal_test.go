package objects

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// The lease lapses in the middle of a turn: the turn's context ends with ErrOwnershipLost, it has no token and may call
// nobody, nothing new runs, and its result goes out only if the object is adopted by then.
func TestLapseInATurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		regain   bool
		adopt    error
		wantOut  bool
		dropped  bool
		adoptedN int
	}{
		{name: "not regained"},
		{name: "regained and adopted", regain: true, wantOut: true, adoptedN: 1},
		{name: "regained, adoption fails", regain: true, adopt: errors.New("store down"), adoptedN: 1},
		{name: "regained, lost", regain: true, adopt: errLost, dropped: true, adoptedN: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, 10, Type{Name: "t"})
			h.onAdopt = func(context.Context, *object) error { return c.adopt }
			gate, ended := make(chan struct{}), make(chan struct{})
			other := h.object(t, "other", echo)
			o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
				if string(req.Data()) == "behind" {
					return Reply{}, nil
				}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), kvlocation.ErrOwnershipLost) {
					t.Errorf("the context ended with %v", context.Cause(ctx))
				}
				token, err := fence.FromContext(ctx)
				if outcome.KindOf(err) != outcome.Unavailable || token.IsZero() {
					t.Errorf("token %v, %v", token, err)
				}
				_, err = h.request(context.WithoutCancel(ctx), req.Self().o, "from a lost turn")
				wantOutcome(t, err, outcome.Unavailable, outcome.NotAccepted)
				if err := req.Self().SetTimer("x", 0, nil); outcome.KindOf(err) != outcome.Unavailable {
					t.Errorf("a timer while ownership is lost: %v", err)
				}
				close(ended)
				<-gate
				if token, err := fence.FromContext(ctx); outcome.KindOf(err) != outcome.Unavailable || token.IsZero() {
					t.Errorf("after the lease came back, or did not: token %v, %v", token, err)
				}
				_, err = h.request(context.WithoutCancel(ctx), other, "from a lost turn")
				wantOutcome(t, err, outcome.Unavailable, outcome.NotAccepted)
				return Reply{Data: []byte("result")}, nil
			}))
			running, behind := make(chan error, 1), make(chan error, 1)
			var got atomic.Value
			go func() {
				r, err := h.request(context.Background(), o, "runs")
				got.Store(r)
				running <- err
			}()
			waitRunning(t, o)
			go func() { _, err := h.request(context.Background(), o, "behind"); behind <- err }()
			waitMail(t, o, 1)
			h.lapse()
			h.rt.admitted.Store(int64(tick().add(time.Hour))) // as if the lease had said yes a moment ago
			within(t, ended, "the end of the context")
			wantOutcome(t, h.send(o, "while lapsed"), outcome.Unavailable, outcome.NotAccepted)
			if c.regain {
				h.regain()
			}
			close(gate)
			err := within(t, running, "the turn's end")
			if c.wantOut != (err == nil) || c.wantOut != (got.Load() == "result") {
				t.Errorf("got %v, %v", got.Load(), err)
			}
			if !c.wantOut {
				wantOutcome(t, err, outcome.Unavailable, outcome.Accepted)
				if n := h.counts().Withheld; n != 1 {
					t.Errorf("%d results were withheld", n)
				}
			}
			if !c.regain { // what waits goes on waiting, and runs once the object is adopted
				select {
				case err := <-behind:
					t.Fatalf("what waits ended: %v", err)
				default:
				}
				h.onAdopt = nil
				h.regain()
			}
			err = within(t, behind, "what was behind")
			if c.adopt == nil && err != nil || c.adopt != nil && outcome.KindOf(err) != outcome.Unavailable {
				t.Errorf("what was behind: %v", err)
			}
			if gone := h.rt.find(kvlocation.KindActor, "o") == nil; gone != c.dropped {
				t.Errorf("dropped: %v", gone)
			}
		})
	}
}

// A lapse that nobody has told of yet is noticed by the turns themselves.
func TestLapseNoticedByTurns(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	o := h.object(t, "o", echo)
	if _, err := h.request(context.Background(), o, ""); err != nil {
		t.Fatal(err)
	}
	h.lapsed.Store(true)
	eventually(t, func() error { // the lease's word is good for a moment
		err := h.send(o, "")
		if err == nil {
			return errors.New("mail is still taken")
		}
		wantOutcome(t, err, outcome.Unavailable, outcome.NotAccepted)
		return nil
	})
	eventually(t, func() error {
		if n, _ := o.waiting(); n == 0 {
			return errors.New("the mail of the lapse ran")
		}
		return nil
	})
	h.rt.lapse()
	if c := h.counts(); c.Run == c.Accepted {
		t.Errorf("everything ran: %+v", c)
	}
	h.regain()
	eventually(t, func() error {
		if c := h.counts(); c.Run != c.Accepted {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
	if n := h.adoptions("o"); n != 1 {
		t.Errorf("adopted %d times", n)
	}
}

// A request to an object here is refused once the lease refuses, also when nobody has told of the lapse and no turn has
// noticed it.
func TestRequestAsksTheLease(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	o := h.object(t, "o", echo)
	h.lapsed.Store(true)
	h.rt.admitted.Store(0)
	_, err := h.request(context.Background(), o, "")
	wantOutcome(t, err, outcome.Unavailable, outcome.NotAccepted)
	if c := h.counts(); c.RefusedLapsed != 1 || c.Accepted != 0 {
		t.Errorf("counted %+v", c)
	}
}

// Many lapses while everything is busy: nothing runs in between, nothing is lost, every object is adopted before its
// next turn, and its activation runs again.
func TestLapsesUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHost(t, 4, Type{Name: "t"})
	var objects []*object
	var lastLease [32]atomic.Uint64
	for i := range len(lastLease) {
		o := h.creating(t, fmt.Sprint(i))
		o.open(&witness{handle: func() {
			if o.lease.Load() != lastLease[i].Load() {
				t.Errorf("a turn under lease %d, activated under %d", o.lease.Load(), lastLease[i].Load())
			}
		}, activate: func() { lastLease[i].Store(o.lease.Load()) }}, 1, 1, h.lease.Load(), nil)
		objects = append(objects, o)
	}
	stop := make(chan struct{})
	done := make(chan [2]int, 4)
	for s := range cap(done) {
		go func() {
			var ok, other int
			for i := s; ; i++ {
				select {
				case <-stop:
					done <- [2]int{ok, other}
					return
				default:
				}
				_, err := h.request(context.Background(), objects[i%len(objects)], "")
				switch {
				case err == nil:
					ok++
				case errors.Is(err, outcome.Unavailable):
					other++
				default:
					t.Error(err)
				}
			}
		}()
	}
	for n := range uint64(20) {
		eventually(t, func() error {
			if c := h.counts(); c.Run < 200*(n+1) {
				return fmt.Errorf("%d turns", c.Run)
			}
			return nil
		})
		h.lapse()
		h.regain()
	}
	close(stop)
	for range cap(done) {
		if d := within(t, done, "a caller"); d[0] == 0 {
			t.Errorf("%d answers, %d refusals", d[0], d[1])
		}
	}
	if c := h.counts(); c.Accepted != c.Run+c.Expired+c.Dropped {
		t.Errorf("counted %+v", c)
	}
}

// witness looks at its turns and activations.
type witness struct {
	handle, activate func()
}

func (w *witness) Handle(context.Context, *Request) (Reply, error) { w.handle(); return Reply{}, nil }
func (w *witness) Activate(context.Context, *Self) error           { w.activate(); return nil }

// While the activation fails no turn runs; what waits ends, and the next message tries again.
func TestActivationFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	a := &activated{}
	a.fail.Store(true)
	o := h.creating(t, "o")
	first := newInbound("first")
	o.open(a, 1, 1, h.lease.Load(), newRemote(first))
	err := within(t, first.failed, "the first message's end")
	wantOutcome(t, err, outcome.Unavailable, outcome.Accepted)
	if !first.accepted.Load() {
		t.Error("it was not accepted")
	}
	_, err = h.request(context.Background(), o, "again")
	wantOutcome(t, err, outcome.Unavailable, outcome.Accepted)
	a.fail.Store(false)
	if _, err := h.request(context.Background(), o, "at last"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(a.entries()); got != "[activate 1 1 at last]" {
		t.Errorf("ran %s", got)
	}
	if c := h.counts(); c.Accepted != 3 || c.Run != 1 || c.Dropped != 2 {
		t.Errorf("counted %+v", c)
	}
}

// The framework's turns stand in the mailbox's order, also when it is full, and give back their own errors.
func TestBetween(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Mailbox: 1})
	gate := make(chan struct{})
	j := &journal{}
	o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
		<-gate
		return j.Handle(ctx, req)
	}))
	for i := range 2 {
		if err := h.send(o, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			waitRunning(t, o)
		}
	}
	if err := h.send(o, "full"); !errors.Is(err, outcome.CapacityExceeded) {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	errs := make(chan error, 1)
	go func() {
		errs <- o.between(context.Background(), func(ctx context.Context) error {
			if token, err := fence.FromContext(ctx); err != nil || token.IsZero() {
				t.Errorf("token %v, %v", token, err)
			}
			if _, err := j.Handle(ctx, &Request{self: &o.me, mail: &envelope{more: &noMore, data: []byte("between")}}); err != nil {
				t.Error(err)
			}
			return mine
		})
	}()
	waitMail(t, o, 2)
	close(gate)
	if err := within(t, errs, "the framework's turn"); err != mine {
		t.Errorf("got %v", err)
	}
	if got := fmt.Sprint(j.entries()); got != "[0 1 between]" {
		t.Errorf("ran %s", got)
	}
	err := o.between(context.Background(), func(context.Context) error { panic("inside") })
	wantOutcome(t, err, outcome.InternalFailure, outcome.Accepted)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantOutcome(t, o.between(ctx, func(context.Context) error { t.Error("it ran"); return nil }), outcome.DeadlineExceeded, outcome.NotAccepted)
}

// The time that an adoption or a turn took counts for what comes next: for its deadline, and for the lease's word.
func TestTimeOfTurnsCounts(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	ran := make(chan string, 100)
	o := h.object(t, "o", handle(func(_ context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "slow" {
			<-time.After(50 * time.Millisecond)
			h.lapsed.Store(true) // nobody tells of it
		}
		ran <- string(req.Data())
		return Reply{}, nil
	}))
	gate := make(chan struct{})
	go func() {
		if err := o.between(context.Background(), func(context.Context) error { <-gate; return nil }); err != nil {
			t.Error(err)
		}
	}()
	waitRunning(t, o)
	for _, data := range []string{"fast", "fast", "fast", "slow", "after"} {
		if err := h.send(o, data); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	eventually(t, func() error {
		if !h.rt.sched.lapsed.Load() {
			return errors.New("the lapse was not noticed")
		}
		return nil
	})
	if n := len(ran); n != 4 {
		t.Errorf("%d turns ran before the lapse was noticed", n)
	}
	h.regain()
	eventually(t, func() error {
		if len(ran) != 5 {
			return errors.New("what waited has not run")
		}
		return nil
	})
	// While it is adopted, the deadline of what asks for it passes.
	h.lapse()
	late := newInbound("late")
	h.mu.Lock()
	h.onAdopt = func(context.Context, *object) error {
		eventually(t, func() error {
			if !late.Past(time.Now()) {
				return errors.New("not past")
			}
			return nil
		})
		return nil
	}
	h.mu.Unlock()
	h.regain()
	late.deadline = time.Now().Add(500 * time.Millisecond) // which its offer has to come before
	if because := o.offer(newRemote(late)); because != whyNot {
		t.Fatal(because)
	}
	wantOutcome(t, within(t, late.failed, "the end of the late one"), outcome.DeadlineExceeded, outcome.Accepted)
	if len(ran) != 5 {
		t.Error("it ran")
	}
}
