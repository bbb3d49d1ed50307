package channels

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
)

// Handler runs one request. Its error goes back to the caller: an *outcome.Error keeps its kind, any other becomes
// InternalFailure, and both say Accepted. Handlers of one server run concurrently, up to Spec.Workers.
//
// The context ends at the request's deadline (a Send's has ended with its acceptance), when the router closes, and when
// ownership is lost. It ends when the handler returns.
type Handler func(ctx context.Context, req *Request) (Reply, error)

// Middleware wraps a Handler.
type Middleware func(Handler) Handler

// Reply is what a handler answers and a caller gets.
type Reply struct {
	// Data is the payload. At the caller it is the caller's own.
	Data []byte
	// Header is nil on ordinary replies. A handler may set headers, but none of those that say how an operation
	// ended (Status, Fabric-Kind, Fabric-Acceptance, Fabric-From, Fabric-Refused).
	Header nats.Header
}

// Sender is who sent a request, as its reply subject says. It is a claim: a NATS server checks permissions on the subject
// that a client publishes to, not on the reply subject that it names. A forged one gains no answer, since the reply
// goes to whom it names.
type Sender struct {
	// RID and Lifecycle name a node's process run; both are zero for a client that is no node.
	RID       string
	Lifecycle uint64
	// Client is the name of a client that is no node.
	Client string
}

// Request is one message to a handler. It stays valid after the handler returned.
type Request struct {
	channel string
	msg     *nats.Msg
	blob    wire.ReplyBlob
	direct  bool
	ctx     handlerContext
}

// Data is the payload. It belongs to the handler.
func (r *Request) Data() []byte { return r.msg.Data }

// Header holds the request's headers (a traceparent, for example); nil if there are none.
func (r *Request) Header() nats.Header { return r.msg.Header }

// Channel is the channel's name.
func (r *Request) Channel() string { return r.channel }

// Direct reports whether the request came on this process run's own subject, instead of through the queue group: its
// caller named the node, or selects among the ready members itself because something is wrong in the group.
func (r *Request) Direct() bool { return r.direct }

// OneWay reports whether nobody waits for the reply: a Send, or a publish without reply subject.
func (r *Request) OneWay() bool { return oneWay(r.msg.Reply, r.blob) }

// Deadline is the caller's deadline on the store's clock; ok is false when the caller said none.
func (r *Request) Deadline() (deadline time.Time, ok bool) {
	return r.blob.Deadline, !r.blob.Deadline.IsZero()
}

// Sender returns who sent the request; ok is false for a plain NATS client and for what has no reply subject.
func (r *Request) Sender() (s Sender, ok bool) { return senderOf(r.msg.Reply) }

func senderOf(replyTo string) (s Sender, ok bool) {
	// fab.<mesh>.node.<rid>.<lifecycle>.r<epoch>.<blob> or fab.<mesh>.client.<name>.r<epoch>.<blob>
	t := strings.Split(replyTo, ".")
	if len(t) < 6 || t[0] != "fab" {
		return s, false
	}
	switch {
	case t[2] == "node" && len(t) == 7:
		lifecycle, err := strconv.ParseUint(t[4], 10, 64)
		return Sender{RID: t[3], Lifecycle: lifecycle}, err == nil
	case t[2] == "client" && len(t) == 6:
		return Sender{Client: t[3]}, true
	}
	return s, false
}

// judgedDeadline is the deadline that the receiver judges once more before the turn: a Send's ends with its
// acceptance notice.
func (r *Request) judgedDeadline() (time.Time, bool) {
	if r.OneWay() {
		return time.Time{}, false
	}
	return r.Deadline()
}
