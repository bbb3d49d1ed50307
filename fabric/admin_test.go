package fabric_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// askAdmin sends an operator request and reads the answer, or its error.
func askAdmin(t *testing.T, nc *nats.Conn, subject, payload string, into any) error {
	t.Helper()
	m, err := nc.RequestWithContext(timeout(t, 20*time.Second), subject, []byte(payload))
	if err != nil {
		return err
	}
	if e := outcome.FromHeaders(m.Header, "admin", subject); e != nil {
		return e
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		return fmt.Errorf("the answer %s: %w", m.Data, err)
	}
	return nil
}

// TestAdminOfObjects: an operator with any NATS client sees where objects are and why, lists them, and releases those of a
// node that is gone.
func TestAdminOfObjects(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	node := func(rid string, types []objects.Type) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()}, Types: types})
	}
	a, b := node("a", counters()), node("b", nil)
	ctx := timeout(t, 120*time.Second)
	nc := s.Connect(t)
	ref, err := b.Actors().Create(ctx, "counter", "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"two", "three", "four"} {
		if _, err := b.Actors().Create(ctx, "counter", id, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Spots().Create(ctx, "counter", "room", nil); err != nil {
		t.Fatal(err)
	}

	var at fabric.LocateReply
	if err := askAdmin(t, nc, "fab.m.admin.locate", `{"kind":"actor","id":"one"}`, &at); err != nil || at.Location.RID != "a" || at.Location.Generation != ref.Generation {
		t.Errorf("locate: %+v, %v", at, err)
	}
	if err := askAdmin(t, nc, "fab.m.admin.locate", `{"kind":"actor","id":"nobody"}`, &at); !errors.Is(err, outcome.NotFound) {
		t.Errorf("locate of what is not there: %v", err)
	}
	var why fabric.ExplainReply
	if err := askAdmin(t, nc, "fab.m.admin.explain", `{"kind":"actor","id":"one"}`, &why); err != nil || !why.WouldSucceed || why.Rule == "" || why.Why == "" {
		t.Errorf("explain: %+v, %v", why, err)
	}
	var list fabric.ObjectsReply
	if err := askAdmin(t, nc, "fab.m.admin.objects", "", &list); err != nil || len(list.Objects) != 5 {
		t.Errorf("objects: %+v, %v", list, err)
	}
	if err := askAdmin(t, nc, "fab.m.admin.objects", `{"class":"actor","rid":"a","limit":3}`, &list); err != nil || len(list.Objects) != 3 || list.Next == "" {
		t.Errorf("a page of objects: %+v, %v", list, err)
	}
	for subject, payload := range map[string]string{
		"fab.m.admin.locate": `{"kind":"actors","id":"one"}`, "fab.m.admin.explain": `{"kind":"spot"}`, "fab.m.admin.objects": `{"ridd":"a"}`,
		"fab.m.admin.release": ``,
	} {
		if err := askAdmin(t, nc, subject, payload, new(any)); !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.NotAccepted) {
			t.Errorf("%s %s: %v, want InvalidOperation", subject, payload, err)
		}
	}

	for subject, want := range map[string]string{
		"fab.m.admin.bogus": "explain, locate, nodes, objects, release", "fab.m.admin.release": "rid and lifecycle",
	} {
		m, err := nc.RequestWithContext(ctx, subject, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if from, text := m.Header.Get("Fabric-From"), m.Header.Get(outcome.HeaderServiceError); from != "a" && from != "b" || !strings.Contains(text, want) {
			t.Errorf("%s: %q from %q, want it to say %q", subject, text, from, want)
		}
	}

	one := `{"kind":"actor","id":"one","generation":` + strconv.FormatUint(ref.Generation, 10) + `}`
	var released fabric.ReleaseReply
	if err := askAdmin(t, nc, "fab.m.admin.release", one, &released); !errors.Is(err, outcome.InvalidOperation) {
		t.Errorf("release while the owner lives: %v", err)
	}
	lifecycle := a.Lifecycle()
	stopNode(t, a)
	if err := askAdmin(t, nc, "fab.m.admin.explain", `{"kind":"actor","id":"one"}`, &why); err != nil || why.WouldSucceed || why.Error != "Unavailable" {
		t.Errorf("explain with the owner gone: %+v, %v", why, err)
	}
	awaitRelease := func(payload string) fabric.ReleaseReply {
		t.Helper()
		subject := "fab.m.admin.release"
		var reply fabric.ReleaseReply
		fabrictest.Eventually(t, 60*time.Second, "the release is done", func() bool {
			if err := askAdmin(t, nc, subject, payload, &reply); err != nil {
				t.Fatalf("release %s: %v", payload, err)
			}
			subject = reply.Poll
			return reply.Done
		})
		return reply
	}
	reply := awaitRelease(one)
	if reply.Released != 1 || reply.AnsweredBy != "b" {
		t.Errorf("release of one: %+v", reply)
	}
	var again fabric.ReleaseReply
	if err := askAdmin(t, nc, reply.Poll, one, &again); err != nil || again.Released != 1 || again.Started != reply.Started {
		t.Errorf("asked again how it went: %+v, %v", again, err)
	}
	if err := askAdmin(t, nc, "fab.m.admin.release", one, &again); !errors.Is(err, outcome.NotFound) {
		t.Errorf("release of what was released: %v", err)
	}
	owner := `"rid":"a","lifecycle":` + strconv.FormatUint(lifecycle, 10)
	if reply := awaitRelease(`{` + owner + `,"class":"actor","dry_run":true}`); reply.Released != 3 || !reply.DryRun {
		t.Errorf("dry run: %+v", reply)
	}
	if reply := awaitRelease(`{` + owner + `,"class":"actor","reason":"the machine burnt down","by":"test"}`); reply.Released != 3 || reply.Failed != 0 {
		t.Errorf("release of the Actors: %+v", reply)
	}
	if reply := awaitRelease(`{` + owner + `}`); reply.Released != 1 {
		t.Errorf("release of the rest: %+v", reply)
	}
	if err := askAdmin(t, nc, "fab.m.admin.objects", "", &list); err != nil || len(list.Objects) != 0 {
		t.Errorf("objects after the release: %+v, %v", list, err)
	}
}

// TestReleaseGoesOnElsewhere: when the node that works on a release ends, the same request to another one goes on with it.
func TestReleaseGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	node := func(rid string, types []objects.Type) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()}, Types: types})
	}
	a, b := node("a", counters()), node("b", nil)
	ctx := timeout(t, 120*time.Second)
	for _, id := range []string{"one", "two"} {
		if _, err := b.Actors().Create(ctx, "counter", id, nil); err != nil {
			t.Fatal(err)
		}
	}
	stopNode(t, a)
	nc := s.Connect(t)
	all := `{"rid":"a","lifecycle":` + strconv.FormatUint(a.Lifecycle(), 10) + `,"reason":"gone"}`
	var reply fabric.ReleaseReply
	if err := askAdmin(t, nc, "fab.m.admin.release", all, &reply); err != nil || reply.Done || !reply.Waiting || reply.Until.IsZero() || reply.AnsweredBy != "b" {
		t.Fatalf("the release at b: %+v, %v", reply, err)
	}
	node("c", nil)
	stopNode(t, b)
	if _, err := nc.RequestWithContext(timeout(t, 20*time.Second), reply.Poll, []byte(all)); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("polling at the node that has ended: %v", err)
	}
	subject := "fab.m.admin.release"
	fabrictest.Eventually(t, 90*time.Second, "c has released what is left", func() bool {
		if err := askAdmin(t, nc, subject, all, &reply); err != nil {
			t.Fatal(err)
		}
		subject = reply.Poll
		return reply.Done
	})
	if reply.AnsweredBy != "c" || reply.Released != 2 || reply.Failed != 0 {
		t.Errorf("the release at c: %+v", reply)
	}
}

