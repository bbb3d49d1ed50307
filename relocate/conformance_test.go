package relocate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// quick is a short unit timeout, for what waits until it is over; a move comes to where a test wants it on a slow machine, too.
var quick = unitTimeout(quickTime)

const quickTime = 4 * relocate.MinUnitTimeout

// fo5f: when source or target dies, there is no other target, no resumption and no roll-back.
func fo5f(t *testing.T) {
	t.Parallel()
	t.Run("the target dies before the boundary", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, 20*time.Second)
		received(t, 10, s)
		g := newGate(t)
		b.ledger.set(func(h *hooks) { h.restore = g.hook })
		v := n1.begin(id, "n2")
		g.wait(t)
		n2.vanish()
		_, err := v.wait(t)
		if outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Fatalf("the move ends with %v", err)
		}
		received(t, 10, s)
		s.end()
		b.wantKept(id, n1)
		b.ledger.judge(t, id, s)
		for _, err := range s.failures() {
			t.Errorf("a request failed: %v", err)
		}
	})
	t.Run("the target dies behind the boundary", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t, quick)
		s := n3.send(id, "s", 5*time.Millisecond, 20*time.Second)
		received(t, 10, s)
		accept := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Action: fabrictest.HoldAlone})
		v := n1.begin(id, "n2")
		accept.Wait(t)
		n2.vanish()
		accept.Release()
		_, err := v.wait(t)
		if outcome.AcceptanceOf(err) != outcome.Unknown {
			t.Fatalf("the move ends with %v", err)
		}
		s.end()
		b.ledger.judge(t, id, s)
		e := b.entry(actorKey(id))
		if !e.Accepted() || e.Record.Owner.RID != "n1" {
			t.Errorf("the record says %s of %s", e.Phase(), e.Record.Owner)
		}
		before := len(b.ledger.of(id))
		for _, n := range []*node{n1, n3} {
			_, err := n.objects.Actors().Request(b.ctxFor(5*time.Second), id, message{Sender: "late", Seq: 0}.encode())
			if outcome.KindOf(err) != outcome.Unavailable {
				t.Errorf("a request at %s ends with %v", n.rid, err)
			}
		}
		if n := len(b.ledger.of(id)); n != before {
			t.Errorf("%d turns ran behind the boundary", n-before)
		}
	})
	t.Run("the source dies", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t, quick)
		g := newGate(t)
		b.ledger.set(func(h *hooks) { h.restore = g.hook })
		v := n1.begin(id, "n2")
		g.wait(t)
		n1.vanish()
		g.release()
		e := b.wantOwner(actorKey(id), "n1", true) // by the target's abort, which revives nothing
		if e.Record.OwnerGeneration != 1 {
			t.Errorf("owner generation %d", e.Record.OwnerGeneration)
		}
		fabrictest.Eventually(t, long, "the target is free", func() bool { return n2.moves.Progress().Arriving == 0 })
		for _, n := range []*node{n2, n3} {
			_, err := n.objects.Actors().Request(b.ctxFor(5*time.Second), id, message{Sender: "late", Seq: 0}.encode())
			if outcome.KindOf(err) != outcome.Unavailable {
				t.Errorf("a request at %s ends with %v", n.rid, err)
			}
		}
		if runs := b.ledger.of(id); len(runs) != 0 {
			t.Errorf("turns ran: %v", runs)
		}
		// The source, cut off for good, does not know what became of its abort, and says so.
		_, err := v.wait(t)
		wantReason(t, err, outcome.NotAccepted, relocate.StoreUnavailable)
	})
}

// fo1013: what fails behind the boundary never leads back to the source, even when that has given up waiting.
func fo1013(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, quick)
	s := n3.send(id, "s", 5*time.Millisecond, time.Second)
	received(t, 10, s)
	commit := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Action: fabrictest.Drop})
	v := n1.begin(id, "n2")
	commit.Wait(t)
	_, err := v.wait(t) // what the target writes is lost for longer than the source waits
	if outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Fatalf("the move ends with %v", err)
	}
	before := len(b.ledger.of(id))
	if _, err := n1.objects.Actors().Request(b.ctxFor(2*time.Second), id, message{Sender: "late", Seq: 0}.encode()); err == nil {
		t.Error("the source serves the object again")
	}
	if n := len(b.ledger.of(id)); n != before {
		t.Errorf("%d turns ran while nobody has the object", n-before)
	}
	commit.Disarm()
	b.wantOwner(actorKey(id), "n2", false)
	fabrictest.Eventually(t, long, "the target serves", func() bool {
		_, err := n3.objects.Actors().Request(b.ctxFor(2*time.Second), id, message{Sender: "after", Seq: 0}.encode())
		return err == nil
	})
	s.end()
	b.ledger.judge(t, id, s)
}

