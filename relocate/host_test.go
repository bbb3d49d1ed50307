package relocate_test

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
	"natsfabric/objects"
	"natsfabric/relocate"
)

// makeMany creates Actors, wherever the placement puts them, and returns the IDs of those at the node.
func (n *node) makeMany(count int) []string {
	n.b.t.Helper()
	var (
		mu  sync.Mutex
		wg  sync.WaitGroup
		ids []string
	)
	for i := range count {
		wg.Go(func() {
			id := fmt.Sprintf("many-%d", i)
			if _, err := n.objects.Actors().Create(n.b.ctx(), "counter", id, nil); err != nil {
				n.b.t.Error(err)
				return
			}
			if n.b.entry(actorKey(id)).Record.Owner.RID == n.rid {
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(ids) == 0 {
		n.b.t.Fatal("nothing is at the node")
	}
	return ids
}

// A whole host moves under senders: everything goes, nothing fails, and the progress can be watched.
func TestHost(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	ids := n1.makeMany(60)
	var ss []*sender
	for i, id := range ids[:min(4, len(ids))] {
		ss = append(ss, n3.send(id, fmt.Sprintf("s%d", i), 5*time.Millisecond, long))
	}
	received(t, 5, ss...)
	ctx, cancel := context.WithCancel(b.ctx())
	var last relocate.Progress
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for p := range n1.moves.Watch(ctx) {
			last = p
			if !p.Running && p.Moved > 0 {
				return
			}
		}
	}()
	res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || res.Outcome != relocate.Relocated || res.Moved != len(ids) || res.KeptCount != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	<-watched
	cancel()
	if last.Moved != len(ids) || last.Total != len(ids) {
		t.Errorf("the watch ends with %+v", last)
	}
	received(t, 5, ss...)
	for i, s := range ss {
		s.end()
		for _, err := range s.failures() {
			t.Errorf("a request failed: %v", err)
		}
		b.ledger.judge(t, ids[i], s)
	}
	at := map[string]int{}
	for _, id := range ids {
		at[b.entry(actorKey(id)).Record.Owner.RID]++
	}
	if at["n1"] != 0 || at["n2"] == 0 || at["n3"] == 0 {
		t.Errorf("the objects are at %v", at)
	}
	if left := n1.objects.Movable(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	_ = n2
}

// What is being made when a Host begins goes too, and until then nothing is said to have left.
func TestHostWaitsForCreations(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2 := b.node("n1"), b.node("n2")
	g := newGate(t)
	b.ledger.set(func(h *hooks) {
		h.factory = func(ctx context.Context, self *objects.Self) error {
			if self.Moved() {
				return nil
			}
			return g.hook(ctx, self)
		}
	})
	made := make(chan error, 1)
	go func() {
		_, err := n2.objects.Actors().Create(b.ctx(), "counter", "late", nil, objects.AtNode("n1"))
		made <- err
	}()
	g.wait(t)
	n1.objects.SetPlacing(false)
	hosted := make(chan relocate.Result, 1)
	go func() {
		res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
		if err != nil {
			t.Error(err)
		}
		hosted <- res
	}()
	select {
	case res := <-hosted:
		t.Fatalf("it does not wait for what is being made: %+v", res)
	case <-time.After(500 * time.Millisecond):
	}
	g.release()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if res := <-hosted; res.Outcome != relocate.Relocated || res.Moved != 1 {
		t.Fatalf("%+v", res)
	}
	b.wantOwner(actorKey("late"), "n2", true)
}

// blocked runs a Host that has to end Blocked with one reason, for all that it keeps.
func (n *node) blocked(ctx context.Context, reason relocate.Reason, words ...string) relocate.Result {
	n.b.t.Helper()
	res, err := n.moves.Host(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || res.Outcome != relocate.Blocked || res.Reason != reason {
		n.b.t.Fatalf("%+v, %v", res, err)
	}
	for _, k := range res.Kept {
		if k.Reason != reason {
			n.b.t.Errorf("%s was kept for %s: %s", k.Key, k.Reason, k.Detail)
		}
		for _, w := range words {
			if !strings.Contains(k.Detail, w) {
				n.b.t.Errorf("the detail %q does not say %q", k.Detail, w)
			}
		}
	}
	if !strings.Contains(res.Detail, reason.Text()) && reason != relocate.RuntimeNotReady {
		n.b.t.Errorf("the detail %q has no text for people", res.Detail)
	}
	n.b.t.Logf("%s: %s", res.Reason, res.Detail)
	return res
}

// Each reason for which a host is Blocked comes about, and is said so.
func TestHostBlocked(t *testing.T) {
	t.Parallel()
	t.Run("TargetUnavailable", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1")
		n1.make()
		n1.blocked(b.ctx(), relocate.TargetUnavailable, "the only one that hosts")
		n2 := b.node("n2", version("2.0.0"))
		n1.blocked(b.ctx(), relocate.TargetUnavailable, "n2", `"2.0.0"`)
		n2.publish(kvlocation.StateDraining)
		b.settle()
		n1.blocked(b.ctx(), relocate.TargetUnavailable, "Draining")
	})
	t.Run("waves", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1", wave("a"))
		n1.make()
		b.node("n2", wave("a"))
		n1.blocked(b.ctx(), relocate.TargetUnavailable, "wave")
		b.node("n3", wave("b"))
		res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
		if err != nil || res.Outcome != relocate.Relocated {
			t.Fatalf("%+v, %v", res, err)
		}
	})
	t.Run("RelocationDisabled", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		fixed := b.ledger.actor("counter")
		fixed.Move = objects.MoveDisabled
		n1 := b.node("n1", types(fixed))
		n1.make()
		b.node("n2", types(fixed))
		n1.blocked(b.ctx(), relocate.RelocationDisabled)
	})
	t.Run("StateIncompatible", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1")
		n1.make()
		b.node("n2")
		b.ledger.set(func(h *hooks) {
			h.restore = func(context.Context, *objects.Self) error { return objects.ErrStateVersion }
		})
		n1.blocked(b.ctx(), relocate.StateIncompatible, "n2", "version")
	})
	t.Run("RelocationFailed", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1")
		n1.make()
		b.node("n2")
		b.ledger.set(func(h *hooks) {
			h.capture = func(context.Context, *objects.Self) error { return errors.New("the disk is full") }
		})
		n1.blocked(b.ctx(), relocate.RelocationFailed, "the disk is full")
	})
	t.Run("DeadlineExceeded", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1", quick)
		id := n1.make().ID
		b.node("n2", quick)
		g := newGate(t)
		b.ledger.set(func(h *hooks) {
			h.turn = func(ctx context.Context, self *objects.Self, _ message) error {
				g.once.Do(func() { close(g.reached) })
				<-g.open // whatever becomes of ctx: a handler that never returns
				return nil
			}
		})
		stuck := n1.send(id, "s", time.Millisecond, long)
		g.wait(t)
		n1.blocked(b.ctx(), relocate.DeadlineExceeded, "a handler")
		g.release()
		received(t, 5, stuck)
		stuck.end()
		b.ledger.judge(t, id, stuck)
	})
	t.Run("ShutdownRequested and OperationInProgress", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1")
		n1.make()
		b.node("n2")
		g := newGate(t)
		b.ledger.set(func(h *hooks) { h.restore = g.hook })
		ctx, cancel := context.WithCancelCause(b.ctx())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n1.blocked(ctx, relocate.ShutdownRequested)
		}()
		g.wait(t)
		n1.blocked(b.ctx(), relocate.OperationInProgress)
		cancel(relocate.ErrShutdown)
		<-done
	})
	t.Run("RuntimeNotReady", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1", shortLease)
		n1.make()
		n1.vanish()
		fabrictest.Eventually(t, long, "the lease lapses", func() bool { return n1.lease.Admit() != nil })
		n1.blocked(b.ctx(), relocate.RuntimeNotReady)
	})
	t.Run("StoreUnavailable", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 1)
		n1 := b.node("n1", quick, func(o *options) { o.move.Concurrency = 1 })
		id := n1.make().ID
		n1.make() // the store is waited for once, not once for each unit
		b.node("n2", quick)
		lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Action: fabrictest.Drop})
		if res := n1.blocked(b.ctx(), relocate.StoreUnavailable); res.KeptCount != 2 {
			t.Errorf("%+v", res)
		}
		if _, err := n1.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 0}.encode()); err != nil {
			t.Errorf("the object does not serve while its preparing is unknown: %v", err)
		}
		lost.Disarm()
		b.wantKept(id, n1)
	})
}

