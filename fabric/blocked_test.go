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

// stubbornMesh is stubbornNodes on a server of their own.
func stubbornMesh(t *testing.T, urlOfA func(*fabrictest.Server) string) (a, b *fabric.Node, in chan struct{}, release func()) {
	t.Helper()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	return stubbornNodes(t, urlOfA(s), s.URL())
}

// stubbornNodes are two nodes whose objects are stubborn, and what lets those that hang go on.
func stubbornNodes(t *testing.T, urlOfA, urlOfB string) (a, b *fabric.Node, in chan struct{}, release func()) {
	t.Helper()
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
			RouteTTL: time.Second, Relocation: fabric.Relocation{UnitTimeout: 8 * time.Second, FollowTime: time.Second},
			Types: []objects.Type{
				{Name: "stubborn", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState},
				{Name: "fixed", Class: kvlocation.ClassActor, New: factory},
			}})
	}
	a = node("a", urlOfA)
	b = node("b", urlOfB)
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
	// The target may hear a little later than the source that nothing was given away, and until then takes no other move of the object. On
	// a busy machine a unit's time may be over before its store has answered.
	fabrictest.Eventually(t, 60*time.Second, "the object moves, with the store", func() bool {
		result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
		if err != nil {
			t.Fatalf("with the store: %+v, %v", result, err)
		}
		return result.Outcome == relocate.Relocated
	})
}

// beginHanging lets a node begin a relocation that a turn of its one object holds up, until ctx ends.
func beginHanging(ctx context.Context, t *testing.T, a, b *fabric.Node, in chan struct{}) <-chan relocate.Result {
	t.Helper()
	if _, err := b.Actors().Create(timeout(t, 60*time.Second), "stubborn", "hangs", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	asked := timeout(t, 120*time.Second)
	go func() { _, _ = b.Actors().Request(asked, "hangs", []byte("hang")) }()
	<-in
	results := make(chan relocate.Result, 1)
	go func() {
		result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
		if err != nil {
			t.Errorf("relocate: %v", err)
		}
		results <- result
	}()
	awaitState(t, a, kvlocation.StateRelocating)
	fabrictest.Eventually(t, 60*time.Second, "the object's move waits for its handler", func() bool {
		e, err := b.Store().Peek(t.Context(), kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "hangs"})
		return err == nil && e.Phase() == kvlocation.PhaseMoving
	})
	return results
}

// TestRelocatingTakesNothingNew: a caller whose list still says Serving is refused by the node itself, and what the node owns goes
// on.
func TestRelocatingTakesNothingNew(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a, b, in, release := stubbornNodes(t, s.URL(), s.URL())
	p := s.Proxy(t)
	// Neither a notice nor, for as long as a renewal interval, the check of the list tells c of the change.
	c := startNode(t, fabric.Config{Mesh: "m", RID: "c", Connect: fabric.Connect{URL: p.URL()},
		LeaseTTL: 2 * time.Minute, LeaseRenew: 40 * time.Second, LeaseMargin: time.Second, StoreFailureGrace: time.Minute})
	p.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.m.chg.nodes.desc.a", Times: -1, Action: fabrictest.Drop})
	ctx := timeout(t, 120*time.Second)
	if _, err := b.Actors().Create(ctx, "fixed", "owned", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	results := beginHanging(ctx, t, a, b, in)
	awaitMember(t, b, "a", kvlocation.StateRelocating)
	if m, ok := c.Members().Get("a"); !ok || m.State != kvlocation.StateServing {
		t.Fatalf("c's list says of a: %+v", m)
	}
	for name, from := range map[string]*fabric.Node{"with the list": b, "with an old list": c} {
		if _, err := from.Actors().Create(ctx, "fixed", "new", nil, objects.AtNode("a")); !refused(err, outcome.Unavailable) {
			t.Errorf("a new object, %s: %v", name, err)
		}
		if _, err := from.Actors().Request(ctx, "owned", []byte("x")); err != nil {
			t.Errorf("what the node owns, %s: %v", name, err)
		}
	}
	if _, err := b.Move(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "nobody"}, 0, "a"); err == nil {
		t.Error("a move of what is not there")
	}
	if _, err := b.Actors().Create(ctx, "stubborn", "at b", nil, objects.AtNode("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Move(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "at b"}, 0, "a"); !refused(err, outcome.Unavailable) {
		t.Errorf("a move to the node that relocates: %v", err)
	}
	release()
	if result := <-results; result.Reason != relocate.RelocationDisabled || result.Moved != 1 {
		t.Errorf("%+v", result)
	}
	awaitMember(t, c, "a", kvlocation.StateServing)
	if _, err := c.Actors().Create(ctx, "fixed", "new", nil, objects.AtNode("a")); err != nil {
		t.Errorf("a new object at the node that serves again: %v", err)
	}
}

// TestDoubtWhileRelocating: a connection that is lost does not end the relocation; when it is blocked meanwhile, the node
// serves only after it has been verified again.
func TestDoubtWhileRelocating(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	a, b, in, release := stubbornNodes(t, p.URL(), s.URL())
	ctx, stop := context.WithCancel(timeout(t, 120*time.Second))
	defer stop()
	results := beginHanging(ctx, t, a, b, in)
	states := a.States(t.Context())
	p.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	fabrictest.Eventually(t, 30*time.Second, "the connection is lost", a.InDoubt)
	if err := a.Healthy(ctx); err != nil { // what the loss led to has been handled
		t.Fatal(err)
	}
	if got := a.State(); got != kvlocation.StateRelocating {
		t.Errorf("without a connection the node is %s", got)
	}
	stop()
	if result := <-results; result.Outcome != relocate.Blocked || result.Reason != relocate.DeadlineExceeded {
		t.Errorf("%+v", result)
	}
	if ch := <-states; ch.From != kvlocation.StateRelocating || ch.To != kvlocation.StatePreparing {
		t.Errorf("blocked without a connection: %+v", ch)
	}
	p.Heal()
	if ch := <-states; ch.To != kvlocation.StateServing {
		t.Errorf("with a connection: %+v", ch)
	}
	release()
	fabrictest.Eventually(t, 60*time.Second, "the object answers", func() bool {
		_, err := b.Actors().Request(timeout(t, 5*time.Second), "hangs", []byte("x"))
		return err == nil
	})
}
