package channels_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// TestForward: a message that is forwarded is answered by the third straight to its caller, in the caller's name and time,
// and the notice of its acceptance may carry headers.
func TestForward(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1), member("m2", 1))
	var nodes [2]*node
	for i, rid := range []string{"m1", "m2"} {
		nodes[i] = start(t, srv.URL(), channels.Config{RID: rid, Lifecycle: 1, Directory: dir, Clock: newClock()})
		if err := nodes[i].SetServing(true); err != nil {
			t.Fatal(err)
		}
	}
	caller := start(t, srv.URL(), channels.Config{RID: "caller", Lifecycle: 9, Directory: dir, Clock: newClock()})
	listen(t, nodes[0], func(in *channels.Inbound) {
		if err := nodes[0].Forward("m2", 1, nodes[0].RunSubject("m2", 1, "svc", "do.it"), in.ReplyTo(), in.Data(), nats.Header{"X-Sent-On": {"1"}}); err != nil {
			t.Error(err)
		}
	})
	listen(t, nodes[1], func(in *channels.Inbound) {
		s, ok := in.Sender()
		_, timed := in.Deadline()
		if !ok || s.RID != "caller" || !timed || in.Header().Get("X-Sent-On") != "1" {
			t.Errorf("sender %v, deadline %v, header %v", s, timed, in.Header())
		}
		in.AcceptWith(nats.Header{"X-Place": {"m2"}})
		in.Reply([]byte("m2 "+string(in.Data())), nil)
	})
	reply, err := caller.CallRun(within(t, patience), runOf(caller, "m1", "hello"))
	if err != nil || string(reply.Data) != "m2 hello" {
		t.Fatal(reply, err)
	}
	c := runOf(caller, "m1", "hello")
	c.OneWay = true
	if reply, err = caller.CallRun(within(t, patience), c); err != nil || reply.Header.Get("X-Place") != "m2" || len(reply.Data) > 0 {
		t.Fatal(reply, err)
	}
}

// TestAwait: another process run answers for this one, once; what comes of no answer is Unknown, or Accepted after a notice;
// a refusal keeps its headers.
func TestAwait(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1))
	a := start(t, srv.URL(), channels.Config{RID: "a", Lifecycle: 3, Directory: dir, Clock: newClock()})
	b := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: newClock()})
	await := func(d time.Duration, oneWay bool) *channels.Awaited {
		t.Helper()
		got, err := a.Await("request", "thing", time.Now().Add(d), oneWay)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	w := await(patience, false)
	oneway, notice, deadline := channels.Asked(w.ReplyTo())
	if s, ok := channels.SenderOf(w.ReplyTo()); !ok || s.RID != "a" || oneway || notice || deadline.IsZero() {
		t.Fatal(s, oneway, notice, deadline)
	}
	for range 2 {
		if err := b.Answer(w.ReplyTo(), []byte("yes"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := w.Wait(t.Context()); err != nil || string(reply.Data) != "yes" {
		t.Fatal(reply, err)
	}
	w = await(patience, true)
	b.Notice(w.ReplyTo(), nats.Header{"X-Place": {"m1"}})
	if reply, err := w.Wait(t.Context()); err != nil || reply.Header.Get("X-Place") != "m1" {
		t.Fatal(reply, err)
	}
	w = await(patience, false)
	refusal := outcome.New("", outcome.Unavailable, outcome.NotAccepted, "thing", "not here")
	if err := b.AnswerRefusal(w.ReplyTo(), refusal, nats.Header{wire.HeaderRoute: {"there"}}); err != nil {
		t.Fatal(err)
	}
	reply, err := w.Wait(t.Context())
	if wantErr(t, err, outcome.Unavailable, outcome.NotAccepted); reply.Header.Get(wire.HeaderRoute) != "there" {
		t.Fatal(reply)
	}
	_, err = await(50*time.Millisecond, false).Wait(t.Context())
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = await(patience, false).Wait(ctx)
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	await(patience, false).Cancel()
	w = await(patience, false)
	if err := b.Answer(w.ReplyTo(), nil, nil); err != nil {
		t.Fatal(err)
	}
	w.Cancel()
	if n := a.Metrics().Waiting; n != 0 {
		t.Fatalf("%d operations wait", n)
	}
	w = await(patience, false)
	a.Disconnected()
	_, err = w.Wait(t.Context())
	wantErr(t, err, outcome.Unavailable, outcome.Unknown)
	if _, err = a.Await("request", "thing", time.Now().Add(patience), false); err == nil {
		t.Fatal("it awaits without a connection")
	}
}
