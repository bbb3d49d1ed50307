package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Create, call, destroy, over two nodes and a client, each of them asking for what lives here and elsewhere.
func TestActorsAcrossNodes(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	b := m.node("b", types(tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()

	for i, from := range []*meshNode{a, b, c} {
		id := fmt.Sprintf("actor %d", i)
		ref, err := from.Actors().Create(m.ctx(), "user", id, []byte("input"))
		if err != nil {
			t.Fatalf("create from %q: %v", from.rid, err)
		}
		e := m.entry(a, kvlocation.KindActor, id)
		if e.Phase() != kvlocation.PhaseReady || e.Generation() != ref.Generation || len(e.Record.Activation) != 0 || e.Record.OwnerGeneration != 1 {
			t.Fatalf("the record of %v is %+v", ref, e.Record)
		}
		if tp.made(id) != 1 {
			t.Fatalf("%d factories ran", tp.made(id))
		}
		for _, caller := range []*meshNode{a, b, c} {
			for range 3 { // cold, then warm
				reply, err := caller.Actors().Request(m.ctx(), id, []byte("hello"))
				want := fmt.Sprintf("%s %d 1 hello", e.Record.Owner.RID, ref.Generation)
				if err != nil || string(reply.Data) != want || reply.Header != nil {
					t.Fatalf("request from %q: %q, %v, want %q", caller.rid, reply.Data, err, want)
				}
			}
			if err := caller.Actors().Send(m.ctx(), id, []byte("note")); err != nil {
				t.Fatalf("send from %q: %v", caller.rid, err)
			}
			if _, err := caller.Actors().Create(m.ctx(), "user", id, nil); err == nil {
				t.Fatal("an existing actor was created")
			} else {
				wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted, id)
			}
			got, created, err := caller.Actors().GetOrCreate(m.ctx(), "user", id, nil)
			if err != nil || created || got != ref {
				t.Fatalf("get or create: %v, %v, %v", got, created, err)
			}
			loc, err := caller.Actors().Find(m.ctx(), id)
			if err != nil || loc.Generation != ref.Generation || !loc.Alive || loc.Type != "user" {
				t.Fatalf("find: %+v, %v", loc, err)
			}
		}
		stale := ActorRef{ID: id, Generation: ref.Generation + 1000}
		wantError(t, from.Actors().Destroy(m.ctx(), stale), outcome.NotFound, outcome.NotAccepted, fmt.Sprint(ref.Generation), fmt.Sprint(stale.Generation))
		if err := from.Actors().Destroy(m.ctx(), ref); err != nil {
			t.Fatalf("destroy from %q: %v", from.rid, err)
		}
		if n := len(tp.ran(id)); n != 12 {
			t.Fatalf("%d turns ran, want 12: %v", n, tp.ran(id))
		}
		wantError(t, from.Actors().Destroy(m.ctx(), ref), outcome.NotFound, outcome.NotAccepted)
		if _, err := from.Actors().Find(m.ctx(), id); err == nil {
			t.Fatal("a destroyed actor was found")
		}
		if p := m.entry(a, kvlocation.KindActor, id).Phase(); p != kvlocation.PhaseMissing {
			t.Fatalf("the record is %s", p)
		}
	}
}

// The first message with instance intent makes an Instance Spot in two writes, runs first, and the next ones find it.
func TestInstanceSpotsAcrossNodes(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassInstanceSpot, "other")))
	b := m.node("b", types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassInstanceSpot, "other")))
	c := m.client()
	for i, from := range []*meshNode{a, b, c} {
		for j, home := range []*meshNode{a, b} {
			id := m.homeID(home, kvlocation.ClassInstanceSpot, "room", fmt.Sprintf("r%d-%d-", i, j))
			_, err := from.Spots().Request(m.ctx(), id, []byte("x"))
			wantError(t, err, outcome.NotFound, outcome.NotAccepted, id)
			reply, err := from.Spots().Request(m.ctx(), id, []byte("first"), WithInstance("room"))
			if err != nil || !strings.HasPrefix(string(reply.Data), home.rid+" ") || reply.Header != nil {
				t.Fatalf("activation from %q: %q %v, %v", from.rid, reply.Data, reply.Header, err)
			}
			e := m.entry(a, kvlocation.KindSpot, id)
			if e.Record.Write != 2 || e.Phase() != kvlocation.PhaseReady || len(e.Record.Activation) != 0 {
				t.Fatalf("the record after the activation: %+v", e.Record)
			}
			for _, caller := range []*meshNode{a, b, c} {
				var tr Trace
				if err := caller.Spots().Send(m.ctx(), id, []byte("more"), WithInstance("room"), WithTrace(&tr)); err != nil {
					t.Fatalf("send from %q: %v", caller.rid, err)
				}
				if caller == from && from != home && !tr.Cached {
					t.Fatalf("the activation told no route: %+v", tr)
				}
				_, err := caller.Spots().Request(m.ctx(), id, nil, WithInstance("other"))
				wantError(t, err, outcome.TypeMismatch, outcome.NotAccepted, "room", "other")
			}
			fabrictest.Eventually(t, long, "the notes have run", func() bool { return len(tp.ran(id)) >= 4 })
			if got := tp.ran(id); tp.made(id) != 1 || len(got) != 4 || !strings.HasSuffix(got[0], "first") {
				t.Fatalf("%d factories, turns %v", tp.made(id), got)
			}
			ref := SpotRef{ID: id, Generation: e.Generation()}
			if err := from.Spots().Close(m.ctx(), ref); err != nil {
				t.Fatal(err)
			}
			// FO-4.4e
			if _, err := from.Spots().Request(m.ctx(), id, []byte("again"), WithInstance("room")); err != nil {
				t.Fatal(err)
			}
			if g := m.entry(a, kvlocation.KindSpot, id).Generation(); g <= ref.Generation {
				t.Fatalf("the new incarnation has generation %d, the old one had %d", g, ref.Generation)
			}
		}
	}
}