// fo1014: a dead target's move is taken over by nobody, not by its own next process run either, until the object is released.
func fo1014(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2, n3 := b.node("n1", quick, shortLease), b.node("n2", quick, shortLease), b.node("n3", quick, shortLease)
	ref := n1.make()
	id := ref.ID
	accept := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Action: fabrictest.HoldAlone})
	v := n1.begin(id, "n2")
	accept.Wait(t)
	n2.vanish()
	accept.Release()
	if _, err := v.wait(t); outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Fatalf("the move ends with %v", err)
	}
	b.nodes = []*node{n1, n3}
	fabrictest.Eventually(t, long, "the lease of the dead target has expired", func() bool {
		st, err := b.store.LeaseOf(b.ctx(), "n2")
		return err == nil && !st.Live
	})
	again := b.node("n2", shortLease)
	e := b.entry(actorKey(id))
	if m, _ := e.Move(); !e.Accepted() || m.Target.Lifecycle == again.lease.Lifecycle() {
		t.Errorf("the record says %+v", e.Record)
	}
	for _, n := range []*node{n1, n3, again} {
		_, err := n.objects.Actors().Request(b.ctxFor(5*time.Second), id, message{Sender: "late", Seq: 0}.encode())
		if outcome.KindOf(err) != outcome.Unavailable {
			t.Errorf("a request at %s ends with %v", n.rid, err)
		}
	}
	if err := n3.objects.Actors().Release(b.ctx(), ref); err != nil {
		t.Fatalf("release: %v", err)
	}
	if _, err := n3.objects.Actors().Create(b.ctx(), "counter", id, nil); err != nil {
		t.Errorf("the ID is not free after the release: %v", err)
	}
	if runs := b.ledger.of(id); len(runs) != 0 {
		t.Errorf("turns ran: %v", runs)
	}
}

// still wants no turn of an object to run from now on, until f has come true.
func (b *bed) still(id, why string, f func() bool) {
	b.t.Helper()
	before := len(b.ledger.of(id))
	fabrictest.Eventually(b.t, long, why, f)
	if n := len(b.ledger.of(id)); n != before {
		b.t.Errorf("%d turns ran, %s", n-before, why)
	}
}

// unreadable keeps a node from reading records, so that it cannot find out by itself what became of a write.
func (n *node) unreadable() *fabrictest.Armed {
	return n.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.DIRECT.GET.>", Times: -1, Action: fabrictest.Drop,
		Match: func(m fabrictest.Message) bool { return strings.Contains(m.Subject, "KV_FABRIC_m_LOCATION") }})
}

// unknownFor comes true when a side has asked again for the result of a write whose answers are lost.
func unknownFor(d time.Duration, lost *fabrictest.Armed) func() bool {
	begun := time.Now()
	return func() bool { return time.Since(begun) > d && lost.Count() >= 3 }
}

