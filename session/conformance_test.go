package session

import (
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		id string
		f  func(t *testing.T)
	}{
		{"FO-6a", planMove}, {"FO-6a/repeated", repeatedUpdate}, {"FO-6b", newIncarnation}, {"FO-6c", lateOperations}, {"FO-6d", ownerDies},
		{"FO-3.2c", newEpoch}, {"FO-10.2", identityKept}, {"FO-10.5", notReused}, {"FO-10.9", notRevived}, {"FO-10.15", nothingRestored},
	} {
		t.Run(c.id, func(t *testing.T) { t.Parallel(); c.f(t) })
	}
}

// planMove: the Actor moves there and back under requests and pushes. The connection and the binding stay, nothing is lost,
// doubled or out of order, and the store is asked for nothing.
func planMove(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(*node, string) *link) {
		b := newBed(t)
		n1 := b.node("n1")
		l := dial(n1, "ann") // the only node yet, so that it owns the session
		n2, n3 := b.node("n2"), b.node("n3")
		ref := n2.actor("alice")
		bound := l.bind(ref.String())
		lookUps := n1.Stats().LookUps
		const moves = 6
		at, other := n2, n3
		var count, seq, owner, moved uint64
		asked := map[uint64]bool{}
		step := func(g got) {
			switch g.Type {
			case frame.OK:
				if !asked[g.ID] {
					t.Fatalf("an answer to nothing: %v", g)
				}
				delete(asked, g.ID)
			case frame.Push:
				if g.Seq != seq+1 || g.Owner < owner {
					t.Fatalf("push %d under %d after %d under %d", g.Seq, g.Owner, seq, owner)
				}
				seq, owner = g.Seq, g.Owner
			case frame.Moved:
				moved++
			default:
				t.Fatalf("got %v", g)
			}
		}
		for range moves {
			done := make(chan struct{})
			go func() {
				defer close(done)
				at.move("alice", other)
			}()
			for running := true; running; {
				for range 4 {
					asked[l.ask(frame.Request, bound.Token, "push 2")] = true
					count += 2
				}
				for len(asked) > 0 {
					step(l.read())
				}
				select {
				case <-done:
					running = false
				default:
				}
			}
			at, other = other, at
		}
		for seq < count || moved < moves {
			step(l.read())
		}
		if g := l.call(frame.Request, bound.Token, "add"); g.Type != frame.OK || g.data != "1" {
			t.Fatalf("after the moves: %v", g)
		}
		st := n1.Stats()
		if st.LookUps != lookUps || st.Sessions != 1 || st.Binds != 1 || st.Gaps != 0 || st.PushesStale != 0 {
			t.Fatalf("%+v", st)
		}
		if info := n1.List(1); len(info) != 1 || len(info[0].Bindings) != 1 || info[0].Bindings[0].RID != at.rid || info[0].Bindings[0].OwnerGeneration != moves+1 {
			t.Fatalf("%+v", info)
		}
		if got := b.log.of("alice")[0]; got != "bound ann 1" || b.log.has("alice", "bound ann 1") != 1 {
			t.Fatal(b.log.of("alice"))
		}
	})
}

// repeatedUpdate: the notice of the move is lost again and again; the target repeats it until it is answered.
func repeatedUpdate(t *testing.T) {
	b := newBed(t)
	// So long a heartbeat that the session's node does not find out by itself, by a comparison.
	n1, n2, n3 := b.node("n1", heartbeat(10*time.Minute)), b.node("n2"), b.node("n3")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	lost := n3.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.ses.told", Times: 2, Action: fabrictest.Drop})
	n2.move("alice", n3)
	<-lost.Reached()
	if g := l.want(frame.Moved); g.Token != bound.Token || g.RID != "n3" || g.Owner != 2 {
		t.Fatalf("%v", g)
	}
	if n3.Stats().NoticesRepeated < 2 {
		t.Fatalf("%+v", n3.Stats())
	}
	if g := l.call(frame.Request, bound.Token, "add"); g.Type != frame.OK {
		t.Fatal(g)
	}
}

// newIncarnation: the Actor is destroyed and made again. The old binding is over and stays so; direct messages reach the new
// one; a session needs a new bind, with the new reference.
func newIncarnation(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	if err := n1.objs.Actors().Destroy(b.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonClosed) {
		t.Fatalf("%v", g)
	}
	again := n2.actor("alice")
	wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.InvalidOperation, outcome.NotAccepted, "bind again")
	if _, err := n1.objs.Actors().Request(b.ctx(), "alice", []byte("add")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, l.bind(ref.String()), outcome.NotFound, outcome.NotAccepted, "does not exist any more")
	rebound := l.bind(again.String())
	if g := l.call(frame.Request, rebound.Token, "add"); g.data != "2" {
		t.Fatal(g)
	}
}

