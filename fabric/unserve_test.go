package fabric_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestUnserveThatIsCutShort: an Unserve whose context ends before the handlers do goes on to its end, can be waited for
// again, and leaves a name that can be served anew.
func TestUnserveThatIsCutShort(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	began, goOn := make(chan struct{}), make(chan struct{})
	spec := channels.Spec{Name: "c", Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
		close(began)
		<-goOn
		return channels.Reply{}, nil
	}}
	n := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{spec}})
	done := make(chan error, 1)
	go func() {
		_, err := n.Channel("c").Request(timeout(t, 60*time.Second), nil)
		done <- err
	}()
	<-began
	if err := n.Unserve(timeout(t, 300*time.Millisecond), "c"); !errors.Is(err, outcome.DeadlineExceeded) {
		t.Fatalf("Unserve while a handler runs: %v", err)
	}
	if err := n.Serve(t.Context(), spec); !errors.Is(err, outcome.AlreadyExists) {
		t.Errorf("Serve while it drains: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the accepted request ended with %v", err)
	}
	if err := n.Unserve(timeout(t, 60*time.Second), "c"); err != nil && !errors.Is(err, outcome.NotFound) {
		t.Errorf("Unserve again: %v", err)
	}
	if err := n.Unserve(t.Context(), "c"); !errors.Is(err, outcome.NotFound) {
		t.Errorf("Unserve of what is gone: %v", err)
	}
	if err := n.Serve(t.Context(), channels.Spec{Name: "c", Handler: echo}); err != nil {
		t.Fatalf("Serve anew: %v", err)
	}
	if _, err := n.Channel("c").Request(timeout(t, 60*time.Second), nil); err != nil {
		t.Errorf("a request to what is served anew: %v", err)
	}
}

// TestUnserveWhoseWriteIsLost: the descriptor ceases to list the channel although the write that says so was lost.
func TestUnserveWhoseWriteIsLost(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: p.URL()}, Channels: []channels.Spec{{Name: "c", Handler: echo}, {Name: "d", Handler: echo}}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	fabrictest.Eventually(t, 30*time.Second, "b sees both channels", func() bool {
		return len(b.Members().Channel("c")) == 1 && len(b.Members().Channel("d")) == 1
	})
	lost := p.Arm(fabrictest.Trigger{Subject: "$KV.FABRIC_m_NODES.desc.a", Action: fabrictest.Drop})
	err := a.Unserve(timeout(t, 300*time.Millisecond), "c")
	lost.Wait(t)
	if !errors.Is(err, outcome.Unavailable) {
		t.Errorf("Unserve whose write was lost: %v", err)
	}
	fabrictest.Eventually(t, 30*time.Second, "b sees that c is gone", func() bool { return len(b.Members().Channel("c")) == 0 })
	if len(b.Members().Channel("d")) != 1 {
		t.Error("d is not listed any more")
	}
}
