package kvlocation

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// wantRefused checks that a process that found the store to be another one writes nothing more.
func wantRefused(t testing.TB, p program, l *Lease, cause error) {
	t.Helper()
	ctx := testContext(t)
	for _, err := range []error{l.Admit(), l.Verify(ctx)} {
		if !errors.Is(err, cause) || !errors.Is(err, outcome.Unavailable) {
			t.Errorf("the lease says %v", err)
		}
	}
	_, err := p.write(ctx, write{bucket: p.location, key: "actor.x", value: []byte("x"), opID: nuid.Next()})
	if !errors.Is(err, cause) || !errors.Is(err, outcome.DataLost) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("a write says %v", err)
	}
	wantText(t, err, "stop every node")
}

func drainUntil(t testing.TB, l *Lease, kind LeaseEventKind) LeaseEvent {
	t.Helper()
	for {
		select {
		case e, ok := <-l.Events():
			if !ok {
				t.Fatalf("the events ended without %v", kind)
			}
			if e.Kind == kind {
				return e
			}
			if e.Kind.Terminal() {
				t.Fatalf("event %v (%v) instead of %v", e.Kind, e.Err, kind)
			}
		case <-testContext(t).Done():
			t.Fatalf("no event %v", kind)
		}
	}
}

// unwatchedMesh is a mesh whose numbers are going to be reset.
func unwatchedMesh(t testing.TB, url string) *mesh {
	t.Helper()
	nc := connect(t, url)
	if _, err := Init(testContext(t), nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	return &mesh{t: t, name: "m", urls: []string{url}}
}

func TestStoreRolledBack(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	p := unwatchedMesh(t, srv.URL()).program("n1")
	l := p.acquire(t, steadyLease("n1"))
	ctx := testContext(t)

	srv.Kill()
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(srv.StoreDir())); err != nil {
		t.Fatal(err)
	}
	srv.Restart(t)
	for range 20 {
		if _, err := p.write(ctx, write{bucket: p.nodes, key: "desc.other", blind: true, opID: nuid.Next()}); err != nil {
			t.Fatal(err)
		}
	}
	srv.Kill()
	if err := os.RemoveAll(srv.StoreDir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(srv.StoreDir(), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	srv.Restart(t)

	if e := drainUntil(t, l, LeaseRolledBack); !errors.Is(e.Err, ErrRolledBack) {
		t.Errorf("event %+v", e)
	}
	wantRefused(t, p, l, ErrRolledBack)
}

func TestStoreMadeAgain(t *testing.T) {
	t.Parallel()
	for _, bucket := range []string{"NODES", "LOCATION"} {
		t.Run(bucket, func(t *testing.T) {
			t.Parallel()
			srv := fabrictest.StartServer(t)
			p := unwatchedMesh(t, srv.URL()).program("n1")
			l := p.acquire(t, steadyLease("n1"))
			ctx := testContext(t)
			if _, err := p.write(ctx, write{bucket: p.location, key: "actor.a", opID: nuid.Next()}); err != nil {
				t.Fatal(err)
			}
			nc := connect(t, srv.URL())
			js, _ := jetstream.New(nc)
			if err := js.DeleteStream(ctx, "KV_FABRIC_m_"+bucket); err != nil {
				t.Fatal(err)
			}
			if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
				t.Fatal(err)
			}
			if e := drainUntil(t, l, LeaseMadeAgain); !errors.Is(e.Err, ErrMadeAgain) {
				t.Errorf("event %+v", e)
			}
			wantRefused(t, p, l, ErrMadeAgain)
		})
	}
}

// A leader that is behind makes nobody conclude anything: the own write decides.
func TestStaleIdentityConcludesNothing(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	l := p.acquire(t, steadyLease("n1"))
	info := fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.info(), Times: 4,
		Action: fabrictest.Respond(`{"config":{"metadata":{"fabric-epoch":"1"}},"state":{"last_seq":1},"ts":"2020-01-01T00:00:00Z"}`)}
	armed := p.proxy.Arm(info)
	armed.Wait(t)
	fabrictest.Eventually(t, readyIn, "four stale answers", func() bool { return armed.Count() == 4 })
	before := l.acked.Load().revision
	fabrictest.Eventually(t, readyIn, "renewals go on", func() bool { return l.acked.Load().revision > before })
	if err := errors.Join(l.Admit(), p.refusal(), p.checkIdentity(context.Background(), nil)); err != nil {
		t.Fatal(err)
	}
}
