package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// TestMoveTargetLost: after the boundary the object is never restored; what was accepted ends with Accepted, what was
// published with Unknown, what was only held with NotAccepted.
func TestMoveTargetLost(t *testing.T) {
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
	slow := w.later(w.a, key, "slow")
	<-begun
	m := w.move(w.a, w.b, key).prepare()
	each := func(data string) (list []<-chan answered) {
		at := 0
		if o := w.a.rt.find(key.Kind, key.ID); o != nil {
			at, _ = o.waiting()
		}
		for i, n := range []*meshNode{w.a, w.c} {
			list = append(list, w.later(n, key, data))
			w.waits(w.a, key, at+1+i)
		}
		return list
	}
	work := each("work")
	o := w.a.rt.find(key.Kind, key.ID)
	go func() {
		fabrictest.Eventually(t, long, "sealed", func() bool { return o.is() == objectSealed })
		close(goOn)
	}()
	m.load()
	w.want(slow, "1 a")
	m.accept()
	published := each("published")
	if n := len(m.d.Held(10, maxHeldBytes)); n != 2 {
		t.Fatal(n)
	}
	sent := make(chan error, 1)
	go func() { sent <- w.a.Actors().Send(w.ctx(), key.ID, []byte("sent")) }()
	w.waits(w.a, key, 1)
	m.d.Held(10, maxHeldBytes)
	held := each("held")
	m.d.Abort(errors.New("too late")) // it does nothing any more
	m.d.Fail(errors.New("the target is gone"))
	for acc, list := range map[outcome.Acceptance][]<-chan answered{outcome.Accepted: work, outcome.Unknown: published, outcome.NotAccepted: held} {
		for i, c := range list {
			got := <-c
			if !errors.Is(got.err, outcome.Unavailable) || !errors.Is(got.err, acc) {
				t.Fatalf("caller %d: %v, want Unavailable and %v", i, got.err, acc)
			}
		}
	}
	if err := <-sent; !errors.Is(err, outcome.Unknown) {
		t.Fatal(err)
	}
	if got := w.led.of("one"); len(got) != 1 {
		t.Fatal(got)
	}
	if w.a.rt.find(key.Kind, key.ID) != nil || w.a.rt.owned.Load() != 0 {
		t.Fatal("the source still has it")
	}
	_, err := w.a.Actors().Request(w.ctx(), key.ID, nil)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	m.a.Abort(nil)
	fabrictest.Eventually(t, long, "no answer is owed", func() bool { return w.a.owed.now() == 0 })
}

// TestMoveHoldBounds: the hold of a unit is bounded; what is beyond is refused, and nothing is lost.
func TestMoveHoldBounds(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	m := w.move(w.a, w.b, key).prepare().load()
	var wg sync.WaitGroup
	var mu sync.Mutex
	kinds := map[string]int{}
	send := func(n *meshNode, count int) {
		for range count {
			wg.Go(func() {
				err := n.Actors().Send(w.ctx(), key.ID, []byte("x"))
				mu.Lock()
				defer mu.Unlock()
				kinds[fmt.Sprint(outcome.KindOf(err), outcome.AcceptanceOf(err), err == nil)]++
			})
		}
	}
	refused := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, c := range kinds {
			n += c
		}
		return n
	}
	send(w.a, 600)
	w.waits(w.a, key, 600)
	send(w.c, 500)
	w.waits(w.a, key, maxHeld)
	fabrictest.Eventually(t, long, "the rest is refused", func() bool { return refused() == 76 })
	send(w.a, 1)
	fabrictest.Eventually(t, long, "one more is refused", func() bool { return refused() == 77 })
	m.accept().held()
	if m.h != maxHeld {
		t.Fatalf("h is %d", m.h)
	}
	m.commit().finish()
	wg.Wait()
	ok, full, away := 0, 0, 0
	for k, n := range kinds {
		switch {
		case strings.HasSuffix(k, "true"):
			ok += n
		case strings.HasPrefix(k, "CapacityExceeded NotAccepted"):
			full += n
		case strings.HasPrefix(k, "Unavailable NotAccepted"):
			away += n
		}
	}
	if ok != maxHeld || full != 1 || away != 76 {
		t.Fatal(kinds)
	}
	fabrictest.Eventually(t, long, "all have run", func() bool { return len(w.led.of("one")) == maxHeld })
}

