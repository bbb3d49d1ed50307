package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// awaitState waits until the node's state is want.
func awaitState(t *testing.T, n *fabric.Node, want kvlocation.NodeState) {
	t.Helper()
	fabrictest.Eventually(t, 60*time.Second, fmt.Sprintf("node %s is %s", n.RID(), want), func() bool { return n.State() == want })
}

// TestReconnect: a node whose connection is cut is out of service until it has checked everything again, under the
// same lifecycle; the epoch of its replies is a new one; and no other node is disturbed.
func TestReconnect(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	lifecycle, epoch := a.Lifecycle(), a.Metrics().Epoch
	states := a.States(t.Context())

	// The renewal that proves the lease after the reconnect is held back: until then the node must not serve.
	p.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	awaitState(t, a, kvlocation.StatePreparing)
	if _, err := a.Channel("echo").Request(t.Context(), nil); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("a call while disconnected: %v", err)
	}
	renewal := p.Arm(fabrictest.Trigger{Subject: "$KV.FABRIC_m_NODES.lease.a", Times: -1, Action: fabrictest.Drop})
	p.Heal()
	<-renewal.Reached()
	if got := a.State(); got != kvlocation.StatePreparing {
		t.Fatalf("the node is %s before its lease was checked again", got)
	}
	// On a busy machine the refusal may come too late for one request; none may run.
	fabrictest.Eventually(t, 30*time.Second, "a request is refused", func() bool {
		_, err := b.Channel("echo").Request(timeout(t, 2*time.Second), nil)
		if err == nil || errors.Is(err, outcome.Accepted) {
			t.Fatalf("a node that has not checked its lease took a request: %v", err)
		}
		return errors.Is(err, outcome.NotAccepted)
	})
	renewal.Disarm()
	awaitState(t, a, kvlocation.StateServing)
	if a.Lifecycle() != lifecycle {
		t.Errorf("lifecycle %d became %d by a reconnect", lifecycle, a.Lifecycle())
	}
	if got := a.Metrics().Epoch; got <= epoch {
		t.Errorf("epoch %d after the reconnect, %d before", got, epoch)
	}
	if ch := <-states; ch.To != kvlocation.StatePreparing || ch.Reason != "connection lost" {
		t.Errorf("first change: %+v", ch)
	}
	fabrictest.Eventually(t, 30*time.Second, "b reaches a again", func() bool {
		reply, err := b.Channel("echo").Request(timeout(t, 2*time.Second), []byte("again"))
		return err == nil && string(reply.Data) == "again"
	})
	if b.State() != kvlocation.StateServing {
		t.Errorf("b is %s: a peer's lost connection must not touch it", b.State())
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestLeaseLapse (FO-7c): a node that cannot reach the store stops admitting at its own deadline although its
// connection and its callers' work; what runs then is cancelled; when the store is back it serves again under the same
// lifecycle and a new lease generation.
func TestLeaseLapse(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	began, cause, queued := make(chan struct{}), make(chan error, 1), make(chan struct{})
	wait := func(ctx context.Context, r *channels.Request) (channels.Reply, error) {
		if string(r.Data()) == "queued" {
			close(queued)
			return channels.Reply{}, nil
		}
		close(began)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return channels.Reply{}, ctx.Err()
	}
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()},
		LeaseTTL: 8 * time.Second, LeaseRenew: 400 * time.Millisecond, LeaseMargin: time.Second,
		Channels: []channels.Spec{{Name: "echo", Handler: echo}, {Name: "wait", Workers: 1, Handler: wait}}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	before, err := b.Store().LeaseOf(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := b.Channel("wait").Request(timeout(t, 60*time.Second), nil)
		result <- err
	}()
	<-began
	behind := make(chan error, 1)
	go func() {
		_, err := b.Channel("wait").Request(timeout(t, 60*time.Second), []byte("queued"))
		behind <- err
	}()
	fabrictest.Eventually(t, 30*time.Second, "the second request is queued", func() bool { return a.Metrics().Served["wait"].Queued == 1 })

	store := p.Arm(fabrictest.Trigger{Subject: "$KV.>", Times: -1, Action: fabrictest.Drop})
	awaitState(t, a, kvlocation.StatePreparing)
	if err := <-cause; !errors.Is(err, kvlocation.ErrOwnershipLost) {
		t.Errorf("the handler that ran at the lapse was cancelled with %v", err)
	}
	if err := <-result; !errors.Is(err, outcome.Accepted) {
		t.Errorf("its caller heard %v, want an error that says Accepted", err)
	}
	if err := <-behind; !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.Accepted) {
		t.Errorf("what was queued at the lapse ended with %v, want Unavailable and Accepted", err)
	}
	select {
	case <-queued:
		t.Error("what was queued at the lapse ran after it")
	default:
	}
	_, err = b.Channel("echo").At("a").Request(timeout(t, 30*time.Second), nil)
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("a node without a lease answered %v, want Unavailable and NotAccepted", err)
	}
	// The lease is gone on the store too before the store is back.
	fabrictest.Eventually(t, 30*time.Second, "the lease has expired", func() bool {
		st, err := b.Store().LeaseOf(t.Context(), "a")
		return err == nil && !st.Live
	})
	store.Disarm()
	awaitState(t, a, kvlocation.StateServing)
	after, err := b.Store().LeaseOf(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if after.Lifecycle != before.Lifecycle || after.Generation <= before.Generation {
		t.Errorf("lease before %+v, after %+v: want the same lifecycle and a later generation", before, after)
	}
	fabrictest.Eventually(t, 30*time.Second, "a serves again", func() bool {
		_, err := b.Channel("echo").At("a").Request(timeout(t, 2*time.Second), nil)
		return err == nil
	})
}

