package session

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// TestActorUnbinds: the Actor ends a binding: what it pushed before comes first, and Unbound is not called.
func TestActorUnbinds(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	var refused error
	turn := func(ctx context.Context, req *objects.Request) (objects.Reply, error) {
		present, _ := Of(req)
		if err := present.Push(ctx, []byte("good bye")); err != nil {
			return objects.Reply{}, err
		}
		present.Unbind("the game is over")
		refused = present.Push(ctx, []byte("too late"))
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&turn)
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", nil); err != nil {
		t.Fatal(err)
	}
	b.log.onTurn.Store(nil)
	if outcome.KindOf(refused) != outcome.Unavailable || outcome.AcceptanceOf(refused) != outcome.NotAccepted || !strings.Contains(refused.Error(), "actor") {
		t.Fatal(refused)
	}
	if g := l.want(frame.Push); g.data != "good bye" {
		t.Fatal(g)
	}
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonActor) || g.Text != "the game is over" {
		t.Fatal(g)
	}
	again := l.bind(ref.String())
	if g := l.call(frame.Request, again.Token, "add"); again.Number != 2 || g.data != "1" {
		t.Fatal(again, g)
	}
	for _, line := range b.log.of("alice") {
		if strings.HasPrefix(line, "unbound") {
			t.Fatal(b.log.of("alice"))
		}
	}
}

// TestPushOutsideATurn: only a turn of the Actor pushes.
func TestPushOutsideATurn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1")
	ref := n.actor("alice")
	l := n.dial("ann")
	l.bind(ref.String())
	var kept *Binding
	var in context.Context
	turn := func(ctx context.Context, req *objects.Request) (objects.Reply, error) {
		kept, _ = Of(req)
		in = ctx
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&turn)
	if _, err := n.objs.Actors().Request(b.ctx(), "alice", nil); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{in, context.Background()} {
		if err := kept.Push(ctx, nil); outcome.KindOf(err) != outcome.InvalidOperation || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Fatal(err)
		}
	}
	if kept.Session().String() == "" || strings.Contains(kept.Session().String(), l.hello.Session) || kept.Actor() != ref || string(kept.Data()) != "data of ann" {
		t.Fatalf("%+v", kept.Session())
	}
}

// TestPushToADeadSession: the Actor never heard that the session is over. Its push finds out: the Actor is told, and has no
// binding any more.
func TestPushToADeadSession(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2", heartbeat(10*time.Minute)) // no comparison in the time of the test
	ref := n2.actor("alice")
	l := n1.dial("ann")
	l.bind(ref.String())
	lost := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n2.*.ses.unbind.alice", Times: -1, Action: fabrictest.Drop})
	l.write(frame.Header{Type: frame.Bye}, "")
	<-lost.Reached()
	if b.log.has("alice", "unbound ann 1: disconnected") != 0 {
		t.Fatal("it was told")
	}
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); outcome.KindOf(err) != outcome.NotFound {
		t.Fatal(err)
	}
}

// TestLostDisconnect: the same, and the Actor pushes nothing: the comparison finds out.
func TestLostDisconnect(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2", heartbeat(time.Second))
	ref := n2.actor("alice")
	l := n1.dial("ann")
	l.bind(ref.String())
	n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n2.*.ses.unbind.alice", Times: 1, Action: fabrictest.Drop})
	l.write(frame.Header{Type: frame.Bye}, "")
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
}

