package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/session"
)

// Node is one process run of a RID in a mesh. Its methods are safe for concurrent use.
type Node struct {
	cfg    Config
	mesh   wire.Mesh
	log    *zap.Logger
	state  *stateCell
	link   *link
	store  *kvlocation.Store
	lease  *kvlocation.Lease
	dir    *kvlocation.Directory
	router *channels.Router
	// These are nil until open has come that far.
	objects  *objects.Service
	mover    *relocate.Service
	sessions *session.Service
	admin    *admin

	relocating relocation
	worker     worker
	fencer     *fence.SelfFencer // nil without Config.SelfFence

	servers    servers
	started    time.Time
	publishing sync.Mutex            // orders a reading of the servers and the write that says it
	listed     []kvlocation.TypeInfo // as they were published last; guarded by publishing
	leaving    bool                  // the descriptor says Draining, and nothing else any more; guarded by publishing

	events  chan hostEvent
	inDoubt atomic.Bool        // the node has to be verified before it serves again; the host goroutine writes it
	stop    context.CancelFunc // ends the host goroutine and the one that keeps the node listed
	stopped chan struct{}      // closed when the host goroutine has ended
	keeping sync.WaitGroup     // of the other one

	shutdownOnce sync.Once
	shutdownErr  error
	shutdownDone chan struct{}
}

// Start starts a node and returns once it serves, and once its own list of the mesh's nodes has it.
//
// It fails, with nothing left behind, when the configuration is wrong (each wrong field named), NATS cannot be
// reached, the server is older than needed or has no JetStream, the mesh's streams are missing or differ from what
// the fabric needs, or another process holds the RID's lease and renews it. ctx bounds the start only; a predecessor's
// lease is waited for up to Config.MaxWait.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, misconfigured("node of mesh", cfg.Mesh, err)
	}
	if cfg.RID == "" {
		cfg.RID = nuid.Next()
	}
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, mesh: wire.Mesh(cfg.Mesh), state: newStateCell(), started: time.Now().UTC(),
		log:    cfg.Logger.With(zap.String("mesh", cfg.Mesh), zap.String("rid", cfg.RID)),
		events: make(chan hostEvent, 16), stopped: make(chan struct{}), shutdownDone: make(chan struct{}),
	}
	if err := n.open(ctx); err != nil {
		n.release(context.WithoutCancel(ctx))
		return nil, err
	}
	return n, nil
}

