package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// badge is a companion whose value is a string, which messages must name.
type badge struct {
	mu    sync.Mutex
	notes []string
}

func (b *badge) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

func (b *badge) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.notes
	b.notes = nil
	return list
}

func (b *badge) Capture(self *Self, v any) ([]byte, error) {
	if v.(string) == "stuck" {
		return nil, errors.New("it cannot go")
	}
	b.note("captured %s", v)
	return []byte(v.(string)), nil
}

func (b *badge) Restore(self *Self, data []byte) (any, error) {
	b.note("restored %s", data)
	return string(data), nil
}

func (b *badge) Opened(self *Self, v any) {
	b.note("opened %s at %s %d", v, self.RID(), self.OwnerGeneration())
}

func (b *badge) Ended(self *Self, v any, why CloseReason) {
	b.note("ended %s at %s: %s", v, self.RID(), why)
}

func (b *badge) Admit(self *Self, v any, header string) error {
	if v == nil || v.(string) != header {
		return outcome.New("admit", outcome.InvalidOperation, outcome.Accepted, "", fmt.Sprintf("it has the badge %v", v))
	}
	return nil
}

// wear gives an Actor a badge.
func wear(ctx context.Context, n *meshNode, ref ActorRef, v string) error {
	return n.InTurn(ctx, ref, func(ctx context.Context, self *Self, slot *any) error {
		if self.ID() != ref.ID {
			return errors.New("another object")
		}
		*slot = v
		return nil
	})
}

// TestCompanion: a companion's value lives and moves with its object, and messages that carry its header are let in by it only,
// wherever they reach the object.
func TestCompanion(t *testing.T) {
	w := newMoveBed(t)
	b := &badge{}
	for _, n := range []*meshNode{w.a, w.b, w.c} {
		n.Accompany("Fabric-Badge", b)
	}
	key := w.actor("one")
	ref := ActorRef{ID: "one", Generation: w.entry(w.c, key.Kind, key.ID).Generation()}
	at := func(n *meshNode) Place { return Place{RID: n.rid, Lifecycle: n.cfg.Lifecycle} }
	var saw []string
	w.led.gate = func(_ context.Context, req *Request) error {
		v, mark := req.Slot()
		saw = append(saw, fmt.Sprint(v, " ", mark))
		return nil
	}
	tell := func(n, to *meshNode, mark string) (string, Place, error) {
		way, err := n.Way(at(to), key, mark)
		if err != nil {
			t.Fatal(err)
		}
		r, moved, err := n.CallAt(w.ctx(), way, &Message{Op: "relay", Data: []byte(mark)})
		return string(r.Data), moved, err
	}
	if _, _, err := tell(w.c, w.a, "red"); !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.Accepted) {
		t.Fatal("a message with a badge came in without one", err)
	}
	if err := wear(w.ctx(), w.a, ref, "red"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*meshNode{w.a, w.c} {
		if got, moved, err := tell(n, w.a, "red"); err != nil || moved != (Place{}) || got == "" {
			t.Fatal(got, moved, err)
		}
		if _, _, err := tell(n, w.a, "blue"); !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.Accepted) {
			t.Fatal(err)
		}
	}
	w.request(w.c, key, "no badge") // an ordinary message needs none
	// One in each part of a move.
	m := w.move(w.a, w.b, key).prepare().load()
	held := make(chan error, 3)
	for i, c := range []struct {
		n    *meshNode
		mark string
	}{{w.c, "red"}, {w.a, "red"}, {w.c, "blue"}} {
		go func() { _, _, err := tell(c.n, w.a, c.mark); held <- err }()
		w.waits(w.a, key, i+1)
	}
	bound := make(chan error, 1)
	go func() { bound <- wear(w.ctx(), w.a, ref, "green") }()
	m.accept().held().commit()
	var errs []error
	for range 3 {
		errs = append(errs, <-held)
	}
	if n := len(slices.DeleteFunc(errs, func(err error) bool { return err == nil })); n != 1 {
		t.Fatal(errs)
	}
	m.finish()
	// The turn of the framework that waited is told where the object is, and runs there.
	err := <-bound
	p, ok := RouteOf(err)
	if !ok || p.RID != "b" || p.OwnerGeneration != 2 || !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err, p)
	}
	if err := wear(w.ctx(), w.b, ref, "green"); err != nil {
		t.Fatal(err)
	}
	if got, moved, err := tell(w.c, w.a, "green"); err != nil || moved.RID != "b" || got == "" { // followed
		t.Fatal(got, moved, err)
	}
	w.a.follows.forget(key)
	if _, _, err := tell(w.c, w.a, "green"); !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	} else if p, ok := RouteOf(err); !ok || p.RID != "b" || !p.Newer(Place{Generation: ref.Generation, OwnerGeneration: 1}) {
		t.Fatal(err, p)
	}
	if _, _, err := tell(w.a, w.a, "green"); !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	} else if p, ok := RouteOf(err); !ok || p.RID != "b" {
		t.Fatal(err, p)
	}
	want := []string{"captured red", "restored red", "ended red at a: moved", "opened red at b 2"}
	if got := b.take(); !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	// It does not move against its companion's will, and ends with the object.
	if err := wear(w.ctx(), w.b, ref, "stuck"); err != nil {
		t.Fatal(err)
	}
	m = w.move(w.b, w.a, key).prepare()
	if err := m.d.Seal(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.d.Capture(w.ctx()); err == nil {
		t.Fatal("captured")
	}
	m.abort()
	if _, _, err := tell(w.c, w.b, "stuck"); err != nil {
		t.Fatal(err)
	}
	if err := w.b.Actors().Destroy(w.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	if got := b.take(); !slices.Equal(got, []string{"ended stuck at b: asked"}) {
		t.Fatal(got)
	}
	if err := wear(w.ctx(), w.b, ref, "red"); !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	}
	// A new incarnation has no badge.
	again := must[ActorRef](t)(w.c.Actors().Create(w.ctx(), "tally", "one", nil, AtNode("a")))
	if err := wear(w.ctx(), w.a, ref, "red"); !errors.Is(err, outcome.NotFound) {
		t.Fatal(err)
	}
	if _, _, err := tell(w.c, w.a, "stuck"); !errors.Is(err, outcome.InvalidOperation) {
		t.Fatal(err)
	}
	if again.Generation <= ref.Generation {
		t.Fatal(again)
	}
}

