package kvlocation

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestMissingStream removes the object records under a running node: that is said once, within a renewal interval, and
// ends what waits for the store.
func TestMissingStream(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc, ctx := connect(t, srv.URL()), testContext(t)
	if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	core, log := observer.New(zapcore.InfoLevel)
	p := program{Store: openStore(t, connect(t, srv.URL()), Config{Mesh: "m", RID: "n1", Logger: zap.New(core)})}
	l := p.acquire(t, steadyLease("n1"))
	if err := p.Fault(); err != nil {
		t.Fatal(err)
	}
	key := ObjectKey{Kind: KindActor, ID: "a"}
	ch, err := p.Create(ctx, room(key, n1, nil))
	at := mustChange(t, ch, err).Entry

	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(ctx, "KV_FABRIC_m_LOCATION"); err != nil {
		t.Fatal(err)
	}
	// The call would wait for two minutes.
	_, err = p.Ready(ctx, at, n1)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	wantText(t, err, "does not exist", "fabricnode init")
	_, err = p.Lookup(ctx, key)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	wantText(t, err, "does not exist")
	if err := p.Fault(); !errors.Is(err, ErrStreamMissing) || !errors.Is(err, outcome.NotConfigured) {
		t.Errorf("the fault is %v", err)
	}
	wantText(t, p.Fault(), "KV_FABRIC_m_LOCATION")
	if e := wantEvent(t, l, LeaseStreamMissing); !errors.Is(e.Err, ErrStreamMissing) || e.Generation != l.Generation() {
		t.Errorf("the event is %+v", e)
	}
	renewed := l.acked.Load().revision
	fabrictest.Eventually(t, readyIn, "renewals go on", func() bool { return l.acked.Load().revision > renewed+3 })
	if n := log.FilterMessage("the store is not as it should be").FilterLevelExact(zapcore.ErrorLevel).Len(); n != 1 {
		t.Errorf("%d lines say so: %v", n, log.All())
	}

	if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	drainUntil(t, l, LeaseMadeAgain)
	if err := p.Fault(); !errors.Is(err, ErrMadeAgain) {
		t.Errorf("the fault is %v", err)
	}
}

// TestFault: only what the server says is a fault of the store. A check that was not answered, because the own
// connection or its buffer gave way, changes nothing.
func TestFault(t *testing.T) {
	t.Parallel()
	core, log := observer.New(zapcore.InfoLevel)
	s := &Store{log: zap.New(core)}
	unanswered := []error{
		unavailable("read", "stream", errNoAnswer), unavailable("read", "stream", nats.ErrReconnectBufExceeded),
		unavailable("read", "stream", nats.ErrConnectionReconnecting),
	}
	for _, err := range unanswered {
		if s.setFault(err) || s.Fault() != nil {
			t.Errorf("after %v: %v", err, s.Fault())
		}
	}
	if n := log.Len(); n != 0 {
		t.Errorf("logged %v", log.All())
	}
	gone := notConfigured("check", "stream", ErrStreamMissing)
	if !s.setFault(gone) || s.setFault(gone) {
		t.Error("a missing stream is not told once")
	}
	for _, err := range unanswered {
		if s.setFault(err) || !errors.Is(s.Fault(), ErrStreamMissing) {
			t.Errorf("after a missing stream and %v: %v", err, s.Fault())
		}
	}
	s.setFault(nil)
	if err := s.Fault(); err != nil {
		t.Errorf("after a good check: %v", err)
	}
	if n := log.Len(); n != 2 {
		t.Errorf("logged %v", log.All())
	}
}

// TestManyNodes has more keys than one consistent read covers.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	p := newMesh(t).program("n1")
	const n = maxSnapshotKeys + 100
	for i := range n {
		rid := fmt.Sprintf("x%d", i)
		v := leaseValue{Lifecycle: uint64(i + 1), Generation: uint64(i + 1), TTLMillis: 18_000}
		if _, err := p.write(testContext(t), p.leaseWrite(rid, v.next(nuid.Next()), nuid.Next(), 0, time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	nodes, err := p.Nodes(testContext(t))
	if err != nil || len(nodes) != n {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	for _, node := range nodes {
		if !node.Alive || node.LeaseTTL != 18_000 {
			t.Fatalf("%+v", node)
		}
	}
}
