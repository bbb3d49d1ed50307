package session

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// long bounds everything that is expected to happen.
const long = 30 * time.Second

// bed is a NATS server and the nodes on it.
type bed struct {
	t      testing.TB
	server *fabrictest.Server
	log    *book
	nodes  []*node
}

// node is one node of a bed: all parts below fabric, and sessions.
type node struct {
	*Service
	b      *bed
	rid    string
	nc     *nats.Conn
	proxy  *fabrictest.Proxy
	store  *kvlocation.Store
	lease  *kvlocation.Lease
	dir    *kvlocation.Directory
	router *channels.Router
	objs   *objects.Service
	moves  *relocate.Service
	web    *httptest.Server
	stop   func()
}

func newBed(t testing.TB, of ...fabrictest.Option) *bed {
	t.Helper()
	b := &bed{t: t, server: fabrictest.StartServer(t, of...), log: newBook()}
	nc := b.connect(b.server.URL(), "setup", nil)
	defer nc.Close()
	if _, err := kvlocation.Init(b.ctx(), nc, kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) connect(url, name string, onState func(up bool)) *nats.Conn {
	b.t.Helper()
	opts := []nats.Option{nats.Name(name), nats.Timeout(long), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond)}
	if onState != nil {
		opts = append(opts, nats.DisconnectErrHandler(func(*nats.Conn, error) { onState(false) }), nats.ReconnectHandler(func(*nats.Conn) { onState(true) }))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return nc
}

// settings are what a test may change of a node.
type settings struct {
	Config
	lease  kvlocation.LeaseConfig
	follow time.Duration
	direct bool // without a proxy
}

// tune changes a node's configuration.
type tune func(*settings)

func heartbeat(d time.Duration) tune { return func(c *settings) { c.Heartbeat = d } }

// noFollow makes a node refuse what reaches it for Actors that have left.
func noFollow(c *settings) { c.follow = 0 }

// shortLease lets a node be known gone quickly.
func shortLease(c *settings) {
	c.lease.TTL, c.lease.Renew, c.lease.Margin = 4*time.Second, 300*time.Millisecond, time.Second
}

// letIn is an authenticator: the credentials are the subject, and "wrong" is refused.
func letIn(_ context.Context, h Hello) (Identity, error) {
	if string(h.Credentials) == "wrong" {
		return Identity{}, errors.New("no such user")
	}
	return Identity{Subject: string(h.Credentials), Data: []byte("data of " + string(h.Credentials)), Welcome: []byte("hello " + string(h.Credentials))}, nil
}

// node starts a node behind a proxy of its own.
func (b *bed) node(rid string, tunes ...tune) *node {
	t := b.t
	t.Helper()
	ctx := b.ctx()
	cfg := settings{
		Config: Config{Mesh: wire.Mesh("m"), RID: rid, Authenticate: letIn, GoAway: 100 * time.Millisecond},
		lease:  kvlocation.LeaseConfig{RID: rid}, follow: relocate.DefaultFollowTime,
	}
	for _, f := range tunes {
		f(&cfg)
	}
	n := &node{b: b, rid: rid, proxy: b.server.Proxy(t)}
	url := n.proxy.URL()
	if cfg.direct {
		url = b.server.URL()
	}
	var up atomic.Pointer[func(bool)]
	n.nc = b.connect(url, rid, func(on bool) {
		if f := up.Load(); f != nil {
			(*f)(on)
		}
	})
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	n.store, err = kvlocation.Open(ctx, n.nc, kvlocation.Config{Mesh: "m", RID: rid, AttemptTimeout: time.Second})
	ok(err)
	n.lease, err = n.store.AcquireLease(ctx, cfg.lease)
	ok(err)
	n.dir, err = n.store.OpenDirectory(ctx, kvlocation.DirectoryConfig{Lease: n.lease})
	ok(err)
	n.router, err = channels.New(channels.Config{
		Mesh: cfg.Mesh, Conn: n.nc, LeaseOf: n.store.LeaseOf, RID: rid, Lifecycle: n.lease.Lifecycle(),
		Clock: n.lease.Clock(), Gate: n.lease, Directory: n.dir,
	})
	ok(err)
	n.objs, err = objects.New(objects.Config{
		Mesh: cfg.Mesh, RID: rid, Lifecycle: n.lease.Lifecycle(), Store: n.store, Lease: n.lease, Directory: n.dir, Router: n.router,
		Types: []objects.Type{b.log.typ()},
	})
	ok(err)
	cfg.Lifecycle, cfg.Router, cfg.Objects, cfg.Conn, cfg.LeaseOf = n.lease.Lifecycle(), n.router, n.objs, n.nc, n.store.LeaseOf
	n.Service, err = New(cfg.Config)
	ok(err)
	n.moves, err = relocate.New(relocate.Config{
		Mesh: cfg.Mesh, RID: rid, Lifecycle: n.lease.Lifecycle(), Store: n.store, Lease: n.lease, Directory: n.dir, Router: n.router,
		Objects: n.objs, FollowTime: cfg.follow,
	})
	ok(err)
	n.web = httptest.NewServer(n.Handler())
	onState := func(on bool) {
		if on {
			_ = n.router.Reconnected()
		} else {
			n.router.Disconnected()
		}
	}
	up.Store(&onState)
	events := make(chan struct{})
	go n.follow(events)
	n.stop = func() {
		n.stop = nil
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Service.Close(ctx); err != nil {
			t.Logf("closing the sessions of node %q: %v", rid, err)
		}
		n.web.Close()
		if err := n.moves.Close(ctx); err != nil {
			t.Logf("closing the moves of node %q: %v", rid, err)
		}
		if err := n.objs.Close(ctx); err != nil {
			t.Logf("closing the objects of node %q: %v", rid, err)
		}
		if err := n.router.Close(ctx); err != nil {
			t.Logf("closing the router of node %q: %v", rid, err)
		}
		_ = n.dir.Close()
		rctx, rcancel := context.WithTimeout(ctx, 2*time.Second)
		_ = n.lease.Release(rctx)
		rcancel()
		_ = n.store.Close()
		n.nc.Close()
		<-events
	}
	t.Cleanup(func() {
		n.proxy.Heal()
		if n.stop != nil {
			n.stop()
		}
	})
	b.nodes = append(b.nodes, n)
	ok(n.store.PublishDescriptor(ctx, n.lease, kvlocation.Descriptor{State: kvlocation.StateServing, Weight: 1, Types: n.objs.Types()}))
	ok(n.router.SetServing(true))
	b.settle()
	return n
}

// settle waits until all directories list all nodes.
func (b *bed) settle() {
	b.t.Helper()
	fabrictest.Eventually(b.t, long, "all directories agree", func() bool {
		for _, n := range b.nodes {
			for _, other := range b.nodes {
				if n.stop == nil || other.stop == nil {
					continue
				}
				got, ok := n.dir.Members().Get(other.rid)
				if !ok || got.Lifecycle != other.lease.Lifecycle() || got.State != kvlocation.StateServing {
					return false
				}
			}
		}
		return true
	})
}

// follow tells objects and router what happens to the lease.
func (n *node) follow(done chan struct{}) {
	defer close(done)
	for e := range n.lease.Events() {
		if e.Kind == kvlocation.LeaseRegained {
			n.objs.Regained()
			_ = n.router.SetServing(true)
			continue
		}
		n.objs.Lapsed()
		_ = n.router.SetServing(false)
	}
}

// vanish ends a node for the others as if its process had died: its connection goes, and its lease is not renewed.
func (n *node) vanish() { n.proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut) }