// fo1016: while the result of a write is unknown neither the source admits nor the target dispatches.
func fo1016(t *testing.T) {
	t.Parallel()
	t.Run("source", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		b.ledger.set(func(h *hooks) {
			h.restore = func(context.Context, *objects.Self) error { return errors.New("no restore today") }
		})
		// The abort's answers are lost: the object may be unsealed or not, for all that the source knows.
		lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Answer: true, Action: fabrictest.Drop})
		v := n1.begin(id, "n2")
		lost.Wait(t)
		blind := n1.unreadable()
		b.still(id, "while the abort's result is unknown", unknownFor(4500*time.Millisecond, lost))
		lost.Disarm()
		blind.Disarm()
		_, err := v.wait(t)
		wantReason(t, err, outcome.NotAccepted, relocate.RelocationFailed)
		received(t, 10, s)
		s.end()
		b.wantKept(id, n1)
		b.ledger.judge(t, id, s)
		_ = n2
	})
	t.Run("target", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t)
		s := n3.send(id, "s", 5*time.Millisecond, long)
		received(t, 10, s)
		lost := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Answer: true, Action: fabrictest.Drop})
		v := n1.begin(id, "n2")
		lost.Wait(t)
		blind := n2.unreadable()
		b.still(id, "while the commit's result is unknown", unknownFor(4500*time.Millisecond, lost))
		lost.Disarm()
		blind.Disarm()
		if _, err := v.wait(t); err != nil {
			t.Fatal(err)
		}
		received(t, 10, s)
		s.end()
		b.ledger.judge(t, id, s)
		b.wantOwner(actorKey(id), n2.rid, true)
		for _, err := range s.failures() {
			t.Errorf("a request failed: %v", err)
		}
	})
}

// Answers to a node's record writes never come through, but reads do: the record itself says what became of them.
func TestAnswersNeverCome(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t)
	s := n3.send(id, "s", 5*time.Millisecond, 50*time.Second)
	received(t, 5, s)
	for _, n := range []*node{n1, n2} {
		n.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Answer: true, Action: fabrictest.Drop})
	}
	n1.move(id, "n2")
	received(t, 5, s)
	s.end()
	b.ledger.judge(t, id, s)
	for _, err := range s.failures() {
		t.Errorf("a request failed: %v", err)
	}
	b.wantOwner(actorKey(id), "n2", false)
}

// fo7e: while the result of *accepted* is unknown, the source's deadline does not open it.
func fo7e(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, quick)
	s := n3.send(id, "s", 5*time.Millisecond, 20*time.Second)
	received(t, 10, s)
	// The write does not reach the store, nor does any repetition of it: for all that the source knows it may be applied. The target's abort would tell it.
	held := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Action: fabrictest.Drop})
	abort := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Action: fabrictest.Drop})
	v := n1.begin(id, "n2")
	held.Wait(t)
	b.still(id, "while the result of accepted is unknown, past the unit's deadline", unknownFor(quickTime+2500*time.Millisecond, held))
	held.Disarm()
	abort.Disarm()
	_, err := v.wait(t)
	switch e := b.entry(actorKey(id)); { // Unknown when its caller has not waited: the write may be on its way yet
	case err == nil && e.Record.Owner.RID != "n2", err != nil && outcome.AcceptanceOf(err) == outcome.NotAccepted && e.Record.Owner.RID != "n1":
		t.Errorf("the move ends with %v, the record says %s", err, e.Record.Owner)
	}
	received(t, 10, s)
	s.end()
	b.ledger.judge(t, id, s)
}

// fo7c: without its lease a source takes no step over the boundary, and the store's grace extends no deadline of a move.
func fo7c(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, unitTimeout(3*relocate.MinUnitTimeout), shortLease)
	s := n3.send(id, "s", 5*time.Millisecond, time.Second)
	received(t, 10, s)
	g := newGate(t)
	b.ledger.set(func(h *hooks) { h.restore = g.hook })
	v := n1.begin(id, "n2")
	g.wait(t)
	renewals := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_NODES.lease.n1", Times: -1, Action: fabrictest.Drop})
	fabrictest.Eventually(t, long, "the lease of the source lapses", func() bool { return n1.lease.Admit() != nil })
	g.release()
	_, err := v.wait(t)
	if outcome.AcceptanceOf(err) != outcome.NotAccepted {
		t.Fatalf("the move ends with %v", err)
	}
	if e := b.wantOwner(actorKey(id), "n1", true); e.Record.OwnerGeneration != 1 {
		t.Errorf("the record says %+v", e.Record)
	}
	renewals.Disarm()
	fabrictest.Eventually(t, long, "the source is back", func() bool { return n1.lease.Admit() == nil })
	fabrictest.Eventually(t, long, "the object serves at its source", func() bool {
		_, err := n3.objects.Actors().Request(b.ctxFor(2*time.Second), id, message{Sender: "after", Seq: 0}.encode())
		return err == nil
	})
	s.end()
	b.ledger.judge(t, id, s)
	for _, r := range b.ledger.of(id) {
		if r.rid != "n1" {
			t.Errorf("a turn ran at %s", r.rid)
		}
	}
	_ = n2
}

