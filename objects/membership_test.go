package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// club is a Spot that writes down who came and went, and refuses some.
type club struct {
	mu     sync.Mutex
	joined []ActorRef
	left   []ActorRef
	refuse map[string]bool
	self   *Self
}

func (c *club) Handle(ctx context.Context, req *Request) (Reply, error) {
	r, err := req.Self().Broadcast(ctx, req.Data())
	return Reply{Data: fmt.Appendf(nil, "%d of %d", r.Accepted, r.Members)}, err
}

func (c *club) Joining(_ context.Context, _ *Self, a ActorRef) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse[a.ID] {
		return errors.New("not you")
	}
	c.joined = append(c.joined, a)
	return nil
}

func (c *club) Left(_ context.Context, _ *Self, a ActorRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, a)
}

func (c *club) hasLeft(a ActorRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.left {
		if l == a {
			return true
		}
	}
	return false
}

func TestMembership(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	var mu sync.Mutex
	clubs := map[string]*club{}
	heard := map[string][]string{}
	tp.onTurn = func(_ context.Context, req *Request) (Reply, error, bool) {
		if spot, ok := req.Broadcast(); ok {
			mu.Lock()
			defer mu.Unlock()
			heard[req.Self().ID()] = append(heard[req.Self().ID()], spot.ID+": "+string(req.Data()))
			return Reply{}, nil, true
		}
		if string(req.Data()) == "where" {
			spot, _ := req.Self().Spot()
			return Reply{Data: []byte(spot.String())}, nil, true
		}
		return Reply{}, nil, false
	}
	hall := Type{Name: "hall", Class: kvlocation.ClassUserSpot, New: func(_ context.Context, self *Self, _ []byte) (Object, error) {
		c := &club{refuse: map[string]bool{"u3": true}, self: self}
		mu.Lock()
		defer mu.Unlock()
		clubs[self.ID()] = c
		return c, nil
	}}
	lobby := Type{Name: "lobby", Class: kvlocation.ClassEntrySpot, New: func(context.Context, *Self, []byte) (Object, error) {
		return HandlerFunc(func(_ context.Context, req *Request) (Reply, error) {
			if string(req.Data()) == "end" {
				req.Self().Close()
			}
			return Reply{Data: []byte("lobby of " + req.Self().RID())}, nil
		}), nil
	}}
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user"), hall, lobby))
	b := m.node("b", types(tp.typ(kvlocation.ClassActor, "user"), hall))
	c := m.client()
	var users []ActorRef
	for i := range 4 {
		at := []string{"a", "b"}[i%2]
		ref, err := c.Actors().Create(m.ctx(), "user", fmt.Sprintf("u%d", i), nil, AtNode(at))
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, ref)
	}
	one := must[SpotRef](t)(c.Spots().Create(m.ctx(), "hall", "one", nil, AtNode("a")))
	two := must[SpotRef](t)(c.Spots().Create(m.ctx(), "hall", "two", nil, AtNode("b")))

	t.Run("entry", func(t *testing.T) {
		for _, n := range []*meshNode{a, b, c} {
			entry := must[SpotRef](t)(n.Spots().Entry("a"))
			if got := must[[]ActorRef](t)(n.Spots().Members(m.ctx(), entry)); len(got) != 2 || got[0] != users[0] || got[1] != users[2] {
				t.Fatalf("members of %v as %q sees them: %v", entry, n.rid, got)
			}
			reply, err := n.Spots().Request(m.ctx(), entry.ID, nil)
			if err != nil || string(reply.Data) != "lobby of a" {
				t.Fatalf("%q, %v", reply.Data, err)
			}
			_, err = n.Spots().Request(m.ctx(), "entry:b", nil)
			wantError(t, err, outcome.NotConfigured, outcome.NotAccepted, "entry_spot")
			_, err = n.Spots().Request(m.ctx(), "entry:z", nil)
			wantError(t, err, outcome.NotFound, outcome.NotAccepted)
			wantError(t, n.Spots().Close(m.ctx(), entry), outcome.InvalidOperation, outcome.NotAccepted)
			if _, err := n.Spots().Request(m.ctx(), entry.ID, []byte("end")); err != nil {
				t.Fatal(err)
			}
			if r, err := n.Spots().Broadcast(m.ctx(), entry, []byte("all")); err != nil || r.Accepted != 2 {
				t.Fatalf("%+v, %v", r, err)
			}
			if loc, err := n.Spots().Find(m.ctx(), entry.ID); err != nil || loc.RID != "a" || !loc.Alive || loc.Type != "lobby" {
				t.Fatalf("%+v, %v", loc, err)
			}
		}
		if _, err := c.Spots().Entry("z"); !errors.Is(err, outcome.NotFound) {
			t.Fatal(err)
		}
	})
	t.Run("join", func(t *testing.T) {
		for i, from := range []*meshNode{c, a, b} {
			if err := from.Actors().Join(m.ctx(), users[i], one); err != nil {
				t.Fatalf("join from %q: %v", from.rid, err)
			}
			if err := from.Actors().Join(m.ctx(), users[i], one); err != nil { // again
				t.Fatal(err)
			}
			e := m.entry(c, kvlocation.KindActor, users[i].ID)
			if spotIn(e.Record.With) != one {
				t.Fatalf("the record says %s", e.Record.With)
			}
			reply, err := c.Actors().Request(m.ctx(), users[i].ID, []byte("where"))
			if err != nil || string(reply.Data) != one.String() {
				t.Fatalf("%q, %v", reply.Data, err)
			}
		}
		wantError(t, c.Actors().Join(m.ctx(), users[3], one), outcome.Rejected, outcome.NotAccepted, "not you")
		wantError(t, c.Actors().Join(m.ctx(), users[0], SpotRef{ID: "one", Generation: one.Generation + 999}), outcome.NotFound, outcome.NotAccepted)
		wantError(t, c.Actors().Join(m.ctx(), ActorRef{ID: "u0", Generation: 12345678}, two), outcome.NotFound, outcome.NotAccepted)
		if got := must[[]ActorRef](t)(b.Spots().Members(m.ctx(), one)); len(got) != 3 {
			t.Fatalf("%v", got)
		}
	})
	t.Run("broadcast", func(t *testing.T) {
		for _, from := range []*meshNode{a, b, c} {
			r, err := from.Spots().Broadcast(m.ctx(), one, []byte("hi from "+from.rid))
			if err != nil || r.Members != 3 || r.Accepted != 3 {
				t.Fatalf("from %q: %+v, %v", from.rid, r, err)
			}
		}
		reply, err := c.Spots().Request(m.ctx(), "one", []byte("own turn"))
		if err != nil || string(reply.Data) != "3 of 3" {
			t.Fatalf("%q, %v", reply.Data, err)
		}
		fabrictest.Eventually(t, long, "all have heard", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(heard["u0"]) == 4+3 && len(heard["u1"]) == 4 && len(heard["u2"]) == 4+3 && len(heard["u3"]) == 0
		})
	})
	t.Run("moves", func(t *testing.T) {
		if err := c.Actors().Join(m.ctx(), users[1], two); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the first spot hears of it", func() bool { return clubs["one"].hasLeft(users[1]) })
		if got := must[[]ActorRef](t)(c.Spots().Members(m.ctx(), one)); len(got) != 2 {
			t.Fatalf("%v", got)
		}
		wantError(t, c.Actors().Leave(m.ctx(), users[1], one), outcome.InvalidOperation, outcome.NotAccepted, "no member")
		if err := c.Actors().Leave(m.ctx(), users[1], two); err != nil {
			t.Fatal(err)
		}
		if e := m.entry(c, kvlocation.KindActor, "u1"); len(e.Record.With) != 0 && !spotIn(e.Record.With).IsZero() {
			t.Fatalf("the record says %s", e.Record.With)
		}
		// Joining the Entry Spot is leaving.
		if err := c.Actors().Join(m.ctx(), users[0], must[SpotRef](t)(c.Spots().Entry("a"))); err != nil {
			t.Fatal(err)
		}
		if !clubs["one"].hasLeft(users[0]) {
			t.Fatal("the spot was not told")
		}
		wantError(t, c.Actors().Join(m.ctx(), users[0], must[SpotRef](t)(c.Spots().Entry("b"))), outcome.InvalidOperation, outcome.NotAccepted)
	})
	t.Run("an actor that is gone", func(t *testing.T) {
		if err := c.Actors().Destroy(m.ctx(), users[2]); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the spot hears of it", func() bool { return clubs["one"].hasLeft(users[2]) })
		if got := must[[]ActorRef](t)(c.Spots().Members(m.ctx(), one)); len(got) != 0 {
			t.Fatalf("%v", got)
		}
		// A member that the list has and that is none refuses, and is taken off it.
		clubs["two"].self.o.m.Load().add(users[0], 1)
		r, err := c.Spots().Broadcast(m.ctx(), two, []byte("x"))
		if err != nil || r.Refused != 1 || len(r.Failures) != 1 || r.Failures[0].Actor != users[0] {
			t.Fatalf("%+v, %v", r, err)
		}
		if got := must[[]ActorRef](t)(c.Spots().Members(m.ctx(), two)); len(got) != 0 {
			t.Fatalf("%v", got)
		}
	})
	t.Run("back and forth", func(t *testing.T) {
		// What a Spot is told late of a member that has left and come back takes it off no list.
		for i := range 20 {
			for _, spot := range []SpotRef{two, one} {
				if err := c.Actors().Join(m.ctx(), users[0], spot); err != nil {
					t.Fatal(err)
				}
				if e := m.entry(c, kvlocation.KindActor, "u0"); spotIn(e.Record.With) != spot {
					t.Fatalf("round %d: joined %v, and the record says %s", i, spot, e.Record.With)
				}
				if got := must[[]ActorRef](t)(c.Spots().Members(m.ctx(), spot)); len(got) != 1 {
					t.Fatalf("round %d: the members of %v are %v", i, spot, got)
				}
			}
		}
		if r, err := c.Spots().Broadcast(m.ctx(), one, nil); err != nil || r.Accepted != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := c.Actors().Leave(m.ctx(), users[0], one); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("answers lost", func(t *testing.T) {
		for _, answer := range []bool{true, false} {
			a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindActor, "u0"), Answer: answer, Action: fabrictest.Drop})
			if err := c.Actors().Join(m.ctx(), users[0], two); err != nil {
				t.Fatal(err)
			}
			if e := m.entry(c, kvlocation.KindActor, "u0"); spotIn(e.Record.With) != two {
				t.Fatalf("the record says %s", e.Record.With)
			}
			a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindActor, "u0"), Answer: answer, Action: fabrictest.Drop})
			if err := c.Actors().Leave(m.ctx(), users[0], two); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("close", func(t *testing.T) {
		if err := c.Actors().Join(m.ctx(), users[0], two); err != nil {
			t.Fatal(err)
		}
		if err := c.Spots().Close(m.ctx(), two); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the member is back in its node's Entry Spot", func() bool {
			reply, err := c.Actors().Request(m.ctx(), "u0", []byte("where"))
			return err == nil && string(reply.Data) == must[SpotRef](t)(c.Spots().Entry("a")).String()
		})
		err := c.Actors().Join(m.ctx(), users[0], two)
		if !errors.Is(err, outcome.NotFound) && !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
			t.Fatal(err)
		}
	})
}

