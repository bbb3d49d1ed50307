package relocate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// beginWith is begin with a context of the test's.
func (n *node) beginWith(ctx context.Context, id, to string) *moving {
	v := &moving{done: make(chan struct{})}
	go func() {
		defer close(v.done)
		v.m, v.err = n.moves.Move(ctx, actorKey(id), 0, to)
	}()
	n.b.t.Cleanup(func() { <-v.done })
	return v
}

// A caller who gives up before the boundary ends the move; behind it that changes nothing.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	t.Run("before the boundary", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 5, s)
		g := newGate(t)
		b.ledger.set(func(h *hooks) { h.restore = g.hook })
		ctx, cancel := context.WithCancel(b.ctx())
		v := n1.beginWith(ctx, id, "n2")
		g.wait(t)
		cancel()
		if _, err := v.wait(t); outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Fatalf("the move ends with %v", err)
		}
		received(t, 5, s)
		s.end()
		b.wantKept(id, n1)
		b.ledger.judge(t, id, s)
		fabrictest.Eventually(t, long, "the target is free", func() bool { return n2.moves.Progress().Arriving == 0 })
	})
	t.Run("behind the boundary", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, _, id := three(t)
		commit := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Action: fabrictest.HoldAlone})
		ctx, cancel := context.WithCancel(b.ctx())
		v := n1.beginWith(ctx, id, "n2")
		commit.Wait(t)
		cancel()
		begun := time.Now()
		fabrictest.Eventually(t, long, "the source goes on waiting", func() bool { return time.Since(begun) > 500*time.Millisecond })
		commit.Release()
		if _, err := v.wait(t); err != nil {
			t.Fatalf("the move ends with %v", err)
		}
		b.wantOwner(actorKey(id), "n2", true)
	})
}

// The commit's notice never arrives: the source reads h in the record. The move stays there until the next one.
func TestNoticeLost(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2, n3 := b.node("n1"), b.node("n2", quick), b.node("n3")
	id := n1.make().ID
	s := n3.send(id, "s", 5*time.Millisecond, long)
	received(t, 5, s)
	n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.mv.committed.*", Times: -1, Action: fabrictest.Drop})
	if m := n1.move(id, "n2"); m.Phases.Commit > relocate.DefaultUnitTimeout/2 {
		t.Errorf("the source did not look before its time was over: %+v", m.Phases)
	}
	received(t, 5, s)
	fabrictest.Eventually(t, long, "the target has stopped telling", func() bool { return n2.moves.Progress().Arriving == 0 })
	if m, ok := b.entry(actorKey(id)).Move(); !ok || !m.Accepted {
		t.Errorf("the record tells of the move %+v, %v, though its source has not acknowledged h", m, ok)
	}
	n2.move(id, "n3")
	received(t, 5, s)
	s.end()
	b.ledger.judge(t, id, s)
	for _, err := range s.failures() {
		t.Errorf("a request failed: %v", err)
	}
	b.wantOwner(actorKey(id), "n3", true)
}

// The source's lease lapses and comes back, under another generation, in the middle of a move: the move goes on.
func TestLeaseRegainedMeanwhile(t *testing.T) {
	t.Parallel()
	b, n1, _, n3, id := three(t, shortLease)
	g := newGate(t)
	b.ledger.set(func(h *hooks) { h.restore = g.hook })
	v := n1.begin(id, "n2")
	g.wait(t)
	renewals := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_NODES.lease.n1", Times: -1, Action: fabrictest.Drop})
	before := n1.lease.Generation()
	fabrictest.Eventually(t, long, "the lease expires on the store", func() bool {
		st, err := b.store.LeaseOf(b.ctx(), "n1")
		return err == nil && !st.Live
	})
	renewals.Disarm()
	fabrictest.Eventually(t, long, "the source has a new lease", func() bool { return n1.lease.Admit() == nil && n1.lease.Generation() != before })
	g.release()
	if _, err := v.wait(t); err != nil {
		t.Fatal(err)
	}
	b.wantOwner(actorKey(id), "n2", true)
	if _, err := n3.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 0}.encode()); err != nil {
		t.Error(err)
	}
}

// Close, at either side, gives up what has not passed its boundary.
func TestCloseMeanwhile(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"source", "target"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			b, n1, n2, n3, id := three(t)
			s := n3.send(id, "s", 5*time.Millisecond, long)
			received(t, 5, s)
			g := newGate(t)
			b.ledger.set(func(h *hooks) { h.restore = g.hook })
			v := n1.begin(id, "n2")
			g.wait(t)
			closes := map[string]*node{"source": n1, "target": n2}[side]
			for range 2 {
				if err := closes.moves.Close(b.ctx()); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			if _, err := v.wait(t); outcome.AcceptanceOf(err) != outcome.NotAccepted {
				t.Fatalf("the move ends with %v", err)
			}
			received(t, 5, s)
			s.end()
			b.wantKept(id, n1)
			b.ledger.judge(t, id, s)
			if side == "source" {
				_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2")
				wantReason(t, err, outcome.NotAccepted, relocate.ShutdownRequested)
				if _, open := <-n1.moves.Watch(b.ctx()); open {
					for range n1.moves.Watch(b.ctx()) { // the last word, and the end
					}
				}
			}
		})
	}
}

