package objects

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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
	"natsfabric/outcome"
)

// mesh is a server and the programs on it, each with a connection, store, lease, directory and router of its own.
type mesh struct {
	t      *testing.T
	name   string
	server *fabrictest.Server
	nodes  []*meshNode
}

// meshNode is one program of a mesh; a client when its lease is nil.
type meshNode struct {
	*Service
	m      *mesh
	rid    string
	nc     *nats.Conn
	proxy  *fabrictest.Proxy
	store  *kvlocation.Store
	lease  *kvlocation.Lease
	dir    *kvlocation.Directory
	router *channels.Router
	stop   func()
	held   atomic.Bool // the Service and the router know of a lease
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{t: t, name: "m", server: fabrictest.StartServer(t)}
	nc := m.connect(m.server.URL(), "setup", nil)
	defer nc.Close()
	if _, err := kvlocation.Init(t.Context(), nc, kvlocation.Setup{Mesh: m.name}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mesh) connect(url, name string, onState func(up bool)) *nats.Conn {
	m.t.Helper()
	opts := []nats.Option{
		nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.RetryOnFailedConnect(false), nats.Timeout(long),
	}
	if onState != nil {
		opts = append(opts, nats.DisconnectErrHandler(func(*nats.Conn, error) { onState(false) }), nats.ReconnectHandler(func(*nats.Conn) { onState(true) }))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		m.t.Fatal(err)
	}
	return nc
}

// nodeOption changes the configuration of a node of a test.
type nodeOption func(*Config, *kvlocation.LeaseConfig)

// shortLease lets a node be proven gone quickly.
func shortLease(_ *Config, l *kvlocation.LeaseConfig) {
	l.TTL, l.Renew, l.Margin = 4*time.Second, 300*time.Millisecond, time.Second
}

func types(ts ...Type) nodeOption {
	return func(c *Config, _ *kvlocation.LeaseConfig) { c.Types = append(c.Types, ts...) }
}

// node starts a node behind a proxy of its own, and returns once every program of the mesh knows it.
func (m *mesh) node(rid string, opts ...nodeOption) *meshNode {
	m.t.Helper()
	n := m.start(rid, opts...)
	m.nodes = append(m.nodes, n)
	n.publish(kvlocation.StateServing)
	if err := n.router.SetServing(true); err != nil {
		m.t.Fatal(err)
	}
	m.settle()
	return n
}

// client starts a program that is no node.
func (m *mesh) client(opts ...nodeOption) *meshNode {
	m.t.Helper()
	n := m.start("", opts...)
	m.nodes = append(m.nodes, n)
	m.settle()
	return n
}

// settle waits until all directories list all nodes as they are.
func (m *mesh) settle() {
	m.t.Helper()
	fabrictest.Eventually(m.t, long, "all directories agree", func() bool {
		for _, n := range m.nodes {
			for _, other := range m.nodes {
				if other.lease == nil || other.stop == nil || n.stop == nil {
					continue
				}
				got, ok := n.dir.Members().Get(other.rid)
				if !ok || got.Lifecycle != other.lease.Lifecycle() || got.State != kvlocation.StateServing {
					return false
				}
				for _, t := range other.Types() {
					if have, ok := got.Type(t.Class, t.Name); !ok || have.Full != t.Full {
						return false
					}
				}
			}
		}
		return true
	})
}

func (m *mesh) start(rid string, opts ...nodeOption) *meshNode {
	t := m.t
	t.Helper()
	ctx := t.Context()
	n := &meshNode{m: m, rid: rid, proxy: m.server.Proxy(t)}
	name := rid
	if name == "" {
		name = fmt.Sprintf("client%d", len(m.nodes))
	}
	var up atomic.Pointer[func(bool)]
	n.nc = m.connect(n.proxy.URL(), name, func(on bool) {
		if f := up.Load(); f != nil {
			(*f)(on)
		}
	})
	var err error
	n.store, err = kvlocation.Open(ctx, n.nc, kvlocation.Config{Mesh: m.name, RID: rid, AttemptTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Mesh: wire.Mesh(m.name), RID: rid, Store: n.store}
	lease := kvlocation.LeaseConfig{RID: rid}
	for _, f := range opts {
		f(&cfg, &lease)
	}
	// As the fabric's clients do, the test's know the store's clock: a node that was held up by the machine for a second
	// refuses what it cannot date.
	clock := kvlocation.NewClock(kvlocation.DefaultTTL)
	rc := channels.Config{Mesh: cfg.Mesh, Conn: n.nc, LeaseOf: n.store.LeaseOf, ClientName: "test", Clock: clock}
	if rid != "" {
		m.taken(func() error { n.lease, err = n.store.AcquireLease(ctx, lease); return err })
		cfg.Lease, cfg.Lifecycle = n.lease, n.lease.Lifecycle()
		rc.RID, rc.Lifecycle, rc.ClientName, rc.Clock, rc.Gate = rid, cfg.Lifecycle, "", n.lease.Clock(), n.lease
	} else {
		fabrictest.Eventually(t, long, "the store tells its time", func() bool { return n.store.ReadClock(ctx, clock) == nil })
	}
	if n.dir, err = n.store.OpenDirectory(ctx, kvlocation.DirectoryConfig{Lease: n.lease}); err != nil {
		t.Fatal(err)
	}
	rc.Directory = n.dir
	if n.router, err = channels.New(rc); err != nil {
		t.Fatal(err)
	}
	cfg.Directory, cfg.Router = n.dir, n.router
	if n.Service, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	onState := func(on bool) {
		if on {
			_ = n.router.Reconnected()
		} else {
			n.router.Disconnected()
		}
	}
	up.Store(&onState)
	n.held.Store(n.lease != nil)
	events := make(chan struct{})
	go n.follow(events)
	n.stop = func() {
		n.stop = nil
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if err := n.Service.Close(ctx); err != nil {
			t.Logf("closing node %q: %v", rid, err)
		}
		if err := n.router.Close(ctx); err != nil {
			t.Logf("closing the router of node %q: %v", rid, err)
		}
		_ = n.dir.Close()
		if n.lease != nil {
			rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			_ = n.lease.Release(rctx)
			cancel()
		}
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
	return n
}

// follow tells the Service and the router what happens to the lease.
func (n *meshNode) follow(done chan struct{}) {
	defer close(done)
	if n.lease == nil {
		return
	}
	for e := range n.lease.Events() {
		switch {
		case e.Kind == kvlocation.LeaseRegained:
			n.Regained()
			_ = n.router.SetServing(true)
			n.held.Store(true)
		default:
			n.Lapsed()
			_ = n.router.SetServing(false)
			n.held.Store(false)
		}
	}
}

// publish writes the node's descriptor.
func (n *meshNode) publish(state kvlocation.NodeState) {
	n.m.t.Helper()
	err := n.store.PublishDescriptor(n.m.t.Context(), n.lease, kvlocation.Descriptor{State: state, Weight: 1, Types: n.Types()})
	if err != nil {
		n.m.t.Fatal(err)
	}
}

// vanish ends a node as if its process had died: its connection goes, and its lease is not renewed.
func (n *meshNode) vanish() {
	n.proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
}

// ctx is a context for one operation of a test.
func (m *mesh) ctx() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), long)
	m.t.Cleanup(cancel)
	return ctx
}

