// Deviceshadow shows the shadow of a device, and that it survives the planned end of its node.
//
//	go run ./examples/deviceshadow
//
// A shadow holds what a device reported last and what somebody wants of it, whether or not the device is connected. It is an
// Instance Spot: the first message for its ID makes it, at whichever node has room, and nobody needs to know whether it is
// there. Its type says MoveState, so that a drain of its node brings it to another one with all that it holds, and who changes
// it by version notices nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tells the story on a mesh of two nodes, with a server of its own.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "deviceshadow-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Port: -1, StoreDir: dir})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	mesh, err := open(ctx, server.URL())
	defer func() { err = errors.Join(err, mesh.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	return mesh.story(ctx, out)
}

// mesh is two nodes that host shadows, and a client that stands for devices and people.
type mesh struct {
	nodes  map[string]*fabric.Node
	client *fabric.Client
}

// open makes the mesh's streams, and starts the nodes and the client. What it returns is to be closed when it fails, too.
func open(ctx context.Context, url string) (*mesh, error) {
	m, connect := &mesh{nodes: map[string]*fabric.Node{}}, fabric.Connect{URL: url}
	nc, err := fabric.Dial(ctx, "deviceshadow", connect)
	if err != nil {
		return m, err
	}
	defer nc.Close()
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: "home", Replicas: 1}); err != nil {
		return m, err
	}
	for _, rid := range []string{"n1", "n2"} {
		node, err := fabric.Start(ctx, fabric.Config{
			Mesh: "home", RID: rid, Connect: connect, Types: []objects.Type{shadowType()},
			// Short for the example: after a drain the node waits, at its stop, until nobody uses the old routes.
			RouteTTL: 500 * time.Millisecond, Relocation: fabric.Relocation{FollowTime: 500 * time.Millisecond},
		})
		if err != nil {
			return m, err
		}
		m.nodes[rid] = node
	}
	m.client, err = fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: "home", Connect: connect, RouteTTL: 500 * time.Millisecond})
	return m, err
}

func (m *mesh) close(ctx context.Context) (err error) {
	if m.client != nil {
		err = m.client.Close(ctx)
	}
	for _, n := range m.nodes {
		err = errors.Join(err, n.Shutdown(ctx)) // any number of times
	}
	return err
}

// ask sends one request to the shadow of a device, and lets it be made if it is not there.
func (m *mesh) ask(ctx context.Context, device string, r request) (s state, err error) {
	data, err := json.Marshal(r)
	if err != nil {
		return s, err
	}
	reply, err := m.client.Spots().Request(ctx, device, data, objects.WithInstance("shadow"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(reply.Data, &s)
}

func (m *mesh) story(ctx context.Context, out io.Writer) error {
	const device = "thermostat-7"
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }

	s, err := m.ask(ctx, device, request{Report: values{"temperature": "19.5", "mode": "heat"}})
	if err != nil {
		return err
	}
	at, err := m.client.Spots().Find(ctx, device)
	if err != nil {
		return err
	}
	say("the thermostat reports %v: its shadow is made at %s, version %d", s.Reported, at.RID, s.Version)
	if s, err = m.ask(ctx, device, request{Desire: values{"temperature": "21"}, If: s.Version}); err != nil {
		return err
	}
	say("somebody wants it warmer: %v differs, version %d", s.Delta(), s.Version)

	result, err := m.nodes[at.RID].Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil {
		return err
	}
	if result.Outcome != relocate.Relocated {
		return fmt.Errorf("the drain of %s: %+v", at.RID, result)
	}
	if err := m.nodes[at.RID].Shutdown(ctx); err != nil {
		return err
	}
	now, err := m.client.Spots().Find(ctx, device)
	if err != nil {
		return err
	}
	say("%s is drained and stopped: the shadow is at %s, the same incarnation: %v", at.RID, now.RID, now.Generation == at.Generation)

	before := s.Version
	if s, err = m.ask(ctx, device, request{}); err != nil {
		return err
	}
	say("the thermostat asks what it missed: %v, version %d as before: %v", s.Delta(), s.Version, s.Version == before)
	if s, err = m.ask(ctx, device, request{Report: values{"temperature": "21"}, If: s.Version}); err != nil {
		return err
	}
	say("it does so and reports: %d differences, version %d", len(s.Delta()), s.Version)
	if _, err = m.ask(ctx, device, request{Desire: values{"mode": "off"}, If: before}); err == nil {
		return errors.New("a change from an old version was taken")
	}
	say("who still looks at version %d is refused: %v", before, err)
	return nil
}