// TestMoveEveryHop: ten thousand moves there and back leave nothing behind.
func TestMoveEveryHop(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	moves := 10_000
	if testing.Short() {
		moves = 1000
	}
	// The records are another test's: here the two sides meet without them.
	e := w.entry(w.c, key.Kind, key.ID)
	from, to := w.a, w.b
	begin := time.Now()
	var before uint64
	for i := range moves {
		if i == moves/10 {
			before = heapNow()
		}
		d := must[*Departure](t)(from.Depart(t.Context(), key, 0))
		a := must[*Arrival](t)(to.Expect(d.Unit(), "op", time.Now().Add(long)))
		if err := d.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := must[*Cargo](t)(d.Capture(t.Context()))
		if err := a.Load(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		d.Accepted()
		e.Record.Phase, e.Record.Owner = kvlocation.PhaseReady, to.owner()
		e.Record.OwnerGeneration++
		if err := a.Open(e, 0); err != nil {
			t.Fatal(err)
		}
		d.Finish(0, to.owner(), e.Record.OwnerGeneration, 30*time.Second)
		if i%100 == 0 {
			w.request(w.c, key, "x") // over stale routes
		}
		from, to = to, from
	}
	after := heapNow()
	t.Logf("%d moves in %v; heap %d and %d KiB", moves, time.Since(begin), before>>10, after>>10)
	if after > before+4<<20 {
		t.Fatalf("the heap grew from %d to %d KiB", before>>10, after>>10)
	}
	if o := w.a.rt.owned.Load() + w.b.rt.owned.Load(); o != 1 {
		t.Fatalf("%d slots are taken", o)
	}
	if n := w.a.follows.live.now() + w.b.follows.live.now(); n > 1 {
		t.Fatalf("%d moves are followed", n)
	}
	if n := w.a.rt.clock.count() + w.b.rt.clock.count(); n != 0 {
		t.Fatalf("%d timers are set", n)
	}
}