// lateOperations: what an earlier session's node sends late touches nothing of the new binding.
func lateOperations(t *testing.T) {
	b := newBed(t)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	ref := n2.actor("alice")
	old := n1.dial("ann")
	oldBound := old.bind(ref.String())
	oldTie := n1.tieOf(old.hello.Session, oldBound.Token)
	l := n3.dial("bob")
	bound := l.bind(ref.String())
	if g := old.want(frame.Ended); g.Token != oldBound.Token || g.Why != string(ReasonReplaced) {
		t.Fatalf("%v", g)
	}
	if bound.Number != 2 || b.log.has("alice", "unbound ann 1: replaced") != 1 {
		t.Fatal(bound, b.log.of("alice"))
	}
	// A late relay, a late unbind, a late disconnect: as the old session's node would have sent them.
	way, err := oldTie.way()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = n1.objs.CallAt(b.ctx(), way, &objects.Message{Op: "relay", Data: []byte("add")})
	if outcome.KindOf(err) != outcome.InvalidOperation || outcome.AcceptanceOf(err) != outcome.Accepted {
		t.Fatal(err)
	}
	for _, why := range []Reason{ReasonUnbound, ReasonDisconnected} {
		if _, err := n1.atActor(b.ctx(), oldTie, verbUnbind, turnRequest{Token: oldBound.Token, Why: why}); err != nil {
			t.Fatal(err)
		}
	}
	old.write(frame.Header{Type: frame.Bye}, "")
	fabrictest.Eventually(t, long, "the old session is over", func() bool { return n1.Stats().Sessions == 0 })
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "1" {
		t.Fatalf("the new binding: %v", g)
	}
	if st := n2.Stats(); st.RelaysStale != 1 || st.UnbindsStale != 2 || st.Bound != 1 {
		t.Fatalf("%+v", st)
	}
	for _, line := range []string{"unbound bob 2: unbound", "unbound bob 2: disconnected", "ann: add"} {
		if b.log.has("alice", line) != 0 {
			t.Fatal(b.log.of("alice"))
		}
	}
}

// ownerDies: the node that owns the session is gone without a word. The Actor learns of it when that node's lease is over;
// the client finds a new session elsewhere, in which nothing of the old one is.
func ownerDies(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1", shortLease), b.node("n2", heartbeat(2*time.Second))
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n1.vanish()
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: node gone") == 1 })
	if n2.Stats().Bound != 0 {
		t.Fatal("the binding is still there")
	}
	again := n2.dial("ann")
	if again.hello.Session == l.hello.Session || again.hello.RID != "n2" {
		t.Fatalf("%v after %v", again.hello, l.hello)
	}
	wantErr(t, again.call(frame.Request, bound.Token, "add"), outcome.InvalidOperation, outcome.NotAccepted)
	rebound := again.bind(ref.String())
	if g := again.call(frame.Request, rebound.Token, "add"); g.data != "1" || rebound.Number != 2 {
		t.Fatal(rebound, g)
	}
	// The old node comes back: what it relays for its old session is refused, and its client hears that the binding is over.
	n1.proxy.Heal()
	fabrictest.Eventually(t, long, "the old session's binding is over", func() bool {
		l.ask(frame.Request, bound.Token, "add")
		for {
			switch g := l.read(); {
			case g.Type == frame.Ended:
				return true
			case g.Type == frame.OK:
				t.Fatalf("the old binding was used: %v", g)
			default:
				return false
			}
		}
	})
	if g := again.call(frame.Request, rebound.Token, "add"); g.data != "2" {
		t.Fatal(g)
	}
}

// newEpoch: the node loses its connection to NATS and gets another. A binding is used again only after the Actor's owner has
// confirmed it, and a session over NATS is over.
func newEpoch(t *testing.T) {
	b := newBed(t)
	n1 := b.node("n1")
	viaNATS := n1.dialNATS("bob")
	n2 := b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "1" || n1.Stats().Confirms != 0 {
		t.Fatal(g, n1.Stats())
	}
	epoch := n1.router.Epoch()
	n1.proxy.Apply(fabrictest.Cut)
	fabrictest.Eventually(t, long, "another epoch", func() bool { return n1.router.Epoch() > epoch })
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "2" {
		t.Fatal(g)
	}
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "3" || n1.Stats().Confirms != 1 {
		t.Fatal(g, n1.Stats())
	}
	fabrictest.Eventually(t, long, "the NATS session is over", func() bool { return n1.session(viaNATS.hello.Session) == nil })
	again, _ := b.dialNATS(b.server.URL(), "bob")
	if w := again.want(frame.Welcome); w.Session == viaNATS.hello.Session {
		t.Fatal(w)
	}
}

