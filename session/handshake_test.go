package session

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// TestHandshake: every refusal has a kind and says why, and the connection ends.
func TestHandshake(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	hold := make(chan struct{})
	strict := func(s *settings) {
		s.MaxSessions, s.MaxMessage, s.HandshakeTimeout = 2, 1000, long
		s.Authenticate = func(ctx context.Context, h Hello) (Identity, error) {
			switch string(h.Credentials) {
			case "hang":
				<-hold
			case "panic":
				panic("no")
			case "busy":
				return Identity{}, outcome.New("", outcome.Unavailable, outcome.Unknown, "", "the directory of users does not answer")
			case "long":
				return Identity{Subject: strings.Repeat("x", 256)}, nil
			}
			return letIn(ctx, h)
		}
	}
	n := b.node("n1", strict)
	hasty := b.node("n2", strict, func(s *settings) { s.HandshakeTimeout = 500 * time.Millisecond })
	t.Cleanup(func() { close(hold) })
	for _, c := range []struct {
		name  string
		first string
		kind  outcome.Kind
		text  string
	}{
		{"wrong", hello("wrong"), outcome.Rejected, "the client may not open a session"},
		{"the authenticator's own error", hello("busy"), outcome.Unavailable, "the directory of users does not answer"},
		{"hang", hello("hang"), outcome.DeadlineExceeded, " in time"}, // the hello, on a machine that is busy
		{"panic", hello("panic"), outcome.InternalFailure, "the node failed: the authenticator panicked"},
		{"identity too large", hello("long"), outcome.InternalFailure, "the node's authenticator failed"},
		{"version", "{\"t\":\"hello\",\"v\":9}\n", outcome.ProtocolError, "the client speaks version 9 of the protocol, the node version 1"},
		{"not a hello", "{\"t\":\"request\",\"id\":1}\n", outcome.ProtocolError, "the first frame must be a hello"},
		{"no frame", "hello", outcome.ProtocolError, "no line feed"},
		{"large", hello(strings.Repeat("x", 1001)), outcome.CapacityExceeded, "the message has 1001 bytes, 1000 are allowed"},
		{"name", "{\"t\":\"hello\",\"v\":1,\"client\":\"" + strings.Repeat("x", 129) + "\"}\n", outcome.ProtocolError, "longer than 128 bytes"},
		{"silence", "", outcome.DeadlineExceeded, "no hello came in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := n
			if c.kind == outcome.DeadlineExceeded {
				at = hasty
			}
			l := at.dialRaw()
			if c.first != "" {
				if err := l.send([]byte(c.first)); err != nil {
					t.Fatal(err)
				}
			}
			g := l.want(frame.Refused)
			if g.Kind != c.kind.String() || !strings.Contains(g.Text, c.text) {
				t.Fatalf("got %v", g)
			}
			<-l.closed
		})
	}
	if st := n.Stats(); st.Refused != 9 || st.Opened != 0 || st.Sessions != 0 || st.Panics != 1 {
		t.Fatalf("%+v", st)
	}
	t.Run("no room", func(t *testing.T) {
		n.dial("ann")
		n.dial("bob")
		fabrictest.Eventually(t, long, "503", func() bool { return n.status(t, "") == http.StatusServiceUnavailable })
	})
	t.Run("another origin", func(t *testing.T) {
		m := b.node("n3", func(s *settings) { s.Origins = []string{"*.example.com"} })
		if got := m.status(t, "http://evil.test"); got != http.StatusForbidden {
			t.Fatal(got)
		}
		if got := m.status(t, "http://www.example.com"); got != http.StatusSwitchingProtocols {
			t.Fatal(got)
		}
	})
	t.Run("no WebSocket", func(t *testing.T) {
		resp, err := http.Get(b.nodes[2].web.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUpgradeRequired {
			t.Fatal(resp.Status)
		}
	})
}

func hello(credentials string) string {
	return string(frame.Make(&frame.Header{Type: frame.Hello, V: 1}, []byte(credentials)))
}

