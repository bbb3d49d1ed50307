package relocate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// locationWrites are a node's writes of object records.
const locationWrites = "$KV.FABRIC_m_LOCATION.actor.>"

// part selects one part of the relay, on the way from its source.
func part(name string) fabrictest.Trigger {
	return fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.move.to.>", Match: func(m fabrictest.Message) bool {
		return m.Headers().Get("Fabric-Part") == name
	}}
}

// asked selects a question of one side of a move to the other.
func asked(verb string) fabrictest.Trigger {
	return fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.*.*.mv." + verb + ".*"}
}

// with sets what is done.
func with(tr fabrictest.Trigger, a fabrictest.Action, times int) fabrictest.Trigger {
	tr.Action, tr.Times = a, times
	return tr
}

// moving is a Move that runs beside the test.
type moving struct {
	id   string // of its own
	done chan struct{}
	m    relocate.Moved
	err  error
}

func (n *node) begin(id, to string) *moving {
	v := &moving{id: fmt.Sprintf("move-%d", n.b.made.Add(1)), done: make(chan struct{})}
	ctx := n.b.ctx()
	go func() {
		defer close(v.done)
		v.m, v.err = n.moves.Move(ctx, actorKey(id), 0, to)
	}()
	n.b.t.Cleanup(func() { <-v.done })
	return v
}

func (v *moving) wait(t testing.TB) (relocate.Moved, error) {
	t.Helper()
	select {
	case <-v.done:
		return v.m, v.err
	case <-time.After(long):
		t.Fatal("the move does not end")
		return v.m, v.err
	}
}

// gate is a hook that stops once and waits to be let go.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
	opened  sync.Once
}

func newGate(t testing.TB) *gate {
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	t.Cleanup(g.release)
	return g
}

func (g *gate) release() { g.opened.Do(func() { close(g.open) }) }

func (g *gate) hook(ctx context.Context, _ *objects.Self) error {
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) wait(t testing.TB) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(long):
		t.Fatal("the hook is not reached")
	}
}

// largeMessage is so much that eight of them have no room in the message with the marker: they go through the relay.
const largeMessage = 32 << 10

// moveHolding moves an Actor while eight senders at another node send it large messages, of which four are held at least. It wants none to fail.
func (n *node) moveHolding(id, to string, caller *node) relocate.Moved {
	t := n.b.t
	t.Helper()
	g := newGate(t)
	n.b.ledger.set(func(h *hooks) { h.restore = g.hook })
	v := n.begin(id, to)
	g.wait(t)
	held := n.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.m.node.*.*.obj.msg.>", Times: -1, Action: fabrictest.Signal})
	var ss []*sender
	for i := range 8 {
		ss = append(ss, caller.sendLarge(id, fmt.Sprintf("%s-%d", v.id, i), 5*time.Millisecond, long, largeMessage))
	}
	fabrictest.Eventually(t, long, "messages are held", func() bool { return held.Count() >= 4 })
	held.Disarm()
	g.release()
	m, err := v.wait(t)
	if err != nil {
		t.Fatalf("moving %s from %s to %s: %v", id, n.rid, to, err)
	}
	received(t, 3, ss...)
	for _, s := range ss {
		s.end()
		for _, err := range s.failures() {
			t.Errorf("a request failed: %v", err)
		}
	}
	n.b.ledger.judge(t, id, ss...)
	return m
}

// three is a mesh of three nodes with one Actor on the first and a sender on the third.
func three(t *testing.T, opts ...option) (b *bed, n1, n2, n3 *node, id string) {
	t.Helper()
	b = newBed(t, 1)
	n1, n2, n3 = b.node("n1", opts...), b.node("n2", opts...), b.node("n3", opts...)
	return b, n1, n2, n3, n1.make().ID
}