// An idle Instance Spot is closed, and the next message with instance intent makes a new incarnation.
func TestIdleSpotsGo(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	room := tp.typ(kvlocation.ClassInstanceSpot, "room")
	room.IdleAfter = 100 * time.Millisecond
	a := m.node("a", types(room))
	c := m.client()
	var last uint64
	for range 2 {
		reply, err := c.Spots().Request(m.ctx(), "r", nil, WithInstance("room"))
		if err != nil {
			t.Fatal(err)
		}
		var g uint64 // its record may be gone by now
		if _, err := fmt.Sscanf(string(reply.Data), "a %d 1 ", &g); err != nil || g <= last {
			t.Fatalf("%q after generation %d: %v", reply.Data, last, err)
		}
		last = g
		fabrictest.Eventually(t, long, "the spot goes", func() bool {
			return m.entry(c, kvlocation.KindSpot, "r").Phase() == kvlocation.PhaseMissing && a.rt.find(kvlocation.KindSpot, "r") == nil
		})
		_, err = c.Spots().Request(m.ctx(), "r", nil)
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted) // the route is stale
		_, err = c.Spots().Request(m.ctx(), "r", nil)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted, "there is no object")
	}
	if tp.closing("r") != CloseIdle || tp.made("r") != 2 {
		t.Fatalf("closed because of %q, %d factories", tp.closing("r"), tp.made("r"))
	}
}

// Turns that wait for each other over nodes end by the deadline, with an error that names the cycle.
func TestCycleAcrossNodes(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	tp.onTurn = func(ctx context.Context, req *Request) (Reply, error, bool) {
		other := map[string]string{"x": "y", "y": "x"}[req.Self().ID()]
		reply, err := req.Self().Actors().Request(ctx, other, nil)
		return reply, err, true
	}
	ty := types(tp.typ(kvlocation.ClassActor, "user"))
	m.node("a", ty)
	b := m.node("b", ty)
	must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "x", nil, AtNode("a")))
	must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "y", nil, AtNode("b")))
	c := m.client()
	const cycle = `actor "x" -> actor "y" -> actor "x"`
	inner := make(chan error, 100)
	f := tp.onTurn
	tp.turn(func(ctx context.Context, req *Request) (Reply, error, bool) {
		reply, err, done := f(ctx, req)
		if req.Self().ID() == "y" {
			inner <- err
		}
		return reply, err, done
	})
	var outer, in error
	for d := time.Second; d < long; d *= 2 { // until there is time enough for the cycle to close
		_, outer = c.Actors().Request(m.ctxFor(d), "x", nil)
		select {
		case in = <-inner:
		case <-time.After(d): // it was not asked in time
			continue
		}
		if !errors.Is(outer, outcome.DeadlineExceeded) || in == nil {
			t.Fatalf("%v, and within %v", outer, in)
		}
		if strings.Contains(in.Error(), cycle) {
			return
		}
	}
	t.Fatalf("neither %v nor, within, %v names the cycle %q", outer, in, cycle)
}
