package fabric_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// sleeper is an object whose turns wait for a word, and which notes what happened to it.
type sleeper struct {
	began, goOn chan struct{}
	cause       chan error
	activated   *atomic.Int32
	closed      *atomic.Int32
}

func newSleeper() *sleeper {
	return &sleeper{began: make(chan struct{}, 16), goOn: make(chan struct{}), cause: make(chan error, 16), activated: new(atomic.Int32), closed: new(atomic.Int32)}
}

func (s *sleeper) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	if string(req.Data()) != "sleep" {
		return objects.Reply{Data: req.Data()}, nil
	}
	s.began <- struct{}{}
	select {
	case <-s.goOn:
		return objects.Reply{Data: []byte("slept")}, nil
	case <-ctx.Done():
		s.cause <- context.Cause(ctx)
		return objects.Reply{}, ctx.Err()
	}
}

func (s *sleeper) Activate(ctx context.Context, _ *objects.Self) error {
	s.activated.Add(1)
	_, err := fence.FromContext(ctx)
	return err
}

func (s *sleeper) Closing(context.Context, *objects.Self, objects.CloseReason) error {
	s.closed.Add(1)
	return nil
}

func (s *sleeper) factory(context.Context, *objects.Self, []byte) (objects.Object, error) {
	return s, nil
}

// TestObjectsAfterALapse (FO-7c): a node whose lease lapses ends its turns and starts none; when it has a lease again,
// under another generation, its objects are adopted and go on as they were.
func TestObjectsAfterALapse(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	obj := newSleeper()
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()},
		LeaseTTL: 8 * time.Second, LeaseRenew: 400 * time.Millisecond, LeaseMargin: time.Second,
		Types: []objects.Type{{Name: "s", Class: kvlocation.ClassActor, New: obj.factory}}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	ctx := timeout(t, 120*time.Second)
	ref, err := b.Actors().Create(ctx, "s", "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := b.Actors().Find(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := b.Actors().Request(ctx, "x", []byte("sleep"))
		result <- err
	}()
	<-obj.began

	store := p.Arm(fabrictest.Trigger{Subject: "$KV.>", Times: -1, Action: fabrictest.Drop})
	awaitState(t, a, kvlocation.StatePreparing)
	if err := <-obj.cause; !errors.Is(err, kvlocation.ErrOwnershipLost) {
		t.Errorf("the turn that ran at the lapse was cancelled with %v", err)
	}
	for who, actors := range map[string]*objects.Actors{"another node": b.Actors(), "the owner itself": a.Actors()} {
		if _, err := actors.Request(timeout(t, 20*time.Second), "x", nil); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
			t.Errorf("a call by %s while the owner has no lease: %v, want Unavailable and NotAccepted", who, err)
		}
	}
	fabrictest.Eventually(t, 30*time.Second, "the lease has expired", func() bool {
		st, err := b.Store().LeaseOf(ctx, "a")
		return err == nil && !st.Live
	})
	store.Disarm()
	awaitState(t, a, kvlocation.StateServing)
	fabrictest.Eventually(t, 30*time.Second, "the object answers again", func() bool {
		reply, err := b.Actors().Request(timeout(t, 20*time.Second), "x", []byte("again"))
		return err == nil && string(reply.Data) == "again"
	})
	if err := <-result; !errors.Is(err, outcome.Accepted) {
		t.Errorf("the caller of the turn that was cut off heard %v, want an error that says Accepted", err)
	}
	after, err := b.Actors().Find(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != ref.Generation || after.OwnerGeneration != before.OwnerGeneration || after.Lifecycle != before.Lifecycle || after.Lease <= before.Lease {
		t.Errorf("before the lapse %+v, after it %+v: want the same incarnation under a later lease", before, after)
	}
	if n := obj.activated.Load(); n != 2 {
		t.Errorf("the activation callback ran %d times, want once at the creation and once after the adoption", n)
	}
}

