package objects

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

func TestPlaceText(t *testing.T) {
	for _, p := range []place{
		{"n1", 7, 8, 9, kvlocation.PhaseReady}, {"a_b-C", 1, 1 << 63, 1, kvlocation.PhaseCreating},
	} {
		if got, ok := parsePlace(p.String()); !ok || got != p {
			t.Fatalf("%q is %+v, %v", p.String(), got, ok)
		}
	}
	for _, bad := range []string{"", nowhere, "n1", "n1 1 1 1", "n1 1 1 1 missing", "n1 0 1 1 ready", "n1 1 0 1 ready", "n.1 1 1 1 ready", "n1 x 1 1 ready", "n1 1 1 1 ready "} {
		if p, ok := parsePlace(bad); ok {
			t.Fatalf("%q is %+v", bad, p)
		}
	}
}

// Routes are replaced only by a higher (ObjectGeneration, owner generation), expire, and are bounded.
func TestRouteCache(t *testing.T) {
	var rs routes
	rs.init(640, time.Minute)
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "x"}
	put := func(rid string, generation, owner uint64) {
		rs.put(&route{place: place{rid: rid, lifecycle: 1, generation: generation, ownerGeneration: owner, phase: kvlocation.PhaseReady}, key: key})
	}
	put("b", 5, 2)
	put("a", 5, 1)
	put("c", 4, 9)
	if r := rs.get(key.Kind, key.ID); r == nil || r.rid != "b" {
		t.Fatalf("%+v", r)
	}
	put("d", 6, 1)
	if r := rs.get(key.Kind, key.ID); r.rid != "d" || rs.get(kvlocation.KindSpot, key.ID) != nil {
		t.Fatalf("%+v", r)
	}
	old := &route{key: key}
	rs.drop(old)
	if rs.get(key.Kind, key.ID) == nil {
		t.Fatal("another route was dropped")
	}
	for i := range 10_000 {
		rs.put(&route{key: kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: fmt.Sprint(i)}})
	}
	if n := rs.known(); n > 640 {
		t.Fatalf("%d routes", n)
	}
	rs.init(640, time.Nanosecond)
	put("a", 1, 1)
	fabrictest.Eventually(t, long, "the route expires", func() bool { return rs.get(key.Kind, key.ID) == nil })
}

// The owner of a cached route is not the owner any more: the call ends, nothing runs there, and the next one looks again
// (FO-4.2a). ObjectGeneration is no match condition of an ordinary message (FO-4.1, FO-10.7).
func TestStaleRoute(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a, b := m.node("a", ty), m.node("b", ty)
	c := m.client()
	ref := must[ActorRef](t)(a.Actors().Create(m.ctx(), "user", "x", nil, AtNode("a")))
	if _, err := c.Actors().Request(m.ctx(), "x", nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Actors().Destroy(m.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "x", nil, AtNode("b")))
	var tr Trace
	_, err := c.Actors().Request(m.ctx(), "x", []byte("stale"), WithTrace(&tr))
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted, "node a does not own it")
	if !tr.Cached || tr.Sent != 1 {
		t.Fatalf("%+v", tr)
	}
	if err := c.Actors().Destroy(m.ctx(), ref); err == nil {
		t.Fatal("a stale reference destroyed the new incarnation")
	} else {
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
	}
	for i := range 2 {
		tr = Trace{}
		reply, err := c.Actors().Request(m.ctx(), "x", []byte("fresh"), WithTrace(&tr))
		if err != nil || !strings.HasPrefix(string(reply.Data), "b ") || tr.LookedUp == tr.Cached || tr.Cached != (i > 0) {
			t.Fatalf("%q, %v, %+v", reply.Data, err, tr)
		}
	}
	for _, r := range tp.ran("x") {
		if strings.HasSuffix(r, "stale") {
			t.Fatalf("turns %v", tp.ran("x"))
		}
	}
	// The same at a node that tells where the object is now.
	id := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "r")
	if _, err := b.Spots().Request(m.ctx(), id, nil, WithInstance("room"), AtNode("b")); err != nil {
		t.Fatal(err)
	}
	tr = Trace{}
	if reply, err := c.Spots().Request(m.ctx(), id, nil, WithInstance("room"), WithTrace(&tr)); err != nil || !strings.HasPrefix(string(reply.Data), "b ") || !tr.Forwarded || tr.Sent != 2 {
		t.Fatalf("%q, %v, %+v", reply.Data, err, tr)
	}
	if tp.made(id) != 1 {
		t.Fatalf("%d factories", tp.made(id))
	}
	// The owner's process is gone: 503 ends the call, and the route with it.
	b.stop()
	_, err = c.Spots().Request(m.ctx(), id, nil)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	if c.routes.get(kvlocation.KindSpot, id) != nil {
		t.Fatal("the route to a process that is gone stayed")
	}
	_, err = c.Spots().Request(m.ctx(), id, nil, WithInstance("room"))
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	if tp.made(id) != 1 {
		t.Fatal("an owner's death made a new incarnation")
	}
}

