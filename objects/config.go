package objects

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// Defaults and bounds of Config.
const (
	// DefaultNodeCapacity is how many objects a node owns at most.
	DefaultNodeCapacity = 1_000_000
	// DefaultMaxTurns is how many turns run at one time at most.
	DefaultMaxTurns = 10_000
	// DefaultRouteTTL is how long a route is used before the store is asked again.
	DefaultRouteTTL = 15 * time.Second
	// DefaultRouteCache is how many routes are kept.
	DefaultRouteCache = 65_536
	// DefaultAuditRetention is how long the audit entries of releases stay in the store.
	DefaultAuditRetention = 30 * 24 * time.Hour

	// MaxCapacity, MaxTurns, MaxRouteTTL, MaxRouteCache and MaxAuditRetention are the greatest values of those fields.
	MaxCapacity       = 100_000_000
	MaxTurns          = 1_000_000
	MaxRouteTTL       = time.Hour
	MaxRouteCache     = 10_000_000
	MaxAuditRetention = kvlocation.MaxAuditRetention
)

// Config says what a Service works with. Mesh, Store, Directory and Router are required; the zero value of every other
// field is its default.
type Config struct {
	// Mesh is the mesh's name.
	Mesh wire.Mesh
	// RID and Lifecycle name the node's process run. Both are empty in a client, which owns no objects.
	RID       string
	Lifecycle uint64
	// AppVersion is the application's version at this node, for those to whom its objects move; optional.
	AppVersion string
	// Store is the mesh's Location Store.
	Store *kvlocation.Store
	// Lease is the node's owner lease; nil in a client.
	Lease *kvlocation.Lease
	// Directory is the list of the mesh's nodes; *kvlocation.Directory is one.
	Directory channels.Directory
	// Router carries the messages. The Service subscribes through it and does not close it.
	Router *channels.Router
	// Types are the object types that this node hosts. Names are unique within one class.
	Types []Type
	// Capacity is how many objects this node owns at most, of all types together. Default 1,000,000, at most
	// 100,000,000.
	Capacity int
	// MaxTurns is how many turns run at one time at most; more wait for a worker. Default 10,000, at most 1,000,000. Where
	// the turns that block are all of objects that share a run queue, others of that queue may wait from half of it on.
	MaxTurns int
	// RouteTTL is how long a route is used before the store is asked again. Default 15 s, at most 1 h.
	RouteTTL time.Duration
	// RouteCache is how many routes are kept. Default 65,536, at most 10,000,000.
	RouteCache int
	// DefaultTimeout bounds an operation whose context has no deadline. Default: the router's; 1 ms to
	// 8 min.
	DefaultTimeout time.Duration
	// CallMiddleware wraps every Request and Send to an object, the first one outermost.
	CallMiddleware []CallMiddleware
	// AuditRetention is how long the audit entries of releases stay in the store. Default 30 days; 1 s to 10 years.
	AuditRetention time.Duration
	// Logger is optional. Nothing is logged per message.
	Logger *zap.Logger
}

// check fills in defaults; its error names the field, the value and what is allowed.
func (c *Config) check() error {
	if err := wire.CheckName("Mesh", string(c.Mesh)); err != nil {
		return err
	}
	switch {
	case c.Store == nil:
		return errors.New("Store is required")
	case c.Directory == nil:
		return errors.New("Directory is required")
	case c.Router == nil:
		return errors.New("Router is required")
	case (c.Lease == nil) != (c.Lifecycle == 0):
		return errors.New("Lease and Lifecycle belong together: a node has both, a client none")
	case c.Lease == nil && len(c.Types) > 0:
		return errors.New("Types are given without a Lease: a client hosts no objects")
	}
	if c.Lifecycle != 0 {
		if err := wire.CheckName("RID", c.RID); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name     string
		value    *int
		standard int
		most     int
	}{
		{"Capacity", &c.Capacity, DefaultNodeCapacity, MaxCapacity},
		{"MaxTurns", &c.MaxTurns, DefaultMaxTurns, MaxTurns},
		{"RouteCache", &c.RouteCache, DefaultRouteCache, MaxRouteCache},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < 1 || *f.value > f.most {
			return fmt.Errorf("%s %d is not allowed: it must be 1 to %d", f.name, *f.value, f.most)
		}
	}
	for _, f := range []struct {
		name        string
		value       *time.Duration
		standard    time.Duration
		least, most time.Duration
	}{
		{"RouteTTL", &c.RouteTTL, DefaultRouteTTL, time.Millisecond, MaxRouteTTL},
		{"DefaultTimeout", &c.DefaultTimeout, c.Router.DefaultTimeout(), time.Millisecond, channels.MaxTimeout},
		{"AuditRetention", &c.AuditRetention, DefaultAuditRetention, time.Second, MaxAuditRetention},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < f.least || *f.value > f.most {
			return fmt.Errorf("%s %v is not allowed: it must be %v to %v", f.name, *f.value, f.least, f.most)
		}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return nil
}
