package fabric_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// counter is an object that counts its requests. "who" answers with the token under which it runs.
type counter struct{ n int }

func (c *counter) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	if string(req.Data()) == "who" {
		token, err := fence.FromContext(ctx)
		return objects.Reply{Data: []byte(token.String())}, err
	}
	c.n++
	return objects.Reply{Data: strconv.AppendInt(nil, int64(c.n), 10)}, nil
}

func newCounter(_ context.Context, _ *objects.Self, input []byte) (objects.Object, error) {
	c := new(counter)
	if len(input) > 0 {
		n, err := strconv.Atoi(string(input))
		if err != nil {
			return nil, err
		}
		c.n = n
	}
	return c, nil
}

// counters are the counter as each class of object.
func counters() []objects.Type {
	return []objects.Type{
		{Name: "counter", Class: kvlocation.ClassActor, New: newCounter},
		{Name: "counter", Class: kvlocation.ClassUserSpot, New: newCounter},
		{Name: "counter", Class: kvlocation.ClassInstanceSpot, New: newCounter},
	}
}

// TestObjects: a node that hosts types, another one, a client and a plain NATS client work with its objects.
func TestObjects(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Types: counters(), Capacity: 100})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "m", Connect: fabric.Connect{URL: s.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(t.Context()) })
	ctx := timeout(t, 60*time.Second)

	ref, err := b.Actors().Create(ctx, "counter", "alice@home", []byte("10"))
	if err != nil {
		t.Fatal(err)
	}
	for i, actors := range []*objects.Actors{b.Actors(), a.Actors(), client.Actors()} {
		reply, err := actors.Request(ctx, "alice@home", nil)
		if want := strconv.Itoa(11 + i); err != nil || string(reply.Data) != want {
			t.Fatalf("caller %d got %q, %v, want %s", i, reply.Data, err, want)
		}
	}
	if err := client.Actors().Send(ctx, "alice@home", nil); err != nil {
		t.Fatal(err)
	}
	plain := s.Connect(t)
	m, err := plain.RequestWithContext(ctx, "fab.m.call.actor.alice=40home", nil)
	if err != nil || string(m.Data) != "15" {
		t.Fatalf("through the gateway: %v, %v", m, err)
	}
	at, err := client.Actors().Find(ctx, "alice@home")
	if err != nil || at.RID != "a" || at.Lifecycle != a.Lifecycle() || at.Generation != ref.Generation || !at.Alive || at.Type != "counter" {
		t.Fatalf("it is at %+v, %v", at, err)
	}
	reply, err := b.Actors().Request(ctx, "alice@home", []byte("who"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := fence.ParseToken(string(reply.Data))
	if want := (fence.Token{Source: "m/actor/alice=40home", Epoch: a.Store().Epoch(), Generation: ref.Generation, Sequence: at.OwnerGeneration}); err != nil || token != want {
		t.Fatalf("the token is %q, %v, want %s", reply.Data, err, want)
	}

	room, created, err := client.Spots().GetOrCreate(ctx, "counter", "room", nil)
	if err != nil || !created {
		t.Fatalf("room: %v, %t", err, created)
	}
	if again, created, err := b.Spots().GetOrCreate(ctx, "counter", "room", nil); err != nil || created || again != room {
		t.Fatalf("the same again: %v, %t, %v", again, created, err)
	}
	if err := b.Actors().Join(ctx, ref, room); err != nil {
		t.Fatal(err)
	}
	if members, err := client.Spots().Members(ctx, room); err != nil || !slices.Equal(members, []objects.ActorRef{ref}) {
		t.Fatalf("members %v, %v", members, err)
	}
	if err := client.Actors().Leave(ctx, ref, room); err != nil {
		t.Fatal(err)
	}

	if _, err := b.Spots().Request(ctx, "10.0.0.1", nil); !errors.Is(err, outcome.NotFound) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("without instance intent: %v", err)
	}
	if reply, err := client.Spots().Request(ctx, "10.0.0.1", nil, objects.WithInstance("counter")); err != nil || string(reply.Data) != "1" {
		t.Fatalf("with instance intent: %q, %v", reply.Data, err)
	}
	cold := nats.NewMsg("fab.m.call.spot.10=2E0=2E0=2E2")
	cold.Header.Set("Fabric-Intent", "instance")
	cold.Header.Set("Fabric-Type", "counter")
	if m, err := plain.RequestMsgWithContext(ctx, cold); err != nil || string(m.Data) != "1" {
		t.Fatalf("with instance intent through the gateway: %v, %v", m, err)
	}
	if m, err := plain.RequestWithContext(ctx, "fab.m.call.spot.nobody", nil); err != nil || m.Header.Get("Fabric-Kind") != "NotFound" || m.Header.Get("Fabric-Acceptance") != "NotAccepted" {
		t.Fatalf("a missing object through the gateway: %v, %v", m, err)
	}

	if err := b.Actors().Destroy(ctx, ref); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Actors().Request(ctx, "alice@home", nil); !errors.Is(err, outcome.NotFound) {
		t.Fatalf("after Destroy: %v", err)
	}
	next, err := client.Actors().Create(ctx, "counter", "alice@home", nil)
	if err != nil || next.Generation <= ref.Generation {
		t.Fatalf("created again as %s after %s, %v", next, ref, err)
	}
	if err := b.Actors().Destroy(ctx, ref); !errors.Is(err, outcome.NotFound) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("Destroy of the incarnation before: %v", err)
	}
	if err := client.Spots().Close(ctx, room); err != nil {
		t.Fatal(err)
	}
}

