package fabric_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// TestLeafnode: a node behind a leafnode works with the hub's JetStream domain, and both sides reach each other. It is
// what docs/operations.md says about leafnodes.
func TestLeafnode(t *testing.T) {
	t.Parallel()
	hub := fabrictest.StartServer(t, fabrictest.WithConfig(`
		leafnodes { listen: "127.0.0.1:-1" }
		jetstream { domain: hub }`))
	vz, err := hub.NATS().Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := fabrictest.StartServer(t, fabrictest.WithConfig(fmt.Sprintf(`
		leafnodes { remotes: [ { url: "nats://127.0.0.1:%d" } ] }
		jetstream { domain: leaf }`, vz.LeafNode.Port)))
	fabrictest.Eventually(t, 20*time.Second, "the leafnode is connected", func() bool { return leaf.NATS().NumLeafNodes() == 1 })
	newMesh(t, hub, "m")

	serve := func(name string) []channels.Spec { return []channels.Spec{{Name: name, Handler: echo}} }
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: hub.URL()}, Channels: serve("at-hub"), Types: counters()})
	// The leaf has a JetStream of its own: without the hub's domain the node would look for the mesh there.
	_, err = fabric.Start(t.Context(), fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: leaf.URL()}})
	if !errors.Is(err, outcome.NotConfigured) || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("a node that looks into the leaf's own JetStream: %v", err)
	}
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: leaf.URL()}, Domain: "hub", Channels: serve("at-leaf")})
	reach := func(from *fabric.Node, channel string) {
		t.Helper()
		fabrictest.Eventually(t, 20*time.Second, "a request to "+channel, func() bool {
			reply, err := from.Channel(channel).Request(timeout(t, 2*time.Second), []byte("x"))
			return err == nil && string(reply.Data) == "x"
		})
	}
	reach(a, "at-leaf")
	reach(b, "at-hub")
	fabrictest.Eventually(t, 20*time.Second, "node direct across the leafnode", func() bool {
		_, err := a.Channel("at-leaf").At("b").Request(timeout(t, 2*time.Second), nil)
		return err == nil
	})
	// Changes of descriptors cross the leafnode too.
	if err := b.Serve(t.Context(), channels.Spec{Name: "later", Handler: echo}); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 20*time.Second, "the hub's node sees the leaf's new channel", func() bool {
		return len(a.Members().Channel("later")) == 1
	})
	useObjects(t, "the node behind the leafnode", b, "a")
}

// useObjects makes an Actor and a Spot at the node home and calls them from another one.
func useObjects(t *testing.T, who string, from *fabric.Node, home string) {
	t.Helper()
	fabrictest.Eventually(t, 20*time.Second, who+" knows the type", func() bool { return len(from.Members().Type(kvlocation.ClassActor, "counter")) == 1 })
	ctx := timeout(t, 30*time.Second)
	ref, err := from.Actors().Create(ctx, "counter", "alice", nil, objects.AtNode(home))
	if err != nil {
		t.Fatalf("%s creates an Actor: %v", who, err)
	}
	if reply, err := from.Actors().Request(ctx, "alice", nil); err != nil || string(reply.Data) != "1" {
		t.Errorf("%s asks the Actor: %q, %v", who, reply.Data, err)
	}
	if reply, err := from.Spots().Request(ctx, "visitor", nil, objects.WithInstance("counter")); err != nil || string(reply.Data) != "1" {
		t.Errorf("%s activates a Spot: %q, %v", who, reply.Data, err)
	}
	if err := from.Actors().Destroy(ctx, ref); err != nil {
		t.Errorf("%s destroys the Actor: %v", who, err)
	}
}

// TestGateway: nodes in two clusters joined by gateways share a mesh whose streams live in one of them.
func TestGateway(t *testing.T) {
	t.Parallel()
	one := fabrictest.StartCluster(t, 3, fabrictest.WithConfig(`gateway { name: fabrictest, listen: "127.0.0.1:-1" }`))
	first := one.Server(0)
	remote, err := url.Parse("nats://" + first.NATS().GatewayAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	two, err := server.NewServer(&server.Options{
		ServerName: "two", Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
		Gateway: server.GatewayOpts{Name: "two", Host: "127.0.0.1", Port: -1,
			Gateways: []*server.RemoteGatewayOpts{{Name: "fabrictest", URLs: []*url.URL{remote}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	two.Start()
	t.Cleanup(func() { two.Shutdown(); two.WaitForShutdown() })
	fabrictest.Eventually(t, 20*time.Second, "the gateways are connected", func() bool {
		return first.NATS().NumOutboundGateways() == 1 && two.NumOutboundGateways() == 1
	})
	newMesh(t, first, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: first.URL()}, Channels: []channels.Spec{{Name: "at-one", Handler: echo}}, Types: counters()})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: two.ClientURL()}, Channels: []channels.Spec{{Name: "at-two", Handler: echo}}})
	for from, channel := range map[*fabric.Node]string{a: "at-two", b: "at-one"} {
		fabrictest.Eventually(t, 20*time.Second, "a request to "+channel, func() bool {
			_, err := from.Channel(channel).Request(timeout(t, 2*time.Second), nil)
			return err == nil
		})
	}
	useObjects(t, "the node in the other cluster", b, "a")
}
