package relocate_test

import (
	"testing"
	"time"

	"natsfabric/outcome"
)

// One Actor goes from node to node under two senders: nothing is lost, doubled or re-ordered, and the state goes along.
func TestMoveUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	ref := n1.make()
	id := ref.ID
	s1 := n1.send(id, "s1", 5*time.Millisecond, long)
	s3 := n3.send(id, "s3", 5*time.Millisecond, long)
	received(t, 20, s1, s3)
	at, to := n1, n2
	for i := range 10 {
		m := at.move(id, to.rid)
		if m.Generation != ref.Generation || m.OwnerGeneration != uint64(i+2) || m.To.RID != to.rid {
			t.Fatalf("%+v", m)
		}
		t.Logf("%+v held %d work %d fallback %v", m.Phases, m.Held, m.Work, m.Fallback)
		received(t, 5, s1, s3)
		at, to = to, at
	}
	s1.end()
	s3.end()
	b.ledger.judge(t, id, s1, s3)
	for _, err := range append(s1.failures(), s3.failures()...) {
		t.Errorf("a request failed: %v (%v)", err, outcome.AcceptanceOf(err))
	}
	e := b.wantOwner(actorKey(id), "n1", true)
	if e.Record.OwnerGeneration != 11 {
		t.Errorf("owner generation %d", e.Record.OwnerGeneration)
	}
}
