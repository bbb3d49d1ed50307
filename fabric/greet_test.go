package fabric_test

import (
	"context"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
)

// TestReconnectGreetsAgain (FO-10.5): a peer that was ready on one connection is not on the next. The first direct call
// after a reconnect greets it again, in a node as in a client.
func TestReconnectGreetsAgain(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	type caller interface {
		Channel(name string) *channels.Channel
		Metrics() channels.Snapshot
	}
	for name, open := range map[string]func(*testing.T, string) caller{
		"node": func(t *testing.T, url string) caller {
			return startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: url}})
		},
		"client": func(t *testing.T, url string) caller {
			c, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "m", Connect: fabric.Connect{URL: url}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := s.Proxy(t)
			c := open(t, p.URL())
			fabrictest.Eventually(t, 30*time.Second, "b is known and greeted", func() bool {
				_, err := c.Channel("echo").At("b").Request(timeout(t, 5*time.Second), nil)
				return err == nil
			})
			before := c.Metrics()
			p.Apply(fabrictest.Cut)
			fabrictest.Eventually(t, 30*time.Second, "the next connection", func() bool { return c.Metrics().Epoch > before.Epoch })
			if _, err := c.Channel("echo").At("b").Request(timeout(t, 30*time.Second), nil); err != nil {
				t.Fatal(err)
			}
			if c.Metrics().Hellos == before.Hellos {
				t.Error("no hello before the first direct call on the next connection")
			}
		})
	}
}
