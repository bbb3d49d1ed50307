package objects

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// After a lapse one compare-and-set, on the Spot's record, adopts the Spot and all its members.
func TestSpotWideAdoption(t *testing.T) {
	t.Parallel()
	w := newWideBed(t, shortLease)
	one := w.spot("hall", "one", "a")
	const members = 20
	var users []ActorRef
	for i := range members {
		u := w.user(fmt.Sprintf("u%d", i), "a")
		w.join(u, one)
		users = append(users, u)
	}
	spot := w.entry(w.c, kvlocation.KindSpot, "one")
	records := map[string]uint64{}
	for _, u := range users {
		records[u.ID] = w.entry(w.c, kvlocation.KindActor, u.ID).Revision
	}
	w.a.isolate()
	w.a.reunite()
	got := make(chan error, members)
	for _, u := range users {
		go func() {
			ctx, err := w.ctx(), errors.New("not yet")
			for err != nil && ctx.Err() == nil {
				_, err = w.c.Actors().Request(ctx, u.ID, []byte("back"))
			}
			got <- err
		}()
	}
	for range users {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
	now := w.entry(w.c, kvlocation.KindSpot, "one")
	if now.Record.Write != spot.Record.Write+1 || now.Record.Owner.Lease != w.a.lease.Generation() {
		t.Fatalf("%d writes of the Spot's record: %+v", now.Record.Write-spot.Record.Write, now.Record)
	}
	for _, u := range users {
		if r := w.entry(w.c, kvlocation.KindActor, u.ID).Revision; r != records[u.ID] {
			t.Fatalf("the record of %v was written", u)
		}
		if seen := w.tokens.of(u.ID); len(seen) != 3 || seen[2] != 2 {
			t.Fatalf("the guard of %v was raised with %v", u, seen)
		}
		w.wantAt(u, "a", 2, one)
	}
	// What was not adopted yet leaves and ends all the same.
	w.a.isolate()
	w.a.reunite()
	fabrictest.Eventually(t, long, "a member leaves", func() bool { return w.c.Actors().Leave(w.ctx(), users[0], one) == nil })
	w.wantAt(users[0], "a", 3, SpotRef{})
	if err := w.c.Actors().Destroy(w.ctx(), users[1]); err != nil {
		t.Fatal(err)
	}
}

// A member is released with its Spot, and is missing then; bulk release passes over it. What its node has in memory is
// dropped when it comes back.
func TestSpotWideRelease(t *testing.T) {
	t.Parallel()
	w := newWideBed(t, shortLease)
	one, two := w.spot("hall", "one", "a"), w.spot("hall", "two", "a")
	u, v, free := w.user("u", "a"), w.user("v", "a"), w.user("free", "a")
	w.join(u, one)
	w.join(v, two)
	wantError(t, w.c.Actors().Release(w.ctx(), u), outcome.InvalidOperation, outcome.NotAccepted, one.String(), "released with that only")
	lifecycle := w.a.lease.Lifecycle()
	w.a.isolate()
	wantError(t, w.b.Actors().Release(w.ctx(), u), outcome.InvalidOperation, outcome.NotAccepted, one.String())
	x := must[Explanation](t)(w.c.Explain(w.ctx(), ExplainRequest{Kind: kvlocation.KindActor, ID: "u"}))
	fabrictest.Eventually(t, long, "the lease is gone", func() bool {
		x = must[Explanation](t)(w.c.Explain(w.ctx(), ExplainRequest{Kind: kvlocation.KindActor, ID: "u"}))
		return x.Location != nil && !x.Location.Alive
	})
	if x.WouldSucceed || x.Rule != "FO-4.2c" || x.Location.RID != "a" || !x.Location.ByReference {
		t.Fatalf("%+v", x)
	}
	_, err := w.c.Actors().Request(w.ctx(), "u", nil)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	t.Run("FO-10.12", func(t *testing.T) { // nothing makes it anew while its Spot's authority stays
		_, err := w.c.Actors().Create(w.ctx(), "user", "u", nil, AtNode("b"))
		wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
	})
	release := func(req ReleaseRequest) (report ReleaseReport) {
		fabrictest.Eventually(t, long, "it is released", func() bool {
			var err error
			report, err = w.b.Release(w.ctx(), req, nil)
			if err != nil && !errors.Is(err, kvlocation.ErrNodeAlive) {
				t.Fatal(err)
			}
			return err == nil && report.Done
		})
		return report
	}
	release(ReleaseRequest{Kind: kvlocation.KindSpot, ID: "one", Generation: one.Generation})
	if _, err := w.c.Actors().Find(w.ctx(), "u"); !errors.Is(err, outcome.NotFound) {
		t.Fatal(err)
	}
	anew := w.user("u", "b")
	if report := release(ReleaseRequest{RID: "a", Lifecycle: lifecycle}); report.Released != 2 || report.Skipped != 0 { // two and free
		t.Fatalf("%+v", report)
	}
	for _, id := range []string{"v", "free"} {
		if _, err := w.c.Actors().Find(w.ctx(), id); !errors.Is(err, outcome.NotFound) {
			t.Fatal(err)
		}
	}
	_ = free
	w.a.reunite()
	fabrictest.Eventually(t, long, "what the node had is dropped", func() bool {
		for _, id := range []string{"u", "v"} {
			_, _ = w.a.Actors().Request(w.ctx(), id, nil)
		}
		for _, o := range []*object{w.a.rt.find(kvlocation.KindActor, "u"), w.a.rt.find(kvlocation.KindActor, "v"), w.a.rt.find(kvlocation.KindSpot, "one"), w.a.rt.find(kvlocation.KindSpot, "two")} {
			if o != nil {
				return false
			}
		}
		return true
	})
	w.wantAt(anew, "b", 1, SpotRef{})
	_ = v
}

// A node dies in the middle of a join or a leave: the record alone decides what the Actor is, and nothing takes it over.
func TestSpotWideCrash(t *testing.T) {
	for _, join := range []bool{true, false} {
		for _, applied := range []bool{true, false} {
			t.Run(fmt.Sprintf("join=%v applied=%v", join, applied), func(t *testing.T) {
				t.Parallel()
				w := newWideBed(t, shortLease)
				one := w.spot("hall", "one", "a")
				u := w.user("u", "a")
				w.wantAt(u, "a", 1, SpotRef{})
				generation := uint64(1)
				if !join {
					w.join(u, one)
					generation = 2
				}
				turns := len(w.tape.ran("u"))
				armed := w.a.proxy.Arm(fabrictest.Trigger{
					Dir: fabrictest.ToServer, Subject: w.writesOf(kvlocation.KindActor, "u"), Answer: applied, Times: -1, Action: fabrictest.Drop,
				})
				defer armed.Disarm()
				done := make(chan error, 1)
				change := w.c.Actors().Leave
				if join {
					change = w.c.Actors().Join
				}
				ctx, leave := context.WithCancel(w.ctx())
				go func() { done <- change(ctx, u, one) }()
				armed.Wait(t) // the write, or the answer to it, is lost
				if applied {
					fabrictest.Eventually(t, long, "the record is written", func() bool {
						e := w.entry(w.b, kvlocation.KindActor, "u")
						_, by := e.Record.Reference()
						return by == join
					})
				}
				w.a.vanish()
				leave() // it would hear nothing more
				if err := <-done; err == nil || errors.Is(err, outcome.NotAccepted) {
					t.Fatalf("the caller heard %v", err)
				}
				if applied {
					generation++
				}
				loc := must[Location](t)(w.b.Actors().Find(w.ctx(), "u"))
				if loc.RID != "a" || loc.ByReference != (join == applied) || loc.OwnerGeneration != generation {
					t.Fatalf("%+v", loc)
				}
				_, err := w.c.Actors().Request(w.ctxFor(10*time.Second), "u", nil)
				if !errors.Is(err, outcome.Unavailable) && !errors.Is(err, outcome.DeadlineExceeded) {
					t.Fatal(err)
				}
				if n := len(w.tape.ran("u")); n != turns {
					t.Fatalf("%d turns more", n-turns)
				}
				fabrictest.Eventually(t, long, "the spot is released", func() bool { return w.b.Spots().Release(w.ctx(), one) == nil })
				_, err = w.b.Actors().Find(w.ctx(), "u")
				if gone := errors.Is(err, outcome.NotFound); gone != loc.ByReference {
					t.Fatalf("after the release of the spot: %v", err)
				}
			})
		}
	}
}

// A turn of the Actor that takes its time keeps its own join or leave waiting, and not the Spot; one that waits for the Spot
// gets its answer; one that never returns ends the change by its deadline, and nothing is changed.
func TestSpotWideBusyMember(t *testing.T) {
	t.Parallel()
	w := newWideBed(t)
	one := w.spot("hall", "one", "a")
	u := w.user("u", "a")
	begun, release := make(chan struct{}, 10), make(chan struct{})
	w.tape.onTurn = func(ctx context.Context, req *Request) (Reply, error, bool) {
		switch string(req.Data()) {
		case "slow":
			begun <- struct{}{}
			<-release
		case "ask":
			begun <- struct{}{}
			<-release
			r, err := req.Self().Spots().Request(ctx, "one", []byte("from a turn"))
			return r, err, true
		}
		return Reply{}, nil, false
	}
	turn := func(data string) chan error {
		c := make(chan error, 1)
		go func() { c <- second(w.c.Actors().Request(w.ctx(), "u", []byte(data))) }()
		<-begun
		return c
	}
	slow := turn("slow")
	deadline := func(op func(*meshNode) error) {
		t.Helper()
		for _, n := range []*meshNode{w.a, w.b} { // the owner itself says it, too
			fabrictest.Eventually(t, long, "it says its deadline", func() bool {
				err := op(n)
				if err == nil || n == w.a && !errors.Is(err, outcome.DeadlineExceeded) {
					t.Fatalf("within a turn of the actor it has ended with %v", err)
				}
				return errors.Is(err, outcome.DeadlineExceeded) // else the time was over before the owner was asked
			})
		}
	}
	deadline(func(n *meshNode) error { return n.Actors().Join(w.ctxFor(time.Second), u, one) })
	joined := make(chan error, 1)
	// A node asks, which knows the store's clock for certain: what comes without a deadline ends after DefaultTimeout at the owner.
	go func() { joined <- w.b.Actors().Join(w.ctx(), u, one) }()
	for range 20 { // the Spot goes on
		if _, err := w.c.Spots().Request(w.ctx(), "one", nil); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-joined:
		t.Fatalf("the join has ended within a turn of the actor: %v", err)
	default:
	}
	release <- struct{}{}
	if err := errors.Join(<-slow, <-joined); err != nil {
		t.Fatal(err)
	}
	w.wantAt(u, "a", 2, one)

	for range 5 {
		asks := turn("ask")
		left := make(chan error, 1)
		go func() { left <- w.c.Actors().Leave(w.ctx(), u, one) }()
		o := w.a.rt.find(kvlocation.KindSpot, "one")
		fabrictest.Eventually(t, long, "the leave is tried", func() bool { _, ok := o.running(); return ok })
		release <- struct{}{}
		if err := errors.Join(<-asks, <-left); err != nil {
			t.Fatal(err)
		}
		w.join(u, one)
	}

	slow = turn("slow")
	deadline(func(n *meshNode) error { return n.Spots().Close(w.ctxFor(700*time.Millisecond), one) })
	o := w.a.rt.find(kvlocation.KindSpot, "one")
	fabrictest.Eventually(t, long, "the close is given up", func() bool { return o.is() == objectOpen })
	release <- struct{}{}
	if err := <-slow; err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "the member goes on", func() bool {
		_, err := w.c.Actors().Request(w.ctx(), "u", nil)
		return err == nil && w.c.Actors().Leave(w.ctx(), u, one) == nil
	})
}