// wantKept wants an object to be as if nothing had been: Ready at its source under its first owner generation, without a move, and serving; and that no
// other node has it.
func (b *bed) wantKept(id string, at *node) {
	b.t.Helper()
	e := b.wantOwner(actorKey(id), at.rid, true)
	if e.Record.OwnerGeneration != 1 {
		b.t.Errorf("owner generation %d", e.Record.OwnerGeneration)
	}
	r, err := at.objects.Actors().Request(b.ctx(), id, message{Sender: "after", Seq: 0}.encode())
	if err != nil {
		b.t.Fatalf("the object does not serve any more: %v", err)
	}
	if runs := b.ledger.of(id); runs[len(runs)-1].rid != at.rid {
		b.t.Errorf("it runs at %s: %s", runs[len(runs)-1].rid, r.Data)
	}
	for _, r := range b.ledger.of(id) {
		if r.rid != at.rid {
			b.t.Errorf("a turn ran at %s", r.rid)
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("FO-5a", fo5a)
	t.Run("FO-5b", fo5b)
	t.Run("FO-5c", fo5c)
	t.Run("FO-5d", fo5d)
	t.Run("FO-5e", fo5e)
	t.Run("FO-5f", fo5f)
	t.Run("FO-10.13", fo1013)
	t.Run("FO-10.14", fo1014)
	t.Run("FO-10.16", fo1016)
	t.Run("FO-7c", fo7c)
	t.Run("FO-7e", fo7e)
	t.Run("FO-4.2b", fo42b)
	t.Run("FO-4.4f", fo44f)
	t.Run("FO-2.6", fo26)
	t.Run("CA-5", ca5)
}

// fo5a: before relay-ready is accepted an explicit failure keeps the source, drops the target, and picks no other one.
func fo5a(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set    func(*hooks)
		reason relocate.Reason
	}{
		"capture fails": {func(h *hooks) {
			h.capture = func(context.Context, *objects.Self) error { return errors.New("no capture today") }
		}, relocate.RelocationFailed},
		"restore fails": {func(h *hooks) {
			h.restore = func(context.Context, *objects.Self) error { return errors.New("no restore today") }
		}, relocate.RelocationFailed},
		"restore does not know the version": {func(h *hooks) {
			h.restore = func(context.Context, *objects.Self) error {
				return fmt.Errorf("version 1: %w", objects.ErrStateVersion)
			}
		}, relocate.StateIncompatible},
		"the factory fails": {func(h *hooks) {
			h.factory = func(_ context.Context, self *objects.Self) error {
				if self.Moved() {
					return errors.New("no factory today")
				}
				return nil
			}
		}, relocate.RelocationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, n1, n2, n3, id := three(t)
			caller := b.node("caller", func(o *options) { o.client = true }) // a message that waits at the target would be refused
			s := caller.send(id, "s", 5*time.Millisecond, long)
			received(t, 10, s)
			b.ledger.set(c.set)
			var moved sync.Map // nodes on which an instance was made for the move
			b.ledger.set(func(h *hooks) {
				f := h.factory
				h.factory = func(ctx context.Context, self *objects.Self) error {
					if self.Moved() {
						moved.Store(self.RID(), true)
					}
					if f != nil {
						return f(ctx, self)
					}
					return nil
				}
			})
			_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "")
			wantReason(t, err, outcome.NotAccepted, c.reason)
			received(t, 10, s)
			s.end()
			b.wantKept(id, n1)
			b.ledger.judge(t, id, s)
			for _, err := range s.failures() {
				t.Errorf("a request failed: %v", err)
			}
			targets := 0
			moved.Range(func(any, any) bool { targets++; return true })
			if targets > 1 {
				t.Errorf("%d targets were tried", targets)
			}
			b.ledger.set(func(h *hooks) { *h = hooks{} })
			fabrictest.Eventually(t, long, "the targets have heard that the move is over", func() bool {
				return n2.moves.Progress().Arriving+n3.moves.Progress().Arriving == 0
			})
			n1.move(id, "n2") // and nothing of the failed move stands in the way of the next one
		})
	}
}

// fo5b: behind the boundary the source is never restored, whatever becomes of the cutover; the target goes on at the marker, or after 1,000 ms.
func fo5b(t *testing.T) {
	t.Parallel()
	t.Run("the marker is lost", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		n1.proxy.Arm(with(part("cut"), fabrictest.Drop, -1))
		m := n1.move(id, "n2")
		if m.Phases.Restore+m.Phases.Accept+m.Phases.Commit < relocate.Fallback { // it was ready after these began, and committed before they ended
			t.Errorf("the target did not wait for its fallback: %+v", m)
		}
		received(t, 10, s)
		s.end()
		b.ledger.judge(t, id, s)
		for _, err := range s.failures() {
			t.Errorf("a request failed: %v", err)
		}
		b.wantOwner(actorKey(id), n2.rid, true)
	})
	t.Run("the held messages are lost", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		lost := n1.proxy.Arm(with(part("held-2"), fabrictest.Drop, -1))
		m := n1.moveHolding(id, "n2", n3)
		if m.Held > 1 || lost.Count() == 0 {
			t.Errorf("h is %d though message 2 was lost %d times", m.Held, lost.Count())
		}
		b.wantOwner(actorKey(id), n2.rid, true)
	})
	t.Run("the source is cut off", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		cut := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Answer: true, Action: fabrictest.CutBefore})
		n1.proxy.Apply(fabrictest.RefuseReconnect)
		v := n1.begin(id, "n2")
		cut.Wait(t)
		b.wantOwner(actorKey(id), n2.rid, false)
		n1.proxy.Heal()
		if _, err := v.wait(t); err != nil {
			t.Errorf("the source, back again, does not find that the move is done: %v", err)
		}
		received(t, 10, s)
		s.end()
		b.ledger.judge(t, id, s)
		for _, r := range b.ledger.of(id) {
			if r.og == 2 && r.rid != "n2" {
				t.Errorf("a turn after the boundary ran at %s", r.rid)
			}
		}
		b.wantOwner(actorKey(id), n2.rid, true)
	})
}

