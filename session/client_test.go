package session

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/client"
	"natsfabric/session/internal/frame"
)

// witness is what a client was told.
type witness struct {
	mu     sync.Mutex
	lines  []string
	pushes []client.Push
}

func (w *witness) event(e client.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := string(e.Kind)
	if e.Why != "" {
		line += " " + e.Why
	}
	if e.Kind == client.EventRefused {
		line += " " + outcome.KindOf(e.Err).String()
	}
	w.lines = append(w.lines, line)
}

func (w *witness) push(_ *client.Binding, p client.Push) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pushes = append(w.pushes, p)
}

func (w *witness) has(line string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		if l == line {
			return true
		}
	}
	return false
}

func (w *witness) pushed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pushes)
}

func (n *node) ws() string { return "ws" + strings.TrimPrefix(n.web.URL, "http") + "/session" }

// client opens a client, and closes it at the test's end.
func (b *bed) client(w *witness, cfg client.Config) *client.Client {
	b.t.Helper()
	cfg.Mesh, cfg.Name, cfg.MaxBackoff = "m", "test", 500*time.Millisecond
	if w != nil {
		cfg.OnEvent, cfg.OnPush = w.event, w.push
	}
	if cfg.Credentials == nil {
		cfg.Credentials = func(context.Context) ([]byte, error) { return []byte("ann"), nil }
	}
	c, err := client.Dial(b.ctx(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

// eachClient runs a test with Go's client over both transports. urls are the addresses of nodes.
func eachClient(t *testing.T, f func(t *testing.T, urls func(b *bed, ns ...*node) []string)) {
	t.Run("websocket", func(t *testing.T) {
		t.Parallel()
		f(t, func(_ *bed, ns ...*node) (out []string) {
			for _, n := range ns {
				out = append(out, n.ws())
			}
			return out
		})
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		f(t, func(b *bed, _ ...*node) []string { return []string{b.server.URL()} })
	})
}

func TestClient(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, urls func(*bed, ...*node) []string) {
		b := newBed(t)
		n1, n2 := b.node("n1"), b.node("n2")
		ref := n2.actor("alice")
		w := &witness{}
		c := b.client(w, client.Config{URLs: urls(b, n1)})
		if string(c.Welcome()) != "hello ann" {
			t.Fatalf("%q", c.Welcome())
		}
		bound, err := c.Bind(b.ctx(), "actor/alice")
		if err != nil || bound.Ref() != ref.String() {
			t.Fatal(bound, err)
		}
		if reply, err := bound.Request(b.ctx(), []byte("add")); err != nil || string(reply) != "1" {
			t.Fatal(reply, err)
		}
		if err := bound.Send(b.ctx(), []byte("add")); err != nil {
			t.Fatal(err)
		}
		_, err = bound.RequestNoticed(b.ctx(), []byte("fail"))
		var e *outcome.Error
		if !errors.As(err, &e) || e.Kind != outcome.Rejected || e.Acceptance != outcome.Accepted || !e.Remote || e.Op != "request" {
			t.Fatalf("%#v", err)
		}
		if _, err := bound.Request(b.ctx(), []byte("push 5")); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "five pushes", func() bool { return w.pushed() == 5 })
		if w.pushes[4].Seq != 5 || string(w.pushes[4].Data) != "n2 4" {
			t.Fatalf("%+v", w.pushes)
		}
		if _, err := c.Bind(b.ctx(), "actor/nobody"); outcome.KindOf(err) != outcome.NotFound || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Fatal(err)
		}
		if err := bound.Unbind(b.ctx()); err != nil {
			t.Fatal(err)
		}
		if _, err := bound.Request(b.ctx(), nil); outcome.KindOf(err) != outcome.InvalidOperation {
			t.Fatal(err)
		}
		c.Close()
		c.Close()
		if _, err := c.Bind(b.ctx(), "actor/alice"); outcome.KindOf(err) != outcome.ShuttingDown {
			t.Fatal(err)
		}
		if len(w.lines) != 1 || w.lines[0] != "connected" {
			t.Fatal(w.lines)
		}
	})
}

