package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// tokens is what the activation callbacks of a test have seen, by ID: one owner generation after the other.
type tokens struct {
	mu   sync.Mutex
	seen map[string][]uint64
}

// guarded is a taped object that raises a guard.
type guarded struct {
	taped
	tokens *tokens
}

func (g *guarded) Activate(ctx context.Context, self *Self) error {
	token, err := fence.FromContext(ctx)
	if err != nil {
		return err
	}
	g.tokens.mu.Lock()
	defer g.tokens.mu.Unlock()
	g.tokens.seen[self.ID()] = append(g.tokens.seen[self.ID()], token.Sequence)
	return nil
}

func (g *tokens) of(id string) []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.seen[id])
}

func (t *tape) guardedTyp(name string, g *tokens) Type {
	return Type{Name: name, Class: kvlocation.ClassActor, New: func(context.Context, *Self, []byte) (Object, error) {
		return &guarded{taped{t}, g}, nil
	}}
}

// wideHall is a type of SpotWide User Spots that are clubs.
func wideHall(clubs *sync.Map) Type {
	return Type{Name: "hall", Class: kvlocation.ClassUserSpot, Members: SpotWide, New: func(_ context.Context, self *Self, _ []byte) (Object, error) {
		c := &club{refuse: map[string]bool{"no": true}, self: self}
		clubs.Store(self.ID(), c)
		return c, nil
	}}
}

// wideBed is a mesh with nodes a and b, which have Actors, SpotWide halls and PerActor rooms, and a client.
type wideBed struct {
	*mesh
	t       *testing.T
	tape    *tape
	tokens  *tokens
	clubs   sync.Map
	a, b, c *meshNode
}

func newWideBed(t *testing.T, opts ...nodeOption) *wideBed {
	t.Helper()
	w := &wideBed{mesh: newMesh(t), t: t, tape: newTape(), tokens: &tokens{seen: map[string][]uint64{}}}
	ty := types(w.tape.guardedTyp("user", w.tokens), wideHall(&w.clubs), w.tape.typ(kvlocation.ClassUserSpot, "room"))
	opts = append(opts, ty)
	w.a, w.b, w.c = w.node("a", opts...), w.node("b", opts...), w.client()
	return w
}

func (w *wideBed) user(id, at string) ActorRef {
	w.t.Helper()
	var ref ActorRef
	w.taken(func() (err error) { ref, err = w.c.Actors().Create(w.ctx(), "user", id, nil, AtNode(at)); return err })
	return ref
}

func (w *wideBed) spot(typ, id, at string) SpotRef {
	w.t.Helper()
	var ref SpotRef
	w.taken(func() (err error) { ref, err = w.c.Spots().Create(w.ctx(), typ, id, nil, AtNode(at)); return err })
	return ref
}

func (w *wideBed) join(a ActorRef, s SpotRef) {
	w.t.Helper()
	w.taken(func() error { return w.c.Actors().Join(w.ctx(), a, s) })
}

func (w *wideBed) leave(a ActorRef, s SpotRef) {
	w.t.Helper()
	w.taken(func() error { return w.c.Actors().Leave(w.ctx(), a, s) })
}

// wantAt asks an Actor where it is, and its record.
func (w *wideBed) wantAt(a ActorRef, rid string, ownerGeneration uint64, spot SpotRef) {
	w.t.Helper()
	want := fmt.Sprintf("%s %d %d x", rid, a.Generation, ownerGeneration)
	fabrictest.Eventually(w.t, long, "the actor answers "+want, func() bool {
		reply, err := w.c.Actors().Request(w.ctx(), a.ID, []byte("x"))
		if err == nil && string(reply.Data) != want {
			w.t.Fatalf("it answered %q, not %q", reply.Data, want)
		}
		return err == nil // a stale route ends one call
	})
	loc := must[Location](w.t)(w.c.Actors().Find(w.ctx(), a.ID))
	if loc.RID != rid || loc.OwnerGeneration != ownerGeneration || loc.Spot != spot || loc.Generation != a.Generation || !loc.Alive || loc.ByReference != !spot.IsZero() {
		w.t.Fatalf("it is found as %+v", loc)
	}
	e := w.entry(w.c, kvlocation.KindActor, a.ID)
	ref, ok := e.Record.Reference()
	if ok != !spot.IsZero() || ok && (ref.Spot != spot.ID || ref.Generation != spot.Generation || e.Record.Owner.RID != "") {
		w.t.Fatalf("its record says %+v", e.Record)
	}
}

