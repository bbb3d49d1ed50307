package fabric_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// stubborn is an object that cannot move, in the way that its ID says.
type stubborn struct {
	tally
	hang chan struct{} // a request "hang" returns when it is closed
	in   chan struct{} // told when one has begun
}

func (s *stubborn) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	if string(req.Data()) == "hang" {
		s.in <- struct{}{}
		<-s.hang
		return objects.Reply{}, nil
	}
	return s.tally.Handle(ctx, req)
}

func (s *stubborn) Capture(ctx context.Context, self *objects.Self) (objects.State, error) {
	if self.ID() == "no capture" {
		return objects.State{}, errors.New("the state is in use")
	}
	return s.tally.Capture(ctx, self)
}

func (s *stubborn) Restore(ctx context.Context, self *objects.Self, state objects.State) error {
	if self.ID() == "other version" {
		state.Version = 2
	}
	return s.tally.Restore(ctx, self, state)
}

// stubbornMesh is two nodes whose objects are stubborn, and what lets those that hang go on.
func stubbornMesh(t *testing.T, urlOfA func(*fabrictest.Server) string) (a, b *fabric.Node, in chan struct{}, release func()) {
	t.Helper()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	hang := make(chan struct{})
	in = make(chan struct{}, 1)
	released := false
	release = func() {
		if !released {
			released = true
			close(hang)
		}
	}
	t.Cleanup(release)
	factory := func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
		return &stubborn{tally: tally{j: j, name: objectName(self)}, hang: hang, in: in}, nil
	}
	node := func(rid, url string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: url},
			RouteTTL: time.Second, Relocation: fabric.Relocation{UnitTimeout: 4 * time.Second, FollowTime: time.Second},
			Types: []objects.Type{
				{Name: "stubborn", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState},
				{Name: "fixed", Class: kvlocation.ClassActor, New: factory},
			}})
	}
	a = node("a", urlOfA(s))
	b = node("b", s.URL())
	awaitMember(t, a, "b", kvlocation.StateServing)
	t.Cleanup(release) // before the nodes are stopped
	return a, b, in, release
}

