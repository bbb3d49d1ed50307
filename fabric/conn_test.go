package fabric

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