// TestClientReconnects: the connection is cut while a request waits. That one ends with Unknown and runs once; the client
// opens another session, authenticates and binds again.
func TestClientReconnects(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"websocket", "nats"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			n1, n2 := b.node("n1"), b.node("n2")
			n2.actor("alice")
			w := &witness{}
			var p *fabrictest.Proxy
			var url string
			if kind == "nats" {
				p = fabrictest.NewProxy(t, b.server.URL())
				url = p.URL()
			} else {
				p = fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
				url = "ws" + strings.TrimPrefix(p.URL(), "nats")
			}
			logins := 0
			c := b.client(w, client.Config{URLs: []string{url}, Credentials: func(context.Context) ([]byte, error) {
				logins++
				return []byte("ann"), nil
			}})
			bound, err := c.Bind(b.ctx(), "actor/alice")
			if err != nil {
				t.Fatal(err)
			}
			firstNode, first, _ := c.Session()
			started, hold := make(chan struct{}), make(chan struct{})
			turn := func(context.Context, *objects.Request) (objects.Reply, error) {
				close(started)
				<-hold
				return objects.Reply{}, nil
			}
			b.log.onTurn.Store(&turn)
			failed := make(chan error, 1)
			go func() {
				_, err := bound.Request(b.ctx(), []byte("slow"))
				failed <- err
			}()
			<-started
			b.log.onTurn.Store(nil)
			p.Apply(fabrictest.Cut)
			if err := <-failed; outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.Unknown {
				t.Fatal(err)
			}
			close(hold)
			fabrictest.Eventually(t, long, "it is bound again", func() bool { return w.has("bound") })
			if reply, err := bound.Request(b.ctx(), []byte("add")); err != nil || string(reply) != "1" {
				t.Fatal(reply, err)
			}
			if node, number, ok := c.Session(); !ok || node == firstNode && number == first || logins < 2 { // an attempt that fails asks again
				t.Fatal(node, number, ok, logins)
			}
			if b.log.has("alice", "ann: slow") != 1 || !w.has("disconnected") {
				t.Fatal(b.log.of("alice"), w.lines)
			}
		})
	}
}

// TestClientHalfOpen: the connection is silent in both directions. Both sides find out.
func TestClientHalfOpen(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1 := b.node("n1", heartbeat(3*time.Second))
	n1.actor("alice")
	w := &witness{}
	p := fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
	c := b.client(w, client.Config{URLs: []string{"ws" + strings.TrimPrefix(p.URL(), "nats")}})
	if _, err := c.Bind(b.ctx(), "actor/alice"); err != nil {
		t.Fatal(err)
	}
	p.Apply(fabrictest.HalfOpen)
	fabrictest.Eventually(t, long, "the client gives up", func() bool { return w.has("disconnected") })
	fabrictest.Eventually(t, long, "the node gives up", func() bool { return n1.Stats().EndedSilent == 1 })
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
	p.Heal()
	fabrictest.Eventually(t, long, "another session", func() bool { return w.has("bound") })
}

// TestGoAway: the node drains. The client leaves in time: what waits is answered, what is new refused as NotAccepted, and it
// goes on at the other node with the same Actor.
func TestGoAway(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, urls func(*bed, ...*node) []string) {
		b := newBed(t)
		n1 := b.node("n1", func(s *settings) { s.GoAway = 20 * time.Second })
		w := &witness{}
		c := b.client(w, client.Config{URLs: urls(b, n1)})
		n2 := b.node("n2")
		ref := n2.actor("alice")
		bound, err := c.Bind(b.ctx(), ref.String())
		if err != nil {
			t.Fatal(err)
		}
		started, hold := make(chan struct{}), make(chan struct{})
		turn := func(context.Context, *objects.Request) (objects.Reply, error) {
			close(started)
			<-hold
			return objects.Reply{Data: []byte("done")}, nil
		}
		b.log.onTurn.Store(&turn)
		answered := make(chan error, 1)
		go func() {
			reply, err := bound.Request(b.ctx(), []byte("slow"))
			if err == nil && string(reply) != "done" {
				err = errors.New(string(reply))
			}
			answered <- err
		}()
		<-started
		b.log.onTurn.Store(nil)
		drained := make(chan error, 1)
		go func() { drained <- n1.Drain(b.ctx()) }()
		fabrictest.Eventually(t, long, "the go-away", func() bool { return w.has("go away") })
		if _, err := bound.Request(b.ctx(), []byte("add")); outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Fatal(err)
		}
		close(hold)
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
		if st := n1.Stats(); st.EndedLeft != 1 || st.EndedDraining != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestClientGoesElsewhere: of two addresses the client takes the other one when its node drains.
