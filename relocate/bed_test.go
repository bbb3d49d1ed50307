package relocate_test

import (
	"context"
	"errors"
	"fmt"
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

func TestMain(m *testing.M) {
	fabrictest.AtOnce(4)
	fabrictest.VerifyTestMain(m)
}

// long bounds every wait of a test that goes as it should.
const long = 60 * time.Second

// bed is a mesh on one server or a cluster, and what its objects did.
type bed struct {
	t      testing.TB
	urls   []string
	setup  *nats.Conn
	store  *kvlocation.Store // of a program that only looks
	nodes  []*node
	ledger *ledger
	made   atomic.Int64
}

// newBed starts a mesh on servers nodes of NATS.
func newBed(t testing.TB, servers int) *bed {
	t.Helper()
	b := &bed{t: t, ledger: newLedger()}
	set := kvlocation.Setup{Mesh: "m", Replicas: servers}
	if servers == 1 {
		s := fabrictest.StartServer(t)
		b.urls = []string{s.URL()}
	} else {
		c := fabrictest.StartCluster(t, servers)
		for _, s := range c.Servers() {
			b.urls = append(b.urls, s.URL())
		}
	}
	b.setup = connect(t, b.urls[0], "setup", nil)
	t.Cleanup(b.setup.Close)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if _, err := kvlocation.Init(ctx, b.setup, set); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.store, err = kvlocation.Open(ctx, b.setup, kvlocation.Config{Mesh: "m", RID: "looker"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.store.Close() })
	return b
}

func connect(t testing.TB, url, name string, onState func(up bool)) *nats.Conn {
	t.Helper()
	opts := []nats.Option{
		nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.PingInterval(2 * time.Second), nats.Timeout(long),
	}
	if onState != nil {
		opts = append(opts, nats.DisconnectErrHandler(func(*nats.Conn, error) { onState(false) }), nats.ReconnectHandler(func(*nats.Conn) { onState(true) }))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

// node is one node of the mesh, behind a proxy of its own.
type node struct {
	b       *bed
	rid     string
	proxy   *fabrictest.Proxy
	nc      *nats.Conn
	store   *kvlocation.Store
	lease   *kvlocation.Lease
	dir     *kvlocation.Directory
	router  *channels.Router
	objects *objects.Service
	moves   *relocate.Service
	desc    kvlocation.Descriptor
	once    sync.Once
}

// options change a node of a test.
type options struct {
	types   []objects.Type
	lease   kvlocation.LeaseConfig
	move    relocate.Config
	version string
	wave    string
	url     string
	client  bool
}

type option func(*options)

// shortLease lets a node be proven gone quickly.
func shortLease(o *options) {
	o.lease.TTL, o.lease.Renew, o.lease.Margin = 9*time.Second, 500*time.Millisecond, time.Second
}

func types(ts ...objects.Type) option { return func(o *options) { o.types = append(o.types, ts...) } }

func unitTimeout(d time.Duration) option { return func(o *options) { o.move.UnitTimeout = d } }

func follow(d time.Duration) option { return func(o *options) { o.move.FollowTime = d } }

func version(v string) option { return func(o *options) { o.version = v } }

func wave(w string) option { return func(o *options) { o.wave = w } }

// node starts a node that every other one knows when it returns.
func (b *bed) node(rid string, opts ...option) *node {
	b.t.Helper()
	t := b.t
	o := options{move: relocate.Config{FollowTime: relocate.DefaultFollowTime}, version: "1.0.0", url: b.urls[len(b.nodes)%len(b.urls)]}
	for _, f := range opts {
		f(&o)
	}
	if o.types == nil && !o.client {
		o.types = []objects.Type{b.ledger.actor("counter")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	n := &node{b: b, rid: rid, proxy: fabrictest.NewProxy(t, o.url)}
	var up atomic.Pointer[func(bool)]
	n.nc = connect(t, n.proxy.URL(), rid, func(on bool) {
		if f := up.Load(); f != nil {
			(*f)(on)
		}
	})
	fatal := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var err error
	cfg := kvlocation.Config{Mesh: "m", RID: rid, AttemptTimeout: time.Second}
	n.store, err = kvlocation.Open(ctx, n.nc, cfg)
	fatal(err)
	oc := objects.Config{Mesh: "m", Store: n.store, Types: o.types, AppVersion: o.version}
	// As the fabric's clients do, the test's know the store's clock: a node that was held up by the machine for a second refuses what it cannot date.
	clock := kvlocation.NewClock(kvlocation.DefaultTTL)
	rc := channels.Config{Mesh: "m", Conn: n.nc, LeaseOf: n.store.LeaseOf, ClientName: rid, Clock: clock}
	if !o.client {
		o.lease.RID = rid
		fabrictest.Eventually(t, long, "the store answers "+rid, func() bool { // its first question of the store's identity has one attempt
			n.lease, err = n.store.AcquireLease(ctx, o.lease)
			return outcome.KindOf(err) != outcome.Unavailable
		})
		fatal(err)
		oc.RID, oc.Lease, oc.Lifecycle = rid, n.lease, n.lease.Lifecycle()
		rc.RID, rc.Lifecycle, rc.ClientName, rc.Clock, rc.Gate = rid, n.lease.Lifecycle(), "", n.lease.Clock(), n.lease
	} else {
		fabrictest.Eventually(t, long, "the store tells its time", func() bool { return n.store.ReadClock(ctx, clock) == nil })
	}
	n.dir, err = n.store.OpenDirectory(ctx, kvlocation.DirectoryConfig{Lease: n.lease})
	fatal(err)
	rc.Directory = n.dir
	n.router, err = channels.New(rc)
	fatal(err)
	oc.Directory, oc.Router = n.dir, n.router
	n.objects, err = objects.New(oc)
	fatal(err)
	if !o.client {
		o.move.Mesh, o.move.RID, o.move.Lifecycle, o.move.AppVersion, o.move.Wave = wire.Mesh("m"), rid, n.lease.Lifecycle(), o.version, o.wave
		o.move.Store, o.move.Lease, o.move.Directory, o.move.Router, o.move.Objects = n.store, n.lease, n.dir, n.router, n.objects
		n.moves, err = relocate.New(o.move)
		fatal(err)
	}
	onState := func(on bool) {
		if on {
			_ = n.router.Reconnected()
		} else {
			n.router.Disconnected()
		}
	}
	up.Store(&onState)
	events := make(chan struct{})
	go n.watchLease(events)
	t.Cleanup(func() { n.stop(events) })
	b.nodes = append(b.nodes, n)
	if !o.client {
		n.desc = kvlocation.Descriptor{State: kvlocation.StateServing, Weight: 1, AppVersion: o.version, Wave: o.wave}
		n.publish(kvlocation.StateServing)
		fatal(n.router.SetServing(true))
	}
	b.settle()
	return n
}

func (n *node) watchLease(done chan struct{}) {
	defer close(done)
	if n.lease == nil {
		return
	}
	for e := range n.lease.Events() {
		if e.Kind == kvlocation.LeaseRegained {
			n.objects.Regained()
			_ = n.router.SetServing(true)
		} else {
			n.objects.Lapsed()
			_ = n.router.SetServing(false)
		}
	}
}

func (n *node) publish(state kvlocation.NodeState) {
	n.b.t.Helper()
	n.desc.State, n.desc.Types = state, n.objects.Types()
	if err := n.store.PublishDescriptor(n.b.ctx(), n.lease, n.desc); err != nil {
		n.b.t.Fatal(err)
	}
}

// stop ends a node in order, as far as its connection allows.
func (n *node) stop(events chan struct{}) {
	n.once.Do(func() {
		n.proxy.Heal()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if n.moves != nil {
			if err := n.moves.Close(ctx); err != nil {
				n.b.t.Logf("node %s: %v", n.rid, err)
			}
		}
		if err := n.objects.Close(ctx); err != nil {
			n.b.t.Logf("node %s: %v", n.rid, err)
		}
		if err := n.router.Close(ctx); err != nil {
			n.b.t.Logf("node %s: %v", n.rid, err)
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
	})
}

// settle waits until every directory lists every node as it is.
func (b *bed) settle() {
	b.t.Helper()
	fabrictest.Eventually(b.t, long, "all directories agree", func() bool {
		for _, n := range b.nodes {
			for _, other := range b.nodes {
				if other.lease == nil {
					continue
				}
				got, ok := n.dir.Members().Get(other.rid)
				if !ok || got.Lifecycle != other.lease.Lifecycle() || got.State != other.desc.State || len(got.Types) != len(other.desc.Types) {
					return false
				}
			}
		}
		return true
	})
}

// vanish ends a node as if its process had died: its connection goes, and its lease is not renewed.
func (n *node) vanish() { n.proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut) }

// ctx is a context for one operation of a test.
func (b *bed) ctx() context.Context { return b.ctxFor(long) }

func (b *bed) ctxFor(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	b.t.Cleanup(cancel)
	return ctx
}

// entry reads a record as it is.
func (b *bed) entry(key kvlocation.ObjectKey) kvlocation.Entry {
	b.t.Helper()
	e, err := b.store.Read(b.ctx(), key)
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

func actorKey(id string) kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: id}
}

// make creates an Actor of the type "counter" that the placement gives to the node.
func (n *node) make() objects.ActorRef {
	n.b.t.Helper()
	for i := range 1000 {
		id := fmt.Sprintf("a%d", n.b.made.Add(1))
		ref, err := n.objects.Actors().Create(n.b.ctx(), "counter", id, nil)
		if err != nil {
			n.b.t.Fatal(err)
		}
		if n.b.entry(actorKey(id)).Record.Owner.RID == n.rid {
			return ref
		}
		if err := n.objects.Actors().Destroy(n.b.ctx(), ref); err != nil {
			n.b.t.Fatal(i, err)
		}
	}
	n.b.t.Fatalf("nothing is placed at node %s", n.rid)
	return objects.ActorRef{}
}

// move moves an Actor and wants it to succeed. One that has just come may not have opened yet: the record says first whose it is.
func (n *node) move(id, to string) (m relocate.Moved) {
	n.b.t.Helper()
	var err error
	fabrictest.Eventually(n.b.t, long, fmt.Sprintf("%s is open at %s", id, n.rid), func() bool {
		m, err = n.moves.Move(n.b.ctx(), actorKey(id), 0, to)
		return err == nil || !strings.Contains(err.Error(), "it is being made at this node")
	})
	if err != nil {
		n.b.t.Fatalf("moving %s from %s to %s: %v", id, n.rid, to, err)
	}
	return m
}

// wantOwner waits until a record is Ready at a node, and tells of no move.
func (b *bed) wantOwner(key kvlocation.ObjectKey, rid string, clean bool) kvlocation.Entry {
	b.t.Helper()
	var e kvlocation.Entry
	fabrictest.Eventually(b.t, long, fmt.Sprintf("%s is Ready at %s", key, rid), func() bool {
		e = b.entry(key)
		_, moving := e.Move()
		return e.Phase() == kvlocation.PhaseReady && e.Record.Owner.RID == rid && (!clean || !moving)
	})
	return e
}

// wantReason fails the test unless err is of this acceptance and reason, and its text all the words.
func wantReason(t testing.TB, err error, acc outcome.Acceptance, reason relocate.Reason, words ...string) {
	t.Helper()
	var e *outcome.Error
	if !errors.As(err, &e) || e.Acceptance != acc || relocate.ReasonOf(err) != reason {
		t.Fatalf("got %v (reason %s), want %v and %s", err, relocate.ReasonOf(err), acc, reason)
	}
	if reason.Text() == "" {
		t.Fatalf("the reason %s has no text", reason)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("the error %q does not say %q", err, w)
		}
	}
}

// received waits until senders have had so many more answers.
func received(t testing.TB, more int, senders ...*sender) {
	t.Helper()
	for _, s := range senders {
		want := s.sent() + more
		fabrictest.Eventually(t, long, fmt.Sprintf("%d answers for %s", want, s.name), func() bool { return s.sent() >= want })
	}
}
