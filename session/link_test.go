package session

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"

	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// link is a client that speaks frames, for tests of what a client library hides.
type link struct {
	t      testing.TB
	frames chan got
	send   func(data []byte) error
	cut    func()
	closed chan struct{} // when nothing comes any more
	mute   atomic.Bool   // pings are not answered
	next   uint64
	hello  got
}

type got struct {
	frame.Header
	data string
}

func (g got) String() string { return fmt.Sprintf("%+v %q", g.Header, g.data) }

// dial opens a session over a WebSocket and returns it with its welcome read.
func (n *node) dial(credentials string) *link {
	n.b.t.Helper()
	l := n.dialRaw()
	l.write(frame.Header{Type: frame.Hello, V: frame.Version, Client: "test"}, credentials)
	l.hello = l.want(frame.Welcome)
	return l
}

// dialRaw connects a WebSocket and says nothing.
func (n *node) dialRaw() *link {
	n.b.t.Helper()
	return n.dialTo(n.ws())
}

// dialTo connects a WebSocket to an address.
func (n *node) dialTo(url string) *link {
	t := n.b.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 24)
	l := &link{t: t, frames: make(chan got, 4096), closed: make(chan struct{})}
	l.send = func(data []byte) error { return conn.Write(ctx, websocket.MessageBinary, data) }
	l.cut = func() { _ = conn.CloseNow() }
	go func() {
		defer close(l.closed)
		for {
			_, data, err := conn.Read(ctx)
			if err != nil {
				return
			}
			l.took(data)
		}
	}()
	t.Cleanup(func() { cancel(); l.cut(); <-l.closed })
	return l
}

// enter opens a session over a WebSocket that the test itself reads and writes.
func (n *node) enter(credentials string) *websocket.Conn {
	t := n.b.t
	t.Helper()
	conn, _, err := websocket.Dial(n.b.ctx(), n.ws(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	if err := conn.Write(n.b.ctx(), websocket.MessageBinary, []byte(hello(credentials))); err != nil {
		t.Fatal(err)
	}
	if _, data, err := conn.Read(n.b.ctx()); err != nil || !bytes.HasPrefix(data, []byte(`{"t":"welcome"`)) {
		t.Fatalf("%q, %v", data, err)
	}
	return conn
}

// tcp opens a session over a WebSocket whose bytes are the test's.
func (n *node) tcp(credentials string) net.Conn {
	t := n.b.t
	t.Helper()
	conn, err := net.Dial("tcp", n.web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	const upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	first := hello(credentials)
	frame := append([]byte(upgrade), 0x82, 0x80|byte(len(first)), 0, 0, 0, 0) // one binary frame, masked with zeros
	if _, err := conn.Write(append(frame, first...)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// dialNATS opens a session over NATS.
func (n *node) dialNATS(credentials string) *link {
	n.b.t.Helper()
	l, _ := n.b.dialNATS(n.b.server.URL(), credentials)
	l.hello = l.want(frame.Welcome)
	return l
}

func (b *bed) dialNATS(url, credentials string) (*link, *nats.Conn) {
	t := b.t
	t.Helper()
	nc := b.connect(url, "client", nil)
	l := &link{t: t, frames: make(chan got, 4096), closed: make(chan struct{})}
	inbox := nc.NewInbox()
	if _, err := nc.Subscribe(inbox+".>", func(m *nats.Msg) { l.took(m.Data) }); err != nil {
		t.Fatal(err)
	}
	l.send = func(data []byte) error { return nc.PublishRequest(l.hello.To, inbox+".f", data) }
	l.cut = nc.Close
	t.Cleanup(nc.Close)
	if err := nc.PublishRequest(frame.OpenSubject("m"), inbox+".h", frame.Make(&frame.Header{Type: frame.Hello, V: 1}, []byte(credentials))); err != nil {
		t.Fatal(err)
	}
	return l, nc
}

func (l *link) took(data []byte) {
	h, payload, err := frame.Parse(data)
	if err != nil {
		h.Text = err.Error()
	}
	if h.Type == frame.Ping {
		if !l.mute.Load() {
			_ = l.send(frame.Make(&frame.Header{Type: frame.Pong}, nil))
		}
		return
	}
	l.frames <- got{h, string(payload)}
}

func (l *link) write(h frame.Header, payload string) {
	l.t.Helper()
	if err := l.send(frame.Make(&h, []byte(payload))); err != nil {
		l.t.Fatal(err)
	}
}

// read returns the next frame.
func (l *link) read() got {
	l.t.Helper()
	select {
	case g := <-l.frames:
		return g
	case <-time.After(long):
		l.t.Fatal("no frame came")
	}
	return got{}
}

// want returns the next frame, which must be of this type.
func (l *link) want(typ string) got {
	l.t.Helper()
	g := l.read()
	if g.Type != typ {
		l.t.Fatalf("got %v, want %s", g, typ)
	}
	return g
}

// ask sends a request and returns its id.
func (l *link) ask(typ, token, payload string) uint64 {
	l.t.Helper()
	l.next++
	l.write(frame.Header{Type: typ, ID: l.next, Token: token, MS: 20_000}, payload)
	return l.next
}

// call sends a request and returns its answer, which must be the next frame.
func (l *link) call(typ, token, payload string) got {
	l.t.Helper()
	id := l.ask(typ, token, payload)
	g := l.read()
	if g.ID != id || g.Type != frame.OK && g.Type != frame.Err {
		l.t.Fatalf("got %v, want the answer to %d", g, id)
	}
	return g
}

// bind binds to an Actor and returns the answer.
func (l *link) bind(ref string) got {
	l.t.Helper()
	l.next++
	l.write(frame.Header{Type: frame.Bind, ID: l.next, Ref: ref, MS: 20_000}, "")
	g := l.read()
	if g.ID != l.next {
		l.t.Fatalf("got %v, want the answer to a bind", g)
	}
	return g
}

func wantErr(t testing.TB, g got, kind outcome.Kind, acc outcome.Acceptance, words ...string) {
	t.Helper()
	if g.Type != frame.Err || g.Kind != kind.String() || g.Acceptance != acc.String() {
		t.Fatalf("got %v, want %v (%v)", g, kind, acc)
	}
	for _, w := range words {
		if !strings.Contains(g.Text, w) {
			t.Fatalf("the text %q does not say %q", g.Text, w)
		}
	}
}

// standIn serves WebSockets as a node would whose every Actor answers with what it gets, and returns its address. Every answer
// but the welcome comes so many times.
func standIn(t testing.TB, times int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		ws := frame.NewSocket(conn, time.Minute)
		defer ws.Cut()
		var out []byte
		for {
			data, err := ws.Read()
			if err != nil {
				return
			}
			h, payload, err := frame.Parse(data)
			if err != nil {
				return
			}
			answer, n := frame.Header{Type: frame.OK, ID: h.ID}, times
			switch h.Type {
			case frame.Hello:
				answer, n = frame.Header{Type: frame.Welcome, V: frame.Version, Heartbeat: 60_000, MaxMessage: 1 << 16, InFlight: 64}, 1
			case frame.Bind:
				answer.Token, answer.Ref = "token", h.Ref
			}
			out = frame.Append(out[:0], &answer, payload)
			for range n {
				if ws.Write(out) != nil {
					return
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}
