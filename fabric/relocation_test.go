package fabric_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// TestRelocateNode: every object of a node, of each class, moves away while callers of three kinds use them, then the node
// ends. No request fails, nothing runs twice or out of order, state, incarnations and members are kept, and the owner
// generation of each has grown by one.
func TestRelocateNode(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			var all []*fabrictest.Server
			if servers == 1 {
				all = []*fabrictest.Server{fabrictest.StartServer(t)}
			} else {
				c := fabrictest.StartCluster(t, servers)
				all = c.Servers()
			}
			relocateNode(t, all)
		})
	}
}

func relocateNode(t *testing.T, servers []*fabrictest.Server) {
	if _, err := kvlocation.Init(t.Context(), servers[0].Connect(t), kvlocation.Setup{Mesh: "m", Replicas: len(servers)}); err != nil {
		t.Fatal(err)
	}
	url := func(i int) string { return servers[i%len(servers)].URL() }
	j := new(journal)
	node := func(i int, rid, wave string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Wave: wave, AppVersion: "1.0.0", Connect: fabric.Connect{URL: url(i)}, Types: tallies(j),
			RouteTTL: time.Second, Relocation: shortFollow})
	}
	a, b, c := node(0, "a", "x"), node(1, "b", "y"), node(2, "c", "y")
	client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "m", Connect: fabric.Connect{URL: url(1)}, RouteTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) })
	ctx := timeout(t, 180*time.Second)

	var actors []objects.ActorRef
	for i := range 8 {
		ref, err := b.Actors().Create(ctx, "tally", fmt.Sprintf("actor%d", i), nil, objects.AtNode("a"))
		if err != nil {
			t.Fatal(err)
		}
		actors = append(actors, ref)
	}
	spots := map[string]objects.SpotRef{}
	for i, typ := range []string{"room", "hall"} {
		ref, err := b.Spots().Create(ctx, typ, typ, nil, objects.AtNode("a"))
		if err != nil {
			t.Fatal(err)
		}
		spots[typ] = ref
		for _, member := range actors[2*i : 2*i+2] {
			if err := b.Actors().Join(ctx, member, ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	tokens := map[string]fence.Token{}
	token := func(id string) fence.Token {
		t.Helper()
		reply, err := client.Actors().Request(ctx, id, []byte("token"))
		if err != nil {
			t.Fatalf("the token of %s: %v", id, err)
		}
		got, err := fence.ParseToken(string(reply.Data))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, ref := range actors {
		tokens[ref.ID] = token(ref.ID)
	}

	l := newLoad()
	for _, ref := range actors {
		l.from("client", "actor/"+ref.ID, func(ctx context.Context, data []byte) (objects.Reply, error) {
			return client.Actors().Request(ctx, ref.ID, data)
		})
		l.from("c", "actor/"+ref.ID, func(ctx context.Context, data []byte) (objects.Reply, error) {
			return c.Actors().Request(ctx, ref.ID, data)
		})
	}
	for _, ref := range spots {
		l.from("client", "spot/"+ref.ID, func(ctx context.Context, data []byte) (objects.Reply, error) {
			return client.Spots().Request(ctx, ref.ID, data)
		})
	}
	local, stopLocal := context.WithCancel(t.Context()) // a caller in the node that ends cannot outlive it
	defer stopLocal()
	l.from("a", "actor/"+actors[7].ID, func(ctx context.Context, data []byte) (objects.Reply, error) {
		if local.Err() != nil {
			return client.Actors().Request(ctx, actors[7].ID, data)
		}
		return a.Actors().Request(ctx, actors[7].ID, data)
	})
	l.some(t, 50)

	states := a.States(t.Context())
	result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Relocated || result.Moved < 8 || result.KeptCount > 0 {
		t.Fatalf("relocated: %+v, %v", result, err)
	}
	if a.State() != kvlocation.StateRelocated {
		t.Errorf("the node is %s", a.State())
	}
	awaitMember(t, b, "a", kvlocation.StateRelocated)
	if _, err := b.Actors().Create(ctx, "tally", "late", nil, objects.AtNode("a")); !refused(err, outcome.Unavailable) {
		t.Errorf("a new object at the relocated node: %v", err)
	}
	l.some(t, 50)
	stopLocal()
	l.some(t, 50)
	stopNode(t, a)
	l.some(t, 50)
	j.check(t, l.end(t))

	for _, ref := range actors {
		at, err := client.Actors().Find(ctx, ref.ID)
		if err != nil || at.RID == "a" || at.Generation != ref.Generation {
			t.Errorf("%s is at %+v, %v", ref, at, err)
		}
		before, after := tokens[ref.ID], token(ref.ID)
		if after.Generation != before.Generation || after.Sequence != before.Sequence+1 {
			t.Errorf("%s: the token %s became %s", ref, before, after)
		}
	}
	for typ, ref := range spots {
		at, err := client.Spots().Find(ctx, ref.ID)
		if err != nil || at.RID == "a" || at.Generation != ref.Generation {
			t.Errorf("%s is at %+v, %v", ref, at, err)
		}
		members, err := client.Spots().Members(ctx, ref)
		if err != nil || len(members) != 2 {
			t.Errorf("members of the %s: %v, %v", typ, members, err)
		}
		if typ == "hall" {
			for _, m := range members {
				if with, err := client.Actors().Find(ctx, m.ID); err != nil || with.RID != at.RID {
					t.Errorf("the hall is at %s, its member %s at %s, %v", at.RID, m, with.RID, err)
				}
			}
		}
	}
	var seen []kvlocation.NodeState
	for ch := range states {
		seen = append(seen, ch.To)
	}
	if want := []kvlocation.NodeState{kvlocation.StateRelocating, kvlocation.StateRelocated, kvlocation.StateDraining, kvlocation.StateStopped}; !slices.Equal(seen, want) {
		t.Errorf("states %v, want %v", seen, want)
	}
}

// TestRollingUpdate: objects move to the nodes of the version that is named, and to no other; a version that is not higher
// is refused before anything begins.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	node := func(rid, version string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, AppVersion: version, Connect: fabric.Connect{URL: s.URL()}, Types: tallies(j),
			RouteTTL: time.Second, Relocation: shortFollow})
	}
	a, b := node("a", "1.0.0"), node("b", "1.0.0")
	ctx := timeout(t, 120*time.Second)
	for i := range 4 {
		if _, err := b.Actors().Create(ctx, "tally", fmt.Sprint(i), nil, objects.AtNode("a")); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"1.0.0", "0.9.0", ""} {
		if _, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.RollingUpdate, Version: version}); !refused(err, outcome.InvalidOperation) {
			t.Errorf("a rolling update to %q: %v", version, err)
		}
	}
	update := relocate.Mode{Kind: relocate.RollingUpdate, Version: "1.1.0"}
	result, err := a.Relocate(ctx, update)
	if err != nil || result.Outcome != relocate.Blocked || result.Reason != relocate.TargetUnavailable || result.KeptCount != 4 || len(result.Kept) != 4 {
		t.Fatalf("without a node of that version: %+v, %v", result, err)
	}
	if a.State() != kvlocation.StateServing {
		t.Errorf("blocked, the node is %s", a.State())
	}
	awaitMember(t, b, "a", kvlocation.StateServing)
	c := node("c", "1.1.0")
	node("d", "1.2.0")
	awaitMember(t, a, "c", kvlocation.StateServing)
	awaitMember(t, a, "d", kvlocation.StateServing)
	result, err = a.Relocate(ctx, update)
	if err != nil || result.Outcome != relocate.Relocated || result.Moved != 4 {
		t.Fatalf("with one: %+v, %v", result, err)
	}
	for i := range 4 {
		if at, err := b.Actors().Find(ctx, fmt.Sprint(i)); err != nil || at.RID != c.RID() {
			t.Errorf("%d is at %+v, %v", i, at, err)
		}
	}
}