// Close of a Spot refuses joins from its beginning on, while what was accepted before still runs.
func TestCloseRefusesJoinsFirst(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	begun, release := make(chan struct{}), make(chan struct{})
	tp.onTurn = func(context.Context, *Request) (Reply, error, bool) {
		close(begun)
		<-release
		return Reply{}, nil, true
	}
	a := m.node("a", types(tp.typ(kvlocation.ClassUserSpot, "hall")))
	users := newTape()
	b := m.node("b", types(users.typ(kvlocation.ClassActor, "user")))
	u := must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "u", nil))
	spot := must[SpotRef](t)(b.Spots().Create(m.ctx(), "hall", "h", nil))
	go func() { _, _ = b.Spots().Request(m.ctx(), "h", nil) }()
	<-begun
	joined := make(chan error, 1)
	closed := make(chan error, 1)
	o := a.rt.find(kvlocation.KindSpot, "h")
	go func() { joined <- b.Actors().Join(m.ctx(), u, spot) }()
	fabrictest.Eventually(t, long, "the join waits for its turn", func() bool { n, _ := o.waiting(); return n == 1 })
	go func() { closed <- b.Spots().Close(m.ctx(), spot) }()
	fabrictest.Eventually(t, long, "the close waits for its turn", func() bool { n, _ := o.waiting(); return n == 2 })
	close(release)
	wantError(t, <-joined, outcome.Unavailable, outcome.NotAccepted, "refuses joins")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if e := m.entry(b, kvlocation.KindActor, "u"); !spotIn(e.Record.With).IsZero() {
		t.Fatalf("the record says %s", e.Record.With)
	}
}