// TestStoreFailureGrace (FO-7b): while the store is away a node goes on with the list of members that it read last;
// beyond the grace it concludes nothing from it, and it never takes the store's absence for a member's.
func TestStoreFailureGrace(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	p := s.Proxy(t)
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: p.URL()}, StoreFailureGrace: 20 * time.Second,
		LeaseTTL: 60 * time.Second, LeaseRenew: 500 * time.Millisecond})
	direct := func() error {
		_, err := b.Channel("echo").At("a").Request(timeout(t, 5*time.Second), nil)
		return err
	}
	if err := direct(); err != nil {
		t.Fatal(err)
	}
	writes := p.Arm(fabrictest.Trigger{Subject: "$KV.>", Times: -1, Action: fabrictest.Drop})
	reads := p.Arm(fabrictest.Trigger{Subject: "$JS.API.>", Times: -1, Action: fabrictest.Drop})
	reads.Wait(t)
	if err := direct(); err != nil {
		t.Errorf("within the grace: %v", err)
	}
	fabrictest.Eventually(t, 60*time.Second, "the list has expired", func() bool { return b.Members().Expired() })
	if err := direct(); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("beyond the grace, node direct: %v, want Unavailable and NotAccepted", err)
	}
	if _, err := b.Channel("none").Request(timeout(t, 5*time.Second), nil); !errors.Is(err, outcome.Unavailable) {
		t.Errorf("beyond the grace, a channel that no known member lists: %v, want Unavailable", err)
	}
	if _, err := b.Channel("echo").Request(timeout(t, 5*time.Second), nil); err != nil {
		t.Errorf("beyond the grace, a channel whose members are there: %v", err)
	}
	writes.Disarm()
	reads.Disarm()
	fabrictest.Eventually(t, 60*time.Second, "the list is fresh again", func() bool { return direct() == nil })
	if _, err := b.Channel("none").Request(timeout(t, 5*time.Second), nil); !errors.Is(err, outcome.NotFound) {
		t.Errorf("with the store back, a channel that nobody lists: %v, want NotFound", err)
	}
}

