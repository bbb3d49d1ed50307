package channels

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// RunCall is one operation at a service of a named process run.
type RunCall struct {
	// Op and Target stand in errors: "request", `actor "alice"`.
	Op, Target string
	// RID and Lifecycle name the process run.
	RID       string
	Lifecycle uint64
	// Subject is the whole subject, as RunSubject makes it.
	Subject string
	Data    []byte
	Header  nats.Header
	// OneWay makes it a Send: the acceptance notice is the answer, and the Reply has its headers and nothing else.
	OneWay bool
	// Early asks for the acceptance notice of a request, so that a later timeout or lost connection says Accepted.
	Early bool
	// Deadline bounds the operation where the context has no deadline; zero means the Router's default.
	Deadline time.Time
}

// RunSubject returns the subject of a service at one process run. tail follows the service's name.
func (r *Router) RunSubject(rid string, lifecycle uint64, service, tail string) string {
	return r.cfg.Mesh.NodeService(rid, lifecycle, service) + "." + tail
}

// CallRun runs one operation at one process run: exactly one attempt, whatever comes of it. It greets the peer first
// when that did not answer in this connection epoch yet. Deadline and errors are those of Peer.Request, but for these:
// whether the node is serving, and serves what is asked, is for the node to say; and a process run that nothing listens
// for is Unavailable with NotAccepted, for which IsNobody is true. When the error was said by the peer, Reply.Header
// holds the headers of its answer.
func (r *Router) CallRun(ctx context.Context, c *RunCall) (Reply, error) {
	stats := &r.counters.runs
	stats.started.Add(1)
	var op operation
	op.target, op.stats = c.Target, stats
	op.call.Op, op.call.RID, op.call.Data, op.call.Header = c.Op, c.RID, c.Data, c.Header
	switch {
	case c.OneWay:
		op.flags = wire.FlagNotice | wire.FlagOneWay
	case c.Early:
		op.flags = wire.FlagNotice
	}
	reply, err := r.runOnce(ctx, &op, c)
	if err != nil {
		stats.failed.count(outcome.KindOf(err), outcome.AcceptanceOf(err))
		return Reply{Header: reply.Header}, err
	}
	stats.succeeded.Add(1)
	if c.OneWay {
		return Reply{Header: reply.Header}, nil
	}
	return reply, nil
}

func (r *Router) runOnce(ctx context.Context, op *operation, c *RunCall) (Reply, error) {
	if err := op.check(ctx); err != nil {
		return Reply{}, err
	}
	standard := r.cfg.DefaultTimeout
	if !c.Deadline.IsZero() {
		standard = min(time.Until(c.Deadline), MaxTimeout)
	}
	op.begin(ctx, standard)
	if r.cfg.Directory.Members().Expired() {
		return Reply{}, fail(c.Op, outcome.Unavailable, outcome.NotAccepted, directName(op), listExpired)
	}
	l := r.links.run(c.RID, c.Lifecycle)
	if !l.ready() {
		if err := r.greet(ctx, op, l); err != nil {
			return Reply{}, err
		}
	}
	return r.attemptOnce(ctx, op, target{subject: c.Subject, link: l})
}

// IsNobody reports whether an operation at a named node or process run failed because nothing listens there: the
// process has gone, or its connection is down. It is not a proof that the process has ended.
func IsNobody(err error) bool { return errors.Is(err, errNobody) }

// PeerSelectable reports whether a member may be chosen for something new, as far as this router knows: it is not
// suspect, not ready or gone.
func (r *Router) PeerSelectable(m *kvlocation.Member) bool { return r.links.stateOf(m).selectable() }

// StoreDeadline turns a deadline on the local clock into one on the store's clock, late by the clock's error so that
// nobody cuts it short; the zero time when the store's clock is not known.
func (r *Router) StoreDeadline(local time.Time) time.Time { return r.pulse.storeDeadline(local) }

// DefaultTimeout is what bounds an operation whose context has no deadline (Config.DefaultTimeout).
func (r *Router) DefaultTimeout() time.Duration { return r.cfg.DefaultTimeout }
