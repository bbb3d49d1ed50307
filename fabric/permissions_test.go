package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session"
	"natsfabric/session/client"
)

// nodeUser is the user of the node rid in the mesh m, as docs/api.md shows it.
func nodeUser(rid string) string {
	return fmt.Sprintf(`{ user: %[1]s, password: p, permissions: {
		publish: { allow: [
			"$JS.API.INFO"
			"$JS.API.STREAM.INFO.KV_FABRIC_m_NODES", "$JS.API.STREAM.INFO.KV_FABRIC_m_LOCATION"
			"$JS.API.STREAM.INFO.KV_FABRIC_m_SUPERVISE", "$JS.API.STREAM.INFO.KV_FABRIC_m_FENCE", "$JS.API.STREAM.INFO.FABRIC_m_RELAY", "$JS.API.STREAM.INFO.FABRIC_m_MOVE"
			"$JS.API.DIRECT.GET.KV_FABRIC_m_NODES", "$JS.API.DIRECT.GET.KV_FABRIC_m_NODES.>"
			"$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION", "$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION.>"
			"$JS.API.DIRECT.GET.KV_FABRIC_m_SUPERVISE", "$JS.API.DIRECT.GET.KV_FABRIC_m_SUPERVISE.>"
			"$JS.API.DIRECT.GET.FABRIC_m_RELAY", "$JS.API.DIRECT.GET.FABRIC_m_RELAY.>", "$JS.API.DIRECT.GET.FABRIC_m_MOVE"
			"$KV.FABRIC_m_NODES.lease.*", "$KV.FABRIC_m_NODES.desc.%[1]s", "$KV.FABRIC_m_NODES.probe.%[1]s"
			"$KV.FABRIC_m_LOCATION.actor.*", "$KV.FABRIC_m_LOCATION.spot.*", "$KV.FABRIC_m_LOCATION.probe.%[1]s"
			"$KV.FABRIC_m_SUPERVISE.audit.>", "$KV.FABRIC_m_SUPERVISE.probe.%[1]s"
			"$KV.FABRIC_m_SUPERVISE.worker.%[1]s", "$KV.FABRIC_m_SUPERVISE.marker.%[1]s"
			"fab.m.relay.first.>", "fab.m.relay.probe.%[1]s", "fab.m.move.to.*.*.%[1]s.*", "fab.m.move.bulk.%[1]s.*"
			"$JS.API.CONSUMER.CREATE.FABRIC_m_MOVE.*.fab.m.move.to.%[1]s.>"
			"$JS.API.CONSUMER.MSG.NEXT.FABRIC_m_MOVE.>", "$JS.API.CONSUMER.DELETE.FABRIC_m_MOVE.>"
			"fab.m.ch.*", "fab.m.node.>", "fab.m.client.>", "_INBOX_session.>"
		] }
		subscribe: { allow: [
			"_INBOX_%[1]s.>"
			"fab.m.node.%[1]s.>", "fab.m.ch.* fabric", "fab.m.call.> fabric", "fab.m.admin.* fabric", "fab.m.session fabric"
			"fab.m.chg.nodes.desc.*", "fab.m.chg.nodes.lease.%[1]s"
			"$SRV.>"
		] }
		allow_responses: { max: 1, expires: "10m" }
	} }`, rid)
}

const otherUsers = `
	{ user: client, password: p, permissions: {
		publish: { allow: [
			"$JS.API.INFO"
			"$JS.API.STREAM.INFO.KV_FABRIC_m_NODES", "$JS.API.STREAM.INFO.KV_FABRIC_m_LOCATION"
			"$JS.API.DIRECT.GET.KV_FABRIC_m_NODES", "$JS.API.DIRECT.GET.KV_FABRIC_m_NODES.>"
			"$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION", "$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION.>"
			"$KV.FABRIC_m_NODES.probe.*", "$KV.FABRIC_m_LOCATION.probe.*"
			"fab.m.ch.*", "fab.m.node.*.*.ch.*", "fab.m.node.*.*.obj.>", "fab.m.node.*.*.hello"
		] }
		subscribe: { allow: ["_INBOX_client.>", "fab.m.client.>", "fab.m.chg.nodes.desc.*"] }
	} }
	{ user: session, password: p, permissions: {
		publish: { allow: ["fab.m.session", "fab.m.node.*.*.ses.in.*"] }
		subscribe: { allow: ["_INBOX_session.>"] }
	} }
	{ user: plain, password: p, permissions: {
		publish: { allow: ["fab.m.ch.echo", "fab.m.call.actor.*"] }
		subscribe: { allow: ["_INBOX_plain.>"] }
	} }
	{ user: operator, password: p, permissions: {
		publish: { allow: [
			"$JS.API.>", "$KV.FABRIC_m_NODES.desc.*", "$KV.FABRIC_m_NODES.probe.*", "$KV.FABRIC_m_LOCATION.probe.*"
			"fab.m.admin.*", "fab.m.node.*.*.admin.*", "fab.m.node.*.*.obj.>", "fab.m.node.*.*.hello", "$SRV.>"
		] }
		subscribe: { allow: ["_INBOX_operator.>", "fab.m.chg.nodes.desc.*", "fab.m.client.>"] }
	} }`

