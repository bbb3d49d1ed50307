package kvlocation

import (
	"errors"
	"testing"
	"time"

	"natsfabric/outcome"
)

// TestEvidence takes a Creating record over from a creator whose lease is gone, and releases a Ready one from an owner
// that is provably gone, with real leases and what is said while they live.
func TestEvidence(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, key, ctx := b.party(t), objectOf(t), testContext(t)
	lease := func(rid string) (*Lease, Owner) {
		t.Helper()
		l, err := b.party(t).AcquireLease(ctx, shortLease(rid))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { release(l) })
		return l, Owner{RID: rid, Lifecycle: l.Lifecycle(), Lease: l.Generation()}
	}
	l1, first := lease("n1")
	created, err := p.Create(ctx, room(key, first, nil))
	at := mustChange(t, created, err).Entry

	if _, err := p.ConfirmAbsent(ctx, first.RID, first.Lifecycle); !errors.Is(err, ErrNodeAlive) {
		t.Fatalf("absent while it lives: %v", err)
	}
	l2, second := lease("n2")
	_, err = p.Takeover(ctx, at, second, Absence{})
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	if err := l1.Release(ctx); err != nil {
		t.Fatal(err)
	}
	absent, err := p.ConfirmAbsent(ctx, first.RID, first.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := p.Takeover(ctx, at, second, absent)
	mustChange(t, taken, err)
	if e := taken.Entry; e.Generation() != at.Generation() || e.Record.OwnerGeneration != 2 {
		t.Fatalf("took over as %+v", e)
	}
	ready, err := p.Ready(ctx, taken.Entry, second)
	at = mustChange(t, ready, err).Entry

	if _, err := p.ProvablyGone(ctx, second.RID, second.Lifecycle, GoneConfig{TTL: time.Second}); !errors.Is(err, ErrNodeAlive) {
		t.Fatalf("provably gone while it lives: %v", err)
	}
	proof, err := p.ProvablyGone(ctx, first.RID, first.Lifecycle, GoneConfig{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Release(ctx, at, proof) // of another owner
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	if e := p.mustRead(t, key); e.Revision != at.Revision {
		t.Fatalf("the key holds %+v", e)
	}

	if err := l2.Release(ctx); err != nil {
		t.Fatal(err)
	}
	proof, err = p.ProvablyGone(ctx, second.RID, second.Lifecycle, GoneConfig{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	released, err := p.Release(ctx, at, proof)
	if mustChange(t, released, err); released.Entry.Phase() != PhaseMissing {
		t.Fatalf("got %+v", released)
	}
	_, err = p.Lookup(ctx, key)
	wantError(t, err, outcome.NotFound, outcome.NotAccepted)
}
