package channels

import (
	"context"
	"strconv"
	"sync/atomic"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// maxChannels bounds the channels whose counters a router keeps; those beyond share one entry named "other".
const maxChannels = 1024

// Channel is one channel, to call. It holds no resources.
type Channel struct {
	r       *Router
	name    string
	subject string
	target  string // as errors name it
	invalid error
	stats   *callStats
	known   atomic.Pointer[audience]
}

// Channel returns the channel of the given name. It does not ask whether somebody serves it. With a bad name every
// operation returns InvalidOperation.
func (r *Router) Channel(name string) *Channel {
	r.channelMu.RLock()
	c := r.channels[name]
	r.channelMu.RUnlock()
	if c != nil {
		return c
	}
	c = &Channel{r: r, name: name, subject: r.cfg.Mesh.Channel(name), target: "channel " + strconv.Quote(name), stats: &r.counters.other}
	if c.invalid = wire.CheckName("channel name", name); c.invalid != nil {
		return c
	}
	r.channelMu.Lock()
	defer r.channelMu.Unlock()
	if known := r.channels[name]; known != nil {
		return known
	}
	if len(r.channels) < maxChannels {
		c.stats = &callStats{}
		r.channels[name] = c
	}
	return c
}

// Name returns the channel's name.
func (c *Channel) Name() string { return c.name }

// Request sends data to one member of the channel and waits for its reply.
//
// The fabric chooses the member. One that refuses before accepting makes it choose again, until the deadline
// (FO-3.1b); after acceptance, or when acceptance is unknown, never (FO-2.3, FO-2.4). The deadline is that of ctx,
// Config.DefaultTimeout without one, and never more than MaxTimeout from now.
//
// The error is an *outcome.Error:
//
//	NotFound, NotAccepted           no member's descriptor lists the channel
//	Unavailable, NotAccepted        listed, but no member took it: all refused until the deadline, or none is ready;
//	                                or this process is not connected
//	Unavailable, Unknown            the connection was lost while it waited
//	DeadlineExceeded, Unknown       no answer by the deadline, or ctx was cancelled
//	DeadlineExceeded, NotAccepted   ctx had ended before anything was sent, or while no attempt was under way
//	CapacityExceeded, NotAccepted   payload above the server's limit, or too many operations in flight here
//	InvalidOperation, NotAccepted   bad channel name or reserved header
//	ShuttingDown                    the router closed; NotAccepted if before anything was sent, else Unknown
//	any kind, Accepted              the member said so (Error.Remote is true)
//
// Where it says Unknown, it is Accepted once the notice of WithEarlyAcceptance has come.
func (c *Channel) Request(ctx context.Context, data []byte, opts ...CallOption) (Reply, error) {
	return c.r.start(ctx, c, opRequest, "", data, opts)
}

// Send sends data to one member of the channel and returns nil once the member has accepted it: its queue holds the
// message, which runs unless the member dies, or ends by a cause that the member counts. Nobody hears what the handler
// returned. Choice of member, deadline and errors are those of Request; the deadline ends with the acceptance.
func (c *Channel) Send(ctx context.Context, data []byte, opts ...CallOption) error {
	_, err := c.r.start(ctx, c, opSend, "", data, opts)
	return err
}

// SendUnconfirmed hands data to the client library, addressed to one member of the channel, and returns. Nothing is
// known of it afterwards: it may be lost, refused without a word, or run. It carries no deadline. The errors are those
// of Request that concern what happens before sending.
func (c *Channel) SendUnconfirmed(ctx context.Context, data []byte, opts ...CallOption) error {
	_, err := c.r.start(ctx, c, opSendUnconfirmed, "", data, opts)
	return err
}

// At returns the channel at one named node.
func (c *Channel) At(rid string) *Peer { return &Peer{ch: c, rid: rid} }

// Peer is a channel at one named node. The node is never swapped for another (FO-2.2, FO-3.1c), and a message
// addressed to one process run of it reaches no other run.
type Peer struct {
	ch  *Channel
	rid string
}

// RID returns the node's name.
func (p *Peer) RID() string { return p.rid }

// Request is Channel.Request at this node alone. An unknown node, or one that does not serve the channel, is NotFound;
// one that is known but not serving, not reachable or refusing is Unavailable; a name that cannot be a RID is
// InvalidOperation; all with NotAccepted.
func (p *Peer) Request(ctx context.Context, data []byte, opts ...CallOption) (Reply, error) {
	return p.start(ctx, opRequest, data, opts)
}

// Send is Channel.Send at this node alone; errors as for Request.
func (p *Peer) Send(ctx context.Context, data []byte, opts ...CallOption) error {
	_, err := p.start(ctx, opSend, data, opts)
	return err
}

// SendUnconfirmed is Channel.SendUnconfirmed at this node alone; errors as for Request.
func (p *Peer) SendUnconfirmed(ctx context.Context, data []byte, opts ...CallOption) error {
	_, err := p.start(ctx, opSendUnconfirmed, data, opts)
	return err
}

// start begins an operation at the named node. A name that cannot be one is no reason to choose another node (FO-2.2).
func (p *Peer) start(ctx context.Context, op string, data []byte, opts []CallOption) (Reply, error) {
	if err := wire.CheckName("RID", p.rid); err != nil {
		return Reply{}, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, p.ch.target, "", err)
	}
	return p.ch.r.start(ctx, p.ch, op, p.rid, data, opts)
}

// start counts an operation from its beginning to its one end (I3, I5).
func (r *Router) start(ctx context.Context, c *Channel, op, rid string, data []byte, opts []CallOption) (Reply, error) {
	var o operation // filled in place: a copy costs more than all else here
	o.ch, o.target, o.stats = c, c.target, c.stats
	o.call.Op, o.call.Channel, o.call.RID, o.call.Data = op, c.name, rid, data
	if len(opts) > 0 {
		with := applyOptions(opts)
		o.call.Header, o.call.early, o.call.trace = with.header, with.early, with.trace
	}
	c.stats.started.Add(1)
	var reply Reply
	var err error
	if r.invoke == nil {
		reply, err = r.operate(ctx, &o)
	} else {
		call := o.call // on the heap, unlike the operation
		reply, err = r.invoke(ctx, &call)
	}
	if err != nil {
		c.stats.failed.count(outcome.KindOf(err), outcome.AcceptanceOf(err))
		return Reply{}, err
	}
	c.stats.succeeded.Add(1)
	return reply, nil
}

// runCall is the innermost Invoker.
func (r *Router) runCall(ctx context.Context, call *Call) (Reply, error) {
	c := r.Channel(call.Channel)
	return r.operate(ctx, &operation{ch: c, target: c.target, stats: c.stats, call: *call})
}
