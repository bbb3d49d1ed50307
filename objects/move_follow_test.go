package objects

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// at sends one message straight to a node, as a caller with a stale route does.
func (w *moveBed) at(n, to *meshNode, key kvlocation.ObjectKey, data string, h nats.Header, oneWay bool) (Reply, error) {
	w.t.Helper()
	token := must[string](w.t)(wire.EscapeID(key.ID))
	return n.router.CallRun(w.ctx(), &channels.RunCall{
		Op: "request", Target: key.String(), RID: to.rid, Lifecycle: to.cfg.Lifecycle, Data: []byte(data), Header: h, OneWay: oneWay,
		Subject: n.subject(to.rid, to.cfg.Lifecycle, verbMessage, key.Kind, token),
	})
}

// TestFollow: what reaches the old owner goes on to the new one, once, and tells its sender the way; the sender's route is
// replaced by a newer one only.
func TestFollow(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.c, key, "0") // the client knows the route to a
	old := w.c.routes.get(key.Kind, key.ID)
	w.move(w.a, w.b, key).whole()
	t.Run("FO-4.2b", func(t *testing.T) {
		if got := w.request(w.c, key, "1"); got != "2 b" {
			t.Fatal(got)
		}
		if r := w.c.routes.get(key.Kind, key.ID); r.rid != "b" || r.ownerGeneration != 2 {
			t.Fatalf("the sender's route is to %s", r.rid)
		}
		if m := w.a.Metrics(); m.Followed != 1 || m.Following != 1 {
			t.Fatalf("followed %d, following %d", m.Followed, m.Following)
		}
		w.request(w.c, key, "2")
		if m := w.a.Metrics(); m.Followed != 1 {
			t.Fatal("the next message was followed too")
		}
		// A one-way message learns it from the notice of its acceptance.
		w.c.routes.drop(w.c.routes.get(key.Kind, key.ID))
		w.c.routes.put(old)
		if err := w.c.Actors().Send(w.ctx(), key.ID, []byte("3")); err != nil {
			t.Fatal(err)
		}
		if r := w.c.routes.get(key.Kind, key.ID); r.rid != "b" {
			t.Fatalf("the route after a Send is to %s", r.rid)
		}
		reply, err := w.at(w.c, w.a, key, "4", nil, false)
		if err != nil || string(reply.Data) != "5 b" {
			t.Fatal(reply, err)
		}
		if p, ok := parsePlace(reply.Header.Get(wire.HeaderRoute)); !ok || p.rid != "b" || p.ownerGeneration != 2 {
			t.Fatal(reply.Header)
		}
		want := []string{"a: 0", "b: 1", "b: 2", "b: 3", "b: 4"}
		if got := w.led.of("one"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatal(got)
		}
	})
	// Operations on the exact incarnation are followed too.
	ref := ActorRef{ID: key.ID, Generation: old.generation}
	w.c.routes.drop(w.c.routes.get(key.Kind, key.ID))
	w.c.routes.put(old)
	if err := w.c.Actors().Destroy(w.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	// And nothing goes round in circles when the object is gone.
	_, err := w.at(w.c, w.a, key, "5", nil, false)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
}

// TestFollowFromHere: what the old owner's own process sends by the route to itself follows the object, too, and its sender learns
// the way: a session whose Actor has just moved away from the session's node was refused.
func TestFollowFromHere(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	here := Place{RID: "a", Lifecycle: w.a.cfg.Lifecycle, Generation: w.entry(w.a, key.Kind, key.ID).Generation(), OwnerGeneration: 1}
	way := must[*Way](t)(w.a.Way(here, key, ""))
	send := func(data string, oneWay bool) (Reply, Place, error) {
		return w.a.CallAt(w.ctx(), way, &Message{Op: "relay", Data: []byte(data), OneWay: oneWay})
	}
	if reply, moved, err := send("0", false); err != nil || string(reply.Data) != "1 a" || moved != (Place{}) {
		t.Fatal(reply, moved, err)
	}
	w.move(w.a, w.b, key).whole()
	reply, moved, err := send("1", false)
	if err != nil || string(reply.Data) != "2 b" || moved.RID != "b" || moved.OwnerGeneration != 2 || len(reply.Header) != 0 {
		t.Fatal(reply, moved, err)
	}
	if _, moved, err = send("2", true); err != nil || moved.RID != "b" {
		t.Fatal(moved, err)
	}
	if m := w.a.Metrics(); m.Followed != 2 {
		t.Fatalf("followed %d", m.Followed)
	}
	w.a.follows.clear()
	if _, _, err = send("3", false); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "each to have run once, in order", func() bool {
		return fmt.Sprint(w.led.of("one")) == fmt.Sprint([]string{"a: 0", "b: 1", "b: 2"})
	})
}