// A member of a SpotWide Spot is located by it; its owner generation grows by one with each join and leave, and its guard is
// raised each time before its next turn.
func TestSpotWide(t *testing.T) {
	t.Parallel()
	w := newWideBed(t)
	one, two := w.spot("hall", "one", "a"), w.spot("hall", "two", "a")
	room := w.spot("room", "room", "b")
	u := w.user("u", "a")
	w.wantAt(u, "a", 1, SpotRef{})

	t.Run("join and leave", func(t *testing.T) {
		for i := range uint64(3) {
			w.join(u, one)
			w.wantAt(u, "a", 2+2*i, one)
			w.join(u, one) // again
			w.wantAt(u, "a", 2+2*i, one)
			w.leave(u, one)
			w.wantAt(u, "a", 3+2*i, SpotRef{})
			wantError(t, w.c.Actors().Leave(w.ctx(), u, one), outcome.InvalidOperation, outcome.NotAccepted, "no member")
		}
		if got := w.tokens.of("u"); !slices.Equal(got, []uint64{1, 2, 3, 4, 5, 6, 7}) {
			t.Fatalf("the guard was raised with %v", got)
		}
		if got := must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), one)); len(got) != 0 {
			t.Fatalf("%v", got)
		}
	})
	t.Run("FO-10.8", func(t *testing.T) {
		wantError(t, w.c.Actors().Join(w.ctx(), ActorRef{"u", u.Generation + 99}, one), outcome.NotFound, outcome.NotAccepted)
		wantError(t, w.c.Actors().Join(w.ctx(), u, SpotRef{"one", one.Generation + 99}), outcome.NotFound, outcome.NotAccepted)
		w.join(u, one)
		wantError(t, w.c.Actors().Leave(w.ctx(), ActorRef{"u", u.Generation + 99}, one), outcome.NotFound, outcome.NotAccepted)
		wantError(t, w.c.Actors().Leave(w.ctx(), u, SpotRef{"one", one.Generation + 99}), outcome.NotFound, outcome.NotAccepted)
		wantError(t, w.c.Actors().Destroy(w.ctx(), ActorRef{"u", u.Generation + 99}), outcome.NotFound, outcome.NotAccepted)
		w.wantAt(u, "a", 8, one)
	})
	t.Run("from one to the other", func(t *testing.T) {
		w.join(u, two)
		w.wantAt(u, "a", 10, two) // it has left one, and joined two
		if got := must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), one)); len(got) != 0 {
			t.Fatalf("%v", got)
		}
		w.join(u, room) // PerActor: the Actor has an owner of its own again
		if e := w.entry(w.c, kvlocation.KindActor, "u"); spotIn(e.Record.With) != room || e.Record.OwnerGeneration != 11 {
			t.Fatalf("its record says %+v", e.Record)
		}
		w.join(u, one)
		w.wantAt(u, "a", 12, one)
		fabrictest.Eventually(t, long, "the room hears of it", func() bool {
			return len(must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), room))) == 0
		})
		w.join(u, must[SpotRef](t)(w.c.Spots().Entry("a")))
		w.wantAt(u, "a", 13, SpotRef{})
	})
	t.Run("refused", func(t *testing.T) {
		no := w.user("no", "a")
		wantError(t, w.c.Actors().Join(w.ctx(), no, one), outcome.Rejected, outcome.NotAccepted, "not you")
		w.wantAt(no, "a", 1, SpotRef{})
	})
	t.Run("elsewhere", func(t *testing.T) {
		away := w.user("away", "b")
		wantError(t, w.c.Actors().Join(w.ctx(), away, one), outcome.InvalidOperation, outcome.NotAccepted, "relocation is not wired")
		w.wantAt(away, "b", 1, SpotRef{})
	})
	t.Run("within its own turn", func(t *testing.T) {
		w.tape.turn(func(ctx context.Context, req *Request) (Reply, error, bool) {
			if string(req.Data()) == "join" {
				return Reply{}, req.Self().Actors().Join(ctx, req.Self().ActorRef(), one), true
			}
			return Reply{}, nil, false
		})
		for _, id := range []string{"u", "away"} {
			_, err := w.c.Actors().Request(w.ctx(), id, []byte("join"))
			wantError(t, err, outcome.InvalidOperation, outcome.Accepted, "between two of its turns")
		}
	})
	t.Run("list and explain", func(t *testing.T) {
		w.join(u, one)
		page := must[ListPage](t)(w.c.List(w.ctx(), ListRequest{Kind: kvlocation.KindActor, RID: "a"}))
		i := slices.IndexFunc(page.Objects, func(l Location) bool { return l.ID == "u" })
		if i < 0 || page.Objects[i].RID != "a" || page.Objects[i].OwnerGeneration != 14 || page.Objects[i].Spot != one || !page.Objects[i].Alive {
			t.Fatalf("%+v", page)
		}
		if page := must[ListPage](t)(w.c.List(w.ctx(), ListRequest{Kind: kvlocation.KindActor, RID: "b"})); len(page.Objects) != 1 || page.Objects[0].ID != "away" {
			t.Fatalf("%+v", page)
		}
		x := must[Explanation](t)(w.c.Explain(w.ctx(), ExplainRequest{Kind: kvlocation.KindActor, ID: "u"}))
		if !x.WouldSucceed || x.Object == nil || !strings.Contains(x.Why, one.String()) {
			t.Fatalf("%+v", x)
		}
	})
	t.Run("broadcast", func(t *testing.T) {
		v := w.user("v", "a")
		w.join(v, one)
		before := w.a.nc.Stats().OutMsgs
		const times = 100
		for range times {
			r := must[BroadcastResult](t)(w.a.Spots().Broadcast(w.ctx(), one, []byte("all")))
			if r.Members != 2 || r.Accepted != 2 {
				t.Fatalf("%+v", r)
			}
		}
		if n := w.a.nc.Stats().OutMsgs - before; n > times/2 { // renewals of the lease
			t.Fatalf("%d broadcasts have sent %d messages", times, n)
		}
		for _, id := range []string{"u", "v"} {
			fabrictest.Eventually(t, long, id+" hears it", func() bool { return slices.Contains(w.tape.ran(id), ranAs(w, id, "all")) })
		}
	})
	t.Run("destroy", func(t *testing.T) {
		v := ActorRef{"v", w.entry(w.c, kvlocation.KindActor, "v").Generation()}
		if err := w.c.Actors().Destroy(w.ctx(), v); err != nil {
			t.Fatal(err)
		}
		if e := w.entry(w.c, kvlocation.KindActor, "v"); e.Phase() != kvlocation.PhaseMissing {
			t.Fatalf("%+v", e.Record)
		}
		c, _ := w.clubs.Load("one")
		if !c.(*club).hasLeft(v) {
			t.Fatal("the spot was not told")
		}
		if got := must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), one)); !slices.Equal(got, []ActorRef{u}) {
			t.Fatalf("%v", got)
		}
		if why := w.tape.closing("v"); why != CloseAsked {
			t.Fatalf("its closing: %v", why)
		}
		v = w.user("v", "a") // anew
		w.join(v, one)
		w.wantAt(v, "a", 2, one)
		w.tape.turn(func(_ context.Context, req *Request) (Reply, error, bool) { // turns of the broadcasts may still run
			if string(req.Data()) == "end" {
				req.Self().Close()
			}
			return Reply{}, nil, false
		})
		if _, err := w.c.Actors().Request(w.ctx(), "v", []byte("end")); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "it has closed itself", func() bool {
			return w.entry(w.c, kvlocation.KindActor, "v").Phase() == kvlocation.PhaseMissing && c.(*club).hasLeft(v)
		})
	})
	t.Run("close", func(t *testing.T) {
		write := w.entry(w.c, kvlocation.KindActor, "u").Record.Write
		if err := w.c.Spots().Close(w.ctx(), one); err != nil {
			t.Fatal(err)
		}
		if w.a.rt.find(kvlocation.KindActor, "u") != nil {
			t.Fatal("its node still has the member")
		}
		if why := w.tape.closing("u"); why != CloseSpot {
			t.Fatalf("its closing: %v", why)
		}
		e := w.entry(w.c, kvlocation.KindActor, "u")
		if _, ok := e.Record.Reference(); !ok || e.Record.Write != write {
			t.Fatalf("the record of a member was written: %+v", e.Record)
		}
		fabrictest.Eventually(t, long, "the member is missing", func() bool {
			_, err := w.c.Actors().Request(w.ctx(), "u", nil)
			return errors.Is(err, outcome.NotFound)
		})
		if _, err := w.c.Actors().Find(w.ctx(), "u"); !errors.Is(err, outcome.NotFound) {
			t.Fatal(err)
		}
		wantError(t, w.c.Actors().Destroy(w.ctx(), u), outcome.NotFound, outcome.NotAccepted)
		wantError(t, w.c.Actors().Release(w.ctx(), u), outcome.NotFound, outcome.NotAccepted)
		wantError(t, w.c.Actors().Join(w.ctx(), u, two), outcome.NotFound, outcome.NotAccepted)
		if page := must[ListPage](t)(w.c.List(w.ctx(), ListRequest{Prefix: "u"})); len(page.Objects) != 0 {
			t.Fatalf("%+v", page)
		}
		x := must[Explanation](t)(w.c.Explain(w.ctx(), ExplainRequest{Kind: kvlocation.KindActor, ID: "u"}))
		if x.WouldSucceed || x.Error != outcome.NotFound.String() {
			t.Fatalf("%+v", x)
		}
		// Another Spot of that ID is another incarnation.
		again := w.spot("hall", "one", "b")
		if got := must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), again)); len(got) != 0 {
			t.Fatalf("%v", got)
		}
		if _, err := w.c.Actors().Find(w.ctx(), "u"); !errors.Is(err, outcome.NotFound) {
			t.Fatal(err)
		}
		anew := w.user("u", "b")
		if anew.Generation <= u.Generation {
			t.Fatalf("%v after %v", anew, u)
		}
		w.wantAt(anew, "b", 1, SpotRef{})
	})
}

