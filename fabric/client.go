package fabric

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// ClientConfig says how a program that is no node reaches a mesh. Only Mesh is required.
type ClientConfig struct {
	// Mesh is the mesh's name. Required.
	Mesh string
	// Connect says how to reach NATS, when Conn is nil; see Config.
	Connect Connect
	// Conn is a connection of the caller's; see Config.
	Conn *nats.Conn
	// Domain is the JetStream domain of the mesh's streams.
	Domain string
	// DefaultTimeout bounds a call whose context has no deadline. Default 5 s; 1 ms to 8 min.
	DefaultTimeout time.Duration
	// CallMiddleware wraps every call of a channel, ObjectCallMiddleware every call of an object, the first one outermost.
	CallMiddleware       []channels.CallMiddleware
	ObjectCallMiddleware []objects.CallMiddleware
	// RouteTTL is how long a route to an object is used before the store is asked again. Default 15 s; 1 ms to 1 h.
	RouteTTL time.Duration
	// Logger gets what an operator should see. Default: nothing.
	Logger *zap.Logger
}

func (cfg ClientConfig) withDefaults() ClientConfig {
	if cfg.DefaultTimeout == 0 {
		cfg.DefaultTimeout = DefaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return cfg
}

// Validate checks every field, defaults filled in, as Config.Validate does.
func (cfg ClientConfig) Validate() error {
	cfg = cfg.withDefaults()
	errs := []error{wire.CheckName("Mesh", cfg.Mesh), checkReach(cfg.Conn, cfg.Connect),
		checkRange("DefaultTimeout", cfg.DefaultTimeout, time.Millisecond, MaxTimeout)}
	if cfg.RouteTTL != 0 {
		errs = append(errs, checkRange("RouteTTL", cfg.RouteTTL, time.Millisecond, objects.MaxRouteTTL))
	}
	return errors.Join(errs...)
}

// Client calls channels, nodes and objects of a mesh without being a node of it: it holds no lease, publishes no
// descriptor and serves nothing. All it writes to the store is a probe key of its own, which expires after a minute,
// unless it is made to release objects. Its methods are safe for concurrent use.
type Client struct {
	cfg    ClientConfig
	log    *zap.Logger
	link   *link
	store  *kvlocation.Store
	dir    *kvlocation.Directory
	router *channels.Router
	// objects is nil until open has come that far.
	objects *objects.Service
	once    sync.Once
	err     error
}

// ConnectClient opens a client. It fails for the same reasons as Start, a held RID apart.
func ConnectClient(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, misconfigured("client of mesh", cfg.Mesh, err)
	}
	cfg = cfg.withDefaults()
	c := &Client{cfg: cfg, log: cfg.Logger.With(zap.String("mesh", cfg.Mesh))}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Client) open(ctx context.Context) (err error) {
	name := nuid.Next()
	if c.link, err = openLink(ctx, "fabric client "+c.cfg.Mesh+"/"+name, c.cfg.Conn, c.cfg.Connect, c.log); err != nil {
		return err
	}
	if c.store, err = kvlocation.Open(ctx, c.link.nc, kvlocation.Config{Mesh: c.cfg.Mesh, Domain: c.cfg.Domain, Logger: c.log}); err != nil {
		return err
	}
	if c.dir, err = c.store.OpenDirectory(ctx, kvlocation.DirectoryConfig{}); err != nil {
		return err
	}
	clock := kvlocation.NewClock(kvlocation.DefaultTTL)
	if err := c.store.ReadClock(ctx, clock); err != nil {
		return err // without the store's time the first requests would carry no deadline
	}
	c.router, err = channels.New(channels.Config{
		Mesh: wire.Mesh(c.cfg.Mesh), Conn: c.link.nc, ClientName: name,
		Directory: c.dir, Clock: clock, LeaseOf: c.store.LeaseOf,
		DefaultTimeout: c.cfg.DefaultTimeout, Logger: c.log, CallMiddleware: c.cfg.CallMiddleware,
	})
	if err != nil {
		return err
	}
	c.objects, err = objects.New(objects.Config{
		Mesh: wire.Mesh(c.cfg.Mesh), Store: c.store, Directory: c.dir, Router: c.router, RouteTTL: c.cfg.RouteTTL,
		DefaultTimeout: c.cfg.DefaultTimeout, CallMiddleware: c.cfg.ObjectCallMiddleware, Logger: c.log,
	})
	if err != nil {
		return err
	}
	c.link.onDown = c.router.Disconnected
	c.link.onUp = func() {
		if err := c.router.Reconnected(); err != nil {
			c.log.Warn("the connection was lost again at once", zap.Error(err))
		}
	}
	c.link.onClosed = func() {}
	c.link.start(func(sub *nats.Subscription, err error) {
		c.router.AsyncError(sub, err)
		c.link.logAsync(sub, err)
	})
	return nil
}

// Channel returns the caller's side of a channel. It costs nothing to call again.
func (c *Client) Channel(name string) *channels.Channel { return c.router.Channel(name) }

// Actors returns the caller's side of the mesh's Actors. It costs nothing to call again.
func (c *Client) Actors() *objects.Actors { return c.objects.Actors() }

// Spots returns the caller's side of the mesh's Spots. It costs nothing to call again.
func (c *Client) Spots() *objects.Spots { return c.objects.Spots() }

// Objects returns the client's part in the mesh's objects: for counters, look-ups and releases. Its life is the client's;
// it must not be closed.
func (c *Client) Objects() *objects.Service { return c.objects }

// Members returns what the client knows of the mesh now.
func (c *Client) Members() *kvlocation.Members { return c.dir.Members() }

// Store returns the mesh's Location Store, without an RID: it reads records, and its shared keys (Store.Shared), so agents,
// monitors and elections, are refused. For these open a store of your own, with kvlocation.Open and an RID.
func (c *Client) Store() *kvlocation.Store { return c.store }

// Metrics returns the counters of the calls that this client made.
func (c *Client) Metrics() channels.Snapshot { return c.router.Metrics() }

// Close ends the client; calls that still wait end with ShuttingDown. It may be called any number of times.
func (c *Client) Close(ctx context.Context) error {
	c.once.Do(func() {
		if c.objects != nil {
			c.err = c.objects.Close(ctx)
		}
		if c.router != nil {
			c.err = errors.Join(c.err, c.router.Close(ctx))
		}
		if c.dir != nil {
			c.dir.Close()
		}
		if c.store != nil {
			c.err = errors.Join(c.err, c.store.Close())
		}
		if c.link != nil {
			c.link.close()
		}
	})
	return c.err
}
