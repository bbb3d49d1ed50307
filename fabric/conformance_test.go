package fabric_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// TestConformance holds the rules that are visible only where everything comes together.
func TestConformance(t *testing.T) {
	t.Run("FO-2.6", func(t *testing.T) { t.Parallel(); judged(t) })
	t.Run("SV-16", func(t *testing.T) { t.Parallel(); planned(t) })
}

// slowly is a tally whose Restore waits, and fails if it is told to.
type slowly struct {
	tally
	gate *gate
}

// gate holds Restore until it is told how to go on.
type gate struct {
	came chan struct{}
	on   chan error
}

func (s *slowly) Restore(ctx context.Context, self *objects.Self, state objects.State) error {
	s.gate.came <- struct{}{}
	if err := <-s.gate.on; err != nil {
		return err
	}
	return s.tally.Restore(ctx, self, state)
}

// latestOn is the latest time on the store's clock that a caller whose clock is c may send along as the deadline that is after from now.
func latestOn(c *kvlocation.Clock, after time.Duration) time.Time {
	now, bound, _ := c.Now()
	return now.Add(after + bound)
}

// judged (FO-2.6): who chose the target comes first, then acceptance, then owner and generation, then the phase of a move; and each
// operation has one end.
func judged(t *testing.T) {
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	g := &gate{came: make(chan struct{}), on: make(chan error)}
	factory := func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
		return &slowly{tally: tally{j: j, name: objectName(self)}, gate: g}, nil
	}
	node := func(rid string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()},
			Types: []objects.Type{{Name: "slowly", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState}}})
	}
	a, b, c := node("a"), node("b"), node("c")
	awaitMember(t, a, "b", kvlocation.StateServing)
	ctx := timeout(t, 120*time.Second)
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "x"}

	// The caller chose: nobody else makes it, although others could.
	if _, err := c.Actors().Create(ctx, "slowly", "x", nil, objects.AtNode("nobody")); !refused(err, outcome.NotFound) {
		t.Errorf("a node that is not there: %v", err)
	}
	ref, err := c.Actors().Create(ctx, "slowly", "x", nil, objects.AtNode("a"))
	if err != nil {
		t.Fatal(err)
	}
	request := func(from *fabric.Node, message, want string) {
		t.Helper()
		if reply, err := from.Actors().Request(ctx, "x", []byte(message)); err != nil || string(reply.Data) != want {
			t.Errorf("%s: %q, %v, want %s", message, reply.Data, err, want)
		}
	}
	request(b, "b:1", "1")
	request(c, "c:1", "2") // both know now that it is at a

	// Before the boundary nothing that comes is accepted, and what the caller gives up does not run.
	move := func() <-chan error {
		moved := make(chan error, 1)
		go func() {
			_, err := a.Move(ctx, key, ref.Generation, "b")
			moved <- err
		}()
		<-g.came
		return moved
	}
	moved := move()
	_, bound, _ := a.Clock().Now()
	latest := latestOn(c.Clock(), 300*time.Millisecond)
	if _, err := c.Actors().Request(timeout(t, 300*time.Millisecond), "x", []byte("lost:1"), objects.WithEarlyAcceptance()); err == nil || errors.Is(err, outcome.Accepted) {
		t.Errorf("given up while the object is sealed: %v", err)
	}
	// The owner judges the deadline by the store's clock, in the caller's favour by the errors of two readings of it.
	if l := latestOn(c.Clock(), 0); l.After(latest) {
		latest = l
	}
	fabrictest.Eventually(t, 60*time.Second, "the owner knows that the deadline has passed", func() bool { return a.Clock().Past(latest.Add(bound)) })
	var held sync.WaitGroup
	held.Go(func() { request(c, "c:2", "3") })

	// The move fails explicitly: owner, incarnation and what was held stay with the source.
	g.on <- errors.New("no room")
	if err := <-moved; err == nil || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("the move whose restore failed: %v", err)
	}
	held.Wait()
	if at, err := c.Actors().Find(ctx, "x"); err != nil || at.RID != "a" || at.OwnerGeneration != 1 {
		t.Errorf("after it the object is at %+v, %v", at, err)
	}

	// It succeeds: what was held runs at the target, once, and so does what comes by the old route.
	moved = move()
	held.Go(func() { request(c, "c:3", "4") })
	g.on <- nil
	if err := <-moved; err != nil {
		t.Fatalf("the move: %v", err)
	}
	held.Wait()
	request(b, "b:2", "5")
	request(c, "c:4", "6")
	if at, err := c.Actors().Find(ctx, "x"); err != nil || at.RID != "b" || at.Generation != ref.Generation || at.OwnerGeneration != 2 {
		t.Errorf("after it the object is at %+v, %v", at, err)
	}
	j.check(t, map[string]int{"actor/x/b": 2, "actor/x/c": 4})

	// The generation is judged where a reference is given, and only there.
	if err := c.Actors().Destroy(ctx, objects.ActorRef{ID: "x", Generation: ref.Generation + 1}); !refused(err, outcome.NotFound) {
		t.Errorf("Destroy of another incarnation: %v", err)
	}
	// The owner is gone: nobody takes over.
	stopNode(t, b)
	if _, err := c.Actors().Request(ctx, "x", []byte("c:5")); !refused(err, outcome.Unavailable) {
		t.Errorf("with the owner gone: %v", err)
	}
}
