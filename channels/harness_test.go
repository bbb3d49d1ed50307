package channels_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	mesh = wire.Mesh("t")
	// patience bounds every wait of a test: far above what any of them needs on a slow machine.
	patience = 60 * time.Second
)

// directory is a list of members that the test sets.
type directory struct {
	members atomic.Pointer[kvlocation.Members]

	mu      sync.Mutex
	changed chan struct{}
	rev     uint64
}

func newDirectory(ms ...kvlocation.Member) *directory {
	d := &directory{changed: make(chan struct{})}
	d.members.Store(kvlocation.NewMembers(nil))
	d.put(ms...)
	return d
}

func (d *directory) Members() *kvlocation.Members { return d.members.Load() }

func (d *directory) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// put adds or replaces members, each with a new revision.
func (d *directory) put(ms ...kvlocation.Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := append([]kvlocation.Member(nil), d.Members().All()...)
	for _, m := range ms {
		d.rev++
		m.Revision = d.rev
		all = append(all, m)
	}
	d.members.Store(kvlocation.NewMembers(all))
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *directory) remove(rid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var kept []kvlocation.Member
	for _, m := range d.Members().All() {
		if m.RID != rid {
			kept = append(kept, m)
		}
	}
	d.members.Store(kvlocation.NewMembers(kept))
	close(d.changed)
	d.changed = make(chan struct{})
}

// member describes a node that serves the given channels with weight 1.
func member(rid string, lifecycle uint64, names ...string) kvlocation.Member {
	m := kvlocation.Member{Descriptor: kvlocation.Descriptor{V: 1, RID: rid, Lifecycle: lifecycle, State: kvlocation.StateServing}}
	for _, n := range names {
		m.Channels = append(m.Channels, kvlocation.ChannelInfo{Name: n, Kind: kvlocation.RouteMesh, Weight: 1})
	}
	return m
}

// node is one router on its own connection, wired to it as the node would be.
type node struct {
	*channels.Router
	nc *nats.Conn
}

// dial connects as the fabric does.
func dial(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append([]nats.Option{
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond), nats.Timeout(patience),
	}, opts...)...)
	if err != nil {
		t.Fatalf("connecting to %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// start starts a router; change may alter its configuration.
func start(t testing.TB, url string, cfg channels.Config) *node {
	t.Helper()
	return startOn(t, dial(t, url), cfg)
}

// startOn starts a router on a connection.
func startOn(t testing.TB, nc *nats.Conn, cfg channels.Config) *node {
	t.Helper()
	cfg.Mesh, cfg.Conn = mesh, nc
	r, err := channels.New(cfg)
	if err != nil {
		t.Fatalf("channels.New: %v", err)
	}
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { r.Disconnected() })
	nc.SetReconnectHandler(func(*nats.Conn) { _ = r.Reconnected() })
	nc.SetErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { r.AsyncError(sub, err) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Close(ctx); err != nil && !nc.IsClosed() {
			t.Errorf("Close: %v", err)
		}
		nc.Close()
	})
	return &node{Router: r, nc: nc}
}

// startMember starts a serving node.
func startMember(t testing.TB, url string, dir channels.Directory, rid string, lifecycle uint64) *node {
	t.Helper()
	n := start(t, url, channels.Config{RID: rid, Lifecycle: lifecycle, Directory: dir})
	if err := n.SetServing(true); err != nil {
		t.Fatalf("SetServing: %v", err)
	}
	return n
}

// startClient starts a client that is no node.
func startClient(t testing.TB, url string, dir channels.Directory) *node {
	t.Helper()
	return start(t, url, channels.Config{Directory: dir})
}

func serve(t testing.TB, n *node, spec channels.Spec) *channels.Server {
	t.Helper()
	s, err := n.Serve(context.Background(), spec)
	if err != nil {
		t.Fatalf("Serve: %v", err)
	}
	return s
}

func echo(_ context.Context, req *channels.Request) (channels.Reply, error) {
	return channels.Reply{Data: req.Data()}, nil
}

// within is a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// wantErr fails the test unless err is of the given kind and acceptance.
func wantErr(t testing.TB, err error, k outcome.Kind, a outcome.Acceptance) *outcome.Error {
	t.Helper()
	var e *outcome.Error
	if !errors.As(err, &e) || !errors.Is(err, k) || !errors.Is(err, a) {
		t.Fatalf("got error %v, want %v with %v", err, k, a)
	}
	return e
}

func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
		panic("unreachable")
	}
}

// ledger notes what handlers ran, kept outside the routers.
type ledger struct {
	mu  sync.Mutex
	ran map[string][]string // identity -> the nodes that ran it
}

func (l *ledger) note(id, rid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ran == nil {
		l.ran = make(map[string][]string)
	}
	l.ran[id] = append(l.ran[id], rid)
}

func (l *ledger) of(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.ran[id]...)
}

// handler notes each request's payload as its identity and answers with the node's name.
func (l *ledger) handler(rid string) channels.Handler {
	return func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		l.note(string(req.Data()), rid)
		return channels.Reply{Data: []byte(rid)}, nil
	}
}

// end is how one operation ended at its caller.
type end struct {
	id  string
	err error
}

// checkOnceAndTrue is the validator of I2 and of the truth of acceptance: nothing ran twice, what was replied ran, and
// what was said to be not accepted did not.
func (l *ledger) checkOnceAndTrue(ends []end) error {
	seen := make(map[string]bool)
	for _, e := range ends {
		if seen[e.id] {
			return fmt.Errorf("I5: operation %s ended twice", e.id)
		}
		seen[e.id] = true
		ran := l.of(e.id)
		switch {
		case len(ran) > 1:
			return fmt.Errorf("I2: operation %s ran %d times: %v", e.id, len(ran), ran)
		case e.err == nil && len(ran) == 0:
			return fmt.Errorf("I3: operation %s was replied and did not run", e.id)
		case errors.Is(e.err, outcome.NotAccepted) && len(ran) > 0:
			return fmt.Errorf("operation %s ran at %v, and its caller was told NotAccepted: %w", e.id, ran, e.err)
		}
	}
	return nil
}

// checkAccount is the validator of I3 at the caller: what was started is what ended, by kind and acceptance.
func checkAccount(s channels.CallSnapshot) error {
	sum := s.Succeeded
	for _, by := range s.Failed {
		for _, n := range by {
			sum += n
		}
	}
	if sum != s.Started {
		return fmt.Errorf("I3: started %d, ended %d: %+v", s.Started, sum, s)
	}
	return nil
}

// checkServed is the validator of I3 at the member.
func checkServed(s channels.ServeSnapshot) error {
	refused := s.RefusedFull + s.RefusedTooLarge + s.RefusedDraining + s.RefusedNotServing + s.RefusedLease + s.RefusedPast + s.RefusedThawing + s.RefusedNamed
	if s.Received != refused+s.Expired+s.Lapsed+s.Ran {
		return fmt.Errorf("I3: received %d, refused %d, expired %d, lapsed %d, ran %d", s.Received, refused, s.Expired, s.Lapsed, s.Ran)
	}
	return nil
}

// server starts a NATS server for one test.
func server(t testing.TB, opts ...fabrictest.Option) *fabrictest.Server {
	t.Helper()
	return fabrictest.StartServer(t, opts...)
}