// TestFollowBounds: the time, the hops, the messages and the bytes of follow are bounded, and 0 turns it off; what is not
// followed is refused, with the place.
func TestFollowBounds(t *testing.T) {
	w := newMoveBed(t)
	refused := func(key kvlocation.ObjectKey, data string, h nats.Header) {
		t.Helper()
		reply, err := w.at(w.c, w.a, key, data, h, false)
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		if p, ok := parsePlace(reply.Header.Get(wire.HeaderRoute)); !ok || p.rid != "b" {
			t.Fatalf("the refusal names the place %v", reply.Header)
		}
	}
	taken := func(key kvlocation.ObjectKey, data string, h nats.Header) {
		t.Helper()
		if _, err := w.at(w.c, w.a, key, data, h, false); err != nil {
			t.Fatal(err)
		}
	}
	hops := func(n int) nats.Header { return nats.Header{wire.HeaderHops: {strconv.Itoa(n)}} }
	t.Run("hops", func(t *testing.T) {
		key := w.actor("hops")
		w.move(w.a, w.b, key).whole()
		taken(key, "7", hops(MaxHops-1))
		refused(key, "8", hops(MaxHops))
		refused(key, "x", nats.Header{wire.HeaderHops: {"nonsense"}})
	})
	t.Run("messages", func(t *testing.T) {
		key := w.actor("messages")
		w.move(w.a, w.b, key).whole()
		w.a.follows.by[key].move.messages = MaxFollowed - 2
		taken(key, "1", nil)
		taken(key, "2", nil)
		refused(key, "3", nil)
	})
	t.Run("bytes", func(t *testing.T) {
		key := w.actor("bytes")
		w.move(w.a, w.b, key).whole()
		w.a.follows.by[key].move.bytes = MaxFollowedBytes - 10
		refused(key, "more than is left", nil)
		taken(key, "1", nil)
	})
	t.Run("off", func(t *testing.T) {
		key := w.actor("off")
		m := w.move(w.a, w.b, key)
		m.follow = 0
		m.prepare().load().accept()
		held := w.later(w.c, key, "held")
		w.waits(w.a, key, 1)
		m.commit().finish() // with nothing published
		got := <-held
		wantError(t, got.err, outcome.Unavailable, outcome.NotAccepted)
		if r := w.c.routes.get(key.Kind, key.ID); r != nil && r.rid != "b" {
			t.Fatal("the refusal told no route")
		}
		refused(key, "later", nil)
		if n := w.a.Metrics().Following; n != 3 {
			t.Fatalf("%d moves are followed, want 3", n)
		}
	})
	t.Run("time", func(t *testing.T) {
		key := w.actor("time")
		m := w.move(w.a, w.b, key)
		m.follow = 2 * time.Second // which the first message has to come before
		m.prepare().load().accept().held().commit().finish()
		taken(key, "1", nil)
		fabrictest.Eventually(t, long, "follow has ended", func() bool { _, ok := w.a.follows.where(key); return !ok })
		refused(key, "2", nil) // the route cache remembers
	})
	for _, k := range []string{"hops", "messages", "bytes"} {
		w.a.follows.forget(kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: k})
	}
	if err := w.a.Settled(w.ctx()); err != nil {
		t.Fatal(err)
	}
}

// TestFollowTargetGone: nothing is followed to a process that does not answer any more, and no new owner is picked.
func TestFollowTargetGone(t *testing.T) {
	w := newMoveBed(t, shortLease)
	key := w.actor("one")
	w.move(w.a, w.b, key).whole()
	w.b.vanish()
	way, err := w.c.Way(Place{RID: "a", Lifecycle: w.a.cfg.Lifecycle}, key, "")
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "the target is gone", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, err := w.c.CallAt(ctx, way, &Message{Op: "request"})
		return errors.Is(err, outcome.NotAccepted) && errors.Is(err, outcome.Unavailable)
	})
}