// A rolling update goes to nodes of exactly the version that the caller names, which must be higher.
func TestHostRollingUpdate(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1 := b.node("n1")
	id := n1.make().ID
	b.node("n2")
	b.node("n3", version("1.2.0"))
	b.node("n4", version("2.0.0"))
	for _, m := range []relocate.Mode{{}, {Kind: relocate.RollingUpdate}, {Kind: relocate.RollingUpdate, Version: "0.9.0"}, {Kind: relocate.RollingUpdate, Version: "1.0.0"}, {Kind: relocate.Maintenance, Version: "2.0.0"}} {
		if _, err := n1.moves.Host(b.ctx(), m); err == nil {
			t.Errorf("the mode %+v is taken", m)
		}
	}
	res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.RollingUpdate, Version: "2.0.0"})
	if err != nil || res.Outcome != relocate.Relocated {
		t.Fatalf("%+v, %v", res, err)
	}
	b.wantOwner(actorKey(id), "n4", true)
}

// Spots go before the Actors that have joined them, which follow to the same node; the members of a SpotWide Spot go with it.
func TestHostSpots(t *testing.T) {
	t.Parallel()
	for _, mode := range []objects.MemberMode{objects.PerActor, objects.SpotWide} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 1)
			room := b.ledger.typ("room", kvlocation.ClassUserSpot)
			room.Members = mode
			all := types(b.ledger.actor("counter"), room)
			n1 := b.node("n1", all)
			spot, err := n1.objects.Spots().Create(b.ctx(), "room", "lobby", nil)
			if err != nil {
				t.Fatal(err)
			}
			var actors []objects.ActorRef
			for range 5 {
				a := n1.make()
				if err := n1.objects.Actors().Join(b.ctx(), a, spot); err != nil {
					t.Fatal(err)
				}
				actors = append(actors, a)
			}
			b.node("n2", all)
			b.node("n3", all)
			writes := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_LOCATION.*.>", Times: -1, Action: fabrictest.Signal})
			res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
			if err != nil || res.Outcome != relocate.Relocated || res.Objects != 6 {
				t.Fatalf("%+v, %v", res, err)
			}
			to := b.entry(kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "lobby"}).Record.Owner.RID
			for _, a := range actors {
				r, err := n1.objects.Actors().Request(b.ctx(), a.ID, message{Sender: "s", Seq: 0}.encode())
				if err != nil || !strings.HasSuffix(string(r.Data), to) {
					t.Errorf("%s answers %s, %v; the Spot is at %s", a, r.Data, err, to)
				}
			}
			members, err := n1.objects.Spots().Members(b.ctx(), spot)
			if err != nil || len(members) != 5 {
				t.Errorf("members after the move: %v, %v", members, err)
			}
			if want := map[objects.MemberMode]int{objects.PerActor: 12, objects.SpotWide: 2}[mode]; writes.Count() != want {
				t.Errorf("the source made %d record writes, want %d", writes.Count(), want)
			}
		})
	}
}

// No more units leave at one time than are allowed, whoever asks.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1 := b.node("n1", func(o *options) { o.move.Concurrency = 2 })
	ids := n1.makeMany(8)
	b.node("n2")
	var (
		mu        sync.Mutex
		now, most int
	)
	two := newGate(t)
	b.ledger.set(func(h *hooks) {
		h.restore = func(ctx context.Context, self *objects.Self) error {
			mu.Lock()
			if now++; now == 2 {
				two.release()
			}
			most = max(most, now)
			mu.Unlock()
			err := two.hook(ctx, self) // the first one waits for the second
			mu.Lock()
			now--
			mu.Unlock()
			return err
		}
	})
	single := n1.begin(ids[0], "n2")
	res, err := n1.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || res.Outcome != relocate.Relocated {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := single.wait(t); err != nil {
		t.Logf("the single move: %v", err) // the whole host's was first
	}
	if most != 2 {
		t.Errorf("%d units left at one time", most)
	}
}
