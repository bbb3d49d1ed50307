package channels

import (
	"context"
	"maps"
	"strings"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// CallOption changes one operation.
type CallOption func(*callOptions)

type callOptions struct {
	header nats.Header
	early  bool
	trace  *Trace
}

// WithHeader adds headers to the request, a traceparent for example. The names Status, Fabric-Refused, Fabric-From,
// Fabric-Kind and Fabric-Acceptance are refused with InvalidOperation. Headers cost time at both ends; an ordinary
// request has none. The map is not changed, and must not be changed while the operation runs.
func WithHeader(h nats.Header) CallOption {
	return func(o *callOptions) {
		if o.header == nil {
			o.header = h
			return
		}
		merged := maps.Clone(o.header)
		maps.Copy(merged, h)
		o.header = merged
	}
}

// WithEarlyAcceptance asks a Request's target for a notice as soon as it took the request into its queue, so that a
// later timeout or lost connection says Accepted instead of Unknown. It costs one more message. Send always asks.
func WithEarlyAcceptance() CallOption { return func(o *callOptions) { o.early = true } }

// WithTrace fills t with how the operation went, also when it fails. t must not be read before the call returned.
func WithTrace(t *Trace) CallOption { return func(o *callOptions) { o.trace = t } }

// Trace tells how one operation went.
type Trace struct {
	// Attempts counts the messages handed to the client library.
	Attempts int
	// Reselected counts the attempts after the first.
	Reselected int
	// Refused names the members that refused, in order, at most 64.
	Refused []string
	// NoResponders counts the attempts that nothing took (503).
	NoResponders int
	// Noticed is true when the acceptance notice came.
	Noticed bool
}

func applyOptions(opts []CallOption) callOptions {
	var o callOptions
	for _, f := range opts {
		f(&o)
	}
	return o
}

// The operations, as they stand in errors and in Call.Op.
const (
	opRequest         = "request"
	opSend            = "send"
	opSendUnconfirmed = "send unconfirmed"
)

// Call is one operation, as call middleware sees it. Middleware may change Data and Header (not the map itself)
// before it passes the call on.
type Call struct {
	// Op is "request", "send" or "send unconfirmed".
	Op string
	// Channel is the channel's name.
	Channel string
	// RID is the node that the caller named, or empty for select-one.
	RID    string
	Data   []byte
	Header nats.Header

	early bool
	trace *Trace
}

// Invoker runs one operation.
type Invoker func(ctx context.Context, call *Call) (Reply, error)

// CallMiddleware wraps an Invoker. It must call the next one at most once: a second time is a second operation.
type CallMiddleware func(Invoker) Invoker

// endHeaders are the headers that say how an operation ended or who refused it; only the fabric writes them. Status
// is among them because an empty answer with "Status: 503" reads as "no responders".
var endHeaders = [...]string{
	"Status", wire.HeaderRefused, wire.HeaderFrom, outcome.HeaderKind, outcome.HeaderAcceptance,
}

// reservedHeader returns the name of a header of h that only the fabric may set, or "".
func reservedHeader(h nats.Header) string {
	for name := range h {
		for _, reserved := range endHeaders {
			if strings.EqualFold(name, reserved) {
				return name
			}
		}
	}
	return ""
}
