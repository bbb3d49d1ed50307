package kvlocation

import (
	"context"
	"errors"
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