// TestPermissions: with the permissions that docs/api.md shows, nodes and clients do their work without one refusal by
// the server, and cannot do what is not theirs.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t, fabrictest.WithConfig("authorization { users: [\n"+nodeUser("n1")+"\n"+nodeUser("n2")+otherUsers+"\n] }"))
	early := new(refusals) // what the server refuses before the node follows its connection, and logs it
	as := func(user string) fabric.Connect {
		return fabric.Connect{URL: s.URL(), User: user, Password: "p", Options: []nats.Option{
			nats.CustomInboxPrefix("_INBOX_" + user), nats.ErrorHandler(early.note),
		}}
	}
	raw := func(user string) (*nats.Conn, *refusals) {
		r := new(refusals)
		return s.Connect(t, nats.UserInfo(user, "p"), nats.CustomInboxPrefix("_INBOX_"+user), nats.ErrorHandler(r.note)), r
	}
	operator, _ := raw("operator")
	if _, err := kvlocation.Init(t.Context(), operator, kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	log := zap.New(core)
	j := new(journal)
	sessions := &session.Config{Authenticate: anyone}
	n1 := startNode(t, fabric.Config{Mesh: "m", RID: "n1", Connect: as("n1"), Logger: log, Types: append(counters(), tallies(j)...),
		Channels: []channels.Spec{{Name: "echo", Handler: echo}}, Sessions: sessions, Supervision: fabric.Supervision{Report: true, Every: 100 * time.Millisecond}})
	n2 := startNode(t, fabric.Config{Mesh: "m", RID: "n2", Connect: as("n2"), Logger: log, Types: tallies(j), Sessions: sessions})
	client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "m", Connect: as("client"), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(t.Context()) })

	overseer, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "m", Connect: as("operator"), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { overseer.Close(t.Context()) })

	for who, ch := range map[string]*channels.Channel{"a node": n2.Channel("echo"), "a client": client.Channel("echo")} {
		if reply, err := ch.Request(timeout(t, 20*time.Second), []byte("x")); err != nil || string(reply.Data) != "x" {
			t.Errorf("select-one by %s: %q, %v", who, reply.Data, err)
		}
		if err := ch.Send(timeout(t, 20*time.Second), nil); err != nil {
			t.Errorf("send by %s: %v", who, err)
		}
		if _, err := ch.At("n1").Request(timeout(t, 20*time.Second), nil); err != nil {
			t.Errorf("node direct by %s: %v", who, err)
		}
		if _, err := ch.At("n2").Request(timeout(t, 20*time.Second), nil); !errors.Is(err, outcome.NotFound) {
			t.Errorf("a channel that the node does not serve, by %s: %v", who, err)
		}
	}
	for who, p := range map[string]struct {
		actors *objects.Actors
		spots  *objects.Spots
	}{"a node": {n2.Actors(), n2.Spots()}, "a client": {client.Actors(), client.Spots()}} {
		ctx := timeout(t, 20*time.Second)
		ref, err := p.actors.Create(ctx, "counter", "of "+who, nil)
		if err != nil {
			t.Errorf("create by %s: %v", who, err)
			continue
		}
		if _, err := p.actors.Request(ctx, ref.ID, nil); err != nil {
			t.Errorf("request by %s: %v", who, err)
		}
		room, _, err := p.spots.GetOrCreate(ctx, "counter", "room", nil)
		if err == nil {
			err = p.actors.Join(ctx, ref, room)
		}
		if err != nil {
			t.Errorf("membership by %s: %v", who, err)
		}
		large := make([]byte, 100_000) // does not fit the record
		if _, err := p.spots.Request(ctx, "cold for "+who, large, objects.WithInstance("counter")); err != nil {
			t.Errorf("a first message beside the record, by %s: %v", who, err)
		}
		if err := p.actors.Destroy(ctx, ref); err != nil {
			t.Errorf("destroy by %s: %v", who, err)
		}
	}
	if _, err := n1.Actors().Create(timeout(t, 20*time.Second), "counter", "alice", nil); err != nil {
		t.Error(err)
	}
	for who, store := range map[string]*kvlocation.Store{"a node": n2.Store(), "a client": client.Store()} {
		if _, err := store.Lookup(timeout(t, 20*time.Second), kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "nobody"}); !errors.Is(err, outcome.NotFound) {
			t.Errorf("a look-up by %s: %v", who, err)
		}
		if nodes, err := store.Nodes(timeout(t, 20*time.Second)); err != nil || len(nodes) != 2 {
			t.Errorf("the nodes as %s sees them: %v, %v", who, nodes, err)
		}
	}
	plain, _ := raw("plain")
	if m, err := plain.RequestWithContext(timeout(t, 20*time.Second), "fab.m.ch.echo", []byte("x")); err != nil || string(m.Data) != "x" {
		t.Errorf("a plain client: %v", err)
	}
	if m, err := plain.RequestWithContext(timeout(t, 20*time.Second), "fab.m.call.actor.alice", nil); err != nil || string(m.Data) != "1" {
		t.Errorf("a plain client of an Actor: %v, %v", m, err)
	}
	for _, subject := range []string{"fab.m.admin.nodes", "fab.m.admin.objects", "$SRV.PING.echo"} {
		if m, err := operator.RequestWithContext(timeout(t, 20*time.Second), subject, nil); err != nil || len(m.Data) == 0 {
			t.Errorf("the operator's %s: %v", subject, err)
		}
	}
	overseeObjects(t, overseer)
	moveUnderPermissions(t, n1, n2, s.URL(), operator)
	if err := n1.SetWeight(t.Context(), "echo", 2); err != nil {
		t.Error(err)
	}
	lifecycle := n1.Lifecycle()
	stopNode(t, n1)
	subject, released := "fab.m.admin.release", fabric.ReleaseReply{}
	fabrictest.Eventually(t, 60*time.Second, "the release is done", func() bool {
		if err := askAdmin(t, operator, subject, fmt.Sprintf(`{"rid":"n1","lifecycle":%d}`, lifecycle), &released); err != nil {
			t.Fatal(err)
		}
		subject = released.Poll
		return released.Done
	})
	if released.Released != 4 || released.Failed != 0 { // alice, the room and what the two messages made
		t.Errorf("release: %+v", released)
	}
	stopNode(t, n2)
	for _, e := range logs.All() {
		// Whatever else a busy machine makes nodes warn of, what the server refuses is logged as that.
		if err, ok := e.ContextMap()["error"]; ok && strings.Contains(strings.ToLower(fmt.Sprint(err)), "permission") {
			t.Errorf("logged: %s %v", e.Message, e.ContextMap())
		}
	}
	for _, text := range early.list() {
		t.Errorf("refused at the start: %s", text)
	}

	for _, c := range []struct{ user, verb, subject, queue string }{
		{"n2", "Publish", "$KV.FABRIC_m_NODES.desc.n1", ""},
		{"n2", "Publish", "$JS.API.STREAM.PURGE.KV_FABRIC_m_NODES", ""},
		{"n2", "Publish", "$JS.API.STREAM.PURGE.FABRIC_m_RELAY", ""},
		{"n2", "Publish", "$JS.API.STREAM.PURGE.FABRIC_m_MOVE", ""},
		{"n2", "Publish", "$KV.FABRIC_m_LOCATION.probe.n1", ""},
		{"n2", "Publish", "fab.m.chg.nodes.desc.n1", ""},
		{"n2", "Subscription", "fab.m.node.n1.>", ""},
		{"n2", "Subscription", "fab.m.ch.echo", ""},
		{"n2", "Subscription", "fab.m.ch.echo", "mine"},
		{"n2", "Publish", "$KV.FABRIC_m_SUPERVISE.worker.n1", ""},
		{"n2", "Publish", "fab.m.move.to.n2.1.n1.op", ""},
		{"n2", "Publish", "$JS.API.CONSUMER.CREATE.FABRIC_m_MOVE.x.fab.m.move.to.n1.>", ""},
		{"session", "Publish", "fab.m.node.n1.1.obj.msg.actor.alice", ""},
		{"session", "Publish", "fab.m.call.actor.alice", ""},
		{"session", "Subscription", "fab.m.session", ""},
		{"client", "Publish", "$KV.FABRIC_m_NODES.lease.n1", ""},
		{"client", "Publish", "fab.m.node.n1.1.r1.1--0", ""},
		{"client", "Publish", "$KV.FABRIC_m_LOCATION.actor.alice", ""},
		{"client", "Publish", "fab.m.node.n1.1.admin.release", ""},
		{"client", "Subscription", "fab.m.node.n1.>", ""},
		{"plain", "Publish", "fab.m.admin.nodes", ""},
		{"plain", "Publish", "fab.m.node.n1.1.ch.echo", ""},
		{"plain", "Publish", "fab.m.call.spot.room", ""},
		{"operator", "Publish", "$KV.FABRIC_m_NODES.lease.n1", ""},
		{"operator", "Publish", "$KV.FABRIC_m_LOCATION.actor.alice", ""},
		{"operator", "Publish", "fab.m.ch.echo", ""},
	} {
		nc, refused := raw(c.user)
		switch {
		case c.verb == "Publish":
			err = nc.Publish(c.subject, []byte("{}"))
		case c.queue != "":
			_, err = nc.QueueSubscribeSync(c.subject, c.queue)
		default:
			_, err = nc.SubscribeSync(c.subject)
		}
		if err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, 20*time.Second, fmt.Sprintf("%s is refused %s to %s %s", c.user, c.verb, c.subject, c.queue), func() bool {
			return refused.has(c.verb, c.subject)
		})
	}
}