// TestReleasesAreBounded: a node works on four releases at a time, says so to the fifth, and does not stay for them.
func TestReleasesAreBounded(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}})
	gone := startNode(t, fabric.Config{Mesh: "m", RID: "gone", Connect: fabric.Connect{URL: s.URL()}, Types: counters(),
		LeaseTTL: 2 * time.Minute, LeaseRenew: time.Second, LeaseMargin: time.Second}) // the proof that it is gone takes longer than the test
	if _, err := a.Actors().Create(timeout(t, 60*time.Second), "counter", "one", nil); err != nil {
		t.Fatal(err)
	}
	stopNode(t, gone)
	nc := s.Connect(t)
	// Each is another release of the same object, which waits for the proof that its owner is gone.
	ways := []string{``, `,"kind":"actor"`, `,"class":"actor"`, `,"type":"counter"`, `,"kind":"actor","class":"actor"`}
	ofRun := func(way int) string {
		return `{"rid":"gone","lifecycle":` + strconv.FormatUint(gone.Lifecycle(), 10) + ways[way] + `}`
	}
	begun := make(chan error, 4)
	for n := range 4 {
		go func() { begun <- askAdmin(t, nc, "fab.m.admin.release", ofRun(n), new(fabric.ReleaseReply)) }()
	}
	for range 4 {
		if err := <-begun; err != nil {
			t.Fatal(err)
		}
	}
	if err := askAdmin(t, nc, "fab.m.admin.release", ofRun(4), new(fabric.ReleaseReply)); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("the fifth release: %v, want Unavailable and NotAccepted", err)
	}
	if err := askAdmin(t, nc, "fab.m.admin.release", ofRun(2), new(fabric.ReleaseReply)); err != nil {
		t.Errorf("the second one, asked for again: %v", err)
	}
	stopNode(t, a)
}

