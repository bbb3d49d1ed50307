package fabric_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/session"
	"natsfabric/session/client"
)

// teller is a tally that also pushes the number of each turn to its session.
type teller struct{ tally }

func (o *teller) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	reply, err := o.tally.Handle(ctx, req)
	if b, ok := session.Of(req); ok && err == nil {
		err = b.Push(ctx, reply.Data)
	}
	return reply, err
}

// TestSessionsAcrossRelocation: a client's connection stays while the node of its Actor is relocated and stopped, its requests are
// answered, the pushes come in order and none is missing. Then the node of the session stops: the client is told to go, and is
// bound again through another one.
func TestSessionsAcrossRelocation(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	factory := func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
		return &teller{tally{j: j, name: objectName(self)}}, nil
	}
	node := func(rid string, hosts bool) (*fabric.Node, string) {
		var types []objects.Type
		if hosts {
			types = []objects.Type{{Name: "teller", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState}}
		}
		cfg := fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()}, Types: types, RouteTTL: time.Second, Relocation: shortFollow}
		if !hosts {
			cfg.Sessions = &session.Config{Authenticate: anyone, GoAway: 5 * time.Second}
		}
		n := startNode(t, cfg)
		web := httptest.NewServer(n.Sessions().Handler())
		t.Cleanup(web.Close)
		return n, "ws" + strings.TrimPrefix(web.URL, "http")
	}
	a, _ := node("a", true) // those that host Actors own no sessions
	b, urlOfB := node("b", true)
	edge, url1 := node("edge1", false)
	_, url2 := node("edge2", false)
	awaitMember(t, a, "b", kvlocation.StateServing)
	ctx := timeout(t, 120*time.Second)
	ref, err := b.Actors().Create(ctx, "teller", "x", nil, objects.AtNode("a"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var pushes []string
	var owners []uint64
	var connects []string
	c, err := client.Dial(ctx, client.Config{URLs: []string{url1, url2},
		OnPush: func(_ *client.Binding, p client.Push) {
			mu.Lock()
			defer mu.Unlock()
			pushes, owners = append(pushes, string(p.Data)), append(owners, p.Owner)
		},
		OnEvent: func(e client.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind == client.EventConnected {
				connects = append(connects, e.Node)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	bound, err := c.Bind(ctx, ref.String())
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad()
	l.from("session", "actor/x", func(ctx context.Context, data []byte) (objects.Reply, error) {
		reply, err := bound.Request(ctx, data)
		return objects.Reply{Data: reply}, err
	})
	l.some(t, 20)
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Relocated {
		t.Fatalf("%+v, %v", result, err)
	}
	l.some(t, 20)
	stopNode(t, a)
	l.some(t, 20)
	replied := l.end(t)
	j.check(t, replied)
	last := replied["actor/x/session"]
	fabrictest.Eventually(t, 30*time.Second, "every push has come", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(pushes) >= last
	})
	mu.Lock()
	for i, p := range pushes {
		if p != fmt.Sprint(i+1) || i > 0 && owners[i] < owners[i-1] {
			t.Errorf("push %d is %s of owner generation %d", i+1, p, owners[i])
		}
	}
	if len(connects) != 1 || owners[len(owners)-1] != 2 {
		t.Errorf("the client connected to %v, the last push is of owner generation %d", connects, owners[len(owners)-1])
	}
	mu.Unlock()

	if refusing, err := client.Dial(timeout(t, time.Second), client.Config{URLs: []string{urlOfB}}); err == nil {
		refusing.Close()
		t.Error("a node without an authenticator has opened a session")
	}
	var listed fabric.SessionsReply
	if err := askAdmin(t, s.Connect(t), "fab.m.admin.sessions", `{"rid":"b"}`, &listed); !refused(err, outcome.NotConfigured) {
		t.Errorf("the sessions of a node that owns none: %v", err)
	}
	if err := askAdmin(t, s.Connect(t), "fab.m.admin.sessions", `{"rid":"edge1"}`, &listed); err != nil || listed.AnsweredBy != "edge1" || len(listed.Sessions) != 1 ||
		len(listed.Sessions[0].Bindings) != 1 || listed.Stats.Sessions != 1 {
		t.Errorf("the operator sees %+v, %v", listed, err)
	}
	if err := askAdmin(t, s.Connect(t), "fab.m.admin.sessions", `{"rid":"nobody"}`, &listed); !refused(err, outcome.NotFound) {
		t.Errorf("the sessions of a node that is not there: %v", err)
	}

	stopNode(t, edge)
	fabrictest.Eventually(t, 30*time.Second, "the client has gone to the other node", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(connects) == 2 && connects[1] == "edge2"
	})
	fabrictest.Eventually(t, 30*time.Second, "it is bound again", func() bool {
		_, err := bound.Request(timeout(t, 5*time.Second), fmt.Appendf(nil, "session:%d", last+1))
		return err == nil
	})
}