// status is what the node answers to a WebSocket's request from a page.
func (n *node) status(t *testing.T, origin string) int {
	h := http.Header{}
	if origin != "" {
		h.Set("Origin", origin)
	}
	conn, resp, err := websocket.Dial(t.Context(), n.web.URL, &websocket.DialOptions{HTTPHeader: h})
	if err == nil {
		_ = conn.CloseNow()
	} else if resp == nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestHandshakeNATS: a hello without a reply subject of the client's own is refused.
func TestHandshakeNATS(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.node("n1", func(s *settings) {
		s.Authenticate = func(ctx context.Context, h Hello) (Identity, error) {
			who, err := letIn(ctx, h)
			if string(h.Credentials) == "large" {
				who.Welcome = make([]byte, 1<<20)
			}
			return who, err
		}
	})
	nc := b.connect(b.server.URL(), "client", nil)
	defer nc.Close()
	l, _ := b.dialNATS(b.server.URL(), "wrong")
	if g := l.want(frame.Refused); g.Kind != outcome.Rejected.String() {
		t.Fatal(g)
	}
	l, _ = b.dialNATS(b.server.URL(), "large") // a welcome that no NATS message holds
	if g := l.want(frame.Refused); g.Kind != outcome.InternalFailure.String() {
		t.Fatal(g)
	}
	sub, err := nc.SubscribeSync("fab.m.client.x")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(frame.OpenSubject("m"), "fab.m.client.x", []byte(hello("ann"))); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(long)
	if err != nil {
		t.Fatal(err)
	}
	if e := outcome.FromHeaders(m.Header, "", ""); e == nil || e.Kind != outcome.InvalidOperation || e.Acceptance != outcome.NotAccepted {
		t.Fatal(m.Header)
	}
}

// TestAuthorize: the application decides about each bind.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) {
		s.MaxBindings = 2
		s.Authorize = func(_ context.Context, who Identity, actor objectsRef) error {
			if actor.ID == "secret" {
				return outcome.New("", outcome.Rejected, outcome.Accepted, "", who.Subject+" is no member")
			}
			return nil
		}
	})
	for _, id := range []string{"secret", "a", "b", "c"} {
		n.actor(id)
	}
	l := n.dial("ann")
	wantErr(t, l.bind("actor/secret"), outcome.Rejected, outcome.NotAccepted, "ann is no member")
	wantErr(t, l.bind("spot/x"), outcome.InvalidOperation, outcome.NotAccepted)
	wantErr(t, l.bind("actor/x=2"), outcome.InvalidOperation, outcome.NotAccepted)
	wantErr(t, l.bind("actor/nobody"), outcome.NotFound, outcome.NotAccepted)
	a := l.bind("actor/a")
	if g := l.bind("actor/b"); g.Type != frame.OK {
		t.Fatal(g)
	}
	wantErr(t, l.bind("actor/c"), outcome.Unavailable, outcome.NotAccepted, "2 bindings already")
	if g := l.call(frame.Unbind, a.Token, ""); g.Type != frame.OK {
		t.Fatal(g)
	}
	if g := l.bind("actor/c"); g.Type != frame.OK {
		t.Fatal(g)
	}
}

// TestHandshakesAtOnce: who connects and says nothing takes a place that others wait for, and gives it back.
func TestHandshakesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) { s.HandshakeTimeout = long })
	var silent []*websocket.Conn
	for range maxHandshakes {
		conn, _, err := websocket.Dial(t.Context(), n.ws(), nil)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	if got := n.status(t, ""); got != http.StatusServiceUnavailable {
		t.Fatal(got)
	}
	for _, conn := range silent {
		_ = conn.CloseNow()
	}
	fabrictest.Eventually(t, long, "there is room again", func() bool { return n.status(t, "") == http.StatusSwitchingProtocols })
}

// TestLastPlace: a session is not opened when another one has taken the last place since the handshake began.
func TestLastPlace(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) { s.MaxSessions = 1 })
	nowhere := func(string) string { return "" }
	if _, e := n.open(&sink{}, Identity{}, nowhere); e != nil {
		t.Fatal(e)
	}
	if _, e := n.open(&sink{}, Identity{}, nowhere); e == nil || e.Kind != outcome.Unavailable {
		t.Fatal(e)
	}
}
