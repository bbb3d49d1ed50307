package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// TestMoveTimers: armed timers go along with the time that is left, due ones run once, at one node.
func TestMoveTimers(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		t.Run(map[bool]string{false: "committed", true: "aborted"}[aborted], func(t *testing.T) {
			t.Parallel()
			w := newMoveBed(t)
			key := w.actor("one")
			begun, goOn := make(chan struct{}, 1), make(chan struct{})
			w.led.gate = func(_ context.Context, req *Request) error {
				switch self := req.Self(); string(req.Data()) {
				case "set":
					return errors.Join(self.SetTimer("soon", 0, []byte("s")), self.SetTimer("later", time.Hour, nil),
						self.SetTimer("far", time.Hour, nil), self.SetTimer("never", time.Hour, nil))
				case "slow":
					// Due while it runs: before the seal, so that it waits as accepted mail.
					if err := self.SetTimer("due", 0, nil); err != nil {
						return err
					}
					begun <- struct{}{}
					<-goOn
					self.CancelTimer("never")
				}
				return nil
			}
			w.request(w.c, key, "set")
			fabrictest.Eventually(t, long, "the first timer has run", func() bool { return len(w.led.of("one")) == 2 })
			m := w.move(w.a, w.b, key).prepare()
			slow := w.later(w.c, key, "slow")
			<-begun
			o := w.a.rt.find(key.Kind, key.ID)
			fabrictest.Eventually(t, long, "the timer is due", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.box.head != nil && o.box.head.kind == mailTimer
			})
			sealed := make(chan error, 1)
			go func() { sealed <- m.d.Seal(w.ctx()) }()
			fabrictest.Eventually(t, long, "sealed", func() bool { return o.is() == objectSealed })
			// One more is due while the object is sealed.
			o.rt.clock.mu.Lock()
			later := o.timers.named["later"]
			o.rt.clock.mu.Unlock()
			o.rt.clock.dueNow(later)
			close(goOn)
			if err := <-sealed; err != nil {
				t.Fatal(err)
			}
			<-slow
			cargo := must[*Cargo](t)(m.d.Capture(w.ctx()))
			if err := o.setTimer("new", time.Hour, nil); !errors.Is(err, outcome.Unavailable) {
				t.Fatalf("a timer was set within a move: %v", err)
			}
			if _, work, timers, _ := cargo.Counts(); work != 1 || timers != 2 {
				t.Fatalf("%d work, %d timers", work, timers)
			}
			m.cargo = must[*Cargo](t)(ParseCargo(must[[]byte](t)(cargo.MarshalBinary())))
			if err := m.a.Load(w.ctx(), m.cargo); err != nil {
				t.Fatal(err)
			}
			at, n := "b", w.b
			if aborted {
				m.abort()
				at, n = "a", w.a
			} else {
				m.accept().held().commit().finish()
			}
			fabrictest.Eventually(t, long, "the timers have run", func() bool { return len(w.led.of("one")) >= 5 })
			w.request(w.c, key, "end")
			want := []string{"a: set", "a: timer soon", "a: slow", at + ": timer due", at + ": timer later", at + ": end"}
			if got := w.led.of("one"); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%q, want %q", got, want)
			}
			if got := n.rt.find(key.Kind, key.ID).timerCount(); got != 1 {
				t.Fatalf("%d timers are left, want that which is far", got)
			}
		})
	}
}

// TestMoveSealNeverRests: a handler that never returns ends the move, and the object goes on when it does.
func TestMoveSealNeverRests(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.led.gate = func(_ context.Context, req *Request) error {
		if string(req.Data()) == "slow" {
			close(begun)
			<-goOn
		}
		return nil
	}
	m := w.move(w.a, w.b, key).prepare()
	slow := w.later(w.c, key, "slow")
	<-begun
	if _, err := w.a.Depart(w.ctx(), key, 0); !errors.Is(err, ErrMoving) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.ctx(), 100*time.Millisecond)
	defer cancel()
	err := m.d.Seal(ctx)
	wantError(t, err, outcome.DeadlineExceeded, outcome.NotAccepted, "its turn has not ended")
	held := w.later(w.c, key, "held")
	w.waits(w.a, key, 1)
	m.abort()
	close(goOn)
	w.want(slow, "1 a")
	w.want(held, "2 a")
	w.move(w.a, w.b, key).whole()
	if got := w.request(w.c, key, "there"); got != "3 b" {
		t.Fatal(got)
	}
}

