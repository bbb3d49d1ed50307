package fabric_test

import (
	"context"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
)

// TestShutdownAfterRelocation: calls that the source had accepted, and that the target runs, outlive the source; and while
// old routes may still be used, the source stays to pass on what comes by them.
func TestShutdownAfterRelocation(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	hang, in := make(chan struct{}), make(chan struct{}, 8)
	factory := func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
		return &stubborn{tally: tally{j: j, name: objectName(self)}, hang: hang, in: in}, nil
	}
	node := func(rid string, follow time.Duration) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()}, RouteTTL: 2 * time.Second,
			Relocation: fabric.Relocation{FollowTime: follow},
			Types:      []objects.Type{{Name: "stubborn", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState}}})
	}
	a := node("a", 8*time.Second)
	node("b", 2*time.Second)
	c := startNode(t, fabric.Config{Mesh: "m", RID: "c", Connect: fabric.Connect{URL: s.URL()}, RouteTTL: time.Minute})
	awaitMember(t, a, "b", kvlocation.StateServing)
	ctx := timeout(t, 120*time.Second)
	for _, id := range []string{"busy", "quiet"} {
		if _, err := c.Actors().Create(ctx, "stubborn", id, nil, objects.AtNode("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Actors().Request(ctx, id, []byte("c:1")); err != nil { // c keeps the route to a
			t.Fatal(err)
		}
	}
	// While the turn that runs at a keeps the object there, two more messages are accepted behind it.
	ends := make(chan error, 3)
	first, behind := make(chan struct{}), 0
	go func() {
		_, err := c.Actors().Request(ctx, "busy", []byte("hang"))
		ends <- err
		close(first)
	}()
	<-in
	for range 2 {
		go func() {
			_, err := c.Actors().Request(ctx, "busy", []byte("hang"))
			ends <- err
		}()
		behind++
	}
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "busy"}
	fabrictest.Eventually(t, 30*time.Second, "they wait at a", func() bool {
		why, err := a.Objects().Explain(ctx, objects.ExplainRequest{Kind: key.Kind, ID: key.ID})
		return err == nil && why.Object != nil && why.Object.Mail == behind
	})
	result := make(chan relocate.Result, 1)
	go func() {
		r, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
		if err != nil {
			t.Errorf("relocate: %v", err)
		}
		result <- r
	}()
	fabrictest.Eventually(t, 30*time.Second, "the quiet one has moved", func() bool {
		at, err := a.Actors().Find(ctx, "quiet")
		return err == nil && at.RID != "a"
	})
	hang <- struct{}{} // the turn at a ends
	<-first
	if r := <-result; r.Outcome != relocate.Relocated {
		t.Fatalf("%+v", r)
	}
	<-in // the next one runs at the target
	states := a.States(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stopNode(t, a)
	}()
	select {
	case ch := <-states:
		t.Errorf("the node became %s although old routes may be used", ch.To)
	case <-time.After(500 * time.Millisecond):
	}
	if _, err := c.Actors().Request(ctx, "quiet", []byte("c:2")); err != nil {
		t.Errorf("by the old route, to a node that is stopping: %v", err)
	}
	<-stopped
	close(hang)
	for range 3 {
		if err := <-ends; err != nil {
			t.Errorf("a call that a had accepted: %v", err)
		}
	}
}