// TestTypesInTheDescriptor: a node lists its types, says when one has no free slot, and takes that back.
func TestTypesInTheDescriptor(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	one := objects.Type{Name: "one", Class: kvlocation.ClassActor, New: newCounter, Capacity: 1}
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Types: []objects.Type{one}, Capacity: 7})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	listed := func(full bool) func() bool {
		return func() bool {
			m, _ := b.Members().Get("a")
			return m.Capacity == 7 && slices.Equal(m.Types, []kvlocation.TypeInfo{{Name: "one", Class: kvlocation.ClassActor, Capacity: 1, Full: full}})
		}
	}
	fabrictest.Eventually(t, 30*time.Second, "the type is listed", listed(false))
	ctx := timeout(t, 60*time.Second)
	ref, err := b.Actors().Create(ctx, "one", "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 30*time.Second, "the type is listed as full", listed(true))
	if _, err := b.Actors().Create(ctx, "one", "y", nil); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("no free slot: %v", err)
	}
	if _, err := b.Actors().Create(ctx, "none", "y", nil); !errors.Is(err, outcome.NotConfigured) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("a type of nobody: %v", err)
	}
	if err := a.Actors().Destroy(ctx, ref); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 30*time.Second, "the type has a free slot again", listed(false))
}

// TestDescriptorIsMended: a node whose descriptor was removed or written over puts it right.
func TestDescriptorIsMended(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	startNode(t, fabric.Config{Mesh: "m", RID: "a", AppVersion: "1.2.3", Connect: fabric.Connect{URL: s.URL()}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	right := func() bool {
		m, ok := b.Members().Get("a")
		return ok && m.AppVersion == "1.2.3" && m.State == kvlocation.StateServing
	}
	fabrictest.Eventually(t, 30*time.Second, "b knows a", right)
	nc := s.Connect(t)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue("FABRIC_m_NODES")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := kv.Get("desc.a")
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(stored.Value()), "1.2.3", "9.9.9", 1)
	for what, change := range map[string]func() (uint64, error){
		"written over":    func() (uint64, error) { return kv.PutString("desc.a", wrong) },
		"removed":         func() (uint64, error) { return 0, kv.Delete("desc.a") },
		"made unreadable": func() (uint64, error) { return kv.PutString("desc.a", "{") },
		"said to be Draining": func() (uint64, error) {
			return kv.PutString("desc.a", strings.Replace(string(stored.Value()), "Serving", "Draining", 1))
		},
	} {
		if _, err := change(); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, 30*time.Second, "the descriptor that was "+what+" is right again", func() bool {
			e, err := kv.Get("desc.a")
			return err == nil && strings.Contains(string(e.Value()), "1.2.3") && strings.Contains(string(e.Value()), "Serving") && right()
		})
	}
}