func (m *mesh) ctxFor(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), d)
	m.t.Cleanup(cancel)
	return ctx
}

// taken runs an operation, again when the machine has held up who is asked: the answer to a hello or a read took too long, or
// it was frozen and refuses what it cannot date. Nothing had begun then.
func (m *mesh) taken(op func() error) {
	m.t.Helper()
	fabrictest.Eventually(m.t, long, "the operation is taken", func() bool {
		err := op()
		if err != nil && !(errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted) && heldUp.MatchString(err.Error())) {
			m.t.Fatal(err)
		}
		return err == nil
	})
}

var heldUp = regexp.MustCompile(`frozen until a moment ago|does not answer|no answer to a hello|context deadline exceeded`)

// late runs an operation that is under way at somebody's when its time ends, and returns its error. One whose time was over
// before is run again, and has more.
func (m *mesh) late(op func(ctx context.Context) error) (err error) {
	m.t.Helper()
	for d := 300 * time.Millisecond; d < long; d *= 2 {
		if err = op(m.ctxFor(d)); err == nil {
			m.t.Fatal("it has ended before its time")
		}
		if !errors.Is(err, outcome.NotAccepted) {
			return err
		}
	}
	return err
}

// reached runs a try that puts a fault in place and does something that the fault strikes before ctx ends, and returns
// the fault. A try whose time was over before that is made again, with more time.
func (m *mesh) reached(try func(ctx context.Context, n int) *fabrictest.Armed) *fabrictest.Armed {
	m.t.Helper()
	n := 1
	for d := 500 * time.Millisecond; d < long; d *= 2 {
		armed := try(m.ctxFor(d), n)
		if armed.Count() > 0 {
			return armed
		}
		armed.Disarm()
		n++
	}
	m.t.Fatal("the fault has not struck in time")
	return nil
}

