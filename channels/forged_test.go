package channels_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// impostor subscribes as a member would, and answers by f; what a real member never says can be said so.
func impostor(t *testing.T, url, subject, group string, f func(nc *nats.Conn, m *nats.Msg)) {
	t.Helper()
	nc := dial(t, url)
	if _, err := nc.QueueSubscribe(subject, group, func(m *nats.Msg) { f(nc, m) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestNoticeIsNotTakenBack (FO-2.3, FO-10.3): who has said that it accepted cannot refuse afterwards, and nobody else is
// asked.
func TestNoticeIsNotTakenBack(t *testing.T) {
	t.Parallel()
	srv := server(t)
	impostor(t, srv.URL(), mesh.Channel("c"), wire.QueueGroup, func(nc *nats.Conn, m *nats.Msg) {
		_ = nc.Publish(m.Reply+wire.NoticeSuffix, []byte("m1"))
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "no after all").Headers(outcome.NotAccepted)})
	})
	var tr channels.Trace
	_, err := startClient(t, srv.URL(), newDirectory(member("m1", 1, "c"))).Channel("c").
		Request(within(t, patience), nil, channels.WithEarlyAcceptance(), channels.WithTrace(&tr))
	wantErr(t, err, outcome.Unavailable, outcome.Accepted)
	if tr.Attempts != 1 {
		t.Errorf("%d attempts", tr.Attempts)
	}
}

// TestGreetingAnotherRun (FO-3.2c): a handshake that another process run answers makes nobody ready.
func TestGreetingAnotherRun(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"lifecycle": `{"protocol":1,"rid":"m1","lifecycle":2,"epoch":1}`,
		"rid":       `{"protocol":1,"rid":"m2","lifecycle":1,"epoch":1}`,
		"protocol":  `{"protocol":2,"rid":"m1","lifecycle":1,"epoch":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			srv := server(t)
			ran := make(chan struct{}, 1)
			impostor(t, srv.URL(), mesh.NodeHello("m1", 1), "", func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond([]byte(answer)) })
			impostor(t, srv.URL(), mesh.NodeChannel("m1", 1, "c"), "", func(_ *nats.Conn, m *nats.Msg) { ran <- struct{}{}; _ = m.Respond(nil) })
			_, err := startClient(t, srv.URL(), newDirectory(member("m1", 1, "c"))).Channel("c").At("m1").Request(within(t, patience), nil)
			wantErr(t, err, outcome.ProtocolError, outcome.NotAccepted)
			if len(ran) != 0 {
				t.Error("the request was sent to another run")
			}
		})
	}
}

// TestDrainingIsNoCandidate (FO-3.1a): a member whose descriptor says that it drains is none, whatever listens.
func TestDrainingIsNoCandidate(t *testing.T) {
	t.Parallel()
	srv := server(t)
	m := member("m1", 1, "c")
	m.State = kvlocation.StateDraining
	caller := startClient(t, srv.URL(), newDirectory(m))
	wantErr(t, caller.Channel("c").SendUnconfirmed(within(t, patience), nil), outcome.Unavailable, outcome.NotAccepted)
	_, err := caller.Channel("c").Request(within(t, patience), nil)
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
}

// TestRefusersAreNamed (FO-10.1): what is sent again names who has refused.
func TestRefusersAreNamed(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	watcher := dial(t, srv.URL())
	seen, err := watcher.SubscribeSync(mesh.Channel("c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(); err != nil {
		t.Fatal(err)
	}
	refusal := func(rid string) nats.Header {
		h := nats.Header(outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "full").Headers(outcome.NotAccepted))
		h[wire.HeaderFrom] = []string{rid}
		return h
	}
	members := []string{"m1", "m2"}
	impostor(t, srv.URL(), mesh.Channel("c"), wire.QueueGroup, func(nc *nats.Conn, m *nats.Msg) {
		if len(members) == 0 {
			_ = m.Respond(nil)
			return
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: refusal(members[0])})
		members = members[1:]
	})
	if _, err := startClient(t, srv.URL(), dir).Channel("c").Request(within(t, patience), nil); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "m1"} {
		m, err := seen.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get(wire.HeaderRefused); got != want {
			t.Errorf("attempt %d names %q, want %q", i+1, got, want)
		}
	}
}

// TestLongDeadlinesAreCut: no operation is pursued for longer than MaxTimeout, whatever its context says.
func TestLongDeadlinesAreCut(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	told := make(chan time.Duration, 1)
	m1 := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: newClock()})
	serve(t, m1, channels.Spec{Name: "c", Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		d, ok := req.Deadline()
		if !ok {
			return channels.Reply{}, fmt.Errorf("no deadline")
		}
		told <- time.Until(d)
		return channels.Reply{}, nil
	}})
	if err := m1.SetServing(true); err != nil {
		t.Fatal(err)
	}
	caller := start(t, srv.URL(), channels.Config{ClientName: "cut", Directory: dir, Clock: newClock()})
	if _, err := caller.Channel("c").Request(within(t, 9*time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	if left := <-told; left > channels.MaxTimeout+time.Minute {
		t.Errorf("a request with 9 hours to go came with %v left", left)
	}
}

// TestReplySubjectThatIsNone: a message that names a subject of the server's, or one of the mesh's own, as the place for its
// answer is not taken: the node, which may write there, is not made to.
func TestReplySubjectThatIsNone(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var l ledger
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
	nc := dial(t, srv.URL())
	wrong := []string{"$KV.FABRIC_m_LOCATION.actor.alice", string(mesh.Channel("other")), mesh.NodeChannel("m1", 1, "other")}
	answers := map[string]*nats.Subscription{}
	for _, reply := range wrong {
		sub, err := nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		answers[reply] = sub
	}
	subjects := []string{
		mesh.Channel("c"), mesh.NodeChannel("m1", 1, "c"), mesh.NodeChannel("m1", 1, "none"), mesh.NodeHello("m1", 1),
		"$SRV.PING", "$SRV.INFO.c", "$SRV.STATS.c.m1-1",
	}
	for _, reply := range wrong {
		for _, subject := range subjects {
			if err := nc.PublishRequest(subject, reply, []byte("forged")); err != nil {
				t.Fatal(err)
			}
		}
	}
	// What is asked behind them on the same ways is answered, and nothing was before.
	for _, subject := range subjects {
		if _, err := nc.Request(subject, []byte("asked"), patience); err != nil {
			t.Fatal(subject, err)
		}
	}
	for reply, sub := range answers {
		if n, _, err := sub.Pending(); err != nil || n != 0 {
			t.Errorf("%d answers went to %s (%v)", n, reply, err)
		}
	}
	if got := l.of("forged"); len(got) != 0 {
		t.Errorf("%d of them ran", len(got))
	}
}