// TestFollowHome: an object that comes back is served here again, and what was followed to its last owner is not any more.
func TestFollowHome(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.c, key, "0")
	w.move(w.a, w.b, key).whole()
	// On its way back: reserved, and not here yet.
	m := w.move(w.b, w.a, key).prepare()
	if reply, err := w.at(w.c, w.a, key, "1", nil, false); err != nil || string(reply.Data) != "2 b" {
		t.Fatal(reply, err)
	}
	m.load()
	early := make(chan answered, 1)
	go func() {
		r, err := w.at(w.c, w.a, key, "2", nil, false)
		early <- answered{string(r.Data), err}
	}()
	w.waits(w.a, key, 1) // its own queue comes first
	m.abort()
	got := <-early
	wantError(t, got.err, outcome.Unavailable, outcome.NotAccepted)
	if reply, err := w.at(w.c, w.a, key, "3", nil, false); err != nil || string(reply.Data) != "3 b" {
		t.Fatal("it is not followed after the abort", reply, err)
	}
	w.move(w.b, w.a, key).whole()
	if reply, err := w.at(w.c, w.b, key, "4", nil, false); err != nil || string(reply.Data) != "4 a" {
		t.Fatal(reply, err)
	}
	if reply, err := w.at(w.c, w.a, key, "5", nil, false); err != nil || string(reply.Data) != "5 a" {
		t.Fatal(reply, err)
	}
	if n := w.a.Metrics().Following; n != 0 {
		t.Fatalf("%d moves are followed where the object is", n)
	}
}

// TestMoveManyTimes: moves there and back under senders with stale caches lose, double and reorder nothing, and leave nothing
// behind.
func TestMoveManyTimes(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	const senders, moves = 3, 60
	ctx, cancel := context.WithCancel(t.Context())
	type tally struct {
		sent int
		err  error
	}
	done := make(chan tally, senders)
	for i, n := range []*meshNode{w.a, w.b, w.c} {
		go func() {
			var got tally
			for ; ctx.Err() == nil && got.err == nil; got.sent++ {
				if got.sent%7 == 0 {
					if r := n.routes.get(key.Kind, key.ID); r != nil {
						n.routes.drop(r)
					}
				}
				octx, ocancel := context.WithTimeout(t.Context(), long)
				_, err := n.Actors().Request(octx, key.ID, fmt.Appendf(nil, "%d-%d", i, got.sent))
				ocancel()
				got.err = err
			}
			done <- got
		}()
	}
	from, to := w.a, w.b
	for range moves {
		w.move(from, to, key).whole()
		from, to = to, from
		// Each place runs something, else a message is handed on unrun again and again, and refused after MaxHops.
		ran := len(w.led.of("one"))
		fabrictest.Eventually(t, long, "a turn at the new place", func() bool { return len(w.led.of("one")) > ran })
	}
	cancel()
	total := 0
	for range senders {
		got := <-done
		if got.err != nil {
			t.Errorf("a request failed: %v", got.err)
		}
		total += got.sent
	}
	next := map[string]int{}
	ran := w.led.of("one")
	for _, line := range ran {
		var rid string
		var sender, n int
		if _, err := fmt.Sscanf(line, "%1s: %d-%d", &rid, &sender, &n); err != nil {
			t.Fatal(line, err)
		}
		if who := fmt.Sprint(sender); next[who] != n {
			t.Fatalf("sender %s: message %d ran where %d was due", who, n, next[who])
		} else {
			next[who]++
		}
	}
	if len(ran) != total {
		t.Fatalf("%d ran of %d", len(ran), total)
	}
	for _, n := range []*meshNode{w.a, w.b} {
		n.moves.mu.Lock()
		leaving, arriving := len(n.moves.leaving), len(n.moves.arriving)
		n.moves.mu.Unlock()
		if f := n.Metrics().Following; leaving != 0 || arriving != 0 || f > 1 {
			t.Fatalf("node %s: %d leave, %d arrive, %d are followed", n.rid, leaving, arriving, f)
		}
		for _, typ := range n.Metrics().Types {
			if typ.Accepted != typ.Run+typ.Expired+typ.Dropped+typ.MovedOut {
				t.Fatalf("node %s: %+v", n.rid, typ)
			}
		}
	}
	if o := w.a.rt.owned.Load() + w.b.rt.owned.Load(); o != 1 {
		t.Fatalf("%d slots are taken", o)
	}
	t.Logf("%d requests during %d moves", total, moves)
}