// entry reads a record as it is.
func (m *mesh) entry(n *meshNode, kind kvlocation.ObjectKind, id string) kvlocation.Entry {
	m.t.Helper()
	e, err := n.store.Read(m.ctx(), kvlocation.ObjectKey{Kind: kind, ID: id})
	if err != nil {
		m.t.Fatal(err)
	}
	return e
}

// homeID returns an ID that the placement gives to a node first.
func (m *mesh) homeID(n *meshNode, class Class, typ, prefix string) string {
	m.t.Helper()
	for i := range 10000 {
		id := fmt.Sprintf("%s%d", prefix, i)
		if cs := n.candidates(class, typ, id); len(cs) > 0 && cs[0].Eligible && cs[0].RID == n.rid {
			return id
		}
	}
	m.t.Fatalf("no ID is at home at node %q", n.rid)
	return ""
}

// tape is what the objects of a test have done, over all nodes.
type tape struct {
	mu        sync.Mutex
	factories map[string]int
	turns     map[string][]string // by ID: "<rid>/<owner generation>: <data>"
	inputs    map[string]string
	closings  map[string]CloseReason

	onFactory func(ctx context.Context, self *Self, input []byte) error
	onTurn    func(ctx context.Context, req *Request) (Reply, error, bool)
}

func newTape() *tape {
	return &tape{factories: map[string]int{}, turns: map[string][]string{}, inputs: map[string]string{}, closings: map[string]CloseReason{}}
}

// taped is an object that writes down its turns and answers "<rid> <generation> <owner generation> <data>".
type taped struct{ tape *tape }

func (t *tape) typ(class Class, name string) Type {
	return Type{Name: name, Class: class, New: func(ctx context.Context, self *Self, input []byte) (Object, error) {
		t.mu.Lock()
		t.factories[self.ID()]++
		t.inputs[self.ID()] = string(input)
		f := t.onFactory
		t.mu.Unlock()
		if f != nil {
			if err := f(ctx, self, input); err != nil {
				return nil, err
			}
		}
		return &taped{t}, nil
	}}
}

func (o *taped) Handle(ctx context.Context, req *Request) (Reply, error) {
	self := req.Self()
	o.tape.mu.Lock()
	o.tape.turns[self.ID()] = append(o.tape.turns[self.ID()], fmt.Sprintf("%s/%d: %s", self.RID(), self.OwnerGeneration(), req.Data()))
	f := o.tape.onTurn
	o.tape.mu.Unlock()
	if f != nil {
		if reply, err, done := f(ctx, req); done {
			return reply, err
		}
	}
	return Reply{Data: fmt.Appendf(nil, "%s %d %d %s", self.RID(), self.Generation(), self.OwnerGeneration(), req.Data())}, nil
}

func (o *taped) Closing(_ context.Context, self *Self, why CloseReason) error {
	o.tape.mu.Lock()
	defer o.tape.mu.Unlock()
	o.tape.closings[self.ID()] = why
	return nil
}

// turn sets what the turns do from now on.
func (t *tape) turn(f func(ctx context.Context, req *Request) (Reply, error, bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onTurn = f
}

// input is what the last factory of an ID was given, closing why an object was closed.
func (t *tape) input(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inputs[id]
}

func (t *tape) closing(id string) CloseReason {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closings[id]
}

func (t *tape) made(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.factories[id]
}

func (t *tape) ran(id string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.turns[id]...)
}

// wantError fails the test unless err has this kind and acceptance, and its text all the words.
func wantError(t testing.TB, err error, kind outcome.Kind, acc outcome.Acceptance, words ...string) {
	t.Helper()
	var e *outcome.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Acceptance != acc {
		t.Fatalf("got %v, want %v (%v)", err, kind, acc)
	}
	var r *refusal
	if errors.As(err, &r) && error(r) == err {
		t.Fatalf("a refusal between nodes reached the caller: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("the error %q does not say %q", err, w)
		}
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