// fo42b: the old owner forwards what still reaches it, to the committed target only, and never after a crash to another one.
func fo42b(t *testing.T) {
	t.Parallel()
	t.Run("on", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, n3, id := three(t, shortLease)
		ask := func(seq int) error {
			_, err := n3.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: seq}.encode())
			return err
		}
		if err := ask(0); err != nil { // and the route to n1 is known
			t.Fatal(err)
		}
		n1.move(id, "n2")
		asked := n3.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.obj.msg.>", Times: -1, Action: fabrictest.Signal})
		if err := ask(1); err != nil {
			t.Fatalf("what reached the old owner was not followed: %v", err)
		}
		if asked.Count() != 1 {
			t.Errorf("%d messages went to the old owner", asked.Count())
		}
		if err := ask(2); err != nil || asked.Count() != 1 {
			t.Errorf("the sender did not learn the new route: %v, %d messages to the old owner", err, asked.Count())
		}
		if runs := b.ledger.of(id); len(runs) != 3 || runs[1].rid != "n2" || runs[2].rid != "n2" {
			t.Errorf("%v", runs)
		}
		n2.vanish() // follow is no failover
		_, err := n1.objects.Actors().Request(b.ctxFor(5*time.Second), id, message{Sender: "s", Seq: 3}.encode())
		if outcome.KindOf(err) != outcome.Unavailable && outcome.KindOf(err) != outcome.DeadlineExceeded {
			t.Errorf("a request after the target's death ends with %v", err)
		}
		if e := b.entry(actorKey(id)); e.Record.Owner.RID != "n2" {
			t.Errorf("the record says %s", e.Record.Owner)
		}
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		b, n1, _, n3, id := three(t, follow(0))
		if _, err := n3.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 0}.encode()); err != nil {
			t.Fatal(err)
		}
		n1.move(id, "n2")
		_, err := n3.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 1}.encode())
		if outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Errorf("a stale route ends with %v", err)
		}
		if _, err := n3.objects.Actors().Request(b.ctx(), id, message{Sender: "s", Seq: 2}.encode()); err != nil {
			t.Errorf("the next call does not look again: %v", err)
		}
	})
}

// fo44f: a message with instance intent meets a planned move: same object, same ObjectGeneration, neither activation nor failover.
func fo44f(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	typ := b.ledger.typ("room", kvlocation.ClassInstanceSpot)
	n1, n2 := b.node("n1", types(typ)), b.node("n2", types(typ))
	at := map[string]*node{"n1": n1, "n2": n2}
	ask := func(n *node, seq int) (string, error) {
		r, err := n.objects.Spots().Request(b.ctx(), "lobby", message{Sender: "s", Seq: seq}.encode(), objects.WithInstance("room"))
		return string(r.Data), err
	}
	if _, err := ask(n1, 0); err != nil {
		t.Fatal(err)
	}
	key := kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "lobby"}
	before := b.entry(key)
	src := at[before.Record.Owner.RID]
	dst := map[*node]*node{n1: n2, n2: n1}[src]
	g := newGate(t)
	made := 0
	b.ledger.set(func(h *hooks) {
		h.restore = g.hook
		h.factory = func(_ context.Context, self *objects.Self) error {
			if !self.Moved() {
				made++
			}
			return nil
		}
	})
	moved := make(chan error, 1)
	go func() {
		_, err := src.moves.Move(b.ctx(), key, 0, dst.rid)
		moved <- err
	}()
	g.wait(t)
	answers := make(chan string, 2)
	for i, n := range []*node{n1, n2} {
		go func() {
			a, err := ask(n, 1+i)
			answers <- fmt.Sprint(a, " ", err)
		}()
	}
	g.release()
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := <-answers; !strings.Contains(a, dst.rid+" <nil>") {
			t.Errorf("a message during the move ends with %s", a)
		}
	}
	if a, err := ask(src, 3); err != nil || a != "4 "+dst.rid {
		t.Errorf("after the move: %q, %v", a, err)
	}
	after := b.entry(key)
	if after.Generation() != before.Generation() || after.Record.OwnerGeneration != before.Record.OwnerGeneration+1 {
		t.Errorf("%d/%d became %d/%d", before.Generation(), before.Record.OwnerGeneration, after.Generation(), after.Record.OwnerGeneration)
	}
	if made != 0 {
		t.Errorf("%d activations", made)
	}
}

