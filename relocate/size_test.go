package relocate_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// Bulk state goes beside the consumer: a move of 16 MiB under way does not hold up one of 1 KiB to the same target, and comes over whole.
func TestBulkBesideSmall(t *testing.T) {
	t.Parallel()
	b, n1, n2, _, big := three(t, unitTimeout(long))
	small := n1.make().ID
	for id, size := range map[string]int{big: 16 << 20, small: 1 << 10} {
		if _, err := n1.objects.Actors().Request(b.ctx(), id, message{Sender: fmt.Sprintf("pad:%d", size), Seq: 0}.encode()); err != nil {
			t.Fatal(err)
		}
	}
	// One of the last chunks waits: all that time the small one must come through.
	chunk := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.move.bulk.>", Nth: 125, Action: fabrictest.HoldAlone})
	v := n1.begin(big, "n2")
	chunk.Wait(t)
	n1.move(small, "n2")
	chunk.Release()
	m, err := v.wait(t)
	if err != nil || m.Bytes < 16<<20 {
		t.Fatalf("%+v, %v", m, err)
	}
	t.Logf("%d bytes in %v", m.Bytes, m.Phases.Blackout)
	n2.move(big, "n1") // and back: what arrived is what left
	if r, err := n1.objects.Actors().Request(b.ctx(), big, message{Sender: "s", Seq: 1}.encode()); err != nil || string(r.Data) != "2 n1" {
		t.Errorf("%s, %v", r.Data, err)
	}
}

// A lost, doubled or damaged part: a damaged cargo is refused before anything runs, a doubled part changes nothing.
func TestDamagedCargo(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t)
	s := n3.send(id, "s", 5*time.Millisecond, long)
	received(t, 5, s)
	n1.proxy.Arm(with(part("cargo"), fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
		m.Payload = append([]byte(nil), m.Payload...)
		m.Payload[len(m.Payload)-1] ^= 1
		return m
	}), 1))
	_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2")
	wantReason(t, err, outcome.NotAccepted, relocate.RelocationFailed, "checksum")
	fabrictest.Eventually(t, long, "the target has heard that the move is over", func() bool { return n2.moves.Progress().Arriving == 0 })
	for _, name := range []string{"cargo", "cut"} {
		copied := n1.proxy.Arm(with(part(name), fabrictest.Duplicate, 1))
		n1.move(id, "n2")
		copied.Release()
		n2.move(id, "n1")
	}
	received(t, 5, s)
	s.end()
	b.ledger.judge(t, id, s)
	for _, err := range s.failures() {
		t.Errorf("a request failed: %v", err)
	}
}

// Many moves leave nothing behind: no goroutines, no consumers, no messages but those that go by their TTL, no reservations.
func TestMovesLeaveNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2 := b.node("n1", follow(0), unitTimeout(20*time.Second)), b.node("n2", follow(0), unitTimeout(20*time.Second))
	id := n1.make().ID
	round := func(n int) {
		for range n {
			n1.move(id, "n2")
			n2.move(id, "n1")
		}
	}
	round(20)
	b.wantOwner(actorKey(id), "n1", true)
	before := runtime.NumGoroutine()
	round(100)
	b.wantOwner(actorKey(id), "n1", true)
	fabrictest.Eventually(t, long, "the goroutines of 200 moves have ended", func() bool { return runtime.NumGoroutine() <= before+20 })
	js, err := jetstream.New(b.setup)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(b.ctx(), "FABRIC_m_MOVE")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Consumers; n != 2 {
		t.Errorf("%d consumers", n)
	}
	fabrictest.Eventually(t, long, "the relay is empty again", func() bool {
		info, err := stream.Info(b.ctx())
		return err == nil && info.State.Msgs == 0
	})
	for _, n := range []*node{n1, n2} {
		if p := n.moves.Progress(); p.Moving != 0 || p.Arriving != 0 {
			t.Errorf("%s: %+v", n.rid, p)
		}
	}
}

// On three servers the same holds, with the leader of the records' stream gone in the middle of a move.
func TestThreeServers(t *testing.T) {
	b := newBed(t, 3)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	id := n1.make().ID
	s := n3.send(id, "s", 5*time.Millisecond, long)
	received(t, 10, s)
	at, to := n1, n2
	for range 5 {
		m := at.move(id, to.rid)
		t.Logf("blackout %v", m.Phases.Blackout)
		at, to = to, at
	}
	accept := at.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Answer: true, Action: fabrictest.CutBefore})
	v := at.begin(id, to.rid)
	accept.Wait(t)
	if _, err := v.wait(t); err != nil {
		t.Errorf("a source whose connection is cut at its boundary: %v", err)
	}
	received(t, 10, s)
	s.end()
	b.ledger.judge(t, id, s)
	b.wantOwner(actorKey(id), to.rid, true)
}
