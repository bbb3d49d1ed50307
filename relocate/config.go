package relocate

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// Defaults and bounds of Config.
const (
	// DefaultConcurrency is how many units leave a node at one time.
	DefaultConcurrency = 64
	MaxConcurrency     = 1024
	// DefaultUnitTimeout is how long one unit may take until it is given up or, behind the boundary, no longer waited for.
	DefaultUnitTimeout = 30 * time.Second
	MinUnitTimeout     = 2 * Fallback
	MaxUnitTimeout     = 5 * time.Minute
	// DefaultFollowTime is how long a node forwards what still reaches it for an object that has left (FO-4.2b).
	DefaultFollowTime = 30 * time.Second
	MaxFollowTime     = time.Hour

	// Fallback is how long a target waits for the cutover marker after its relay-ready, before it asks the store whether
	// the source has accepted (FO-5b). It is fixed.
	Fallback = time.Second

	// MaxArriving is how many units come to a node at one time; more are refused, and their source chooses another node.
	MaxArriving = 1024
)

// Config says what a Service works with. Every field from Mesh to Objects is required, but for AppVersion and Wave; the zero value of
// Concurrency and UnitTimeout is their default.
type Config struct {
	// Mesh is the mesh's name.
	Mesh wire.Mesh
	// RID and Lifecycle name the node's process run.
	RID       string
	Lifecycle uint64
	// AppVersion is the version of the application on this node, and Wave its maintenance wave, as its descriptor says.
	AppVersion, Wave string
	// Store is the mesh's Location Store, Lease the node's owner lease, Directory the list of the mesh's nodes.
	Store     *kvlocation.Store
	Lease     *kvlocation.Lease
	Directory channels.Directory
	// Router carries the messages between source and target, Objects has what is moved.
	Router  *channels.Router
	Objects *objects.Service
	// Concurrency is how many units leave at one time. Default 64, at most 1,024.
	Concurrency int
	// UnitTimeout bounds one unit (DefaultUnitTimeout): 2 s to 5 min.
	UnitTimeout time.Duration
	// FollowTime is how long this node forwards what still reaches it for an object that has left. 0 means never: what arrives
	// late is then refused. At most 1 h.
	FollowTime time.Duration
	// Logger is optional. Nothing is logged per message.
	Logger *zap.Logger
}

// check fills in defaults; its error names the field, the value and what is allowed.
func (c *Config) check() error {
	if err := wire.CheckName("Mesh", string(c.Mesh)); err != nil {
		return err
	}
	if err := wire.CheckName("RID", c.RID); err != nil {
		return err
	}
	switch {
	case c.Lifecycle == 0:
		return errors.New("Lifecycle is required: only a node moves objects")
	case c.Store == nil:
		return errors.New("Store is required")
	case c.Lease == nil:
		return errors.New("Lease is required")
	case c.Directory == nil:
		return errors.New("Directory is required")
	case c.Router == nil:
		return errors.New("Router is required")
	case c.Objects == nil:
		return errors.New("Objects is required")
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.UnitTimeout == 0 {
		c.UnitTimeout = DefaultUnitTimeout
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	switch {
	case c.Concurrency < 1 || c.Concurrency > MaxConcurrency:
		return fmt.Errorf("Concurrency %d is not allowed: it must be 1 to %d", c.Concurrency, MaxConcurrency)
	case c.UnitTimeout < MinUnitTimeout || c.UnitTimeout > MaxUnitTimeout:
		return fmt.Errorf("UnitTimeout %v is not allowed: it must be %v to %v", c.UnitTimeout, MinUnitTimeout, MaxUnitTimeout)
	case c.FollowTime < 0 || c.FollowTime > MaxFollowTime:
		return fmt.Errorf("FollowTime %v is not allowed: it must be 0 (off) to %v", c.FollowTime, MaxFollowTime)
	}
	return nil
}