// fo26: what becomes of a message is judged by the phase of the move: served before the seal, held and not accepted until the commit is known,
// then the target's; the identity that the caller named stays.
func fo26(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t)
	gen := b.entry(actorKey(id)).Generation()
	ask := func(seq int, d time.Duration) (string, error) {
		r, err := n3.objects.Actors().Request(b.ctxFor(d), id, message{Sender: "s", Seq: seq}.encode(), objects.WithEarlyAcceptance())
		return string(r.Data), err
	}
	prepare := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Answer: true, Action: fabrictest.HoldAlone})
	g := newGate(t)
	b.ledger.set(func(h *hooks) { h.restore = g.hook })
	v := n1.begin(id, "n2")
	prepare.Wait(t)
	if a, err := ask(0, long); err != nil || a != "1 n1" {
		t.Errorf("while preparing: %q, %v", a, err)
	}
	prepare.Release()
	g.wait(t)
	if a, err := ask(1, 300*time.Millisecond); outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Errorf("while held: %q, %v: only the target accepts, after its commit", a, err)
	}
	g.release()
	if _, err := v.wait(t); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(2, long); err != nil {
		t.Errorf("after the commit: %v", err)
	}
	e := b.wantOwner(actorKey(id), n2.rid, true)
	if e.Generation() != gen {
		t.Errorf("generation %d became %d", gen, e.Generation())
	}
	for _, r := range b.ledger.of(id) {
		if want := map[int]string{0: "n1", 1: "n2", 2: "n2"}[r.seq]; r.rid != want {
			t.Errorf("message %d ran at %s, not at %s", r.seq, r.rid, want)
		}
	}
}

// ca5: what a move hands over is read through one standing ephemeral consumer per node, and moves add none.
func ca5(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, follow(time.Second), unitTimeout(10*time.Second))
	js, err := jetstream.New(b.setup)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(b.ctx(), "FABRIC_m_MOVE")
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (names []string) {
		l := stream.ListConsumers(b.ctx())
		for c := range l.Info() {
			if c.Config.Durable != "" || c.Config.InactiveThreshold == 0 {
				t.Errorf("consumer %s is not ephemeral: %+v", c.Name, c.Config)
			}
			names = append(names, c.Name)
		}
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		return names
	}
	var before []string
	one := func() bool { // a consumer that a busy machine had made again leaves its predecessor for half a minute
		before = consumers()
		return len(before) == 3
	}
	fabrictest.Eventually(t, long, "each of three nodes has one consumer", one)
	for _, n := range []*node{n1, n2, n3} {
		if !strings.Contains(strings.Join(before, " "), n.moves.Consumer()) {
			t.Errorf("the consumer %q of %s is not there", n.moves.Consumer(), n.rid)
		}
	}
	for range 3 {
		n1.move(id, "n2")
		n2.move(id, "n1")
	}
	for n, want := range map[*node]uint64{n1: 6, n2: 6, n3: 0} { // the cargo and the marker of three moves
		c, err := stream.Consumer(b.ctx(), n.moves.Consumer())
		if err != nil {
			t.Fatal(err)
		}
		if got := c.CachedInfo().Delivered.Consumer; got < want || want == 0 && got > 0 {
			t.Errorf("the consumer of %s has delivered %d parts, want %d", n.rid, got, want)
		}
	}
	parts := n1.proxy.Arm(with(part("held-1"), fabrictest.Signal, -1))
	for range 2 {
		if m := n1.moveHolding(id, "n2", n3); m.Held < 4 || m.Fallback {
			t.Errorf("what was held did not come through the relay: %+v", m)
		}
		n2.moveHolding(id, "n1", n3)
	}
	if parts.Count() != 2 {
		t.Errorf("%d holds went through the relay", parts.Count())
	}
	fabrictest.Eventually(t, long, "10 moves have left no consumer", one)
	fabrictest.Eventually(t, long, "the stream is empty again", func() bool {
		info, err := stream.Info(b.ctx())
		return err == nil && info.State.Msgs == 0
	})
}