// Plain NATS clients reach objects through the gateway, in any kind and with instance intent, and get errors in the
// documented headers.
func TestGateway(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassUserSpot, "hall"))
	a, b := m.node("a", ty), m.node("b", ty)
	nc := m.connect(m.server.URL(), "plain", nil)
	defer nc.Close()
	ask := func(subject string, h nats.Header) (data string, e *outcome.Error, rh nats.Header) {
		t.Helper()
		fabrictest.Eventually(t, long, "it is taken, or refused for good", func() bool {
			reply, err := nc.RequestMsgWithContext(m.ctx(), &nats.Msg{Subject: subject, Header: h, Data: []byte("hi")})
			if err != nil {
				t.Fatal(err)
			}
			data, e, rh = string(reply.Data), outcome.FromHeaders(reply.Header, "", ""), reply.Header
			// A node that the machine has held up refuses what it cannot date.
			return e == nil || !strings.Contains(e.Error(), "frozen until a moment ago")
		})
		return data, e, rh
	}
	must[ActorRef](t)(a.Actors().Create(m.ctx(), "user", "käse", nil, AtNode("a")))
	must[ActorRef](t)(a.Actors().Create(m.ctx(), "user", "y", nil, AtNode("b")))
	token, _ := wire.EscapeID("käse")
	for range 20 { // at either node
		if got, e, h := ask("fab.m.call.actor."+token, nil); e != nil || !strings.HasPrefix(got, "a ") || len(h) != 0 {
			t.Fatalf("%q, %v, %v", got, e, h)
		}
		if got, e, _ := ask("fab.m.call.actor.y", nats.Header{"traceparent": {"00-1-2-01"}}); e != nil || !strings.HasPrefix(got, "b ") {
			t.Fatalf("%q, %v", got, e)
		}
	}
	for i := range 10 {
		id := fmt.Sprintf("room%d", i)
		if _, e, h := ask("fab.m.call.spot."+id, nil); e == nil || e.Kind != outcome.NotFound || e.Acceptance != outcome.NotAccepted ||
			h.Get("Nats-Service-Error") == "" || h.Get("Nats-Service-Error-Code") != "404" {
			t.Fatalf("%v, %v", e, h)
		}
		intent := nats.Header{"Fabric-Intent": {"instance"}, "Fabric-Type": {"room"}}
		for range 4 {
			if got, e, h := ask("fab.m.call.spot."+id, intent); e != nil || h.Get(wire.HeaderRoute) != "" {
				t.Fatalf("%q, %v, %v", got, e, h)
			}
		}
		if tp.made(id) != 1 || len(tp.ran(id)) != 4 {
			t.Fatalf("%d factories, turns %v", tp.made(id), tp.ran(id))
		}
		if _, e, _ := ask("fab.m.call.spot."+id, nats.Header{"Fabric-Intent": {"instance"}, "Fabric-Type": {"hall"}}); e == nil || e.Acceptance != outcome.NotAccepted {
			t.Fatalf("%v", e)
		}
	}
	for subject, h := range map[string]nats.Header{
		"fab.m.call.actor.=zz": nil, "fab.m.call.thing.x": nil, "fab.m.call.actor.x.y": nil,
		"fab.m.call.spot.x": {"Fabric-Intent": {"instance"}}, "fab.m.call.spot.y": {"Fabric-Intent": {"create"}},
		"fab.m.call.actor.x": {"Fabric-Intent": {"instance"}, "Fabric-Type": {"user"}},
	} {
		if _, e, _ := ask(subject, h); e == nil || e.Kind != outcome.InvalidOperation || e.Acceptance != outcome.NotAccepted {
			t.Fatalf("%s: %v", subject, e)
		}
	}
	// What a client says in the fabric's own headers counts no further than it is documented.
	var seen nats.Header
	tp.mu.Lock()
	tp.onTurn = func(ctx context.Context, req *Request) (Reply, error, bool) {
		if req.Self().ID() != "käse" {
			return Reply{}, nil, false
		}
		tp.mu.Lock()
		seen = req.Header()
		tp.mu.Unlock()
		_, err := req.Self().Actors().Request(ctx, "y", nil)
		return Reply{}, err, true
	}
	tp.mu.Unlock()
	forged := nats.Header{"Fabric-Chain": {strings.Repeat("actor/z,", 15) + "actor/z"}, "Fabric-Intent": {""}, "traceparent": {"00-1-2-01"}}
	for range 10 {
		if _, e, _ := ask("fab.m.call.actor."+token, forged); e != nil {
			t.Fatal(e)
		}
		tp.mu.Lock()
		got := seen
		tp.mu.Unlock()
		if len(got) != 1 || len(got["traceparent"]) != 1 {
			t.Fatalf("the handler saw %v", got)
		}
	}
	tp.mu.Lock()
	tp.onTurn = nil
	tp.mu.Unlock()
	// Without a reply subject it is a Send.
	before := len(tp.ran("y"))
	for range 4 {
		if err := nc.Publish("fab.m.call.actor.y", []byte("note")); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, long, "the notes have run", func() bool { return len(tp.ran("y")) == before+4 })
	if a.Metrics().Gateway == 0 || b.Metrics().Gateway == 0 {
		t.Fatal("one node took all")
	}
}