// TestShutdownWithObjects: what an object has accepted is finished and answered while its node shuts down, and what comes
// later is refused. Objects stay owned by the run that has ended, but for the types that say otherwise; a later run of
// the RID does not serve them, and a release frees them.
func TestShutdownWithObjects(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	kept, closed := newSleeper(), newSleeper()
	cfg := fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, LeaseTTL: 6 * time.Second, LeaseRenew: 500 * time.Millisecond,
		Channels: []channels.Spec{{Name: "echo", Handler: echo}},
		Types: []objects.Type{
			{Name: "kept", Class: kvlocation.ClassActor, New: kept.factory},
			{Name: "closed", Class: kvlocation.ClassActor, New: closed.factory, CloseOnShutdown: true},
		}}
	a := startNode(t, cfg)
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	ctx := timeout(t, 120*time.Second)
	ref, err := b.Actors().Create(ctx, "kept", "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Actors().Create(ctx, "closed", "c", nil); err != nil {
		t.Fatal(err)
	}
	type result struct {
		data string
		err  error
	}
	results := make(chan result, 2)
	ask := func(data string) {
		r, err := b.Actors().Request(ctx, "k", []byte(data), objects.WithEarlyAcceptance())
		results <- result{string(r.Data), err}
	}
	go ask("sleep")
	<-kept.began
	go ask("behind it")
	fabrictest.Eventually(t, 30*time.Second, "the second request waits", func() bool {
		why, err := a.Objects().Explain(ctx, objects.ExplainRequest{Kind: kvlocation.KindActor, ID: "k"})
		return err == nil && why.Object != nil && why.Object.Mail == 1
	})
	stopped := make(chan error, 1)
	go func() { stopped <- a.Shutdown(timeout(t, 60*time.Second)) }()
	awaitState(t, a, kvlocation.StateDraining)
	fabrictest.Eventually(t, 30*time.Second, "a refuses what is new", func() bool {
		_, err := b.Actors().Request(timeout(t, time.Second), "k", nil)
		return errors.Is(err, outcome.NotAccepted)
	})
	plain := s.Connect(t)
	fabrictest.Eventually(t, 30*time.Second, "a has left its channel", func() bool {
		_, err := plain.RequestWithContext(timeout(t, 5*time.Second), "fab.m.ch.echo", nil)
		return errors.Is(err, nats.ErrNoResponders)
	})
	close(kept.goOn)
	got := []result{<-results, <-results}
	if !slices.ContainsFunc(got, func(r result) bool { return r.data == "slept" }) || !slices.ContainsFunc(got, func(r result) bool { return r.data == "behind it" }) {
		t.Errorf("what was accepted ended with %v", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if kept.closed.Load() != 0 || closed.closed.Load() != 1 {
		t.Errorf("closing callbacks: %d of the type that is kept, %d of the one that is closed", kept.closed.Load(), closed.closed.Load())
	}
	_, err = b.Actors().Request(ctx, "c", nil)
	if errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted) { // by a route that was right until now
		_, err = b.Actors().Request(ctx, "c", nil)
	}
	if !errors.Is(err, outcome.NotFound) {
		t.Errorf("the object of the type that is closed: %v, want NotFound", err)
	}

	again := startNode(t, cfg)
	fabrictest.Eventually(t, 30*time.Second, "b knows the later run", func() bool {
		m, ok := b.Members().Get("a")
		return ok && m.Lifecycle == again.Lifecycle()
	})
	for range 2 {
		if _, err := b.Actors().Request(ctx, "k", nil); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
			t.Errorf("the object of the run that has ended: %v, want Unavailable and NotAccepted", err)
		}
	}
	if _, err := b.Actors().Create(ctx, "kept", "k", nil); !errors.Is(err, outcome.AlreadyExists) {
		t.Errorf("creating it anew: %v, want AlreadyExists", err)
	}
	if err := b.Actors().Release(ctx, ref); err != nil {
		t.Fatal(err)
	}
	next, err := b.Actors().Create(ctx, "kept", "k", nil)
	if err != nil || next.Generation <= ref.Generation {
		t.Fatalf("created as %s after %s, %v", next, ref, err)
	}
	if at, err := b.Actors().Find(ctx, "k"); err != nil || at.Lifecycle != again.Lifecycle() {
		t.Errorf("it is at %+v, %v", at, err)
	}
}

// TestShutdownCutsTurnsOff: a turn that does not end keeps no node from stopping, and the error says that it was cut off.
func TestShutdownCutsTurnsOff(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	obj := newSleeper()
	a, err := fabric.Start(t.Context(), fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()},
		Types: []objects.Type{{Name: "s", Class: kvlocation.ClassActor, New: obj.factory}}})
	if err != nil {
		t.Fatal(err)
	}
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	ctx := timeout(t, 60*time.Second)
	if _, err := b.Actors().Create(ctx, "s", "x", nil); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := b.Actors().Request(ctx, "x", []byte("sleep"), objects.WithEarlyAcceptance())
		result <- err
	}()
	<-obj.began
	if err := a.Shutdown(timeout(t, 500*time.Millisecond)); !errors.Is(err, fabric.ErrCutOff) || !strings.Contains(err.Error(), "1 running") {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-result; !errors.Is(err, outcome.Accepted) {
		t.Errorf("the caller heard %v, want an error that says Accepted", err)
	}
}
