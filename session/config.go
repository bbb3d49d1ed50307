package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// Defaults and bounds of Config.
const (
	// DefaultMaxSessions is how many sessions a node owns at most.
	DefaultMaxSessions = 10_000
	// DefaultMaxBindings is how many Actors one session is bound to at most.
	DefaultMaxBindings = 256
	// DefaultInFlight is how many requests of one session wait for an answer at most.
	DefaultInFlight = 64
	// DefaultMaxMessage is the greatest payload that a client may send.
	DefaultMaxMessage = 64 << 10
	// DefaultOutbound and DefaultOutboundBytes bound what waits for one client.
	DefaultOutbound      = 256
	DefaultOutboundBytes = 1 << 20
	// DefaultHeartbeat is the time between two pings to a client.
	DefaultHeartbeat = 10 * time.Second
	// DefaultHandshakeTimeout bounds a handshake, the authenticator included.
	DefaultHandshakeTimeout = 5 * time.Second
	// DefaultGoAway is how long clients have to leave a node that drains.
	DefaultGoAway = 10 * time.Second
	// DefaultRelayTimeout bounds a request for which the client says no time of its own.
	DefaultRelayTimeout = channels.DefaultTimeout
	// DefaultGapWait is how long pushes wait for one that is missing before them.
	DefaultGapWait = 2 * time.Second

	maxSessions   = 10_000_000
	maxBindings   = 65_536
	maxInFlight   = 65_536
	maxMessage    = 64 << 20
	maxOutbound   = 1 << 20
	maxOutBytes   = 1 << 30
	maxHandshakes = 256 // under way at a time
)

// SlowPolicy says what becomes of a push that does not fit in what waits for its client. Answers are never dropped: when
// one does not fit, the session is closed under every policy.
type SlowPolicy uint8

const (
	// CloseSlow closes the session: the client is told, and its bindings end.
	CloseSlow SlowPolicy = iota
	// DropNewest drops the push; the client sees a gap in the numbers.
	DropNewest
	// DropOldest drops the oldest pushes that wait, until the new one fits; the client sees a gap in the numbers.
	DropOldest
)

// String returns the policy's name.
func (p SlowPolicy) String() string {
	switch p {
	case CloseSlow:
		return "close"
	case DropNewest:
		return "drop newest"
	case DropOldest:
		return "drop oldest"
	}
	return fmt.Sprintf("SlowPolicy(%d)", uint8(p))
}

// Authenticator decides who a client is. The context ends with Config.HandshakeTimeout. An *outcome.Error keeps its kind
// and its text reaches the client; any other error is logged, and the client hears Rejected and no more.
type Authenticator func(ctx context.Context, hello Hello) (Identity, error)