// What cannot be moved is refused before anything is asked or written.
func TestRefused(t *testing.T) {
	t.Parallel()
	b, n1, _, _, id := three(t)
	rev := b.entry(actorKey(id)).Revision
	for name, c := range map[string]struct {
		key kvlocation.ObjectKey
		gen uint64
		to  string
		why relocate.Reason
	}{
		"no such object":     {actorKey("nobody"), 0, "n2", relocate.RelocationFailed},
		"another generation": {actorKey(id), 1, "n2", relocate.RelocationFailed},
		"no such node":       {actorKey(id), 0, "n9", relocate.TargetUnavailable},
		"itself":             {actorKey(id), 0, "n1", relocate.TargetUnavailable},
		"an Entry Spot":      {kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "entry:n1"}, 0, "n2", relocate.RelocationFailed},
	} {
		_, err := n1.moves.Move(b.ctx(), c.key, c.gen, c.to)
		if outcome.AcceptanceOf(err) != outcome.NotAccepted || relocate.ReasonOf(err) != c.why {
			t.Errorf("%s: %v (%s)", name, err, relocate.ReasonOf(err))
		}
		t.Logf("%s: %v", name, err)
	}
	if now := b.entry(actorKey(id)).Revision; now != rev {
		t.Errorf("the record was written")
	}
	b.wantKept(id, n1)
}

// A node that is asked to move what has moved on says so once, and where it is.
func TestMoveFromWhereItIsNot(t *testing.T) {
	t.Parallel()
	b, n1, _, _, id := three(t)
	if _, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2"); err != nil {
		t.Fatal(err)
	}
	_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2")
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) || strings.Count(err.Error(), "move actor") != 1 ||
		!strings.HasSuffix(err.Error(), "node n1 does not own it: it is at node n2") {
		t.Fatal(err)
	}
}

// A source that stops while the store has not said whether *accepted* was written never serves the object again: the target may
// have it.
func TestStopWhileAccepting(t *testing.T) {
	t.Parallel()
	b, n1, n2, _, id := three(t)
	n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Answer: true, Action: fabrictest.Drop})
	g := newGate(t)
	b.ledger.set(func(h *hooks) { h.restore = g.hook })
	v := n1.begin(id, "n2")
	g.wait(t)
	sent := make(chan error, 1)
	go func() { sent <- n1.objects.Actors().Send(b.ctx(), id, message{Sender: "s", Seq: 0}.encode()) }()
	fabrictest.Eventually(t, long, "the message is held", func() bool {
		x, err := n1.objects.Explain(b.ctx(), objects.ExplainRequest{Kind: kvlocation.KindActor, ID: id})
		return err == nil && x.Object != nil && x.Object.Mail == 1
	})
	g.release()
	b.wantOwner(actorKey(id), "n2", false)
	if err := n1.moves.Close(b.ctxFor(100 * time.Millisecond)); err == nil {
		t.Error("nothing was cut off")
	}
	if err := n1.objects.Close(b.ctxFor(time.Second)); err != nil {
		t.Log(err)
	}
	if err := <-sent; err == nil {
		t.Error("the source has accepted a message after the boundary")
	}
	if _, err := v.wait(t); outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Errorf("the move ends with %v", err)
	}
	for _, r := range b.ledger.of(id) {
		if r.rid == "n1" {
			t.Errorf("a turn ran at the source: %+v", r)
		}
	}
	if _, err := n2.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 1}.encode()); err != nil {
		t.Error(err)
	}
}

// A source that asked for the boundary and heard nothing until the unit's time was over: its caller hears Unknown, for the target has the object.
func TestBoundaryUnanswered(t *testing.T) {
	t.Parallel()
	b, n1, n2, _, id := three(t, quick)
	deaf := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Answer: true, Action: fabrictest.Drop})
	untold := n2.proxy.Arm(with(asked("committed"), fabrictest.Drop, -1))
	v := n1.begin(id, "n2")
	deaf.Wait(t)
	blind := n1.unreadable() // else it finds out by itself, on a slow machine before its caller is told
	_, err := v.wait(t)
	wantReason(t, err, outcome.Unknown, relocate.StoreUnavailable)
	b.wantOwner(actorKey(id), "n2", false)
	blind.Disarm()
	deaf.Disarm()
	untold.Disarm()
	fabrictest.Eventually(t, long, "the source has found out", func() bool { return n1.moves.Progress().Moving == 0 })
}

// The write of *preparing* met another one, was made again by the store, and never arrives while the store can be read: that the
// record is not what the move began with says nothing about the write that is under way.
func TestPreparingMadeAgain(t *testing.T) {
	t.Parallel()
	b, n1, _, _, id := three(t)
	e := b.entry(actorKey(id))
	first := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Action: fabrictest.HoldAlone})
	v := n1.begin(id, "n2")
	first.Wait(t)
	if _, err := b.store.SetWith(b.ctx(), e, e.Record.Owner, nil); err != nil {
		t.Fatal(err)
	}
	lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Action: fabrictest.Drop})
	first.Release()
	fabrictest.Eventually(t, long, "the write was sent for more than two rounds", func() bool {
		select {
		case <-v.done:
			return true
		default:
			return lost.Count() > 8
		}
	})
	lost.Disarm()
	if _, err := v.wait(t); err != nil {
		t.Fatal(err)
	}
	b.wantOwner(actorKey(id), "n2", true)
}
