package fabric_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// newMesh makes the buckets of a mesh on s.
func newMesh(t *testing.T, s *fabrictest.Server, mesh string) {
	t.Helper()
	if _, err := kvlocation.Init(t.Context(), s.Connect(t), kvlocation.Setup{Mesh: mesh}); err != nil {
		t.Fatal(err)
	}
}

// startNode starts a node with leases that are short, but longer than a busy machine stands still, and shuts it down with the test.
func startNode(t *testing.T, cfg fabric.Config) *fabric.Node {
	t.Helper()
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL, cfg.LeaseRenew, cfg.LeaseMargin = 12*time.Second, 500*time.Millisecond, time.Second
	}
	n, err := fabric.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	return n
}

func stopNode(t *testing.T, n *fabric.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func echo(_ context.Context, r *channels.Request) (channels.Reply, error) {
	return channels.Reply{Data: r.Data()}, nil
}

func TestNodeLifecycle(t *testing.T) {
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	b := startNode(t, fabric.Config{Mesh: "m", Connect: fabric.Connect{URL: s.URL()}})
	reply, err := b.Channel("echo").Request(t.Context(), []byte("x"))
	if err != nil || string(reply.Data) != "x" {
		t.Fatalf("reply %q, %v", reply.Data, err)
	}
	if a.State() != kvlocation.StateServing || a.Lifecycle() == 0 {
		t.Fatalf("state %s, lifecycle %d", a.State(), a.Lifecycle())
	}
	fabrictest.Eventually(t, 10*time.Second, "b sees a's channel", func() bool { return len(b.Members().Channel("echo")) == 1 })
	states := a.States(t.Context())
	stopNode(t, a)
	var seen []kvlocation.NodeState
	for ch := range states {
		seen = append(seen, ch.To)
	}
	if len(seen) != 2 || seen[0] != kvlocation.StateDraining || seen[1] != kvlocation.StateStopped {
		t.Fatalf("states %v", seen)
	}
	fabrictest.Eventually(t, 10*time.Second, "a's descriptor is gone", func() bool { return len(b.Members().Channel("echo")) == 0 })
	if _, err := b.Channel("echo").Request(t.Context(), nil); !errors.Is(err, outcome.NotFound) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("a request to a channel that nobody lists: %v", err)
	}
	if _, err := b.Channel("echo").At("a").Request(t.Context(), nil); !errors.Is(err, outcome.NotFound) {
		t.Fatalf("a request to a node that left: %v", err)
	}
}

// TestQuietStart: a node with the default lease finds nothing to repair in its source of changes. (The notice of the
// lease's first write goes out before anybody has subscribed to it, and must not be waited for.)
func TestQuietStart(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	n := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, LeaseTTL: kvlocation.DefaultTTL})
	first, err := n.Store().LeaseOf(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 60*time.Second, "the lease was renewed twice", func() bool {
		st, err := n.Store().LeaseOf(t.Context(), "a")
		return err == nil && st.Renewed.Sub(first.Renewed) >= 2*kvlocation.DefaultRenew-time.Second
	})
	st := n.Status()
	if st.DirectoryStats.Rebuilds != 0 || st.DirectoryStats.Gaps != 0 || st.Directory != kvlocation.DirectoryFresh {
		t.Errorf("%+v", st)
	}
	if !st.LeaseHeld || !st.Connected || st.Members != 1 || st.State != kvlocation.StateServing {
		t.Errorf("%+v", st)
	}
}

// TestStartedNodeKnowsItself: whatever becomes of the notice, the list of a node that has started has the node itself,
// so that its first call may name it.
func TestStartedNodeKnowsItself(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	p.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.m.chg.>", Times: -1, Action: fabrictest.Drop})
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	if _, err := a.Channel("echo").At("a").Request(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}