// open takes everything the node needs, in the order in which release gives it back.
func (n *Node) open(ctx context.Context) (err error) {
	if n.link, err = openLink(ctx, "fabric "+n.cfg.Mesh+"/"+n.cfg.RID, n.cfg.Conn, n.cfg.Connect, n.log); err != nil {
		return err
	}
	n.store, err = kvlocation.Open(ctx, n.link.nc, kvlocation.Config{
		Mesh: n.cfg.Mesh, Domain: n.cfg.Domain, RID: n.cfg.RID, AttemptTimeout: n.cfg.storeAttempt(), Logger: n.log,
	})
	if err != nil {
		return err
	}
	lease := n.cfg.lease()
	lease.Host, _ = os.Hostname() // only for people who look at the lease
	lease.OnWait = n.waiting()
	if n.lease, err = n.store.AcquireLease(ctx, lease); err != nil {
		return err
	}
	n.dir, err = n.store.OpenDirectory(ctx, kvlocation.DirectoryConfig{Grace: n.cfg.StoreFailureGrace, Lease: n.lease})
	if err != nil {
		return err
	}
	n.router, err = channels.New(channels.Config{
		Mesh: n.mesh, Conn: n.link.nc, RID: n.cfg.RID, Lifecycle: n.lease.Lifecycle(), AppVersion: n.cfg.AppVersion,
		Directory: n.dir, Clock: n.lease.Clock(), Gate: n.lease, LeaseOf: n.store.LeaseOf,
		DefaultTimeout: n.cfg.DefaultTimeout, Logger: n.log, CallMiddleware: n.cfg.CallMiddleware,
		ReplaceConnection: n.replaceConnection,
	})
	if err != nil {
		return err
	}
	n.objects, err = objects.New(objects.Config{
		Mesh: n.mesh, RID: n.cfg.RID, Lifecycle: n.lease.Lifecycle(),
		Store: n.store, Lease: n.lease, Directory: n.dir, Router: n.router,
		Types: n.cfg.Types, Capacity: n.cfg.Capacity, MaxTurns: n.cfg.MaxTurns, RouteTTL: n.cfg.RouteTTL,
		DefaultTimeout: n.cfg.DefaultTimeout, CallMiddleware: n.cfg.ObjectCallMiddleware,
		AuditRetention: n.cfg.AuditRetention, Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.mover, err = relocate.New(relocate.Config{
		Mesh: n.mesh, RID: n.cfg.RID, Lifecycle: n.lease.Lifecycle(), AppVersion: n.cfg.AppVersion, Wave: n.cfg.Wave,
		Store: n.store, Lease: n.lease, Directory: n.dir, Router: n.router, Objects: n.objects,
		Concurrency: n.cfg.Relocation.Concurrency, UnitTimeout: n.cfg.Relocation.UnitTimeout, FollowTime: n.cfg.Relocation.FollowTime,
		Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.objects.MoveWith(func(ctx context.Context, key kvlocation.ObjectKey, generation uint64, to string) error {
		_, err := n.mover.Move(ctx, key, generation, to)
		return err
	})
	if n.sessions, err = session.New(n.sessionConfig()); err != nil {
		return err
	}
	if n.admin, err = openAdmin(ctx, n); err != nil {
		return err
	}
	if n.cfg.SelfFence != nil {
		if n.fencer, err = fence.NewSelfFencer(*n.cfg.SelfFence); err != nil {
			return misconfigured("node of mesh", n.cfg.Mesh, err)
		}
	}
	if err := n.openWorker(ctx); err != nil {
		return err
	}
	for _, spec := range n.cfg.Channels {
		if err := n.serve(ctx, spec); err != nil {
			return err
		}
	}
	hostCtx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.link.onDown = func() { n.router.Disconnected(); n.post(hostEvent{e: evDoubt, reason: "connection lost"}) }
	n.link.onUp = func() {
		if err := n.router.Reconnected(); err != nil {
			n.log.Warn("the connection was lost again at once", zap.Error(err))
			return // the next status change brings the next connection
		}
		n.post(hostEvent{verify: true})
	}
	n.link.onClosed = func() { n.post(hostEvent{e: evFatal, reason: "connection closed", err: nats.ErrConnectionClosed}) }
	n.link.start(n.asyncError)
	go n.host(hostCtx)
	n.keeping.Go(func() { n.keepListed(hostCtx) })

	conn := n.link.connection()
	if err := n.publish(ctx); err != nil {
		return err
	}
	// The first call after Start may name this node, or a type that it alone registers.
	if err := n.dir.Resync(ctx); err != nil {
		return err
	}
	ready := make(chan struct{})
	n.post(hostEvent{e: evVerified, reason: "started", conn: conn, done: ready})
	<-ready
	return n.Err()
}

// waiting returns what tells the operator, once, that another process run's lease is waited for, and for how long.
func (n *Node) waiting() func(kvlocation.LeaseWait) {
	var once sync.Once
	return func(w kvlocation.LeaseWait) {
		once.Do(func() {
			if w.Remaining <= 0 {
				n.log.Warn("another process run held this RID: its lease is over, and the store is about to say so",
					zap.Uint64("lifecycle", w.Holder.Lifecycle), zap.String("host", w.Holder.Host))
				return
			}
			n.log.Warn("another process run holds this RID: waiting for its lease to expire",
				zap.Duration("at_most", w.Remaining), zap.Uint64("lifecycle", w.Holder.Lifecycle), zap.String("host", w.Holder.Host))
		})
	}
}

// replaceConnection asks for a new connection after a freeze in which the present one has gone silent.
func (n *Node) replaceConnection(reason string) {
	n.log.Warn("replacing the connection", zap.String("reason", reason))
	if err := n.link.nc.ForceReconnect(); err != nil {
		n.log.Warn("the connection cannot be replaced", zap.Error(err))
	}
}

// RID returns the node's name in the mesh.
func (n *Node) RID() string { return n.cfg.RID }

// Mesh returns the mesh's name.
func (n *Node) Mesh() string { return n.cfg.Mesh }

// Lifecycle returns the number of this process run: a later run of the same RID has a larger one.
func (n *Node) Lifecycle() uint64 { return n.lease.Lifecycle() }

// State returns the host state.
func (n *Node) State() kvlocation.NodeState { return n.state.get() }

// States returns a channel of the host state's changes from now on. It holds up to 16 unread changes and drops the
// oldest beyond that; it is closed after a terminal state or when ctx ends.
func (n *Node) States(ctx context.Context) <-chan StateChange { return n.state.watch(ctx) }

// Done returns a channel that is closed when the node has come to a terminal state: StateStopped or StateError.
func (n *Node) Done() <-chan struct{} { return n.state.ended }

// Err returns why the node is in StateError, else nil.
func (n *Node) Err() error { return n.state.failure() }

// Members returns what the node knows of the mesh now.
func (n *Node) Members() *kvlocation.Members { return n.dir.Members() }

// Conn returns the NATS connection, for what a program wants to do beside the fabric. It must not be closed, drained
// or given other handlers.
func (n *Node) Conn() *nats.Conn { return n.link.nc }

// Store returns the mesh's Location Store.
func (n *Node) Store() *kvlocation.Store { return n.store }

// Metrics returns the counters of the calls that this node made and of the channels that it serves.
func (n *Node) Metrics() channels.Snapshot { return n.router.Metrics() }

// Peers returns what the node knows of the other members' reachability.
func (n *Node) Peers() []channels.PeerStatus { return n.router.Peers() }

// Actors returns the caller's side of the mesh's Actors. It costs nothing to call again.
func (n *Node) Actors() *objects.Actors { return n.objects.Actors() }

// Spots returns the caller's side of the mesh's Spots. It costs nothing to call again.
func (n *Node) Spots() *objects.Spots { return n.objects.Spots() }

// Objects returns the node's part in the mesh's objects: for counters, look-ups and releases. Its life is the node's; it
// must not be closed.
func (n *Node) Objects() *objects.Service { return n.objects }

// Sessions returns the node's part in the sessions of clients. Without Config.Sessions the node owns none, and its Handler
// refuses clients; its Actors can be bound all the same. Its life is the node's; it must not be closed or drained.
func (n *Node) Sessions() *session.Service { return n.sessions }

// Channel returns the caller's side of a channel. It costs nothing to call again.
func (n *Node) Channel(name string) *channels.Channel { return n.router.Channel(name) }

// Serve begins to serve a channel, and returns once the node's descriptor lists it. A failure leaves the channel
// unserved. While the node is not Serving, the channel opens, and the descriptor lists it, when it is again.
//
// Errors: InvalidOperation when the specification is wrong; AlreadyExists when this node serves the channel;
// TypeMismatch when another node serves it as the other kind; ShuttingDown; Unavailable when the connection or the
// store does not answer.
func (n *Node) Serve(ctx context.Context, spec channels.Spec) error {
	if err := n.serve(ctx, spec); err != nil {
		return err
	}
	if err := n.relist(ctx); err != nil {
		return errors.Join(err, n.Unserve(context.WithoutCancel(ctx), spec.Name))
	}
	return nil
}

// serve opens a channel without listing it.
func (n *Node) serve(ctx context.Context, spec channels.Spec) error {
	if err := spec.Validate(); err != nil {
		return misconfigured("channel", spec.Name, err)
	}
	kind := spec.Kind
	if kind == "" {
		kind = kvlocation.RouteMesh
	}
	for _, m := range n.dir.Members().Channel(spec.Name) {
		if info, ok := m.Channel(spec.Name); ok && m.RID != n.cfg.RID && info.Kind != kind {
			return outcome.New("serve", outcome.TypeMismatch, outcome.NotAccepted, fmt.Sprintf("channel %q", spec.Name),
				fmt.Sprintf("node %q serves it as %s, this node would serve it as %s", m.RID, info.Kind, kind))
		}
	}
	if spec.Weight == 0 && kind == kvlocation.RouteMesh {
		spec.Weight = n.cfg.Weight
	}
	spec.Middleware = slices.Concat(n.cfg.Middleware, spec.Middleware)
	srv, err := n.router.Serve(ctx, spec)
	if err != nil {
		return err
	}
	n.servers.put(spec.Name, srv)
	return nil
}

// SetWeight changes this node's weight in a RouteMesh channel that it serves: 0 takes it out, without ending what it
// has accepted. It returns once the descriptor says so.
//
// Errors: NotFound when this node does not serve the channel; InvalidOperation for a weight out of range or a
// ClientServer channel; Unavailable when the connection or the store does not answer.
func (n *Node) SetWeight(ctx context.Context, channel string, weight int) error {
	srv, err := n.servers.get("set weight", channel)
	if err != nil {
		return err
	}
	if err := srv.SetWeight(ctx, weight); err != nil {
		return err
	}
	return n.relist(ctx)
}

// Unserve stops serving a channel: the descriptor ceases to list it, then what was accepted is finished. When ctx ends
// first, both go on to their end, and Unserve may be called again to wait on; the channel can be served anew once it has
// drained. Errors: NotFound when this node does not serve the channel, DeadlineExceeded when it still drains, and
// Unavailable when the descriptor was not written yet.
func (n *Node) Unserve(ctx context.Context, channel string) error {
	srv, err := n.servers.get("unserve", channel)
	if err != nil {
		return err
	}
	n.servers.leave(channel)
	return errors.Join(n.relist(ctx), srv.Drain(ctx))
}