// TestMoveLargeState: 16 MiB go along.
func TestMoveLargeState(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.c, key, "before")
	w.led.set(func() { w.led.pad = 16 << 20 })
	m := w.move(w.a, w.b, key)
	if u := m.d.Unit(); u.MaxBytes < 16<<20 {
		t.Fatal(u)
	}
	m.whole()
	if state, _, _, _ := m.cargo.Counts(); state < 16<<20 {
		t.Fatal(state)
	}
	if got := w.request(w.c, key, "after"); got != "2 b" {
		t.Fatal(got)
	}
}

// TestMoveLapses: a lapse of the lease at either side, at each step, opens nothing and loses nothing.
func TestMoveLapses(t *testing.T) {
	w := newMoveBed(t)
	lapse := func(n *meshNode) { n.rt.sched.close(); n.Lapsed() }
	regain := func(n *meshNode) { n.Regained() }
	t.Run("source before the capture", func(t *testing.T) {
		key := w.actor("one")
		m := w.move(w.a, w.b, key).prepare()
		if err := m.d.Seal(w.ctx()); err != nil {
			t.Fatal(err)
		}
		held := w.later(w.c, key, "held")
		w.waits(w.a, key, 1)
		lapse(w.a)
		if _, err := m.d.Capture(w.ctx()); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
			t.Fatal(err)
		}
		if _, err := w.a.Actors().Request(w.ctx(), key.ID, nil); !errors.Is(err, outcome.Unavailable) {
			t.Fatal(err)
		}
		m.abort()
		select {
		case got := <-held:
			t.Fatalf("a turn ran without a lease: %v", got)
		case <-time.After(50 * time.Millisecond):
		}
		regain(w.a)
		w.want(held, "1 a")
	})
	t.Run("source after the boundary", func(t *testing.T) {
		key := w.actor("two")
		m := w.move(w.a, w.b, key).prepare().load()
		held := w.later(w.c, key, "held")
		w.waits(w.a, key, 1)
		m.accept()
		lapse(w.a)
		m.held().commit().finish() // settling goes on
		w.want(held, "1 b")
		regain(w.a)
		if got := w.request(w.a, key, "after"); got != "2 b" {
			t.Fatal(got)
		}
	})
	t.Run("target before the commit", func(t *testing.T) {
		key := w.actor("three")
		m := w.move(w.a, w.b, key).prepare().load()
		held := w.later(w.c, key, "held")
		w.waits(w.a, key, 1)
		m.accept().held()
		lapse(w.b)
		m.commit().finish()
		select {
		case got := <-held:
			t.Fatalf("a turn ran without a lease: %v", got)
		case <-time.After(50 * time.Millisecond):
		}
		regain(w.b)
		w.want(held, "1 b")
	})
	t.Run("target expects nothing", func(t *testing.T) {
		lease := w.b.lease
		d := must[*Departure](t)(w.a.Depart(w.ctx(), w.actor("four"), 0))
		defer d.Abort(nil)
		if err := lease.Release(w.ctx()); err != nil {
			t.Fatal(err)
		}
		_, err := w.b.Expect(d.Unit(), "op", time.Now().Add(long))
		if !errors.Is(err, outcome.NotAccepted) {
			t.Fatal(err)
		}
	})
}

// TestMoveClose: an end that is asked for while the object moves waits for the move's end, and follows it; a close under way is
// no time for a move.
func TestMoveClose(t *testing.T) {
	w := newMoveBed(t)
	for _, aborted := range []bool{true, false} {
		key := w.actor(fmt.Sprint("one", aborted))
		e := w.entry(w.c, key.Kind, key.ID)
		ref := ActorRef{ID: key.ID, Generation: e.Generation()}
		m := w.move(w.a, w.b, key).prepare().load()
		ends := make(chan error, 2)
		for _, n := range []*meshNode{w.a, w.c} {
			go func() {
				ends <- n.Actors().Destroy(w.ctx(), ref)
			}()
		}
		held := w.later(w.c, key, "held")
		w.waits(w.a, key, 1)
		if aborted {
			m.abort()
		} else {
			m.accept().held().commit().finish()
		}
		w.want(held, "1 "+map[bool]string{true: "a", false: "b"}[aborted])
		done := 0
		for range 2 {
			switch err := <-ends; {
			case err == nil:
				done++
			case errors.Is(err, outcome.NotFound), errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted):
				// The other was first: it is gone from the record, or as yet only from the node that was asked.
			default:
				t.Fatal(err)
			}
		}
		if done == 0 {
			t.Fatal("neither end was done")
		}
		if e := w.entry(w.c, key.Kind, key.ID); e.Phase() != kvlocation.PhaseMissing {
			t.Fatal(e.Phase())
		}
	}
	// A turn that asks for its own end has it.
	key := w.actor("self")
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.led.gate = func(_ context.Context, req *Request) error {
		close(begun)
		<-goOn
		req.Self().Close()
		return nil
	}
	m := w.move(w.a, w.b, key).prepare()
	last := w.later(w.c, key, "last")
	<-begun
	sealed := make(chan error, 1)
	go func() { sealed <- m.d.Seal(w.ctx()) }()
	o := w.a.rt.find(key.Kind, key.ID)
	fabrictest.Eventually(t, long, "sealed", func() bool { return o.is() == objectSealed })
	close(goOn)
	if err := <-sealed; !errors.Is(err, ErrMoving) {
		t.Fatal(err)
	}
	w.want(last, "1 a")
	must[kvlocation.Change](t)(w.a.store.Abort(w.ctx(), m.at, w.a.owner(), m.op))
	m.d.Abort(nil)
	m.a.Abort(nil)
	fabrictest.Eventually(t, long, "it is closed", func() bool { return o.isClosed() })
}

