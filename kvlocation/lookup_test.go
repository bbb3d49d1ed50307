package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestLookup runs on one server: what it shows is how look-ups share the writes that confirm them.
func TestLookup(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	probes := func(p party, answer bool, a fabrictest.Action) *fabrictest.Armed {
		return p.proxy.Arm(fabrictest.Trigger{Subject: p.location.publish + p.probeKey(), Answer: answer, Action: a, Times: -1})
	}

	t.Run("a record is found without a write", func(t *testing.T) {
		t.Parallel()
		p, key := b.party(t), objectOf(t)
		at := p.ready(t, key).Entry
		sent := probes(p, false, fabrictest.Signal)
		e, err := p.Lookup(testContext(t), key)
		if err != nil || e.Revision != at.Revision || e.Generation() != at.Generation() || e.Stored.IsZero() {
			t.Fatalf("got %+v, %v", e, err)
		}
		if sent.Count() != 0 {
			t.Errorf("%d writes for a positive answer", sent.Count())
		}
	})

	t.Run("missing is confirmed by a write of an own key with a TTL", func(t *testing.T) {
		t.Parallel()
		p, key := b.partyAt(t, 0, longAttempt), objectOf(t)
		sent := probes(p, false, fabrictest.Signal)
		_, err := p.Lookup(testContext(t), key)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
		if sent.Count() != 1 || sent.Message().Headers().Get("Nats-TTL") != "60" {
			t.Errorf("%d writes, the first with %v", sent.Count(), sent.Message().Headers())
		}
	})

	t.Run("what wait together share one write", func(t *testing.T) {
		t.Parallel()
		p := b.partyAt(t, 0, time.Minute)
		sent := probes(p, true, fabrictest.HoldAlone)
		const n = 40
		var wg sync.WaitGroup
		lookUp := func(i int) {
			wg.Go(func() {
				_, err := p.Lookup(testContext(t), ObjectKey{Kind: KindActor, ID: fmt.Sprintf("shared%d", i)})
				if !errors.Is(err, outcome.NotFound) {
					t.Errorf("got %v", err)
				}
			})
		}
		lookUp(0)
		sent.Wait(t)
		for i := range n {
			lookUp(i + 1)
		}
		cf := &p.location.confirm
		waiting := func() int {
			cf.mu.Lock()
			defer cf.mu.Unlock()
			if cf.next == nil {
				return 0
			}
			return cf.next.waiting
		}
		fabrictest.Eventually(t, 30*time.Second, "all have asked", func() bool { return waiting() == n || sent.Count() > 1 })
		if sent.Count() != 1 {
			t.Fatalf("%d writes were sent while the first one was under way", sent.Count())
		}
		again := probes(p, false, fabrictest.Signal)
		sent.Release()
		wg.Wait()
		if again.Count() != 1 {
			t.Errorf("%d look-ups took %d more writes, want one for all that began after the first was sent", n, again.Count())
		}
	})

	t.Run("who waits no more ends the write", func(t *testing.T) {
		t.Parallel()
		p, key := b.party(t), objectOf(t)
		probes(p, false, fabrictest.Drop)
		_, err := p.Lookup(briefly(t), key)
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		fabrictest.Eventually(t, 10*time.Second, "the write ends", func() bool {
			p.location.confirm.mu.Lock()
			defer p.location.confirm.mu.Unlock()
			return !p.location.confirm.running
		})
	})

	t.Run("refusals are confirmed, not read from an old state", func(t *testing.T) {
		t.Parallel()
		p, key := b.party(t), objectOf(t)
		at := p.ready(t, key).Entry
		// The caller knows an older state, by which the close is illegal.
		old := at
		old.Record.Phase = PhaseCreating
		ch, err := p.CloseObject(testContext(t), old, n1)
		if mustChange(t, ch, err); ch.Entry.Phase() != PhaseMissing {
			t.Fatalf("got %+v", ch)
		}
	})

	t.Run("one consistent state of several", func(t *testing.T) {
		t.Parallel()
		p := b.party(t)
		keys := []ObjectKey{{KindActor, "pair a"}, {KindSpot, "pair b"}, {KindActor, "pair none"}}
		first, second := p.create(t, keys[0]).Entry, p.create(t, keys[1]).Entry
		es, err := p.ReadSince(testContext(t), second.Revision, keys...)
		if err != nil {
			t.Fatal(err)
		}
		if es[0].Revision != first.Revision || es[1].Revision != second.Revision || es[2].Phase() != PhaseMissing || es[2].Revision != 0 {
			t.Fatalf("got %+v", es)
		}
		if _, err := p.ReadSince(testContext(t), 0, make([]ObjectKey, maxSnapshotKeys)...); !errors.Is(err, outcome.InvalidOperation) {
			t.Errorf("too many keys: %v", err)
		}
	})

	t.Run("a bad key is refused", func(t *testing.T) {
		t.Parallel()
		p := b.party(t)
		for _, key := range []ObjectKey{{}, {KindActor, ""}, {"house", "x"}, {KindSpot, strings.Repeat("x", 256)}, {KindActor, "\xff"}} {
			_, err := p.Lookup(testContext(t), key)
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
			_, err = p.Create(testContext(t), room(key, n1, nil))
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		}
	})

	t.Run("a closed store answers nothing", func(t *testing.T) {
		t.Parallel()
		p, key := b.party(t), objectOf(t)
		at := p.ready(t, key).Entry
		p.proxy.Apply(fabrictest.HalfOpen)
		waiting := async(func() (Change, error) { return p.CloseObject(testContext(t), at, n1) })
		look := make(chan error, 1)
		go func() {
			_, err := p.Lookup(testContext(t), key)
			look <- err
		}()
		fabrictest.Eventually(t, 10*time.Second, "both wait", func() bool {
			p.mux.mu.Lock()
			defer p.mux.mu.Unlock()
			return len(p.mux.calls) == 2
		})
		for range 2 {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantPending(t, await(t, waiting).err)
		wantError(t, <-look, outcome.Unavailable, outcome.NotAccepted)
		if _, err := p.Read(context.Background(), key); !errors.Is(err, outcome.Unavailable) {
			t.Errorf("a read after Close: %v", err)
		}
	})
}

// TestMarkerEndsWithoutTrace shows that a marker of ours leaves nothing behind when it expires: a second marker, made
// by the server, would lack the list of operations.
func TestMarkerEndsWithoutTrace(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	ctx := testContext(t)
	w := write{bucket: p.location, key: "actor.short", value: []byte(`{}`), opID: "short", ttl: time.Second, marker: true}
	res, err := p.write(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 20*time.Second, "the marker expires", func() bool {
		m, err := p.get(ctx, p.location, "actor.short")
		if err != nil {
			t.Fatal(err)
		}
		if m != nil && m.revision != res.revision {
			t.Fatalf("another marker took its place: %+v", m)
		}
		return m == nil
	})
}