// Config says what a Service works with. Mesh, RID, Lifecycle, Router, Objects, Conn and LeaseOf are required; the zero value
// of every other field is its default.
type Config struct {
	// Mesh is the mesh's name.
	Mesh wire.Mesh
	// RID and Lifecycle name the node's process run.
	RID       string
	Lifecycle uint64
	// Router carries the messages. The Service listens through it and does not close it.
	Router *channels.Router
	// Objects hosts this node's Actors and finds those of others. New accompanies it.
	Objects *objects.Service
	// Conn is the router's connection: the frames to NATS clients go out on it.
	Conn *nats.Conn
	// LeaseOf reads the lease of another node; (*kvlocation.Store).LeaseOf is one. A session whose node has none any
	// more is over.
	LeaseOf func(ctx context.Context, rid string) (kvlocation.LeaseState, error)

	// Authenticate decides who a client is. Without it the node owns no sessions: its Actors can be bound all the same,
	// to the sessions of other nodes. A node that hosts Actors needs a Service in either case.
	Authenticate Authenticator
	// Authorize decides whether a client may bind to an Actor; nil allows it. The context ends with the client's time
	// for the bind. Errors are those of Authenticate.
	Authorize func(ctx context.Context, who Identity, actor objects.ActorRef) error

	// MaxSessions is how many sessions this node owns at most. Default 10,000, at most 10,000,000.
	MaxSessions int
	// MaxBindings is how many Actors one session is bound to at most. Default 256, at most 65,536.
	MaxBindings int
	// InFlight is how many requests of one session, binds included, wait for an answer at most. Default 64, at most
	// 65,536.
	InFlight int
	// MaxMessage is the greatest payload that a client may send, in bytes. Default 64 KiB, at most 64 MiB (and what the
	// NATS server allows).
	MaxMessage int
	// Outbound and OutboundBytes bound what waits for one client. Default 256 frames and 1 MiB, at most 1,048,576 and
	// 1 GiB. One frame always fits.
	Outbound, OutboundBytes int
	// Slow says what becomes of a push that does not fit there. Default: the session is closed.
	Slow SlowPolicy
	// Heartbeat is the time between two pings to a client. A client of which nothing came for two of them is given up.
	// Default 10 s; 20 ms to 10 min.
	Heartbeat time.Duration
	// HandshakeTimeout bounds a handshake, the authenticator included. Default 5 s; 10 ms to 1 min.
	HandshakeTimeout time.Duration
	// GoAway is how long clients have to leave when this node drains. Default 10 s; 10 ms to 10 min.
	GoAway time.Duration
	// RelayTimeout bounds a request for which the client says no time of its own. Default 5 s; 1 ms to 8 min.
	RelayTimeout time.Duration
	// GapWait is how long pushes wait for one that is missing before them. Default 2 s; 1 ms to 1 min.
	GapWait time.Duration
	// Origins are the hosts of web pages, beside the node's own, from which a browser may open a session: patterns of
	// path.Match, like *.example.com.
	Origins []string
	// Logger is optional. Nothing is logged per message.
	Logger *zap.Logger
}

// Validate checks every field, defaults filled in. Its error names the field, the value and what is allowed.
func (c Config) Validate() error { return c.check() }

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
		return errors.New("Lifecycle is required: only a node owns sessions")
	case c.Router == nil:
		return errors.New("Router is required")
	case c.Objects == nil:
		return errors.New("Objects is required")
	case c.Conn == nil:
		return errors.New("Conn is required")
	case c.LeaseOf == nil:
		return errors.New("LeaseOf is required")
	}
	return c.Tune()
}

// Tune checks what concerns sessions alone, and fills in its defaults: everything from Authenticate on. Its error names
// each field that is wrong, its value and what is allowed.
func (c *Config) Tune() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Slow > DropOldest {
		bad("Slow %v is not allowed: it must be CloseSlow, DropNewest or DropOldest", c.Slow)
	}
	for _, f := range []struct {
		name           string
		value          *int
		standard, most int
	}{
		{"MaxSessions", &c.MaxSessions, DefaultMaxSessions, maxSessions},
		{"MaxBindings", &c.MaxBindings, DefaultMaxBindings, maxBindings},
		{"InFlight", &c.InFlight, DefaultInFlight, maxInFlight},
		{"MaxMessage", &c.MaxMessage, DefaultMaxMessage, maxMessage},
		{"Outbound", &c.Outbound, DefaultOutbound, maxOutbound},
		{"OutboundBytes", &c.OutboundBytes, DefaultOutboundBytes, maxOutBytes},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < 1 || *f.value > f.most {
			bad("%s %d is not allowed: it must be 1 to %d", f.name, *f.value, f.most)
		}
	}
	for _, f := range []struct {
		name                  string
		value                 *time.Duration
		standard, least, most time.Duration
	}{
		{"Heartbeat", &c.Heartbeat, DefaultHeartbeat, 20 * time.Millisecond, 10 * time.Minute},
		{"HandshakeTimeout", &c.HandshakeTimeout, DefaultHandshakeTimeout, 10 * time.Millisecond, time.Minute},
		{"GoAway", &c.GoAway, DefaultGoAway, 10 * time.Millisecond, 10 * time.Minute},
		{"RelayTimeout", &c.RelayTimeout, DefaultRelayTimeout, time.Millisecond, channels.MaxTimeout},
		{"GapWait", &c.GapWait, DefaultGapWait, time.Millisecond, time.Minute},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < f.least || *f.value > f.most {
			bad("%s %v is not allowed: it must be %v to %v", f.name, *f.value, f.least, f.most)
		}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return errors.Join(errs...)
}