// fo5c: a lost answer of the store is never guessed; the record decides.
func fo5c(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"preparing", "accepted"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, n1, n2, n3, id := three(t)
			s := n3.send(id, "s", 5*time.Millisecond, long)
			received(t, 10, s)
			lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: i + 1, Answer: true, Action: fabrictest.Drop})
			n1.move(id, "n2")
			if lost.Count() != 1 {
				t.Fatal("no answer was lost")
			}
			received(t, 10, s)
			s.end()
			b.ledger.judge(t, id, s)
			b.wantOwner(actorKey(id), n2.rid, true)
		})
	}
	t.Run("commit", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		lost := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Answer: true, Action: fabrictest.Drop})
		n1.move(id, "n2")
		if lost.Count() != 1 {
			t.Fatal("no answer was lost")
		}
		received(t, 10, s)
		s.end()
		b.ledger.judge(t, id, s)
		b.wantOwner(actorKey(id), n2.rid, true)
	})
	t.Run("abort", func(t *testing.T) {
		t.Parallel()
		b, n1, _, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		b.ledger.set(func(h *hooks) {
			h.restore = func(context.Context, *objects.Self) error { return errors.New("no restore today") }
		})
		lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Answer: true, Action: fabrictest.Drop})
		_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2")
		wantReason(t, err, outcome.NotAccepted, relocate.RelocationFailed)
		if lost.Count() != 1 {
			t.Fatal("no answer was lost")
		}
		received(t, 10, s)
		s.end()
		b.wantKept(id, n1)
		b.ledger.judge(t, id, s)
	})
}

// fo5d: once committed, the target goes on by itself; what fails there is tried again there.
func fo5d(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	failing := func(l *ledger) objects.Type {
		typ := l.actor("counter")
		made := typ.New
		typ.New = func(ctx context.Context, self *objects.Self, in []byte) (objects.Object, error) {
			inst, err := made(ctx, self, in)
			if err != nil {
				return nil, err
			}
			return &activated{counter: inst.(*counter)}, nil
		}
		return typ
	}
	n1, n2 := b.node("n1", types(failing(b.ledger))), b.node("n2", types(failing(b.ledger)))
	id := n1.make().ID
	n1.move(id, "n2")
	fabrictest.Eventually(t, long, "the activation callback succeeds at the target", func() bool {
		_, err := n1.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 0}.encode())
		return err == nil
	})
	for _, r := range b.ledger.of(id) {
		if r.rid != "n2" || r.og != 2 {
			t.Errorf("a turn ran at %s under owner generation %d", r.rid, r.og)
		}
	}
	b.wantOwner(actorKey(id), n2.rid, true)
}

// activated is a counter whose activation callback fails twice after a move.
type activated struct {
	*counter
	tries int
}

func (a *activated) Activate(_ context.Context, self *objects.Self) error {
	if a.tries++; self.Moved() && a.tries <= 2 {
		return errors.New("not yet")
	}
	return nil
}

// fo5e: the target dies after its commit: the record keeps it, the object is Unavailable, nobody takes over.
func fo5e(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, shortLease)
	n1.move(id, "n2")
	before := b.wantOwner(actorKey(id), n2.rid, true)
	n2.vanish()
	fabrictest.Eventually(t, long, "the lease of the dead target has expired", func() bool {
		st, err := b.store.LeaseOf(b.ctx(), "n2")
		return err == nil && !st.Live
	})
	for _, n := range []*node{n1, n3} {
		_, err := n.objects.Actors().Request(b.ctxFor(5*time.Second), id, message{Sender: "s", Seq: 1}.encode())
		if outcome.KindOf(err) != outcome.Unavailable {
			t.Errorf("a request at %s ends with %v", n.rid, err)
		}
	}
	after := b.entry(actorKey(id))
	if after.Revision != before.Revision {
		t.Errorf("the record was written: %+v", after.Record)
	}
	if runs := b.ledger.of(id); len(runs) != 0 {
		t.Errorf("turns ran: %v", runs)
	}
}