// TestShutdownDuringARelease: a release whose write to the store is never answered keeps no node from stopping.
func TestShutdownDuringARelease(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	p := s.Proxy(t)
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Types: counters()})
	b, err := fabric.Start(t.Context(), fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: p.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Shutdown(context.Background()) })
	if _, err := a.Actors().Create(timeout(t, 60*time.Second), "counter", "one", nil); err != nil {
		t.Fatal(err)
	}
	stopNode(t, a)
	lost := p.Arm(fabrictest.Trigger{Subject: "$KV.FABRIC_m_LOCATION.actor.>", Times: -1, Action: fabrictest.Drop})
	all := `{"rid":"a","lifecycle":` + strconv.FormatUint(a.Lifecycle(), 10) + `}`
	if err := askAdmin(t, s.Connect(t), "fab.m.admin.release", all, new(fabric.ReleaseReply)); err != nil {
		t.Fatal(err)
	}
	lost.Wait(t)
	stopped := make(chan error, 1)
	go func() { stopped <- b.Shutdown(timeout(t, 2*time.Second)) }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Logf("Shutdown: %v", err)
		}
	case <-time.After(25 * time.Second): // less than the time of one store operation
		t.Fatal("Shutdown does not end")
	}
}

// TestAdminAnswersToInboxesOnly: an operator request that names a subject of the store's or of the mesh as the place for its answer is not
// taken: the node, which may write there, is not made to.
func TestAdminAnswersToInboxesOnly(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}})
	nc := s.Connect(t)
	wrong := []string{"$KV.FABRIC_m_LOCATION.actor.alice", "$KV.FABRIC_m_NODES.desc.a", "fab.m.ch.orders", "fab.m.node.a.1.obj.msg.actor.alice"}
	var answers []*nats.Subscription
	for _, reply := range wrong[:3] {
		sub, err := nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, sub)
	}
	own := fmt.Sprintf("fab.m.node.a.%d.admin.", a.Lifecycle())
	for _, verb := range []string{"nodes", "bogus"} {
		for _, subject := range []string{"fab.m.admin." + verb, own + verb} {
			for _, reply := range wrong {
				if err := nc.PublishRequest(subject, reply, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// What is asked behind them on the same ways is answered, and nothing was before.
	for _, subject := range []string{"fab.m.admin.nodes", own + "nodes"} {
		if err := askAdmin(t, nc, subject, "", new(fabric.NodesReply)); err != nil {
			t.Fatal(err)
		}
	}
	stopNode(t, a)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, sub := range answers {
		for {
			m, err := sub.NextMsg(time.Millisecond)
			if err != nil {
				break
			}
			if m.Header.Get("Fabric-From") != "" || strings.Contains(string(m.Data), "answered_by") {
				t.Errorf("an answer went to %s: %q", m.Subject, m.Data)
			}
		}
	}
}
