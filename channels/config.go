package channels

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// Defaults and bounds of the configuration.
const (
	// DefaultTimeout bounds an operation whose context has no deadline.
	DefaultTimeout = 5 * time.Second
	// MaxTimeout bounds every operation, whatever its context says: below the 9 minutes within which the store
	// can still tell a lost write from an applied one.
	MaxTimeout = 8 * time.Minute
	// DefaultMaxInFlight bounds the operations of one router that wait for an answer at the same time.
	DefaultMaxInFlight = 65536
	// maxInFlightLimit is the greatest MaxInFlight: a token has 20 bits for it.
	maxInFlightLimit = 1 << tokenSlotBits
)

// Directory is what a router needs of the mesh's list of nodes; *kvlocation.Directory is one.
type Directory interface {
	// Members is the present list, immutable.
	Members() *kvlocation.Members
	// Changed is closed when the list that Members returned before the call has been replaced.
	Changed() <-chan struct{}
}

// Clock is what a router needs of the store's clock; *kvlocation.Clock is one.
type Clock interface {
	// Now returns the store's time and the greatest error of it; ok is false before the first measurement.
	Now() (now time.Time, bound time.Duration, ok bool)
	// Past reports whether a deadline has certainly passed.
	Past(deadline time.Time) bool
	// Observe feeds one measurement: the server's time was read between sent and received.
	Observe(sent, received monotime.Time, server time.Time)
}

// Gate is what a router needs of the owner lease; *kvlocation.Lease is one.
type Gate interface {
	// Admit returns nil while new work may start.
	Admit() error
}

// Config configures a Router. The zero value of an optional field is its default.
type Config struct {
	// Mesh is the mesh's name.
	Mesh wire.Mesh
	// Conn is the connection. It must have been opened with a reconnect buffer of -1, so that nothing sits in it
	// and goes out later.
	Conn *nats.Conn

	// RID and Lifecycle name the node's process run. Both are empty in a client that is no node.
	RID       string
	Lifecycle uint64
	// ClientName names a client that is no node; it becomes a token of its reply subjects. Optional there
	// ("client"), and unused in a node.
	ClientName string

	// Directory is the list of the mesh's nodes. Required.
	Directory Directory
	// Clock is the store's clock. Without one, or before its first measurement, requests carry no deadline and
	// deadlines are not judged.
	Clock Clock
	// Gate admits new work; nil admits always.
	Gate Gate
	// LeaseOf reads the lease of a node under suspicion. Optional: without it only probes decide.
	LeaseOf func(ctx context.Context, rid string) (kvlocation.LeaseState, error)

	// DefaultTimeout bounds an operation whose context has no deadline (5 s). At most MaxTimeout.
	DefaultTimeout time.Duration
	// MaxInFlight bounds the operations that wait for an answer (65,536). At most 1,048,576.
	MaxInFlight int
	// AppVersion is the version that service discovery shows. Anything but a semantic version is shown as
	// metadata beside version 0.0.0.
	AppVersion string
	// CallMiddleware wraps every operation, the first one outermost.
	CallMiddleware []CallMiddleware

	// ReplaceConnection is called when the connection must be replaced: after a freeze of this process the server
	// did not answer a PING within 5 s, or a subscription was draining while the connection was replaced, so that
	// the server may still know it. It must not block. Optional.
	ReplaceConnection func(reason string)
	// OnSlowConsumer is called when a subscription of this router dropped messages in the client library. It must
	// not block. Optional.
	OnSlowConsumer func(subject string, dropped int)
	// Logger is optional.
	Logger *zap.Logger
}

func (c *Config) check() error {
	if err := wire.CheckName("Mesh", string(c.Mesh)); err != nil {
		return err
	}
	switch {
	case c.Conn == nil:
		return errors.New("Conn is required")
	case c.Directory == nil:
		return errors.New("Directory is required")
	case c.Conn.Opts.ReconnectBufSize >= 0:
		return fmt.Errorf("Conn has a reconnect buffer of %d bytes: open it with nats.ReconnectBufSize(-1), so that no request goes out after its caller gave up", c.Conn.Opts.ReconnectBufSize)
	}
	if c.Lifecycle != 0 {
		if err := wire.CheckName("RID", c.RID); err != nil {
			return err
		}
	} else {
		if c.RID != "" {
			return fmt.Errorf("RID %q is given without a Lifecycle", c.RID)
		}
		if c.ClientName == "" {
			c.ClientName = "client"
		}
		if err := wire.CheckName("ClientName", c.ClientName); err != nil {
			return err
		}
	}
	if c.DefaultTimeout == 0 {
		c.DefaultTimeout = DefaultTimeout
	}
	if c.DefaultTimeout < time.Millisecond || c.DefaultTimeout > MaxTimeout {
		return fmt.Errorf("DefaultTimeout %v is not allowed: it must be 1ms to %v", c.DefaultTimeout, MaxTimeout)
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.MaxInFlight < 1 || c.MaxInFlight > maxInFlightLimit {
		return fmt.Errorf("MaxInFlight %d is not allowed: it must be 1 to %d", c.MaxInFlight, maxInFlightLimit)
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return nil
}