// ranAs is how the tape has a turn of an Actor as it is now.
func ranAs(w *wideBed, id, data string) string {
	loc := must[Location](w.t)(w.c.Actors().Find(w.ctx(), id))
	return fmt.Sprintf("%s/%d: %s", loc.RID, loc.OwnerGeneration, data)
}

// The answers to the writes of a join, a leave and the end of a member are lost: they are settled before the turn of the
// Spot ends, and nothing is done twice.
func TestSpotWideLostAnswers(t *testing.T) {
	t.Parallel()
	w := newWideBed(t)
	one := w.spot("hall", "one", "a")
	u := w.user("u", "a")
	generation := uint64(1)
	for _, answer := range []bool{true, false} {
		for _, join := range []bool{true, false} {
			armed := w.a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: w.writesOf(kvlocation.KindActor, "u"), Answer: answer, Action: fabrictest.Drop})
			generation++
			if join {
				w.join(u, one)
				w.wantAt(u, "a", generation, one)
			} else {
				w.leave(u, one)
				w.wantAt(u, "a", generation, SpotRef{})
			}
			if armed.Count() != 1 {
				t.Fatalf("the fault struck %d times", armed.Count())
			}
		}
		v := w.user(fmt.Sprintf("v%v", answer), "a")
		w.join(v, one)
		w.a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: w.writesOf(kvlocation.KindActor, v.ID), Answer: answer, Action: fabrictest.Drop})
		if err := w.c.Actors().Destroy(w.ctx(), v); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.tokens.of("u"); !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) {
		t.Fatalf("the guard was raised with %v", got)
	}
	// While the result is unknown neither of the two has a turn, whatever the caller does.
	armed := w.a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: w.writesOf(kvlocation.KindActor, "u"), Answer: true, Times: -1, Action: fabrictest.Drop})
	fabrictest.Eventually(t, long, "an answer to the write is lost", func() bool {
		if err := w.b.Actors().Join(w.ctxFor(500*time.Millisecond), u, one); err == nil {
			t.Fatal("the join has ended without an answer to its write")
		}
		return armed.Count() > 0 // else the time was over before it was written
	})
	turns := len(w.tape.ran("u"))
	spots := w.a.rt.find(kvlocation.KindSpot, "one")
	for _, request := range []func(context.Context) error{
		func(ctx context.Context) error { return second(w.b.Actors().Request(ctx, "u", []byte("early"))) },
		func(ctx context.Context) error { return second(w.b.Spots().Request(ctx, "one", []byte("early"))) },
	} {
		wantError(t, w.late(request), outcome.DeadlineExceeded, outcome.Unknown)
	}
	if n := len(w.tape.ran("u")); n != turns {
		t.Fatalf("%d turns began", n-turns)
	}
	if _, running := spots.running(); !running {
		t.Fatal("the turn of the spot has ended")
	}
	armed.Disarm()
	w.wantAt(u, "a", 6, one)
}

func second[T any](_ T, err error) error { return err }
