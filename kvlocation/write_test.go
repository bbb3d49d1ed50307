package kvlocation

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// connect connects as the fabric does.
func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	return fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func openStore(t testing.TB, nc *nats.Conn, cfg Config) *Store {
	t.Helper()
	s, err := Open(testContext(t), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestWriteCompareAndSet(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc := connect(t, srv.URL())
	ctx := testContext(t)
	if _, err := Init(ctx, nc, Setup{Mesh: "m", Memory: true}); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, nc, Config{Mesh: "m"})

	res, err := s.write(ctx, write{bucket: s.location, key: "actor.a", value: []byte("1"), opID: nuid.Next()})
	if err != nil {
		t.Fatal(err)
	}
	if res.revision == 0 || res.repeated {
		t.Fatalf("first write: %+v", res)
	}
	_, err = s.write(ctx, write{bucket: s.location, key: "actor.a", value: []byte("2"), opID: nuid.Next()})
	if !errors.Is(err, ErrConflict) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("a create over a value: %v", err)
	}
	m, err := s.get(ctx, s.location, "actor.a")
	if err != nil || m == nil || m.revision != res.revision || string(m.value) != "1" {
		t.Fatalf("read %+v, %v", m, err)
	}
	if m, err := s.get(ctx, s.location, "actor.b"); m != nil || err != nil {
		t.Fatalf("read of a missing key: %+v, %v", m, err)
	}
	snap, err := s.snapshot(ctx, s.location, res.revision, "actor.a", "actor.b")
	if err != nil || snap.get("actor.a") == nil || snap.get("actor.b") != nil {
		t.Fatalf("snapshot %+v, %v", snap, err)
	}
	snap, err = s.snapshot(ctx, s.nodes, 0, "desc.*")
	if err != nil || snap.upTo == 0 {
		t.Fatalf("snapshot of nothing %+v, %v", snap, err)
	}
}

// TestWriteSaysWhatIsKnown looks at the write path itself, without the records on top: what it says of a write that was
// sent and not answered, and of one that was never sent.
func TestWriteSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	w := func() write { return write{bucket: p.nodes, key: "desc.x", value: []byte("1"), opID: nuid.Next()} }
	p.proxy.Arm(fabrictest.Trigger{Subject: p.nodes.publish + "desc.x", Times: -1, Answer: true, Action: fabrictest.Drop})
	_, err := p.write(briefly(t), w())
	wantError(t, err, outcome.Unavailable, outcome.Unknown)
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrConflict) {
		t.Fatalf("got %v", err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = p.write(cancelled, w())
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	p.nc.Close()
	_, err = p.write(testContext(t), w())
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	if !errors.Is(err, nats.ErrConnectionClosed) {
		t.Fatalf("got %v", err)
	}
}

// TestWriteEndsWithoutADeadline shows the bound of an operation whose context has none.
func TestWriteEndsWithoutADeadline(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	s := openStore(t, p.nc, Config{Mesh: "m", AttemptTimeout: 100 * time.Millisecond, Timeout: 500 * time.Millisecond})
	p.proxy.Apply(fabrictest.HalfOpen)
	start := time.Now()
	_, err := s.Create(context.Background(), room(objectOf(t), n1, nil))
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted) // its first read is not answered
	_, err = s.write(context.Background(), write{bucket: s.location, key: "actor.x", value: []byte("1"), opID: nuid.Next()})
	wantError(t, err, outcome.Unavailable, outcome.Unknown)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	nc := connect(t, b.servers[0].URL())
	buffered := fabrictest.Connect(t, b.servers[0].URL())
	for _, c := range []struct {
		name string
		nc   *nats.Conn
		cfg  Config
		kind outcome.Kind
		says string
	}{
		{"a bad mesh name", nc, Config{Mesh: "a.b"}, outcome.InvalidOperation, `mesh "a.b"`},
		{"a bad RID", nc, Config{Mesh: "m", RID: "a b"}, outcome.InvalidOperation, `RID "a b"`},
		{"a bad domain", nc, Config{Mesh: "m", Domain: "a.b"}, outcome.InvalidOperation, `domain "a.b"`},
		{"a negative time", nc, Config{Mesh: "m", AttemptTimeout: -1}, outcome.InvalidOperation, "AttemptTimeout -1ns"},
		{"a time beyond what can be concluded", nc, Config{Mesh: "m", Timeout: time.Hour}, outcome.InvalidOperation, "Timeout 1h0m0s"},
		{"no connection", nil, Config{Mesh: "m"}, outcome.InvalidOperation, "nil"},
		{"a reconnect buffer", buffered, Config{Mesh: "m"}, outcome.InvalidOperation, "nats.ReconnectBufSize(-1)"},
		{"a mesh that was not made", nc, Config{Mesh: "other"}, outcome.NotConfigured, "FABRIC_other_NODES"},
	} {
		s, err := Open(testContext(t), c.nc, c.cfg)
		if s != nil || !errors.Is(err, c.kind) || !errors.Is(err, outcome.NotAccepted) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v and a text with %q", c.name, err, c.kind, c.says)
		}
	}
}