// identityKept: a relay that meets a node which is not the owner any more is not sent again, anywhere; the next one takes
// the new way, to the same incarnation.
func identityKept(t *testing.T) {
	b := newBed(t)
	n1, n2, n3 := b.node("n1"), b.node("n2", noFollow), b.node("n3", noFollow)
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n3.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.ses.told", Times: -1, Action: fabrictest.Drop})
	n2.move("alice", n3)
	l.ask(frame.Request, bound.Token, "add")
	var refused, moved bool
	for !refused || !moved {
		switch g := l.read(); g.Type {
		case frame.Err:
			wantErr(t, g, outcome.Unavailable, outcome.NotAccepted)
			refused = true
		case frame.Moved:
			moved = g.RID == "n3" && g.Token == bound.Token
		default:
			t.Fatalf("got %v", g)
		}
	}
	if got := b.log.has("alice", "ann: add"); got != 0 {
		t.Fatalf("it was sent again: %d", got)
	}
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "1" || n1.Stats().LookUps != 1 {
		t.Fatal(g, n1.Stats())
	}
}

// notReused: while the session's node was cut off, the Actor was made anew. After the reconnect the binding is not used: not
// for the new incarnation, and not at all.
func notReused(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	epoch := n1.router.Epoch()
	n1.proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	fabrictest.Eventually(t, long, "the node is cut off", func() bool { return n1.router.Epoch() == 0 })
	wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.Unavailable, outcome.NotAccepted)
	if err := n2.objs.Actors().Destroy(b.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	n2.actor("alice")
	n1.proxy.Heal()
	fabrictest.Eventually(t, long, "another epoch", func() bool { return n1.router.Epoch() > epoch })
	id := l.ask(frame.Request, bound.Token, "add")
	ended, answered := false, false
	for !ended || !answered {
		switch g := l.read(); {
		case g.Type == frame.Ended && g.Token == bound.Token:
			ended = true
		case g.Type == frame.Err && g.ID == id && g.Acceptance == "NotAccepted":
			answered = true
		default:
			t.Fatalf("got %v", g)
		}
	}
	if b.log.has("alice", "ann: add") != 0 {
		t.Fatal(b.log.of("alice"))
	}
}

// notRevived: the session's node never hears of the end, and an Actor of the same ID is made. The old binding does not reach
// it.
func notRevived(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	unheard := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.ses.told", Times: -1, Action: fabrictest.Drop})
	if err := n2.objs.Actors().Destroy(b.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	n2.actor("alice")
	<-unheard.Reached()
	id := l.ask(frame.Request, bound.Token, "add")
	ended, answered := false, false
	for !ended || !answered {
		switch g := l.read(); {
		case g.Type == frame.Ended && g.Token == bound.Token:
			ended = true
		case g.Type == frame.Err && g.ID == id:
			answered = true
		default:
			t.Fatalf("got %v", g)
		}
	}
	if b.log.has("alice", "ann: add") != 0 {
		t.Fatal(b.log.of("alice"))
	}
	if reply, err := n1.objs.Actors().Request(b.ctx(), "alice", []byte("add")); err != nil || string(reply.Data) != "1" {
		t.Fatal(reply, err)
	}
}

// nothingRestored: after the end of the session's node no other knows the session, its bindings or its token, and what the
// Actor pushes to it is refused.
func nothingRestored(t *testing.T) {
	b := newBed(t)
	n1, n2, n3 := b.node("n1", shortLease), b.node("n2", heartbeat(2*time.Second)), b.node("n3")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n1.vanish()
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: node gone") == 1 })
	for _, n := range []*node{n2, n3} {
		if n.session(l.hello.Session) != nil || len(n.List(10)) != 0 {
			t.Fatalf("node %s has a session", n.rid)
		}
		var said compared
		held := comparison{RID: "n2", Lifecycle: n2.here.lifecycle, Held: []heldBinding{{l.hello.Session, bound.Token}}}
		if err := n2.ask(b.ctx(), n.here, verbCompare, "", held, &said); err != nil || len(said.Over) != 1 {
			t.Fatal(said, err)
		}
		nl := n.dial("ann")
		wantErr(t, nl.call(frame.Request, bound.Token, "add"), outcome.InvalidOperation, outcome.NotAccepted)
	}
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); outcome.KindOf(err) != outcome.NotFound {
		t.Fatalf("nobody is bound, and a push says %v", err)
	}
}