// TestMoveServiceCloses: a node that stops within a move ends it: what was held is refused, and nothing waits for ever.
func TestMoveServiceCloses(t *testing.T) {
	w := newMoveBed(t)
	one, two := w.actor("one"), w.actor("two")
	before := w.move(w.a, w.b, one).prepare().load()
	after := w.move(w.a, w.b, two).prepare().load().accept()
	var held []<-chan answered
	for _, key := range []kvlocation.ObjectKey{one, two} {
		for i, n := range []*meshNode{w.a, w.c} {
			held = append(held, w.later(n, key, "held"))
			w.waits(w.a, key, 1+i)
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx(), 200*time.Millisecond)
	defer cancel()
	if err := w.a.Service.Close(ctx); err == nil {
		t.Fatal("it has closed in order")
	}
	for i, c := range held {
		got := <-c
		if i >= 2 && !errors.Is(got.err, outcome.NotAccepted) { // the first goes on with what it held
			t.Fatalf("held %d: %q, %v", i, got.data, got.err)
		}
	}
	if err := before.d.Seal(w.ctx()); err == nil {
		t.Fatal("sealed after the end")
	}
	after.d.Finish(0, w.b.owner(), 2, time.Second)
	if _, err := w.a.Depart(w.ctx(), one, 0); err == nil {
		t.Fatal("it departs after the end")
	}
	before.a.Abort(nil)
	after.a.Abort(nil)
}

// TestMoveCallerLeaves: a caller of the source's process whose message is held leaves with NotAccepted, and the message goes
// nowhere; once it was given to the target, the caller leaves with Unknown.
func TestMoveCallerLeaves(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	m := w.move(w.a, w.b, key).prepare().load()
	calls := func(ctx context.Context) []<-chan error {
		var list []<-chan error
		for i, f := range []func() error{
			func() error { _, err := w.a.Actors().Request(ctx, key.ID, []byte("asked")); return err },
			func() error { return w.a.Actors().Send(ctx, key.ID, []byte("sent")) },
		} {
			c := make(chan error, 1)
			go func() { c <- f() }()
			list = append(list, c)
			w.waits(w.a, key, i+1)
		}
		return list
	}
	ctx, cancel := context.WithCancel(w.ctx())
	early := calls(ctx)
	cancel()
	for _, c := range early {
		if err := <-c; !errors.Is(err, context.Canceled) || !errors.Is(err, outcome.NotAccepted) {
			t.Fatal(err)
		}
	}
	m.accept()
	if got := m.d.Held(10, maxHeldBytes); len(got) != 0 {
		t.Fatalf("%d messages were given to the target that nobody sends any more", len(got))
	}
	ctx, cancel = context.WithCancel(w.ctx())
	late := calls(ctx)
	m.held()
	if m.h != 2 {
		t.Fatal(m.h)
	}
	cancel()
	for _, c := range late {
		if err := <-c; !errors.Is(err, context.Canceled) || !errors.Is(err, outcome.Unknown) {
			t.Fatal(err)
		}
	}
	m.commit().finish()
	fabrictest.Eventually(t, long, "both have run", func() bool { return len(w.led.of("one")) == 2 })
	fabrictest.Eventually(t, long, "nothing is owed", func() bool { return w.a.owed.now() == 0 })
}
