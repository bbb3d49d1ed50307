package fabric_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// TestSelfFence (FE-13): a node whose lease is lost, and whose turns do not end in time, stops itself; one whose turns end
// does not, and serves again.
func TestSelfFence(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	stuck := make(chan struct{})
	in := make(chan struct{}, 2)
	handler := func(ctx context.Context, r *channels.Request) (channels.Reply, error) {
		in <- struct{}{}
		if string(r.Data()) == "obey" {
			<-ctx.Done()
			return channels.Reply{}, ctx.Err()
		}
		<-stuck
		return channels.Reply{}, nil
	}
	stops := make(chan string, 1)
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()},
		LeaseTTL: 8 * time.Second, LeaseRenew: 400 * time.Millisecond, LeaseMargin: time.Second,
		Channels:  []channels.Spec{{Name: "work", Handler: handler}},
		SelfFence: &fence.SelfFence{After: 8 * time.Second, Do: func(reason string) { stops <- reason }}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	t.Cleanup(func() { close(stuck) }) // before the nodes are stopped
	lapse := func(what string) {
		t.Helper()
		// The state is Serving a moment before the channel is served again, and b hears of it later still.
		ctx := timeout(t, 120*time.Second)
		go func() {
			for ctx.Err() == nil {
				if _, err := b.Channel("work").Request(ctx, []byte(what)); !errors.Is(err, outcome.NotAccepted) {
					return
				}
			}
		}()
		select {
		case <-in:
		case <-ctx.Done():
			t.Fatalf("%s: a takes no request", what)
		}
		lost := p.Arm(fabrictest.Trigger{Subject: "$KV.FABRIC_m_NODES.lease.a", Times: -1, Action: fabrictest.Drop})
		awaitState(t, a, kvlocation.StatePreparing)
		if err := a.Healthy(timeout(t, 20*time.Second)); err != nil {
			t.Errorf("a node that prepares: %v", err)
		}
		if what == "obey" {
			fabrictest.Eventually(t, 20*time.Second, "the turn has ended", func() bool { return a.Metrics().Served["work"].Running == 0 })
		} else {
			select {
			case reason := <-stops:
				if !strings.Contains(reason, "lease") {
					t.Errorf("it stops itself because %q", reason)
				}
			case <-time.After(30 * time.Second):
				t.Error("the node goes on with a turn that does not end")
			}
		}
		lost.Disarm()
		awaitState(t, a, kvlocation.StateServing)
	}
	lapse("obey")
	select {
	case reason := <-stops:
		t.Errorf("it stops itself although its turn has ended: %s", reason)
	default:
	}
	lapse("hang")
}

// TestHealthy: a node that serves is healthy, one that has stopped is not.
func TestHealthy(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}})
	if err := a.Healthy(timeout(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
	stopNode(t, a)
	if err := a.Healthy(timeout(t, 20*time.Second)); !errors.Is(err, outcome.ShuttingDown) {
		t.Errorf("a node that has stopped: %v", err)
	}
}