// TestMoveCaptureFails: a capture that fails, panics, is too large or never returns ends the move, and the object goes on
// with what waited.
func TestMoveCaptureFails(t *testing.T) {
	hang := make(chan struct{})
	for name, c := range map[string]struct {
		capture func(ctx context.Context, self *Self) error
		pad     int
		check   func(t *testing.T, err error)
	}{
		"error": {capture: func(context.Context, *Self) error { return errors.New("not now") },
			check: func(t *testing.T, err error) {
				wantError(t, err, outcome.InternalFailure, outcome.NotAccepted, "not now")
			}},
		"panic": {capture: func(context.Context, *Self) error { panic("oops") },
			check: func(t *testing.T, err error) {
				wantError(t, err, outcome.InternalFailure, outcome.NotAccepted, "oops")
			}},
		"too large": {pad: 1000, check: func(t *testing.T, err error) {
			if !errors.Is(err, ErrStateTooLarge) {
				t.Fatal(err)
			}
		}},
		"hangs": {capture: func(context.Context, *Self) error { <-hang; return nil },
			check: func(t *testing.T, err error) {
				wantError(t, err, outcome.DeadlineExceeded, outcome.NotAccepted, "its Capture has not returned")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "hangs" {
				t.Parallel()
			}
			w := newMoveBed(t, func(cfg *Config, _ *kvlocation.LeaseConfig) {
				for i := range cfg.Types {
					cfg.Types[i].MaxState = 900
				}
			})
			key := w.actor("one")
			w.request(w.c, key, "before")
			w.led.set(func() { w.led.onCapture, w.led.pad = c.capture, c.pad })
			m := w.move(w.a, w.b, key).prepare()
			if err := m.d.Seal(w.ctx()); err != nil {
				t.Fatal(err)
			}
			held := w.later(w.c, key, "held")
			w.waits(w.a, key, 1)
			ctx, cancel := context.WithTimeout(w.ctx(), 300*time.Millisecond)
			defer cancel()
			if name != "hangs" {
				ctx = w.ctx()
			}
			_, err := m.d.Capture(ctx)
			c.check(t, err)
			m.abort()
			if name == "hangs" { // no turn runs beside it
				select {
				case got := <-held:
					t.Fatalf("a turn has run beside the capture: %v", got)
				case <-time.After(50 * time.Millisecond):
				}
				close(hang)
			}
			w.want(held, "2 a")
			w.led.set(func() { w.led.onCapture, w.led.pad = nil, 0 })
			w.move(w.a, w.b, key).whole()
			if got := w.request(w.c, key, "there"); got != "3 b" {
				t.Fatal(got)
			}
		})
	}
}

// TestMoveRestoreFails: what fails at the target leaves nothing there, and the object goes on at the source.
func TestMoveRestoreFails(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.c, key, "before")
	hang := make(chan struct{})
	defer close(hang)
	for name, c := range map[string]struct {
		set   func()
		check func(err error) bool
	}{
		"error":   {func() { w.led.onRestore = func(context.Context, *Self) error { return errors.New("no") } }, func(err error) bool { return errors.Is(err, outcome.InternalFailure) }},
		"panic":   {func() { w.led.onRestore = func(context.Context, *Self) error { panic("oops") } }, func(err error) bool { return errors.Is(err, outcome.InternalFailure) }},
		"factory": {func() { w.led.onFactory = func(context.Context, *Self) error { return errors.New("no") } }, func(err error) bool { return errors.Is(err, outcome.InternalFailure) }},
		"version": {func() { w.led.version = 7 }, func(err error) bool { return errors.Is(err, ErrStateVersion) }},
		"hangs":   {func() { w.led.onRestore = func(context.Context, *Self) error { <-hang; return nil } }, func(err error) bool { return errors.Is(err, outcome.InternalFailure) }},
	} {
		w.led.set(func() {
			w.led.onRestore, w.led.onFactory, w.led.version = nil, nil, 0
			c.set()
		})
		m := w.move(w.a, w.b, key).prepare()
		if err := m.d.Seal(w.ctx()); err != nil {
			t.Fatal(err)
		}
		cargo := must[*Cargo](t)(m.d.Capture(w.ctx()))
		ctx := w.ctx()
		if name == "hangs" {
			ctx = w.ctxFor(500 * time.Millisecond)
		}
		err := m.a.Load(ctx, cargo)
		if err == nil || !c.check(err) || !errors.Is(err, outcome.NotAccepted) {
			t.Fatalf("%s: %v", name, err)
		}
		m.abort()
		w.request(w.c, key, name)
		if w.b.rt.owned.Load() != 0 || w.b.rt.find(key.Kind, key.ID) != nil {
			t.Fatalf("%s: the target still has it", name)
		}
	}
}

