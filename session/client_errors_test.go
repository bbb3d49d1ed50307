package session

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/client"
	"natsfabric/session/internal/frame"
)

// TestClientConfig: each wrong field is named, with its value and what is allowed, and all of them at once.
func TestClientConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg   client.Config
		wants []string
	}{
		"no address": {client.Config{}, []string{"URLs is required"}},
		"scheme":     {client.Config{URLs: []string{"http://h/session"}}, []string{`URLs "http://h/session"`, "ws, wss, nats or tls"}},
		"mesh":       {client.Config{URLs: []string{"nats://h"}, Mesh: "a.b"}, []string{`Mesh "a.b"`, "1 to 64 characters"}},
		"several": {client.Config{URLs: []string{"ws://h"}, RequestTimeout: -1, MinBackoff: time.Hour, Pushes: -1},
			[]string{"RequestTimeout -1ns", "at least 1ms", "MaxBackoff 10s clashes with MinBackoff 1h", "Pushes -1", "1 to 1048576"}},
	} {
		_, err := client.Dial(t.Context(), c.cfg)
		if outcome.KindOf(err) != outcome.InvalidOperation || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", name, err, want)
			}
		}
	}
}

// TestClientNobodyThere: an address at which nobody takes sessions says so.
func TestClientNobodyThere(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for url, want := range map[string]string{
		"ws" + strings.TrimPrefix(web.URL, "http"): "no sessions are served under this path",
		fabrictest.StartServer(t).URL():            `no node of mesh "m" takes sessions`,
	} {
		_, err := client.Dial(t.Context(), client.Config{URLs: []string{url}, Mesh: "m", HandshakeTimeout: long})
		if outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.NotAccepted || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestClientFrameNobodyTook: over NATS, a frame for which nobody listened was not taken, and its caller hears so.
func TestClientFrameNobodyTook(t *testing.T) {
	t.Parallel()
	server := fabrictest.StartServer(t)
	nc := fabrictest.Connect(t, server.URL())
	welcome := frame.Make(&frame.Header{Type: frame.Welcome, V: frame.Version, Heartbeat: 60_000, MaxMessage: 1 << 16, InFlight: 64, To: "nobody.listens"}, nil)
	if _, err := nc.Subscribe(frame.OpenSubject("m"), func(m *nats.Msg) { _ = m.Respond(welcome) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), client.Config{URLs: []string{server.URL()}, Mesh: "m", HandshakeTimeout: long, RequestTimeout: long})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Bind(t.Context(), "actor/alice"); outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.NotAccepted {
		t.Fatal(err)
	}
}

// TestClientClosed: a binding of a client that was closed says so: nobody should wait for another session.
func TestClientClosed(t *testing.T) {
	t.Parallel()
	c, err := client.Dial(t.Context(), client.Config{URLs: []string{standIn(t, 1)}, HandshakeTimeout: long, RequestTimeout: long})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := c.Bind(t.Context(), "actor/alice")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := b.Request(t.Context(), nil); !errors.Is(err, outcome.ShuttingDown) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatal(err)
	}
	if err := b.Unbind(t.Context()); err != nil {
		t.Fatal(err)
	}
}
