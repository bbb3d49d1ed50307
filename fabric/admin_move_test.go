package fabric_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// awaitJob asks until an operator request's job is done: first as payload, then with "poll" on the subject that the answer
// names.
func awaitJob[R any](t *testing.T, nc *nats.Conn, subject, payload string, of func(R) (poll string, done bool)) R {
	t.Helper()
	var reply R
	fabrictest.Eventually(t, 60*time.Second, payload+" is done", func() bool {
		reply = *new(R)
		if err := askAdmin(t, nc, subject, "{"+payload+"}", &reply); err != nil {
			t.Fatalf("%s {%s}: %v", subject, payload, err)
		}
		poll, done := of(reply)
		if poll != subject {
			subject, payload = poll, payload+`,"poll":true`
		}
		return done
	})
	return reply
}

func moveReply(r fabric.MoveReply) (string, bool)   { return r.Poll, r.Done }
func drainReply(r fabric.DrainReply) (string, bool) { return r.Poll, r.Done }

// TestAdminOfMoves: an operator with any NATS client moves an object, there and back again, and drains a node, without
// knowing where either is.
func TestAdminOfMoves(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	node := func(rid string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Connect: fabric.Connect{URL: s.URL()}, Types: tallies(j),
			RouteTTL: time.Second, Relocation: shortFollow})
	}
	a, b := node("a"), node("b")
	awaitMember(t, a, "b", kvlocation.StateServing)
	ctx := timeout(t, 120*time.Second)
	nc := s.Connect(t)
	ref, err := b.Actors().Create(ctx, "tally", "x", nil, objects.AtNode("a"))
	if err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{"b", "a", "b"} {
		want := fmt.Sprintf(`"kind":"actor","id":"x","generation":%d,"to":%q`, ref.Generation, to)
		r := awaitJob(t, nc, "fab.m.admin.relocate", want, moveReply)
		if r.Moved == nil || r.Moved.To.RID != to || r.Moved.OwnerGeneration != uint64(i+2) || r.Moved.Generation != ref.Generation || r.AnsweredBy == to {
			t.Errorf("to %s: %+v", to, r)
		}
		if at, err := a.Actors().Find(ctx, "x"); err != nil || at.RID != to {
			t.Errorf("moved to %s it is at %+v, %v", to, at, err)
		}
	}
	for payload, want := range map[string]outcome.Kind{
		`{"kind":"actor","id":"x","to":"nobody"}`:       outcome.NotFound,
		`{"kind":"actor","id":"nobody"}`:                outcome.NotFound,
		`{"kind":"actors","id":"x"}`:                    outcome.InvalidOperation,
		`{"kind":"actor","id":"x","to":"a b"}`:          outcome.InvalidOperation,
		`{"kind":"actor","id":"x","poll":true}`:         outcome.NotFound,
		`{"kind":"actor","id":"x","too":"a"}`:           outcome.InvalidOperation,
		`{"kind":"actor","id":"x","generation":999}`:    outcome.NotFound,
		`{"kind":"spot","id":"entry:a","generation":0}`: outcome.InvalidOperation,
	} {
		if err := askAdmin(t, nc, "fab.m.admin.relocate", payload, new(fabric.MoveReply)); !refused(err, want) {
			t.Errorf("relocate %s: %v, want %s and NotAccepted", payload, err, want)
		}
	}

	r := awaitJob(t, nc, "fab.m.admin.drain", `"rid":"b","mode":"maintenance"`, drainReply)
	if r.AnsweredBy != "b" || r.State != kvlocation.StateRelocated || r.Result == nil || r.Result.Outcome != relocate.Relocated || r.Result.Moved != 1 {
		t.Errorf("drained: %+v", r)
	}
	if at, err := a.Actors().Find(ctx, "x"); err != nil || at.RID != "a" {
		t.Errorf("drained it is at %+v, %v", at, err)
	}
	r = awaitJob(t, nc, "fab.m.admin.drain", `"rid":"a","mode":"maintenance"`, drainReply)
	if r.State != kvlocation.StateServing || r.Result == nil || r.Result.Outcome != relocate.Blocked || r.Result.Reason != relocate.TargetUnavailable {
		t.Errorf("with nowhere to go: %+v", r)
	}
	for payload, want := range map[string]outcome.Kind{
		`{"mode":"maintenance"}`:                                        outcome.InvalidOperation,
		`{"rid":"nobody","mode":"maintenance"}`:                         outcome.NotFound,
		`{"rid":"a","mode":"vacation"}`:                                 outcome.InvalidOperation,
		`{"rid":"a","mode":"rolling_update"}`:                           outcome.InvalidOperation,
		`{"rid":"b","mode":"rolling_update","version":"9","poll":true}`: outcome.NotFound,
	} {
		if err := askAdmin(t, nc, "fab.m.admin.drain", payload, new(fabric.DrainReply)); !refused(err, want) {
			t.Errorf("drain %s: %v, want %s and NotAccepted", payload, err, want)
		}
	}
	stopNode(t, b)
	fabrictest.Eventually(t, 30*time.Second, "a does not list b any more", func() bool { _, there := a.Members().Get("b"); return !there })
	if err := askAdmin(t, nc, "fab.m.admin.drain", `{"rid":"b","mode":"maintenance"}`, new(fabric.DrainReply)); !errors.Is(err, outcome.NotFound) {
		t.Errorf("drain of a node that has left: %v", err)
	}
}