// overseeObjects does what the commands of fabricnode do with objects.
func overseeObjects(t *testing.T, c *fabric.Client) {
	t.Helper()
	ctx := timeout(t, 20*time.Second)
	ref, err := c.Actors().Create(ctx, "counter", "the operator's", nil)
	if err != nil {
		t.Errorf("create by an operator: %v", err)
		return
	}
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: ref.ID}
	if at, err := c.Objects().Locate(ctx, key); err != nil || at.Generation != ref.Generation {
		t.Errorf("locate by an operator: %+v, %v", at, err)
	}
	if why, err := c.Objects().Explain(ctx, objects.ExplainRequest{Kind: key.Kind, ID: key.ID}); err != nil || !why.WouldSucceed {
		t.Errorf("explain by an operator: %+v, %v", why, err)
	}
	if _, err := c.Actors().Request(ctx, ref.ID, nil); err != nil {
		t.Errorf("request by an operator: %v", err)
	}
	if page, err := c.Objects().List(ctx, objects.ListRequest{RID: "n1"}); err != nil || len(page.Objects) < 2 {
		t.Errorf("a list by an operator: %+v, %v", page, err)
	}
	if err := c.Actors().Destroy(ctx, ref); err != nil {
		t.Errorf("destroy by an operator: %v", err)
	}
}