// actor makes an Actor at this node.
func (n *node) actor(id string) objects.ActorRef {
	n.b.t.Helper()
	ref, err := n.objs.Actors().Create(n.b.ctx(), "counter", id, nil, objects.AtNode(n.rid))
	if err != nil {
		n.b.t.Fatal(err)
	}
	return ref
}

// move moves an Actor from this node to another.
func (n *node) move(id string, to *node) {
	n.b.t.Helper()
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: id}
	if _, err := n.moves.Move(n.b.ctx(), key, 0, to.rid); err != nil {
		n.b.t.Fatal(err)
	}
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), long)
	b.t.Cleanup(cancel)
	return ctx
}

// book is what the Actors of a test have seen, over all nodes.
type book struct {
	mu    sync.Mutex
	lines map[string][]string // by Actor
	mute  atomic.Bool
	// onTurn, if set, answers a message instead.
	onTurn atomic.Pointer[func(ctx context.Context, req *objects.Request) (objects.Reply, error)]
	// onBound, if set, is called when a session was bound.
	onBound atomic.Pointer[func(ctx context.Context, b *Binding)]
	// onCapture, if set, says what becomes of a capture.
	onCapture atomic.Pointer[func() error]
}

func newBook() *book { return &book{lines: map[string][]string{}} }

