package fabric

import (
	"context"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// TestVerificationIsOvertaken: what undoes a verification may be handled before its success. A success that belongs to a
// lost connection, or to a lease that has ended since, puts nothing into service; and a descriptor that says Draining is
// not written over by a verification that was under way.
func TestVerificationIsOvertaken(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	if _, err := kvlocation.Init(t.Context(), s.Connect(t), kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), Config{Mesh: "m", RID: "a", Connect: Connect{URL: s.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := n.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	tell := func(ev hostEvent) kvlocation.NodeState {
		t.Helper()
		ev.done = make(chan struct{})
		n.post(ev)
		<-ev.done
		return n.State()
	}
	lost, lose := context.WithCancel(t.Context())
	lose()
	if got := tell(hostEvent{e: evDoubt}); got != kvlocation.StatePreparing {
		t.Fatalf("in doubt it is %s", got)
	}
	if got := tell(hostEvent{e: evVerified, conn: lost}); got != kvlocation.StatePreparing {
		t.Errorf("a verification on a lost connection made it %s", got)
	}
	if got := tell(hostEvent{e: evVerified, conn: n.link.connection()}); got != kvlocation.StateServing {
		t.Fatalf("verified on the present connection it is %s", got)
	}
	for _, publish := range []func(context.Context) error{n.publishLeaving, n.publish} {
		if err := publish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.dir.Resync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, ok := n.Members().Get("a"); !ok || m.State != kvlocation.StateDraining {
		t.Errorf("the descriptor says %s after Draining", m.State)
	}
	if err := n.lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := tell(hostEvent{e: evDoubt}); got != kvlocation.StatePreparing {
		t.Fatalf("in doubt it is %s", got)
	}
	if got := tell(hostEvent{e: evVerified, conn: n.link.connection()}); got != kvlocation.StatePreparing {
		t.Errorf("a verification under a lease that has ended made it %s", got)
	}
}