// TestMissingStream: a node whose store has lost a stream is out of service until the store is whole again; streams that
// were made again are another store, and end it.
func TestMissingStream(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	n := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	nc := s.Connect(t)
	if _, err := nc.RequestWithContext(timeout(t, 20*time.Second), "$JS.API.STREAM.DELETE.KV_FABRIC_m_LOCATION", nil); err != nil {
		t.Fatal(err)
	}
	awaitState(t, n, kvlocation.StatePreparing)
	if st := n.Status(); !errors.Is(st.StoreFault, kvlocation.ErrStreamMissing) || !st.LeaseHeld || !strings.Contains(st.Reason, "stream") {
		t.Errorf("status %+v", st)
	}
	fabrictest.Eventually(t, 20*time.Second, "nobody serves the channel", func() bool {
		_, err := nc.RequestWithContext(timeout(t, 20*time.Second), "fab.m.ch.echo", nil)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if _, err := kvlocation.Init(timeout(t, 20*time.Second), nc, kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	awaitState(t, n, kvlocation.StateError)
	if err := n.Err(); !errors.Is(err, kvlocation.ErrMadeAgain) {
		t.Errorf("it ended with %v", err)
	}
}

// TestTwoNodesOneRID: the second one waits and is refused by name when the first one renews; once the first one is
// gone it gets the RID under a later lifecycle.
func TestTwoNodesOneRID(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	cfg := fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}}
	a := startNode(t, cfg)
	_, err := fabric.Start(t.Context(), cfg)
	if !errors.Is(err, kvlocation.ErrRIDInUse) || !strings.Contains(err.Error(), `"a"`) {
		t.Fatalf("a second process with the RID: %v", err)
	}
	stopNode(t, a)
	again := startNode(t, cfg)
	if again.Lifecycle() <= a.Lifecycle() {
		t.Errorf("lifecycle %d after %d", again.Lifecycle(), a.Lifecycle())
	}
}

// TestConnectionClosed: a node whose connection was closed for good ends in StateError and says why.
func TestConnectionClosed(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	nc := s.Connect(t, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1))
	n, err := fabric.Start(t.Context(), fabric.Config{Mesh: "m", RID: "a", Conn: nc, LeaseTTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	select {
	case <-n.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the node did not end")
	}
	if n.State() != kvlocation.StateError || !errors.Is(n.Err(), nats.ErrConnectionClosed) {
		t.Errorf("state %s, %v", n.State(), n.Err())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Shutdown(ctx); err == nil {
		t.Error("Shutdown says nothing about the lease that it could not give back")
	}
	if err2 := n.Shutdown(ctx); err2 == nil {
		t.Error("the second Shutdown has another result than the first")
	}
}

// TestCheckConn: a connection that breaks the guarantees is refused with the option that mends it.
func TestCheckConn(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	for want, opts := range map[string][]nats.Option{
		"nats.ReconnectBufSize(-1)": nil,
		"nats.NoEcho()":             {nats.ReconnectBufSize(-1), nats.NoEcho()},
		"nats.NoReconnect()":        {nats.ReconnectBufSize(-1), nats.NoReconnect()},
	} {
		_, err := fabric.Start(t.Context(), fabric.Config{Mesh: "m", Conn: s.Connect(t, opts...)})
		if !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that names %s, got: %v", want, err)
		}
	}
}

// TestShutdownFinishesAccepted: what a node has accepted is finished and answered while it shuts down; what comes after
// is refused as not accepted.
func TestShutdownFinishesAccepted(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	began, goOn := make(chan struct{}), make(chan struct{})
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "c",
		Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
			close(began)
			<-goOn
			return channels.Reply{Data: []byte("done")}, nil
		}}}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	type result struct {
		data string
		err  error
	}
	first := make(chan result, 1)
	go func() {
		r, err := b.Channel("c").Request(timeout(t, 60*time.Second), nil)
		first <- result{string(r.Data), err}
	}()
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- a.Shutdown(timeout(t, 60*time.Second)) }()
	awaitState(t, a, kvlocation.StateDraining)
	fabrictest.Eventually(t, 30*time.Second, "a refuses what is new", func() bool {
		_, err := b.Channel("c").Request(timeout(t, time.Second), nil)
		return errors.Is(err, outcome.NotAccepted)
	})
	close(goOn)
	if r := <-first; r.err != nil || r.data != "done" {
		t.Errorf("the accepted request ended with %q, %v", r.data, r.err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestAdminNodes: any NATS client can ask the mesh for its nodes.
func TestAdminNodes(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	startNode(t, fabric.Config{Mesh: "m", RID: "a", AppVersion: "1.2.3", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	nc := s.Connect(t)
	m, err := nc.Request("fab.m.admin.nodes", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"mesh":"m"`, `"answered_by":"a"`, `"alive":true`, `"app_version":"1.2.3"`, `"name":"echo"`} {
		if !strings.Contains(string(m.Data), want) {
			t.Errorf("the answer lacks %s: %s", want, m.Data)
		}
	}
	m, err = nc.Request("fab.m.admin.nonsense", nil, 10*time.Second)
	if err != nil || m.Header.Get("Nats-Service-Error-Code") != "404" || m.Header.Get("Fabric-Kind") != "NotFound" {
		t.Errorf("an unknown verb: %v %v", m, err)
	}
}