// A Close that did not come to its turn leaves the Spot as it was: it takes members again.
func TestCloseThatDidNotRun(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	begun, release := make(chan struct{}), make(chan struct{})
	tp.onTurn = func(context.Context, *Request) (Reply, error, bool) {
		close(begun)
		<-release
		return Reply{}, nil, true
	}
	users := newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassUserSpot, "hall"), users.typ(kvlocation.ClassActor, "user")))
	b := m.node("b")
	u := must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "u", nil))
	spot := must[SpotRef](t)(b.Spots().Create(m.ctx(), "hall", "h", nil))
	go func() { _, _ = b.Spots().Request(m.ctx(), "h", nil) }()
	<-begun
	o := a.rt.find(kvlocation.KindSpot, "h")
	fabrictest.Eventually(t, long, "a close waits for its turn when its time ends", func() bool {
		if err := m.late(func(ctx context.Context) error { return b.Spots().Close(ctx, spot) }); !errors.Is(err, outcome.DeadlineExceeded) {
			t.Fatal(err)
		}
		n, _ := o.waiting()
		return n > 0
	})
	ms := o.m.Load()
	fabrictest.Eventually(t, long, "the node gives the close up", func() bool {
		ms.mu.Lock()
		defer ms.mu.Unlock()
		return ms.closes == 0
	})
	close(release)
	fabrictest.Eventually(t, long, "the spot takes a member", func() bool { return b.Actors().Join(m.ctx(), u, spot) == nil })
}

// An Actor may join in its own turn: the write of its record is no turn.
func TestJoinFromWithin(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	var spot SpotRef
	tp.onTurn = func(ctx context.Context, req *Request) (Reply, error, bool) {
		return Reply{}, req.Self().Actors().Join(ctx, req.Self().ActorRef(), spot), true
	}
	halls := newTape()
	m.node("a", types(tp.typ(kvlocation.ClassActor, "user"), halls.typ(kvlocation.ClassUserSpot, "hall")))
	b := m.node("b", types(tp.typ(kvlocation.ClassActor, "user")))
	spot = must[SpotRef](t)(b.Spots().Create(m.ctx(), "hall", "h", nil))
	for _, at := range []string{"a", "b"} {
		must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "u"+at, nil, AtNode(at)))
		if _, err := b.Actors().Request(m.ctx(), "u"+at, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := must[[]ActorRef](t)(b.Spots().Members(m.ctx(), spot)); len(got) != 2 {
		t.Fatalf("%v", got)
	}
}