// Explain says why a call would succeed or fail, by which rule; locate and list say where objects are.
func TestExplainAndList(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	hang := make(chan struct{})
	defer close(hang) // before the nodes are closed
	tp.onTurn = func(_ context.Context, req *Request) (Reply, error, bool) {
		if string(req.Data()) == "hang" {
			<-hang
		}
		return Reply{}, nil, false
	}
	ty := types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a, b := m.node("a", ty, shortLease), m.node("b", ty)
	c := m.client()
	x := must[ActorRef](t)(c.Actors().Create(m.ctx(), "user", "x", nil, AtNode("a")))
	must[ActorRef](t)(c.Actors().Create(m.ctx(), "user", "y", nil, AtNode("b")))
	explain := func(n *meshNode, req ExplainRequest) Explanation {
		t.Helper()
		return must[Explanation](t)(n.Explain(m.ctx(), req))
	}
	for _, n := range []*meshNode{a, b, c} {
		e := explain(n, ExplainRequest{Kind: kvlocation.KindActor, ID: "x"})
		if !e.WouldSucceed || e.Rule != "FO-4.1" || e.Location.RID != "a" || e.Object == nil || e.Object.State != "ready" || !e.Object.LeaseAdmits || len(e.Placement) != 2 {
			t.Fatalf("%+v", e)
		}
		e = explain(n, ExplainRequest{Kind: kvlocation.KindSpot, ID: "none"})
		if e.WouldSucceed || e.Rule != "FO-4.1" || e.Error != outcome.NotFound.String() || e.Placement != nil {
			t.Fatalf("%+v", e)
		}
		e = explain(n, ExplainRequest{Kind: kvlocation.KindSpot, ID: "none", Type: "room"})
		if !e.WouldSucceed || e.Rule != "FO-4.4a" || len(e.Placement) != 2 || !e.Placement[0].Eligible || e.Placement[0].Score <= e.Placement[1].Score {
			t.Fatalf("%+v", e)
		}
		e = explain(n, ExplainRequest{Kind: kvlocation.KindActor, ID: "none", Type: "user"})
		if e.WouldSucceed || e.Error != outcome.NotFound.String() || !strings.Contains(e.Why, "Create would make it") || len(e.Placement) != 2 {
			t.Fatalf("%+v", e)
		}
		e = explain(n, ExplainRequest{Kind: kvlocation.KindActor, ID: "x", Type: "room"})
		if e.WouldSucceed || e.Error != outcome.TypeMismatch.String() {
			t.Fatalf("%+v", e)
		}
		e = explain(n, ExplainRequest{Kind: kvlocation.KindSpot, ID: "none", Type: "nobodys"})
		if e.WouldSucceed || e.Error != outcome.NotConfigured.String() {
			t.Fatalf("%+v", e)
		}
		if _, err := n.Explain(m.ctx(), ExplainRequest{Kind: "thing", ID: "x"}); err == nil {
			t.Fatal("a kind that is none was explained")
		}
	}
	go func() { _, _ = c.Actors().Request(m.ctx(), "y", []byte("hang")) }()
	fabrictest.Eventually(t, long, "the turn shows", func() bool {
		e := explain(c, ExplainRequest{Kind: kvlocation.KindActor, ID: "y"})
		return e.Object != nil && e.Object.RunningMillis > 0
	})
	for i := range 7 {
		must[ActorRef](t)(c.Actors().Create(m.ctx(), "user", fmt.Sprintf("p-%d", i), nil))
	}
	var ids []string
	req := ListRequest{Kind: kvlocation.KindActor, Prefix: "p-", Limit: 3}
	for {
		page := must[ListPage](t)(c.List(m.ctx(), req))
		for _, l := range page.Objects {
			if !l.Alive || l.Phase != kvlocation.PhaseReady || l.Type != "user" {
				t.Fatalf("%+v", l)
			}
			ids = append(ids, l.ID)
		}
		if req.Cursor = page.Next; req.Cursor == "" {
			break
		}
	}
	if len(ids) != 7 {
		t.Fatalf("%v", ids)
	}
	if _, err := c.List(m.ctx(), ListRequest{Limit: 100_000}); err == nil {
		t.Fatal("a limit that is not allowed was taken")
	}
	a.isolate()
	fabrictest.Eventually(t, long, "the lease is gone", func() bool {
		e := explain(c, ExplainRequest{Kind: kvlocation.KindActor, ID: "x"})
		return !e.WouldSucceed && e.Rule == "FO-4.2c" && !e.Location.Alive
	})
	_ = x
}