func (l *book) write(id, format string, args ...any) {
	if l.mute.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[id] = append(l.lines[id], fmt.Sprintf(format, args...))
}

func (l *book) of(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines[id]...)
}

// occupy begins a turn of an Actor at this node and returns once it runs. It lasts until hold is closed: what comes for the Actor
// waits.
func (n *node) occupy(id string) (hold chan struct{}) {
	n.b.t.Helper()
	busy, hold := make(chan struct{}), make(chan struct{})
	turn := func(context.Context, *objects.Request) (objects.Reply, error) {
		close(busy)
		<-hold
		return objects.Reply{}, nil
	}
	n.b.log.onTurn.Store(&turn)
	go func() { _, _ = n.objs.Actors().Request(n.b.ctx(), id, nil) }()
	<-busy
	n.b.log.onTurn.Store(nil)
	return hold
}

// has reports how often an Actor wrote a line.
func (l *book) has(id, line string) int {
	n := 0
	for _, s := range l.of(id) {
		if s == line {
			n++
		}
	}
	return n
}

// counter is an Actor that counts. Messages: "add" answers the count; "push N" pushes N numbered texts; "fail" fails;
// anything else is echoed.
type counter struct {
	log *book
	n   int
}

func (l *book) typ() objects.Type {
	return objects.Type{Name: "counter", Class: kvlocation.ClassActor, Move: objects.MoveState, New: func(context.Context, *objects.Self, []byte) (objects.Object, error) {
		return &counter{log: l}, nil
	}}
}

func (c *counter) Capture(context.Context, *objects.Self) (objects.State, error) {
	if f := c.log.onCapture.Load(); f != nil {
		if err := (*f)(); err != nil {
			return objects.State{}, err
		}
	}
	return objects.State{Version: 1, Data: fmt.Append(nil, c.n)}, nil
}

func (c *counter) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	_, err := fmt.Sscan(string(s.Data), &c.n)
	return err
}

func (c *counter) Bound(ctx context.Context, self *objects.Self, b *Binding) {
	c.log.write(self.ID(), "bound %s %d", b.Subject(), b.Generation())
	if f := c.log.onBound.Load(); f != nil {
		(*f)(ctx, b)
	}
}

func (c *counter) Unbound(_ context.Context, self *objects.Self, b *Binding, why Reason) {
	c.log.write(self.ID(), "unbound %s %d: %s", b.Subject(), b.Generation(), why)
}

func (c *counter) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	id, text := req.Self().ID(), string(req.Data())
	b, bound := From(req)
	if bound {
		c.log.write(id, "%s: %s", b.Subject(), text)
	} else {
		c.log.write(id, "direct: %s", text)
	}
	if f := c.log.onTurn.Load(); f != nil {
		return (*f)(ctx, req)
	}
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "add":
		c.n++
		return objects.Reply{Data: fmt.Append(nil, c.n)}, nil
	case "push":
		var n int
		_, _ = fmt.Sscan(rest, &n)
		present, ok := Of(req)
		if !ok {
			return objects.Reply{}, outcome.New("push", outcome.NotFound, outcome.Accepted, "", "nobody is bound")
		}
		for i := range n {
			if err := present.Push(ctx, fmt.Appendf(nil, "%s %d", req.Self().RID(), i)); err != nil {
				return objects.Reply{}, err
			}
		}
		return objects.Reply{Data: []byte("pushed")}, nil
	case "kick":
		if present, ok := Of(req); ok {
			present.Unbind(rest)
		}
		return objects.Reply{}, nil
	case "fail":
		return objects.Reply{}, outcome.New("handle", outcome.Rejected, outcome.Accepted, "", "the counter does not want to")
	}
	return objects.Reply{Data: req.Data()}, nil
}