// anyone lets every client open a session.
func anyone(context.Context, session.Hello) (session.Identity, error) {
	return session.Identity{Subject: "somebody"}, nil
}

// moveUnderPermissions moves objects, small and large, there and back, one of them with a session's binding.
func moveUnderPermissions(t *testing.T, n1, n2 *fabric.Node, url string, operator *nats.Conn) {
	t.Helper()
	ctx := timeout(t, 60*time.Second)
	ref, err := n2.Actors().Create(ctx, "tally", "moves", []byte("300000"), objects.AtNode("n1"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(ctx, client.Config{URLs: []string{url}, Mesh: "m",
		NATS: []nats.Option{nats.UserInfo("session", "p"), nats.CustomInboxPrefix("_INBOX_session")}})
	if err != nil {
		t.Errorf("a session over NATS: %v", err)
		return
	}
	defer c.Close()
	b, err := c.Bind(ctx, ref.String())
	if err != nil {
		t.Errorf("a bind: %v", err)
		return
	}
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "moves"}
	for i, move := range []struct {
		from *fabric.Node
		to   string
	}{{n1, "n2"}, {n2, "n1"}, {n1, "n2"}} {
		if _, err := b.Request(ctx, fmt.Appendf(nil, "s:%d", i+1)); err != nil {
			t.Errorf("by the session: %v", err)
		}
		if _, err := move.from.Move(ctx, key, ref.Generation, move.to); err != nil {
			t.Errorf("move to %s: %v", move.to, err)
		}
	}
	for _, subject := range []string{"fab.m.admin.workers", "fab.m.admin.sessions"} {
		if m, err := operator.RequestWithContext(ctx, subject, nil); err != nil || m.Header.Get("Fabric-Kind") != "" {
			t.Errorf("the operator's %s: %v, %v", subject, m, err)
		}
	}
	awaitJob(t, operator, "fab.m.admin.relocate", `"kind":"actor","id":"moves","to":"n1"`, moveReply)
	if err := n2.Actors().Destroy(ctx, ref); err != nil {
		t.Error(err)
	}
}

// refusals are what the server refused one connection.
type refusals struct {
	mu  sync.Mutex
	all []string
}

func (r *refusals) note(_ *nats.Conn, _ *nats.Subscription, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err.Error())
}

func (r *refusals) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func (r *refusals) has(verb, subject string) bool {
	for _, text := range r.list() {
		if strings.Contains(strings.ToLower(text), "permissions violation for "+strings.ToLower(verb)) && strings.Contains(text, `"`+subject+`"`) {
			return true
		}
	}
	return false
}
