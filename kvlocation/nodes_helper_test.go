package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// shortLease is as short as a noisy machine allows.
func shortLease(rid string) LeaseConfig {
	return LeaseConfig{RID: rid, TTL: 4 * time.Second, Renew: 300 * time.Millisecond, Margin: 700 * time.Millisecond}
}

// readyIn is the patience of tests.
const readyIn = 30 * time.Second

// mesh is a store of a test, to which every program has a path of its own.
type mesh struct {
	t   testing.TB
	url string
}

func newMesh(t testing.TB, replicas int, opts ...fabrictest.Option) *mesh {
	t.Helper()
	var url string
	if replicas == 1 {
		url = fabrictest.StartServer(t, opts...).URL()
	} else {
		url = fabrictest.StartCluster(t, replicas, opts...).URL()
	}
	initMesh(t, url, replicas)
	return &mesh{t: t, url: url}
}

func initMesh(t testing.TB, url string, replicas int) {
	t.Helper()
	nc := connect(t, url)
	if r, err := Init(testContext(t), nc, Setup{Mesh: "m", Replicas: replicas}); err != nil || !r.OK() {
		t.Fatalf("init: %+v, %v", r, err)
	}
	nc.Close()
}

// program is one program's store, and the path between it and the server.
type program struct {
	*Store
	nc    *nats.Conn
	proxy *fabrictest.Proxy
}

func (m *mesh) program(rid string) program {
	m.t.Helper()
	proxy := fabrictest.NewProxy(m.t, m.url)
	nc := connect(m.t, proxy.URL())
	return program{Store: openStore(m.t, nc, Config{Mesh: "m", RID: rid, AttemptTimeout: time.Second}), nc: nc, proxy: proxy}
}

func (p program) acquire(t testing.TB, cfg LeaseConfig) *Lease {
	t.Helper()
	l, err := p.AcquireLease(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { release(l) })
	return l
}

// release ends a lease whose path may be broken.
func release(l *Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = l.Release(ctx)
}

func (p program) directory(t testing.TB, cfg DirectoryConfig) *Directory {
	t.Helper()
	d, err := p.OpenDirectory(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// wantEvent waits for the next event and checks its kind.
func wantEvent(t testing.TB, l *Lease, kind LeaseEventKind) LeaseEvent {
	t.Helper()
	select {
	case e, ok := <-l.Events():
		if !ok || e.Kind != kind {
			t.Fatalf("event %v (%v), open %v; want %v", e.Kind, e.Err, ok, kind)
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatalf("no event %v", kind)
		return LeaseEvent{}
	}
}

// wantLapsed checks everything that a closed lease promises.
func wantLapsed(t testing.TB, l *Lease, ctx context.Context) {
	t.Helper()
	err := l.Admit()
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) || !errors.Is(err, ErrOwnershipLost) {
		t.Fatalf("admission after the lapse: %v", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the context of the lapsed lease goes on")
	}
	if !errors.Is(context.Cause(ctx), ErrOwnershipLost) {
		t.Fatalf("cause %v", context.Cause(ctx))
	}
}

func wantMembers(t testing.TB, d *Directory, rids ...string) {
	t.Helper()
	fabrictest.Eventually(t, 20*time.Second, fmt.Sprintf("members %v", rids), func() bool {
		var got []string
		for _, m := range d.Members().All() {
			got = append(got, m.RID)
		}
		return fmt.Sprint(got) == fmt.Sprint(rids)
	})
}
