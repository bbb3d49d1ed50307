package kvlocation

import (
	"errors"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// staleReplica stops the replication to one server, whose answers are then really old, and reads beside it.
func staleReplica(t *testing.T, b *bed) {
	leader := b.leader(t)
	behind, reader := (leader+1)%3, (leader+2)%3
	p, key := b.partyAt(t, reader, time.Second), objectOf(t)
	at := p.ready(t, key).Entry
	// Everybody has it.
	fabrictest.Eventually(t, 20*time.Second, "the replicas agree", func() bool {
		for range 12 {
			if e, err := p.Peek(testContext(t), key); err != nil || e.Revision != at.Revision {
				return false
			}
		}
		return true
	})
	link := b.cluster.Link(t, leader, behind)
	link.Apply(fabrictest.Hang)
	defer link.Heal()
	ch, err := p.Adopt(testContext(t), at, n1later)
	adopted := mustChange(t, ch, err).Entry

	stale, fresh := 0, 0
	for start := time.Now(); stale == 0 && time.Since(start) < 10*time.Second; {
		e, err := p.Peek(testContext(t), key)
		if err != nil {
			t.Fatal(err)
		}
		if e.Revision < adopted.Revision {
			stale++
		}
	}
	for range 12 {
		es, err := p.ReadSince(testContext(t), adopted.Revision, key)
		if err != nil {
			t.Fatal(err)
		}
		if es[0].Revision == adopted.Revision {
			fresh++
		}
	}
	if stale == 0 || fresh != 12 {
		t.Fatalf("%d stale reads were provoked, %d of 12 reads no older than the write were right", stale, fresh)
	}
	// A decision from an old state: what it would allow is refused by the store, what it would refuse is read again.
	other := b.partyAt(t, reader, time.Second)
	for range 6 {
		_, err := other.change(testContext(t), Entry{Key: key}, Action{
			Verb: VerbAdopt, Owner: n1later, Generation: at.Generation(), OwnerGeneration: 1,
		})
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted) // it is adopted under that lease already
	}
	link.Heal()
}

// inFlight hangs the leader's links, so that what it has proposed stays in flight, and provokes the two answers that
// only a cluster gives: 10158 to the same write, 10164 to another write of the key.
func inFlight(t *testing.T, b *bed) {
	leader := b.leader(t)
	p, q, key := b.partyAt(t, leader, shortAttempt), b.partyAt(t, leader, shortAttempt), objectOf(t)
	at := p.ready(t, key).Entry
	sameID, sameKey := p.hears(saysIDInFlight), q.hears(saysKeyInFlight)

	b.cluster.Isolate(t, leader, fabrictest.Hang)
	defer b.cluster.Heal()
	first := async(func() (Change, error) { return p.Adopt(testContext(t), at, n1later) })
	sameID.Wait(t)
	second := async(func() (Change, error) { return q.CloseObject(testContext(t), at, n1) })
	sameKey.Wait(t)
	b.cluster.Heal()

	r := await(t, first)
	if r.err != nil || r.ch.Entry.Record.Owner.Lease != n1later.Lease || r.ch.Overwritten && r.ch.Entry.Phase() != PhaseMissing {
		t.Fatalf("the write in flight: %+v, %v", r.ch, r.err)
	}
	// The other one was never "lost" because of 10164; it read again and was refused for what it found.
	wantError(t, await(t, second).err, outcome.InvalidOperation, outcome.NotAccepted)
	if e := p.mustRead(t, key); e.Phase() != PhaseReady || e.Record.Owner.Lease != n1later.Lease || e.Record.Write != at.Record.Write+1 {
		t.Fatalf("the key holds %+v", e)
	}
}

// noQuorum leaves one server of three, or none of one.
func noQuorum(t *testing.T, b *bed) {
	p, key := b.partyAt(t, 0, shortAttempt), objectOf(t)
	at := p.ready(t, key).Entry
	if b.replicas == 1 {
		b.servers[0].Kill()
		fabrictest.Eventually(t, 10*time.Second, "the client notices", func() bool { return !p.nc.IsConnected() })
		_, err := p.CloseObject(briefly(t), at, n1)
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		_, err = p.Lookup(briefly(t), ObjectKey{Kind: KindActor, ID: "nobody"})
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		b.servers[0].Restart(t)
	} else {
		fabrictest.Eventually(t, 20*time.Second, "the first server has the record", func() bool {
			for range 12 {
				if e, err := p.Peek(testContext(t), key); err != nil || e.Revision != at.Revision {
					return false
				}
			}
			return true
		})
		b.servers[1].Kill()
		b.servers[2].Kill()
		// What is there is found, that something is missing can't be confirmed.
		if e, err := p.Lookup(testContext(t), key); err != nil || e.Revision != at.Revision {
			t.Fatalf("got %+v, %v", e, err)
		}
		_, err := p.Lookup(briefly(t), ObjectKey{Kind: KindActor, ID: "nobody"})
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		_, err = p.CloseObject(briefly(t), at, n1)
		var e *outcome.Error
		if !errors.As(err, &e) || e.Kind != outcome.Unavailable || e.Acceptance == outcome.Accepted {
			t.Fatalf("got %v", err)
		}
		b.servers[1].Restart(t)
		b.servers[2].Restart(t)
		b.cluster.WaitReady(t)
	}
	ch, err := p.CloseObject(testContext(t), p.mustRead(t, key), n1)
	if err != nil {
		wantError(t, err, outcome.NotFound, outcome.NotAccepted) // the first one was applied after all
		return
	}
	if ch.Entry.Phase() != PhaseMissing {
		t.Fatalf("got %+v", ch)
	}
}