// TestMoveBeforeCommit: code at the target has no token, starts no timer and sends nothing before the commit; the activation
// callback has the new token.
func TestMoveBeforeCommit(t *testing.T) {
	w := newMoveBed(t)
	key, other := w.actor("one"), w.actor("other")
	w.request(w.c, key, "before")
	var sequence uint64
	check := func(ctx context.Context, self *Self) error {
		if _, err := fence.FromContext(ctx); !errors.Is(err, outcome.InvalidOperation) {
			return fmt.Errorf("token: %w", err)
		}
		if err := self.SetTimer("x", time.Hour, nil); !errors.Is(err, outcome.InvalidOperation) {
			return fmt.Errorf("timer: %w", err)
		}
		if err := self.Actors().Send(ctx, other.ID, []byte("early")); !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.NotAccepted) {
			return fmt.Errorf("send: %w", err)
		}
		if _, err := self.Actors().Request(ctx, other.ID, []byte("early")); !errors.Is(err, outcome.InvalidOperation) {
			return fmt.Errorf("request: %w", err)
		}
		self.Close()
		if !self.Moved() {
			return errors.New("not moved")
		}
		return nil
	}
	w.led.set(func() {
		w.led.onFactory = check
		w.led.onRestore = check
		w.led.onCapture = func(ctx context.Context, self *Self) error {
			token, err := fence.FromContext(ctx)
			if err == nil && token.Sequence != 1 {
				err = fmt.Errorf("token %v", token)
			}
			return errors.Join(err, self.Actors().Send(ctx, other.ID, []byte("captured")))
		}
		w.led.onActive = func(ctx context.Context, self *Self) error {
			token, err := fence.FromContext(ctx)
			sequence = token.Sequence
			w.led.note(self.ID(), self.RID()+": active")
			return err
		}
	})
	w.move(w.a, w.b, key).whole()
	if got := w.request(w.c, key, "there"); got != "2 b" || sequence != 2 {
		t.Fatal(got, sequence)
	}
	if got := w.led.of("other"); fmt.Sprint(got) != "[a: captured]" {
		t.Fatal(got)
	}
}

// TestMoveRefused: what does not move says why.
func TestMoveRefused(t *testing.T) {
	w := newMoveBed(t, types(Type{Name: "still", Class: "actor", New: func(context.Context, *Self, []byte) (Object, error) {
		return HandlerFunc(func(context.Context, *Request) (Reply, error) { return Reply{}, nil }), nil
	}}, Type{Name: "wrong", Class: "actor", Move: MoveState, New: func(context.Context, *Self, []byte) (Object, error) {
		return HandlerFunc(func(context.Context, *Request) (Reply, error) { return Reply{}, nil }), nil
	}}))
	key := w.actor("one")
	for _, typ := range []string{"still", "wrong"} {
		must[ActorRef](t)(w.c.Actors().Create(w.ctx(), typ, typ, nil, AtNode("a")))
	}
	for id, cause := range map[string]error{"still": ErrMoveDisabled, "wrong": ErrNoMover} {
		k := key
		k.ID = id
		if _, err := w.a.Depart(w.ctx(), k, 0); !errors.Is(err, cause) || !errors.Is(err, outcome.InvalidOperation) {
			t.Fatal(id, err)
		}
	}
	if _, err := w.b.Depart(w.ctx(), key, 0); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	}
	if _, err := w.a.Depart(w.ctx(), key, 99999); !errors.Is(err, outcome.NotFound) {
		t.Fatal(err)
	}
	d := must[*Departure](t)(w.a.Depart(w.ctx(), key, 0))
	u := d.Unit()
	u.Types = slices.Clone(u.Types)
	if _, err := w.a.Expect(u, "op", time.Now().Add(long)); !errors.Is(err, ErrMoving) {
		t.Fatal(err)
	}
	u.Types[0].Policy = MoveRecreate
	if _, err := w.b.Expect(u, "op", time.Now().Add(long)); !errors.Is(err, ErrPolicy) {
		t.Fatal(err)
	}
	u.Types[0].Type = "unknown"
	if _, err := w.b.Expect(u, "op", time.Now().Add(long)); !errors.Is(err, ErrUnknownType) {
		t.Fatal(err)
	}
	w.b.SetPlacing(false)
	if _, err := w.b.Expect(d.Unit(), "op", time.Now().Add(long)); !errors.Is(err, outcome.Unavailable) {
		t.Fatal(err)
	}
	w.b.SetPlacing(true)
	a := must[*Arrival](t)(w.b.Expect(d.Unit(), "op", time.Now().Add(time.Second)))
	if _, err := w.b.Expect(d.Unit(), "op2", time.Now().Add(long)); !errors.Is(err, ErrMoving) {
		t.Fatal(err)
	}
	if w.b.rt.owned.Load() != 1 {
		t.Fatal("no slot is reserved")
	}
	<-a.Done()
	fabrictest.Eventually(t, long, "the slot is free", func() bool { return w.b.rt.owned.Load() == 0 })
	d.Abort(nil)
	w.move(w.a, w.b, key).whole()
}
