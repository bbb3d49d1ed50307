package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
)

// Defaults of Config.
const (
	// DefaultRequestTimeout bounds a call whose context has no deadline.
	DefaultRequestTimeout = 5 * time.Second
	// DefaultHandshakeTimeout bounds one attempt to open a session.
	DefaultHandshakeTimeout = 10 * time.Second
	// DefaultMinBackoff and DefaultMaxBackoff bound the wait between two attempts to open a session.
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = 10 * time.Second
	// DefaultPushes is how many pushes and events wait for their functions.
	DefaultPushes = 256
)

// Config says how a client reaches the mesh. URLs is required, and Mesh with addresses of NATS servers.
type Config struct {
	// URLs are the addresses: ws and wss URLs of nodes, or nats and tls URLs of NATS servers. They are tried in turn.
	URLs []string
	// Mesh is the mesh's name; only for NATS.
	Mesh string
	// Name is what the client calls itself, for people who look at a node. Up to 128 bytes.
	Name string
	// Credentials returns what the node's authenticator wants to see; it is asked for every session. Nil means nothing.
	Credentials func(ctx context.Context) ([]byte, error)
	// OnPush is called for each push. It runs on the client's one goroutine for pushes and events: what it keeps waiting
	// waits in a queue of Pushes, and then in the node. It must not call Close.
	OnPush func(b *Binding, p Push)
	// OnEvent is called for what happens to sessions and bindings, as OnPush.
	OnEvent func(e Event)
	// Pushes is how many pushes and events wait for their functions. Default 256.
	Pushes int
	// RequestTimeout bounds a call whose context has no deadline. Default 5 s.
	RequestTimeout time.Duration
	// HandshakeTimeout bounds one attempt to open a session. Default 10 s.
	HandshakeTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait between two attempts: it doubles, less up to a half at random, until a session
	// has lasted for MaxBackoff. Default 100 ms and 10 s.
	MinBackoff, MaxBackoff time.Duration
	// HTTP makes the WebSocket connections; nil means http.DefaultClient.
	HTTP *http.Client
	// NATS are further options of NATS connections: credentials of the server, TLS. Reconnects are the client's affair.
	NATS []nats.Option
}

// check fills in defaults; its error names each field that is wrong, the value and what is allowed.
func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.URLs) == 0 {
		bad("URLs is required: the addresses of nodes (ws, wss) or of NATS servers (nats, tls)")
	}
	overNATS := false
	for _, text := range c.URLs {
		u, err := url.Parse(text)
		switch {
		case err != nil:
			bad("URLs %q is not allowed: %w", text, err)
		case u.Scheme == "nats" || u.Scheme == "tls":
			overNATS = true
		case u.Scheme != "ws" && u.Scheme != "wss":
			bad("URLs %q is not allowed: the scheme must be ws, wss, nats or tls", text)
		}
	}
	if overNATS {
		errs = append(errs, wire.CheckName("Mesh", c.Mesh))
	}
	for _, f := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"RequestTimeout", &c.RequestTimeout, DefaultRequestTimeout},
		{"HandshakeTimeout", &c.HandshakeTimeout, DefaultHandshakeTimeout},
		{"MinBackoff", &c.MinBackoff, DefaultMinBackoff},
		{"MaxBackoff", &c.MaxBackoff, DefaultMaxBackoff},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < time.Millisecond {
			bad("%s %v is not allowed: it must be at least 1ms", f.name, *f.value)
		}
	}
	if c.MaxBackoff < c.MinBackoff {
		bad("MaxBackoff %v clashes with MinBackoff %v: it must be at least that", c.MaxBackoff, c.MinBackoff)
	}
	if c.Pushes == 0 {
		c.Pushes = DefaultPushes
	}
	if c.Pushes < 1 || c.Pushes > 1<<20 {
		bad("Pushes %d is not allowed: it must be 1 to %d", c.Pushes, 1<<20)
	}
	if c.HTTP == nil {
		c.HTTP = http.DefaultClient
	}
	return errors.Join(errs...)
}

// Push is one push of an Actor's.
type Push struct {
	Data []byte
	// Seq is the push's number in its binding, from 1: where one is missing, one was lost. Owner is the Actor's owner
	// generation when it was made: it grows when the Actor moves.
	Seq, Owner uint64
}

// EventKind is what an Event tells.
type EventKind string

// The kinds of events.
const (
	// EventConnected: a session is open; Event.Node and Event.Welcome say where and what the application said.
	EventConnected EventKind = "connected"
	// EventDisconnected: the session is over; Event.Err says why.
	EventDisconnected EventKind = "disconnected"
	// EventRefused: an attempt to open a session has failed; Event.Err says why.
	EventRefused EventKind = "refused"
	// EventGoAway: the node is about to stop; the client connects elsewhere.
	EventGoAway EventKind = "go away"
	// EventBound: a binding was made again in a new session.
	EventBound EventKind = "bound"
	// EventMoved: the Actor of Event.Binding is at another node now. Nothing needs to be done.
	EventMoved EventKind = "moved"
	// EventEnded: Event.Binding is over; Event.Why and Event.Err say why.
	EventEnded EventKind = "ended"
)

// Event is something that happened.
type Event struct {
	Kind    EventKind
	Binding *Binding
	Node    string
	Welcome []byte
	Why     string
	Err     error
}
