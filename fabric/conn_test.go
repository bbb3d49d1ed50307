package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// No error says a password or a token that stands in a URL, however it is written.
func TestErrorsHideSecrets(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"nats://user:s3cret@127.0.0.1:1",
		"user:s3cret@127.0.0.1:1",
		"nats://s3cret@127.0.0.1:1",
		"s3cret@127.0.0.1:1",
		"nats://127.0.0.1:1, nats://user:s3cret@127.0.0.1:1",
		"nats://user:s3cret%zz@127.0.0.1:1",
	} {
		_, err := Dial(t.Context(), "test", Connect{URL: url, Timeout: time.Second})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
		if !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("%s: the error does not name the server: %v", url, err)
		}
	}
}

// What cannot be right is refused before anything is sent, and not blamed on a server.
func TestConnectIsChecked(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		conn Connect
		says string
	}{
		{Connect{URL: "::bad::"}, "no URL"},
		{Connect{URL: "nats://"}, "no URL"},
		{Connect{URL: "nats://127.0.0.1:4222,127.0.0.1:99999"}, "1 to 65535"},
		{Connect{URL: "http://user:s3cret@127.0.0.1"}, "scheme"},
		{Connect{CredsFile: "/nonexistent"}, "Connect.CredsFile cannot be read"},
		{Connect{CredsFile: text}, "holds no NATS credentials"},
		{Connect{NKeyFile: text}, "holds no nkey seed"},
		{Connect{CAFile: text}, "holds no PEM certificate"},
		{Connect{CertFile: text, KeyFile: text}, "holds no PEM certificate"},
	} {
		_, err := Dial(t.Context(), "test", c.conn)
		if !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v, want InvalidOperation that says %q", c.conn, err, c.says)
		}
	}
	for _, url := range []string{"127.0.0.1", "localhost:4222", "nats://[::1]:4222", "tls://h, wss://h:443/path", "nats://token@h"} {
		if err := checkURLs(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A permission that is refused again and again is logged once for each subject, and other errors every time; what is
// remembered of that is bounded.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { users: [{ user: u, password: p, permissions: { publish: { deny: ["no.>"] } } }] }`))
	core, logs := observer.New(zap.WarnLevel)
	l, err := openLink(t.Context(), "test", nil, Connect{URL: s.URL(), User: "u", Password: "p"}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	for range 3 {
		for _, subject := range []string{"no.one", "no.two", "no.one"} {
			if err := l.nc.Publish(subject, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.nc.Publish("no.last", nil); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 20*time.Second, "the last refusal", func() bool {
		all := logs.All()
		return len(all) > 0 && strings.Contains(fmt.Sprint(all[len(all)-1].ContextMap()), "no.last")
	})
	if n := logs.Len(); n != 3 {
		t.Errorf("%d lines: %v", n, logs.All())
	}
	for n := range 3 * maxRefusals {
		l.logAsync(nil, fmt.Errorf("%w: %d", nats.ErrPermissionViolation, n))
	}
	l.logAsync(nil, nats.ErrSlowConsumer)
	l.logAsync(nil, nats.ErrSlowConsumer)
	if n := logs.Len(); n != 3+3*maxRefusals+2 || len(l.refusals) > maxRefusals {
		t.Errorf("%d lines, %d remembered", n, len(l.refusals))
	}
}

// The end of the context ends the connecting to a server that says no word.
func TestDialIsBounded(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := mute.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
		cancel()
	}()
	_, err = Dial(ctx, "test", Connect{URL: mute.Addr().String(), Timeout: time.Minute})
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Unavailable by the cancellation", err)
	}
	if conn := <-accepted; conn != nil {
		conn.Close() // ends the attempt that nobody waits for
	}
}