// An orderly end closes SpotWide Spots with their members, each once.
func TestSpotWideShutdown(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	made := func(context.Context, *Self, []byte) (Object, error) { return handle(echo), nil }
	a := m.node("a", types(
		Type{Name: "player", Class: kvlocation.ClassActor, CloseOnShutdown: true, New: made},
		Type{Name: "game", Class: kvlocation.ClassUserSpot, Members: SpotWide, CloseOnShutdown: true, New: made},
	))
	c := m.client()
	const games, players = 5, 5
	for g := range games {
		game := must[SpotRef](t)(c.Spots().Create(m.ctx(), "game", fmt.Sprintf("g%d", g), nil))
		for p := range players {
			player := must[ActorRef](t)(c.Actors().Create(m.ctx(), "player", fmt.Sprintf("p%d-%d", g, p), nil))
			if err := c.Actors().Join(m.ctx(), player, game); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := a.Service.Close(m.ctx()); err != nil {
		t.Error(err)
	}
	for g := range games {
		if p := m.entry(c, kvlocation.KindSpot, fmt.Sprintf("g%d", g)).Phase(); p != kvlocation.PhaseMissing {
			t.Errorf("game %d is %s", g, p)
		}
		for p := range players {
			if _, err := c.Actors().Find(m.ctx(), fmt.Sprintf("p%d-%d", g, p)); !errors.Is(err, outcome.NotFound) {
				t.Errorf("player %d of game %d: %v", p, g, err)
			}
		}
	}
}
