package cli

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// releaser answers as nodes do that work on a release.
func releaser(t *testing.T, nc *nats.Conn, subject string, answer func(objects.ReleaseRequest) fabric.ReleaseReply) {
	t.Helper()
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var req objects.ReleaseRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Error(err)
		}
		data, err := json.Marshal(answer(req))
		if err = errors.Join(err, m.Respond(data)); err != nil {
			t.Error(err)
		}
	})
	if err = errors.Join(err, nc.Flush()); err != nil {
		t.Fatal(err)
	}
}

// A release is asked for where it began; when that node has gone, another one goes on with it.
func TestReleaseGoesOnElsewhere(t *testing.T) {
	nc := fabrictest.StartServer(t).Connect(t)
	var asked, polled atomic.Int32
	const own = "fab.shop.node.n1.7.admin.release"
	releaser(t, nc, "fab.shop.admin.release", func(req objects.ReleaseRequest) fabric.ReleaseReply {
		if req.RID != "n3" || req.Lifecycle != 12 {
			t.Errorf("asked for %+v", req)
		}
		switch asked.Add(1) {
		case 1:
			return fabric.ReleaseReply{Poll: own}
		case 2: // by a node that is gone when it is asked again
			return fabric.ReleaseReply{Poll: "fab.shop.node.n2.8.admin.release"}
		}
		return fabric.ReleaseReply{ReleaseReport: objects.ReleaseReport{Done: true, Released: 5}}
	})
	_, err := nc.Subscribe(own, func(m *nats.Msg) {
		data, _ := json.Marshal(fabric.ReleaseReply{Poll: own})
		if polled.Add(1) == 2 {
			if err := m.Sub.Unsubscribe(); err != nil {
				t.Error(err)
			}
		}
		if err := m.Respond(data); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	c := &releaseCmd{meshFlags: meshFlags{Mesh: "shop"}}
	a := &app{screen: newScreen(&told)}
	got, err := c.release(t.Context(), a, nc, objects.ReleaseRequest{RID: "n3", Lifecycle: 12}, "objects of n3/12")
	if err != nil || got.Released != 5 || asked.Load() != 3 || polled.Load() != 2 || !strings.Contains(told.String(), "another one is asked") {
		t.Errorf("%+v, %v after %d requests and %d polls; it told %q", got, err, asked.Load(), polled.Load(), told.String())
	}
}

// Where nothing had begun, that nothing is found is a mistake, and said at once; where a release had begun, its end.
func TestReleaseFindsNothing(t *testing.T) {
	nc := fabrictest.StartServer(t).Connect(t)
	var asked atomic.Int32
	_, err := nc.Subscribe("fab.shop.admin.release", func(m *nats.Msg) {
		reply := nats.NewMsg(m.Reply)
		if asked.Add(1) == 2 {
			reply.Data, _ = json.Marshal(fabric.ReleaseReply{AnsweredBy: "n2", Poll: "fab.shop.node.n2.8.admin.release", ReleaseReport: objects.ReleaseReport{Released: 4}})
		} else {
			reply.Header = outcome.New("release", outcome.NotFound, outcome.NotAccepted, "", "no such object is owned").Headers(outcome.NotAccepted)
		}
		if err := nc.PublishMsg(reply); err != nil {
			t.Error(err)
		}
	})
	if err = errors.Join(err, nc.Flush()); err != nil {
		t.Fatal(err)
	}
	c := &releaseCmd{meshFlags: meshFlags{Mesh: "shop"}}
	a := &app{screen: newScreen(io.Discard)}
	req := objects.ReleaseRequest{RID: "n3", Lifecycle: 12}
	_, err = c.release(t.Context(), a, nc, req, "objects of n3/12")
	if exitCode(err) != ExitNotFound || !strings.Contains(err.Error(), "fabricnode objects --owner n3 shows") {
		t.Errorf("nothing had begun: %v", err)
	}
	got, err := c.release(t.Context(), a, nc, req, "objects of n3/12") // n2 takes it and has gone, and nothing is left
	if err != nil || !got.Done || got.Released != 4 || asked.Load() != 3 {
		t.Errorf("a release had begun: %+v, %v after %d requests", got, err, asked.Load())
	}
}

// What is said at the end says what was done, and by whom the rest is done.
func TestReleaseTexts(t *testing.T) {
	for _, c := range []struct {
		report objects.ReleaseReport
		want   string
	}{
		{objects.ReleaseReport{Released: 5}, "objects of n3/12: 5 released\n"},
		{objects.ReleaseReport{}, "objects of n3/12: 0 released; none is left, they were released or closed meanwhile\n"},
		{objects.ReleaseReport{DryRun: true, Released: 1, Skipped: 1, Objects: []objects.ReleasedObject{
			{Kind: "actor", ID: "a", Type: "t", Generation: 3, Outcome: "would release"},
			{Kind: "spot", ID: "b", Type: "t", Generation: 4, Outcome: "skipped", Why: "its owner lives"},
		}}, "actor/a@3  t  would release\nspot/b@4   t  skipped  its owner lives\nobjects of n3/12: 1 would be released, 1 skipped, 0 failed\n"},
	} {
		var out strings.Builder
		if printRelease(&out, "objects of n3/12", fabric.ReleaseReply{ReleaseReport: c.report}); out.String() != c.want {
			t.Errorf("got  %q\nwant %q", out.String(), c.want)
		}
	}
	if got := goesOn(fabric.ReleaseReply{AnsweredBy: "n1"}); got != "n1 works on it" {
		t.Errorf("got %q", got)
	}
}

// A refusal ends the command, and so does a mesh without nodes.
func TestReleaseRefused(t *testing.T) {
	nc := fabrictest.StartServer(t).Connect(t)
	c := &releaseCmd{meshFlags: meshFlags{Mesh: "shop"}}
	a := &app{screen: newScreen(io.Discard)}
	_, err := c.release(t.Context(), a, nc, objects.ReleaseRequest{}, "actor/a@1")
	if !errors.Is(err, outcome.Unavailable) || !strings.Contains(err.Error(), "no node") {
		t.Errorf("got %v, want Unavailable", err)
	}
	_, err = nc.Subscribe("fab.shop.admin.release", func(m *nats.Msg) {
		reply := nats.NewMsg(m.Reply)
		reply.Header = outcome.New("release", outcome.InvalidOperation, outcome.NotAccepted, "", "it lives").Headers(outcome.NotAccepted)
		if err := nc.PublishMsg(reply); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = c.release(t.Context(), a, nc, objects.ReleaseRequest{}, "actor/a@1")
	if !errors.Is(err, outcome.InvalidOperation) || exitCode(err) != ExitNotAccepted || time.Since(start) > releasePoll {
		t.Errorf("got %v after %v, want the refusal at once", err, time.Since(start))
	}
}