// TestBlocked: what cannot move stays and goes on, the result says of each object why, and the node serves again.
func TestBlocked(t *testing.T) {
	t.Parallel()
	a, b, in, release := stubbornMesh(t, (*fabrictest.Server).URL)
	ctx := timeout(t, 180*time.Second)
	for _, c := range []struct {
		id, typ string
		hang    bool
		want    relocate.Reason
	}{
		{"fixed", "fixed", false, relocate.RelocationDisabled},
		{"other version", "stubborn", false, relocate.StateIncompatible},
		{"no capture", "stubborn", false, relocate.RelocationFailed},
		{"hangs", "stubborn", true, relocate.DeadlineExceeded},
	} {
		ref, err := b.Actors().Create(ctx, c.typ, c.id, nil, objects.AtNode("a"))
		if err != nil {
			t.Fatal(err)
		}
		if c.hang {
			go func() { _, _ = b.Actors().Request(ctx, c.id, []byte("hang")) }()
			<-in
		}
		result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
		if err != nil || result.Outcome != relocate.Blocked || result.Reason != c.want || result.KeptCount != 1 || len(result.Kept) != 1 {
			t.Errorf("%s: %+v, %v, want %s", c.id, result, err, c.want)
			continue
		}
		kept := result.Kept[0]
		if kept.Key.ID != c.id || kept.Generation != ref.Generation || kept.Reason != c.want || kept.Detail == "" || kept.Reason.Text() == "" {
			t.Errorf("%s is kept as %+v", c.id, kept)
		}
		if a.State() != kvlocation.StateServing {
			t.Errorf("%s: the node is %s", c.id, a.State())
		}
		awaitMember(t, b, "a", kvlocation.StateServing)
		if c.hang {
			release()
		}
		if reply, err := b.Actors().Request(ctx, c.id, []byte("s:1")); err != nil || string(reply.Data) != "1" {
			t.Errorf("%s answers %q, %v", c.id, reply.Data, err)
		}
		if at, err := b.Actors().Find(ctx, c.id); err != nil || at.RID != "a" || at.OwnerGeneration != 1 {
			t.Errorf("%s is at %+v, %v", c.id, at, err)
		}
		if err := b.Actors().Destroy(ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Relocated {
		t.Errorf("with nothing left: %+v, %v", result, err)
	}
}

// TestOneRelocationAtATime: a second relocation is told that one is under way; Shutdown ends it, and what had not moved
// stays that process run's.
func TestOneRelocationAtATime(t *testing.T) {
	t.Parallel()
	a, b, in, release := stubbornMesh(t, (*fabrictest.Server).URL)
	ctx := timeout(t, 120*time.Second)
	if _, err := b.Actors().Create(ctx, "stubborn", "hangs", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = b.Actors().Request(ctx, "hangs", []byte("hang")) }()
	<-in
	states := a.States(t.Context())
	results := make(chan relocate.Result, 1)
	go func() {
		result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
		if err != nil {
			t.Errorf("relocate: %v", err)
		}
		results <- result
	}()
	if ch := <-states; ch.To != kvlocation.StateRelocating {
		t.Fatalf("the node became %s", ch.To)
	}
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Blocked || result.Reason != relocate.OperationInProgress {
		t.Errorf("a second one: %+v, %v", result, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- a.Shutdown(timeout(t, 60*time.Second)) }()
	if result := <-results; result.Outcome != relocate.Blocked || result.Reason != relocate.ShutdownRequested {
		t.Errorf("the first one: %+v", result)
	}
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Reason != relocate.ShutdownRequested {
		t.Errorf("one after Shutdown: %+v, %v", result, err)
	}
	release()
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	var last kvlocation.NodeState
	for ch := range states {
		if ch.To == kvlocation.StateServing {
			t.Error("the node that shuts down served again")
		}
		last = ch.To
	}
	if last != kvlocation.StateStopped {
		t.Errorf("the node ended as %s", last)
	}
	if _, err := b.Actors().Request(ctx, "hangs", nil); !refused(err, outcome.Unavailable) {
		t.Errorf("what had not moved: %v", err)
	}
}

// TestRelocationNotReady: a node that may not serve gives nothing away.
func TestRelocationNotReady(t *testing.T) {
	t.Parallel()
	var p *fabrictest.Proxy
	a, b, _, _ := stubbornMesh(t, func(s *fabrictest.Server) string { p = s.Proxy(t); return p.URL() })
	if _, err := b.Actors().Create(timeout(t, 60*time.Second), "stubborn", "x", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	p.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	awaitState(t, a, kvlocation.StatePreparing)
	result, err := a.Relocate(timeout(t, 60*time.Second), relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Blocked || result.Reason != relocate.RuntimeNotReady {
		t.Errorf("while preparing: %+v, %v", result, err)
	}
	p.Heal()
	awaitState(t, a, kvlocation.StateServing)
	result, err = a.Relocate(timeout(t, 60*time.Second), relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Relocated || result.Moved != 1 {
		t.Errorf("when it serves: %+v, %v", result, err)
	}
}

// TestRelocationWithoutStore: when the store takes no write of a record, the object stays, and its owner serves it again
// once the store says that nothing was given away.
func TestRelocationWithoutStore(t *testing.T) {
	t.Parallel()
	var p *fabrictest.Proxy
	a, b, _, _ := stubbornMesh(t, func(s *fabrictest.Server) string { p = s.Proxy(t); return p.URL() })
	ctx := timeout(t, 120*time.Second)
	if _, err := b.Actors().Create(ctx, "stubborn", "x", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	lost := p.Arm(fabrictest.Trigger{Subject: "$KV.FABRIC_m_LOCATION.actor.>", Times: -1, Action: fabrictest.Drop})
	result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Blocked || result.Reason != relocate.StoreUnavailable {
		t.Errorf("without the store: %+v, %v", result, err)
	}
	lost.Disarm()
	fabrictest.Eventually(t, 60*time.Second, "the object answers", func() bool {
		_, err := b.Actors().Request(timeout(t, 5*time.Second), "x", []byte("s:1"))
		return err == nil
	})
	result, err = a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Relocated {
		t.Errorf("with the store: %+v, %v", result, err)
	}
}
