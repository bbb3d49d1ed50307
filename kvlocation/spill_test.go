package kvlocation

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// relayMessages counts what the relay stream holds of one key's subject, moveMessages what the stream of moves does.
func relayMessages(t *testing.T, p party, name string) uint64 {
	t.Helper()
	return messages(t, p, p.relay, name)
}

func moveMessages(t *testing.T, p party, name string) uint64 {
	t.Helper()
	return messages(t, p, p.moves, name)
}

func messages(t *testing.T, p party, b *bucket, name string) uint64 {
	t.Helper()
	js, err := jetstream.New(p.nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(testContext(t), b.stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := st.Info(testContext(t), jetstream.WithSubjectFilter(b.subject+name))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects[b.subject+name]
}

// again is a pointer as another process reads it from a record.
func again(t *testing.T, p Spilled) Spilled {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var out Spilled
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSpill(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, q, key := b.party(t), b.partyAt(t, len(b.servers)-1, time.Second), ObjectKey{Kind: KindSpot, ID: "a b/주문"}
		data := bytes.Repeat([]byte("x\x00"), MaxInline)
		ttl := func(name string) string {
			snap, err := p.snapshot(testContext(t), p.relay, 0, name)
			if err != nil {
				t.Fatal(err)
			}
			m := snap.get(name)
			if m == nil {
				return "nothing"
			}
			return first(m.header, "Nats-TTL")
		}

		at, err := p.Spill(testContext(t), key, nuid.Next(), data)
		if err != nil {
			t.Fatal(err)
		}
		if got := ttl(at.Name); got != "600" {
			t.Errorf("written with TTL %q", got)
		}
		// Another process, at another replica, reads it at once.
		if got, err := q.FetchSpilled(testContext(t), again(t, at)); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		for range 2 {
			for _, who := range []struct {
				party
				Spilled
			}{{p, at}, {q, again(t, at)}} {
				if err := who.KeepSpilled(testContext(t), who.Spilled); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, n := ttl(at.Name), relayMessages(t, p, at.Name); got != "" || n != 1 {
			t.Errorf("kept with TTL %q, %d messages", got, n)
		}
		if got, err := q.FetchSpilled(testContext(t), again(t, at)); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		for range 2 {
			if err := q.DropSpilled(testContext(t), again(t, at)); err != nil {
				t.Fatal(err)
			}
		}
		_, err = p.FetchSpilled(testContext(t), at)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
		wantError(t, p.KeepSpilled(testContext(t), at), outcome.NotFound, outcome.NotAccepted)
		wantError(t, p.KeepSpilled(testContext(t), again(t, at)), outcome.NotFound, outcome.NotAccepted)
		if got, n := ttl(at.Name), relayMessages(t, p, at.Name); got != "10" || n != 1 {
			t.Errorf("dropped with TTL %q, %d messages", got, n)
		}
	})
}

// TestSpillReadAtReplicaBehind reads data at once while one replica lacks it: what is there is never said to be gone.
func TestSpillReadAtReplicaBehind(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	leading := b.cluster.StreamLeader(t, "FABRIC_m_RELAY")
	leader := slices.Index(b.servers, leading)
	behind, reader := (leader+1)%3, (leader+2)%3
	p := b.partyAt(t, reader, time.Second)
	// The store's own key is at every replica, so what a replica says of it does not show that it is behind.
	if _, err := p.probe(testContext(t), p.relay); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, readyIn, "the replicas agree", func() bool {
		for range 12 {
			if m, err := p.get(testContext(t), p.relay, p.probeKey()); err != nil || m == nil {
				return false
			}
		}
		return true
	})
	link := b.cluster.Link(t, leader, behind)
	link.Apply(fabrictest.Hang)
	defer link.Heal()
	at, err := p.Spill(testContext(t), ObjectKey{Kind: KindActor, ID: "a"}, nuid.Next(), []byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	stale := false
	for start := time.Now(); !stale && time.Since(start) < 10*time.Second; {
		m, err := p.get(testContext(t), p.relay, at.Name)
		if err != nil {
			t.Fatal(err)
		}
		stale = m == nil
	}
	if !stale {
		t.Fatal("no answer of the replica that is behind was provoked")
	}
	for range 12 {
		if data, err := p.FetchSpilled(testContext(t), again(t, at)); err != nil || string(data) != "data" {
			t.Fatalf("%q, %v", data, err)
		}
	}
}

// TestSpillGoesAway waits for what nobody kept and for the marker of what was dropped. One server: the expiry is its
// own.
func TestSpillGoesAway(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	// The same write with the shortest TTL.
	at := Spilled{Name: "first.actor.x." + nuid.Next(), Size: 1}
	res, err := p.write(testContext(t), write{bucket: p.relay, key: at.Name, value: []byte("x"), opID: nuid.Next(), ttl: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	at.Revision = res.revision
	gone := func() bool {
		_, err := p.FetchSpilled(testContext(t), at)
		return errors.Is(err, outcome.NotFound)
	}
	fabrictest.Eventually(t, 20*time.Second, "it expires", gone)
	if n := relayMessages(t, p, at.Name); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	late := at
	late.data = []byte("x")
	wantError(t, p.KeepSpilled(testContext(t), late), outcome.NotFound, outcome.NotAccepted)

	dropped, err := p.Spill(testContext(t), ObjectKey{Kind: KindActor, ID: "y"}, nuid.Next(), []byte("y"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.DropSpilled(testContext(t), dropped); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 40*time.Second, "the marker expires", func() bool { return relayMessages(t, p, dropped.Name) == 0 })
}

func TestSpillWithoutAnswer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, key := b.party(t), ObjectKey{Kind: KindActor, ID: "a"}
		lose := func() *fabrictest.Armed {
			return p.proxy.Arm(fabrictest.Trigger{Subject: p.relay.publish + "first.>", Answer: true, Action: fabrictest.Drop})
		}
		lost := lose()
		at, err := p.Spill(testContext(t), key, nuid.Next(), []byte("data"))
		if err != nil || lost.Count() != 1 {
			t.Fatalf("%v, %d answers lost", err, lost.Count())
		}
		lost = lose()
		if err := p.KeepSpilled(testContext(t), at); err != nil || lost.Count() != 1 {
			t.Fatalf("%v, %d answers lost", err, lost.Count())
		}
		if got, err := p.FetchSpilled(testContext(t), at); err != nil || string(got) != "data" {
			t.Fatalf("%q, %v", got, err)
		}
		// Somebody dropped it, and the answer to the write that was to keep it is lost: gone is gone.
		other, err := p.Spill(testContext(t), key, nuid.Next(), []byte("data"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.party(t).DropSpilled(testContext(t), again(t, other)); err != nil {
			t.Fatal(err)
		}
		lost = lose()
		wantError(t, p.KeepSpilled(testContext(t), other), outcome.NotFound, outcome.NotAccepted)
		if lost.Count() != 1 {
			t.Fatalf("%d answers lost", lost.Count())
		}
		// Never an answer: unknown, and said so.
		p.proxy.Arm(fabrictest.Trigger{Subject: p.relay.publish + "first.>", Answer: true, Action: fabrictest.Drop, Times: -1})
		_, err = p.Spill(briefly(t), key, nuid.Next(), []byte("data"))
		wantError(t, err, outcome.Unavailable, outcome.Unknown)
	})
}

func TestSpillRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	key := ObjectKey{Kind: KindActor, ID: "a"}
	largest := bytes.Repeat([]byte("x"), p.MaxSpill())
	at, err := p.Spill(testContext(t), key, "largest", largest)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.FetchSpilled(testContext(t), at); err != nil || !bytes.Equal(got, largest) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	_, err = p.Spill(testContext(t), key, "larger", append(largest, 'x'))
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	_, err = p.Spill(testContext(t), ObjectKey{Kind: "x", ID: "a"}, "op", nil)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	_, err = p.Spill(testContext(t), key, "a.b", nil)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	for _, name := range []string{"", "first.actor.a", "first.actor.a.>", "first.*.a.op", "first.actor.*.op", "probe.x.y.z", "first.actor.a.op.more", "first.actor.a." + strings.Repeat("x", 100)} {
		bad := Spilled{Name: name, Revision: 1}
		_, err := p.FetchSpilled(testContext(t), bad)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		wantError(t, p.KeepSpilled(testContext(t), bad), outcome.InvalidOperation, outcome.NotAccepted)
		wantError(t, p.DropSpilled(testContext(t), bad), outcome.InvalidOperation, outcome.NotAccepted)
	}
	// A pointer that says another size was not made by who wrote the data.
	other := again(t, at)
	other.Size--
	_, err = p.FetchSpilled(testContext(t), other)
	wantError(t, err, outcome.DataLost, outcome.NotAccepted)
}

// TestRelayMadeAgain shows that a node goes on when only the relay stream is another one.
func TestRelayMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, key := b.party(t), ObjectKey{Kind: KindActor, ID: "a"}
	var old Spilled
	for range 3 {
		var err error
		if old, err = p.Spill(testContext(t), key, nuid.Next(), []byte("data")); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(p.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(testContext(t), "FABRIC_m_RELAY"); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(testContext(t), p.nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	at, err := p.Spill(testContext(t), key, nuid.Next(), []byte("data"))
	if err != nil || at.Revision >= old.Revision {
		t.Fatalf("%+v after %+v, %v", at, old, err)
	}
	if err := p.KeepSpilled(testContext(t), at); err != nil {
		t.Fatal(err)
	}
	p.create(t, key)
	if err := p.refusal(); err != nil {
		t.Errorf("the store is refused: %v", err)
	}
}