// Whom a restart of nothing concerns: an orderly end leaves records alone, except those whose type says so.
func TestShutdown(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	short := tp.typ(kvlocation.ClassInstanceSpot, "short")
	short.CloseOnShutdown = true
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user"), short))
	b := m.node("b")
	must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "stays", nil))
	for i := range 20 {
		if _, err := b.Spots().Request(m.ctx(), fmt.Sprintf("s%d", i), nil, WithInstance("short")); err != nil {
			t.Fatal(err)
		}
	}
	a.stop()
	e := m.entry(b, kvlocation.KindActor, "stays")
	if e.Phase() != kvlocation.PhaseReady || !e.Record.Owner.Is("a", a.lease.Lifecycle()) {
		t.Fatalf("the record is %+v", e.Record)
	}
	_, err := b.Actors().Request(m.ctx(), "stays", nil)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	for i := range 20 {
		id := fmt.Sprintf("s%d", i)
		if p := m.entry(b, kvlocation.KindSpot, id).Phase(); p != kvlocation.PhaseMissing || tp.closing(id) != CloseShutdown {
			t.Fatalf("%s is %s, closed because of %q", id, p, tp.closing(id))
		}
	}
	_, err = a.Actors().Create(m.ctxFor(time.Second), "user", "late", nil)
	if err == nil {
		t.Fatal("a service that was closed created something")
	}
}