func TestClientGoesElsewhere(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1", func(s *settings) { s.GoAway = 20 * time.Second }), b.node("n2")
	n2.actor("alice")
	w := &witness{}
	c := b.client(w, client.Config{URLs: []string{n1.ws(), n2.ws()}})
	bound, err := c.Bind(b.ctx(), "actor/alice")
	if err != nil {
		t.Fatal(err)
	}
	if err := n1.Drain(b.ctx()); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "it is bound again", func() bool { return w.has("bound") })
	if node, _, ok := c.Session(); !ok || node != "n2" {
		t.Fatal(node, ok)
	}
	if reply, err := bound.Request(b.ctx(), []byte("add")); err != nil || string(reply) != "1" || bound.Generation() != 2 {
		t.Fatal(reply, err)
	}
}

func TestClientRefused(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, urls func(*bed, ...*node) []string) {
		b := newBed(t)
		n1 := b.node("n1")
		_, err := client.Dial(b.ctx(), client.Config{URLs: urls(b, n1), Mesh: "m", Credentials: func(context.Context) ([]byte, error) {
			return []byte("wrong"), nil
		}})
		if outcome.KindOf(err) != outcome.Rejected || outcome.AcceptanceOf(err) != outcome.NotAccepted || strings.Contains(err.Error(), "no such user") {
			t.Fatal(err)
		}
	})
}

// TestClientBackoff: a node that lets the client in and drops it at once is asked less and less often, like one that does not let it in.
func TestClientBackoff(t *testing.T) {
	t.Parallel()
	const shortest, attempts = 20 * time.Millisecond, 7
	opened := make(chan time.Time, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		ws := frame.NewSocket(conn, time.Minute)
		defer ws.Cut()
		if _, err := ws.Read(); err == nil {
			_ = ws.Write(frame.Make(&frame.Header{Type: frame.Welcome, V: frame.Version, Heartbeat: 60_000, MaxMessage: 1, InFlight: 1}, nil))
			opened <- time.Now()
		}
	}))
	defer server.Close()
	c, err := client.Dial(t.Context(), client.Config{URLs: []string{"ws" + strings.TrimPrefix(server.URL, "http")}, MinBackoff: shortest, MaxBackoff: long})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := <-opened
	for i := range attempts {
		select {
		case at := <-opened:
			if least := shortest << i / 2; at.Sub(before) < least {
				t.Errorf("attempt %d came after %v, want at least %v", i+1, at.Sub(before), least)
			}
			before = at
		case <-time.After(long):
			t.Fatal("the client has given up")
		}
	}
}

// TestClientLateBind: the answer to a bind comes when its caller has given up. The Actor is let go.
func TestClientLateBind(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	n2.actor("alice")
	p := fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
	c := b.client(nil, client.Config{URLs: []string{"ws" + strings.TrimPrefix(p.URL(), "nats")}, RequestTimeout: long})
	hold := n2.occupy("alice")
	ctx, cancel := context.WithCancel(b.ctx())
	failed := make(chan error, 1)
	go func() {
		_, err := c.Bind(ctx, "actor/alice")
		failed <- err
	}()
	fabrictest.Eventually(t, long, "the bind waits for its turn", func() bool { return n2.stats.turns.Load() == 1 })
	p.Apply(fabrictest.Hang)
	close(hold)
	fabrictest.Eventually(t, long, "the Actor is bound", func() bool { return b.log.has("alice", "bound ann 1") == 1 })
	cancel()
	if err := <-failed; outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Fatal(err)
	}
	p.Heal()
	fabrictest.Eventually(t, long, "the Actor is let go", func() bool { return b.log.has("alice", "unbound ann 1: unbound") == 1 })
}

// TestIdleClients: who has nothing to say answers the node's pings.
func TestIdleClients(t *testing.T) {
	t.Parallel()
	pinged := func(t *testing.T, n *node) {
		t.Helper()
		fabrictest.Eventually(t, long, "three pongs have come", func() bool { return n.Stats().Frames >= 3 })
	}
	eachClient(t, func(t *testing.T, urls func(*bed, ...*node) []string) {
		b := newBed(t)
		n := b.node("n1", heartbeat(500*time.Millisecond))
		b.client(nil, client.Config{URLs: urls(b, n)})
		pinged(t, n)
	})
	t.Run("javascript", func(t *testing.T) {
		t.Parallel()
		b := newBed(t)
		n := b.node("n1", heartbeat(500*time.Millisecond))
		b.script(n.ws()).want("connected n1 hello ann")
		pinged(t, n)
	})
}
