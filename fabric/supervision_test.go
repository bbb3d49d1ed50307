package fabric_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/supervise"
)

// markerOf reads the marker of a worker.
func markerOf(t *testing.T, n *fabric.Node, worker string) (supervise.Marker, bool) {
	t.Helper()
	m, ok, err := supervise.MarkerOf(timeout(t, 20*time.Second), n.Store().Shared(kvlocation.BucketSupervise), worker)
	if err != nil {
		t.Fatal(err)
	}
	return m, ok
}

// planned (SV-16): a relocation and an orderly end leave a marker under the node's ID as a worker; one that is blocked takes it back,
// and so does the next process run when it serves. A marker of somebody else stays.
func planned(t *testing.T) {
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	j := new(journal)
	node := func(rid, wave string) *fabric.Node {
		return startNode(t, fabric.Config{Mesh: "m", RID: rid, Wave: wave, Connect: fabric.Connect{URL: s.URL()}, Types: tallies(j),
			RouteTTL: time.Second, Relocation: shortFollow, Supervision: fabric.Supervision{Worker: "worker " + rid, MarkerTime: time.Minute}})
	}
	a, b := node("a", "x"), node("b", "x")
	ctx := timeout(t, 120*time.Second)
	if _, err := b.Actors().Create(ctx, "tally", "x", nil, objects.AtNode("a")); err != nil {
		t.Fatal(err)
	}
	if _, ok := markerOf(t, b, "worker a"); ok {
		t.Error("there is a marker before anything was planned")
	}
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Blocked {
		t.Fatalf("%+v, %v", result, err)
	}
	if m, ok := markerOf(t, b, "worker a"); ok {
		t.Errorf("the blocked relocation has left %+v", m)
	}
	node("c", "y")
	awaitMember(t, a, "c", kvlocation.StateServing)
	if result, err := a.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err != nil || result.Outcome != relocate.Relocated {
		t.Fatalf("%+v, %v", result, err)
	}
	m, ok := markerOf(t, b, "worker a")
	if left := m.Until.Sub(m.Since); !ok || m.Action != supervise.ActionRelocate || m.Reason != "maintenance" || left < 50*time.Second || left > 70*time.Second {
		t.Errorf("relocated: %+v, %t", m, ok)
	}
	stopNode(t, a)
	if m, ok := markerOf(t, b, "worker a"); !ok || m.Action != supervise.ActionShutdown {
		t.Errorf("stopped: %+v, %t", m, ok)
	}
	node("a", "x")
	if m, ok := markerOf(t, b, "worker a"); ok {
		t.Errorf("the next process run has left %+v", m)
	}
	upkeep := supervise.Marker{Worker: "worker d", Action: supervise.ActionMaintenance, By: "ann", Until: time.Now().Add(time.Hour)}
	if err := supervise.PutMarker(ctx, b.Store().Shared(kvlocation.BucketSupervise), upkeep); err != nil {
		t.Fatal(err)
	}
	d := node("d", "y")
	if m, ok := markerOf(t, b, "worker d"); !ok || m.By != "ann" {
		t.Errorf("the marker of an operator became %+v, %t", m, ok)
	}
	stopNode(t, d)
	if m, ok := markerOf(t, b, "worker d"); !ok || m.By != "ann" || !m.Until.Equal(upkeep.Until) {
		t.Errorf("the node's end has put %+v, %t in place of the longer marker of an operator", m, ok)
	}
}

// TestNodeReports: a node's record says that it works while it serves, whoever asks anything of it, gets on when turns and
// requests end, stands still while some wait and none ends, and says stopped after an orderly end.
func TestNodeReports(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	newMesh(t, s, "m")
	hold, in := make(chan struct{}), make(chan struct{})
	wait := func(ctx context.Context, r *channels.Request) (channels.Reply, error) {
		close(in)
		<-hold
		return channels.Reply{}, nil
	}
	a := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: fabric.Connect{URL: s.URL()}, Channels: []channels.Spec{{Name: "wait", Handler: wait}},
		Supervision: fabric.Supervision{Report: true, Every: 200 * time.Millisecond}})
	b := startNode(t, fabric.Config{Mesh: "m", RID: "b", Connect: fabric.Connect{URL: s.URL()}})
	read := func() supervise.Record {
		e, err := b.Store().Shared(kvlocation.BucketSupervise).Get(timeout(t, 20*time.Second), "worker.a")
		if err != nil && !errors.Is(err, outcome.NotFound) {
			t.Fatal(err)
		}
		var r supervise.Record
		if e.Exists() {
			if err := json.Unmarshal(e.Value, &r); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	later := func(beats uint64) supervise.Record {
		t.Helper()
		from := read().Beats
		var r supervise.Record
		fabrictest.Eventually(t, 60*time.Second, "the node reports", func() bool { r = read(); return r.Beats >= from+beats })
		return r
	}
	first := later(2)
	if first.State != supervise.Processing || first.Node != "a" || first.Lifecycle != a.Lifecycle() {
		t.Errorf("it reports %+v", first)
	}
	if r := later(2); r.Progress == first.Progress {
		t.Error("a node that nobody asks anything stands still")
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Channel("wait").Request(timeout(t, 60*time.Second), nil)
		done <- err
	}()
	<-in
	stuck := later(2)
	if r := later(3); r.Progress != stuck.Progress {
		t.Errorf("the progress goes from %s to %s while the one request waits", stuck.Progress, r.Progress)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := later(2); r.Progress == stuck.Progress {
		t.Error("the progress does not go on")
	}
	var seen fabric.WorkersReply
	if err := askAdmin(t, s.Connect(t), "fab.m.admin.workers", "", &seen); err != nil || len(seen.Workers) != 1 || seen.Workers[0].Worker != "a" || seen.Workers[0].Verdict != supervise.Healthy {
		t.Errorf("the operator sees %+v, %v", seen, err)
	}
	stopNode(t, a)
	if r := read(); r.State != supervise.Stopped {
		t.Errorf("after an orderly end it is %+v", r)
	}
}