// TestWaves: nothing moves to a node of the same maintenance wave.
func TestWaves(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	node := func(rid, wave string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Wave: wave, Connect: fabric.Connect{URL: s.URL()}, Types: tallies(j),
			RouteTTL: time.Second, Relocation: shortFollow})
	}
	a, b := node("a", "one"), node("b", "one")
	ctx := timeout(t, 120*time.Second)
	ref, err := b.Actors().Create(ctx, "tally", "x", nil, objects.AtNode("a"))
	if err != nil {
		t.Fatal(err)
	}
	result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance})
	if err != nil || result.Outcome != relocate.Blocked || result.Reason != relocate.TargetUnavailable {
		t.Fatalf("within the wave: %+v, %v", result, err)
	}
	if reply, err := b.Actors().Request(ctx, ref.ID, []byte("s:1")); err != nil || string(reply.Data) != "1" {
		t.Errorf("what stayed answers %q, %v", reply.Data, err)
	}
	awaitMember(t, b, "a", kvlocation.StateServing)
	if _, err := b.Actors().Create(ctx, "tally", "y", nil, objects.AtNode("a")); err != nil {
		t.Errorf("a new object at the node that serves again: %v", err)
	}
	c := node("c", "two")
	awaitMember(t, a, "c", kvlocation.StateServing)
	if result, err = a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Relocated || result.Moved != 2 {
		t.Fatalf("to another wave: %+v, %v", result, err)
	}
	if reply, err := c.Actors().Request(ctx, ref.ID, []byte("s:2")); err != nil || string(reply.Data) != "2" {
		t.Errorf("what moved answers %q, %v", reply.Data, err)
	}
}
