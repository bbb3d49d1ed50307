package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// shortLease is as short as a noisy machine allows.
func shortLease(rid string) LeaseConfig {
	return LeaseConfig{RID: rid, TTL: 4 * time.Second, Renew: 300 * time.Millisecond, Margin: 700 * time.Millisecond}
}

// steadyLease is renewed as often, and does not lapse on a machine that is merely busy.
func steadyLease(rid string) LeaseConfig {
	return LeaseConfig{RID: rid, Renew: 300 * time.Millisecond}
}

// readyIn is the patience of tests.
const readyIn = 30 * time.Second

// mesh is a store of a test, to which every program has a path of its own.
type mesh struct {
	t    testing.TB
	name string
	urls []string // programs take one server after the other
	next int
}

// newMesh makes a mesh on a server of its own.
func newMesh(t testing.TB) *mesh {
	t.Helper()
	return makeMesh(t, "m", 1, fabrictest.StartServer(t).URL())
}

// makeMesh makes a mesh on servers that other meshes may use too. Its leases are watched and judged (I6).
func makeMesh(t testing.TB, name string, replicas int, urls ...string) *mesh {
	t.Helper()
	m := &mesh{t: t, name: name, urls: urls}
	nc := connect(t, urls[0])
	if r, err := Init(testContext(t), nc, Setup{Mesh: name, Replicas: replicas}); err != nil || !r.OK() {
		t.Fatalf("init: %+v, %v", r, err)
	}
	m.watchLeases(nc)
	return m
}

// server is the next program's server.
func (m *mesh) server() string {
	m.next++
	return m.urls[m.next%len(m.urls)]
}

// The subjects at which the tests break the path.
func (m *mesh) key(key string) string  { return "$KV." + wire.Mesh(m.name).NodesBucket() + "." + key }
func (m *mesh) notice(k string) string { return wire.Mesh(m.name).ChangePrefix() + ".nodes." + k }
func (m *mesh) reads() string          { return "$JS.API.DIRECT.GET.KV_" + wire.Mesh(m.name).NodesBucket() }
func (m *mesh) info() string           { return "$JS.API.STREAM.INFO.KV_" + wire.Mesh(m.name).NodesBucket() }

// program is one program's store, and the path between it and the server.
type program struct {
	*Store
	nc    *nats.Conn
	proxy *fabrictest.Proxy
}

func (m *mesh) program(rid string) program {
	m.t.Helper()
	proxy := fabrictest.NewProxy(m.t, m.server())
	nc := connect(m.t, proxy.URL())
	return program{Store: openStore(m.t, nc, Config{Mesh: m.name, RID: rid, AttemptTimeout: time.Second}), nc: nc, proxy: proxy}
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