// TestLostBind: the answer to a bind is lost. The client hears Unknown, and the Actor is bound to nobody in the end.
func TestLostBind(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2", heartbeat(time.Second))
	ref := n2.actor("alice")
	l := n1.dial("ann")
	n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n2.*.ses.bind.alice", Answer: true, Action: fabrictest.Drop})
	l.next++
	l.write(frame.Header{Type: frame.Bind, ID: l.next, Ref: ref.String(), MS: 5000}, "")
	wantErr(t, l.want(frame.Err), outcome.DeadlineExceeded, outcome.Unknown)
	fabrictest.Eventually(t, long, "the Actor is let go", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
	if g := l.bind(ref.String()); g.Type != frame.OK || g.Number != 2 {
		t.Fatal(g)
	}
}

// TestOrderAcrossAMove: the source's last pushes are under way when the target's first ones arrive. The client gets them in
// the order in which they were made.
func TestOrderAcrossAMove(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2, n3 := b.node("n1", func(s *settings) { s.GapWait = 20 * time.Second }), b.node("n2"), b.node("n3")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	held := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.ses.push.>", Times: -1, Action: fabrictest.HoldAlone})
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 3")); err != nil {
		t.Fatal(err)
	}
	<-held.Reached()
	n2.move("alice", n3)
	if g := l.want(frame.Moved); g.Token != bound.Token {
		t.Fatal(g)
	}
	if _, err := n3.objs.Actors().Request(b.ctx(), "alice", []byte("push 2")); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "the target's pushes are there", func() bool {
		tie := n1.tieOf(l.hello.Session, bound.Token)
		tie.c.mu.Lock()
		defer tie.c.mu.Unlock()
		return len(tie.in.wait) == 2
	})
	held.Release()
	for i, want := range []string{"n2 0", "n2 1", "n2 2", "n3 0", "n3 1"} {
		owner := uint64(1 + i/3)
		if g := l.want(frame.Push); g.Seq != uint64(i+1) || g.Owner != owner || g.data != want {
			t.Fatalf("push %d: %v", i, g)
		}
	}
	if st := n1.Stats(); st.Gaps != 0 {
		t.Fatalf("%+v", st)
	}
}

// TestEdgeNode: sessions stand on one node, Actors on others that take none. They are bound, push, and move among these.
func TestEdgeNode(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	hostOnly := func(s *settings) { s.Authenticate = nil }
	edge, n2, n3 := b.node("edge"), b.node("n2", hostOnly), b.node("n3", hostOnly)
	ref := n2.actor("alice")
	for range 5 { // any node might have answered
		l, _ := b.dialNATS(b.server.URL(), "x")
		if w := l.want(frame.Welcome); w.RID != "edge" {
			t.Fatal(w)
		}
	}
	l := edge.dial("ann")
	bound := l.bind(ref.String())
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "1" {
		t.Fatal(g)
	}
	n2.move("alice", n3)
	if g := l.want(frame.Moved); g.RID != "n3" {
		t.Fatal(g)
	}
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "2" {
		t.Fatal(g)
	}
	if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); err != nil {
		t.Fatal(err)
	}
	if g := l.want(frame.Push); g.data != "n3 0" || g.Owner != 2 {
		t.Fatal(g)
	}
	resp, err := http.Get(n3.web.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusNotFound || !strings.Contains(string(text), "takes no sessions") {
		t.Fatal(resp.Status, string(text), err)
	}
}

// TestActorsNodeStops: the node of the Actor stops in order, and the client hears at once that the binding is over.
func TestActorsNodeStops(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n2.stop()
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonLost) {
		t.Fatal(g)
	}
}

// TestActorsNodeDies: without a word. The client hears it once that node's lease is over, without asking anything.
func TestActorsNodeDies(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1", heartbeat(2*time.Second)), b.node("n2", shortLease)
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n2.vanish()
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonLost) {
		t.Fatal(g)
	}
}