// A creation that is under way when its node is shut down in order comes to its end before.
func TestShutdownWaitsForCreations(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	begun, release := make(chan struct{}), make(chan struct{})
	tp.onFactory = func(context.Context, *Self, []byte) error {
		close(begun)
		<-release
		return nil
	}
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()
	made := make(chan error, 1)
	go func() {
		_, err := c.Actors().Create(m.ctx(), "user", "x", nil)
		made <- err
	}()
	<-begun
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		a.stop()
	}()
	fabrictest.Eventually(t, long, "the node refuses what is new", func() bool { return a.rt.draining.Load() })
	_, err := a.Actors().Create(m.ctx(), "user", "y", nil)
	wantError(t, err, outcome.ShuttingDown, outcome.NotAccepted)
	close(release)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	<-stopped
	if p := m.entry(c, kvlocation.KindActor, "x").Phase(); p != kvlocation.PhaseReady {
		t.Fatalf("the record is %s", p)
	}
}

// A warm request to another node costs no store access, no header, and what a request to that node itself costs.
func TestWarmRequestCosts(t *testing.T) {
	m := newMesh(t)
	echo := Type{Name: "echo", Class: kvlocation.ClassActor, New: func(context.Context, *Self, []byte) (Object, error) {
		return HandlerFunc(func(_ context.Context, req *Request) (Reply, error) {
			return Reply{Data: fmt.Append(nil, len(req.Header()))}, nil
		}), nil
	}}
	a := m.node("a", types(echo))
	b := m.node("b", func(c *Config, _ *kvlocation.LeaseConfig) { c.RouteTTL = MaxRouteTTL }) // warm to the end of the test
	must[ActorRef](t)(a.Actors().Create(m.ctx(), "echo", "x", nil))
	ctx := m.ctx()
	seen := b.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION.>", Times: -1, Action: fabrictest.Signal})
	data := []byte("0123456789abcdef")
	request := func() {
		reply, err := b.Actors().Request(ctx, "x", data)
		if err != nil || string(reply.Data) != "0" {
			t.Fatalf("%q, %v", reply.Data, err)
		}
	}
	request()
	if seen.Count() == 0 { // once, or again when the answer took its time
		t.Fatal("the first request did not ask the store")
	}
	seen.Disarm()
	armed := b.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION.>", Times: -1, Action: fabrictest.Signal})
	direct := channels.RunCall{Op: "request", Target: "x", RID: "a", Lifecycle: m.nodes[0].lease.Lifecycle(), Data: data}
	direct.Subject = b.router.RunSubject("a", direct.Lifecycle, serviceName, "msg.actor.x")
	call := func() {
		if _, err := b.router.CallRun(ctx, &direct); err != nil {
			t.Fatal(err)
		}
	}
	// The server is in this process, and everything is counted: the least of several runs has the least of the rest, which
	// is the more the slower the machine is.
	plain, warm := math.Inf(1), math.Inf(1)
	for try := 0; try < 4 || warm > plain+1 && try < 100; try++ {
		plain, warm = min(plain, testing.AllocsPerRun(100, call)), min(warm, testing.AllocsPerRun(100, request))
	}
	if armed.Count() != 0 {
		t.Fatalf("warm requests asked the store %d times", armed.Count())
	}
	t.Logf("allocations: %v in a call of the process run, %v in a request to the object", plain, warm)
	if warm > plain+1 {
		t.Fatalf("a warm request allocates %v times, a call of the process run %v", warm, plain)
	}
}

// A node that died without a word stays in the directory; the explanation reads its lease and does not name it.
func TestExplainReadsLeases(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a := m.node("a", ty, shortLease)
	b := m.node("b", ty) // which does not ask a for the store's clock, as a client does
	id := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "r")
	a.vanish()
	var e Explanation
	fabrictest.Eventually(t, long, "the explanation names the other node", func() bool {
		e = must[Explanation](t)(b.Explain(m.ctx(), ExplainRequest{Kind: kvlocation.KindSpot, ID: id, Type: "room"}))
		return strings.HasSuffix(e.Why, "first at node b")
	})
	if last := e.Placement[1]; last.RID != "a" || last.Eligible || last.Why != "it holds no lease" {
		t.Fatalf("%+v", e.Placement)
	}
}