// TestEarlyAcceptance: the session's node loses its connection while a request runs. With a notice the failure says
// Accepted, without one Unknown; either ran once.
func TestEarlyAcceptance(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{false, true} {
		b := newBed(t)
		n1, n2 := b.node("n1"), b.node("n2")
		ref := n2.actor("alice")
		n2.actor("bob")
		l := n1.dial("ann")
		bound := l.bind(ref.String())
		started, hold := make(chan struct{}), make(chan struct{})
		turn := func(context.Context, *objects.Request) (objects.Reply, error) {
			close(started)
			<-hold
			return objects.Reply{}, nil
		}
		b.log.onTurn.Store(&turn)
		l.next++
		l.write(frame.Header{Type: frame.Request, ID: l.next, Token: bound.Token, Early: early, MS: 20_000}, "slow")
		<-started
		b.log.onTurn.Store(nil)
		want := outcome.Unknown
		if early {
			want = outcome.Accepted
			fabrictest.Eventually(t, long, "the notice is at the server", func() bool { return noticed(n2) })
			// A reply that follows it on the same way: the notice has been read, too.
			if _, err := n1.objs.Actors().Request(b.ctx(), "bob", []byte("add")); err != nil {
				t.Fatal(err)
			}
		}
		n1.proxy.Apply(fabrictest.Cut)
		wantErr(t, l.want(frame.Err), outcome.Unavailable, want)
		close(hold)
		if b.log.has("alice", "ann: slow") != 1 {
			t.Fatal(b.log.of("alice"))
		}
	}
}

// noticed reports whether a node has sent a notice of acceptance for an object's message, and the server has it.
func noticed(n *node) bool {
	for name, s := range n.router.Metrics().Services {
		if name == "obj" && s.Notices > 0 {
			return n.nc.Flush() == nil
		}
	}
	return false
}

// TestCloseWithAHungAuthenticator: Close ends with its context, and says what has not returned.
func TestCloseWithAHungAuthenticator(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	hold, asked := make(chan struct{}), make(chan struct{})
	n := b.node("n1", func(s *settings) {
		s.Authenticate = func(context.Context, Hello) (Identity, error) {
			close(asked)
			<-hold
			return Identity{}, nil
		}
	})
	l := n.dialRaw()
	l.write(frame.Header{Type: frame.Hello, V: frame.Version}, "x")
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := n.Service.Close(ctx)
	close(hold)
	if err == nil || !strings.Contains(err.Error(), "1 callbacks of the application have not returned") {
		t.Fatal(err)
	}
	if again := n.Service.Close(t.Context()); again == nil || again.Error() != err.Error() {
		t.Fatal(again)
	}
}

// TestConfig: a wrong field is named, with its value and what is allowed.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Config)
		text   string
	}{
		{func(c *Config) { c.MaxSessions = -1 }, "MaxSessions -1 is not allowed: it must be 1 to 10000000"},
		{func(c *Config) { c.Heartbeat = time.Millisecond }, "Heartbeat 1ms is not allowed: it must be 20ms to 10m0s"},
		{func(c *Config) { c.GapWait = time.Hour }, "GapWait 1h0m0s is not allowed: it must be 1ms to 1m0s"},
		{func(c *Config) { c.Slow = 7 }, "Slow SlowPolicy(7) is not allowed"},
	} {
		cfg := Config{Authenticate: letIn}
		c.change(&cfg)
		if err := cfg.Tune(); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("got %v, want %q", err, c.text)
		}
	}
	if _, err := New(Config{Mesh: "m", RID: "n1"}); err == nil || !strings.Contains(err.Error(), "session: Lifecycle is required") {
		t.Error(err)
	}
}

// TestEveryActorIsTold: the end of a session is told at once to each of the Actors to which it is bound, at every node.
func TestEveryActorIsTold(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	never := heartbeat(10 * time.Minute) // no comparison in the time of the test
	n1, n2, n3 := b.node("n1", never), b.node("n2", never), b.node("n3", never)
	l := n1.dial("ann")
	const actors = 3 * farewells
	for i := range actors {
		ref := []*node{n1, n2, n3}[i%3].actor(fmt.Sprint("actor", i))
		if g := l.bind(ref.String()); g.Type != frame.OK {
			t.Fatal(g)
		}
	}
	l.cut()
	for i := range actors {
		fabrictest.Eventually(t, long, fmt.Sprintf("Actor %d is told", i), func() bool {
			return b.log.has(fmt.Sprint("actor", i), "unbound ann 1: disconnected") == 1
		})
	}
}
