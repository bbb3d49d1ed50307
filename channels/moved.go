package channels

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

// Awaited is the answer to what another process run does, and answers, in the place of this one: on a reply subject that
// was made here and handed over.
//
// Concurrency: it is used by one goroutine, and ends with one call of Wait or Cancel.
type Awaited struct {
	r     *Router
	op    operation
	w     *waiter
	e     *epoch
	reply string
}

// Await makes a reply subject on which this process waits until the deadline for the answer of an operation that somebody
// else answers; of a one-way operation that is the notice of its acceptance. op and target stand in errors. The error is
// an *outcome.Error with NotAccepted: CapacityExceeded when too many operations of this process wait, Unavailable when it
// is not connected, ShuttingDown after Close.
func (r *Router) Await(op, target string, deadline time.Time, oneWay bool) (*Awaited, error) {
	a := &Awaited{r: r}
	a.op.call.Op, a.op.target, a.op.stats = op, target, &r.counters.runs
	a.op.deadline, a.op.timed = deadline, true
	if oneWay {
		a.op.flags = wire.FlagNotice | wire.FlagOneWay
	}
	w, e, token, refused := r.waiters.acquire(r.pulse.tick(), "", nil, oneWay)
	if refused != refusedNot {
		return nil, r.notRegistered(&a.op, refused)
	}
	a.w, a.e = w, e
	a.reply = string(wire.AppendReply(nil, e.prefix, wire.ReplyBlob{
		Token: token, Deadline: r.pulse.storeDeadline(deadline), Flags: a.op.flags,
	}))
	return a, nil
}

// ReplyTo is the reply subject.
func (a *Awaited) ReplyTo() string { return a.reply }

// Wait waits for the answer. Errors are those of CallRun, with Unknown when none came; the Reply has the headers of an
// answer that is an error, and of a notice, too.
func (a *Awaited) Wait(ctx context.Context) (Reply, error) {
	r, op := a.r, &a.op
	got, ended := r.wait(ctx, op, a.w)
	noticed := r.waiters.release(a.w)
	switch {
	case !ended:
		return Reply{}, op.timedOut(ctx, acceptance(noticed))
	case got.msg == nil:
		return Reply{}, op.cutOff(got.end, acceptance(noticed))
	case len(got.msg.Data) == 0 && got.msg.Header.Get("Status") == "503":
		return Reply{}, nobody(op)
	}
	reply, again, err := r.judge(op, target{}, a.e, got.msg, noticed)
	if again {
		err = op.last
	}
	return reply, err
}

// Cancel gives the answer up.
func (a *Awaited) Cancel() {
	if ok, _ := a.r.waiters.abandon(a.w); !ok {
		<-a.w.done
	}
	a.r.waiters.release(a.w)
}

// Forward hands a message on to a subject of another process run, whose answer goes straight to where its caller waits. As
// nobody here sees whether it comes, the peer is probed, once in a while. The error is an *outcome.Error: Unknown when the
// message may have been sent, else NotAccepted.
func (r *Router) Forward(rid string, lifecycle uint64, subject, replyTo string, data []byte, h nats.Header) error {
	m := &nats.Msg{Subject: subject, Reply: replyTo, Data: data, Header: h}
	if err := r.nc.PublishMsg(m); err != nil {
		op := operation{target: subject, stats: &r.counters.runs}
		op.call.Op, op.call.Data = "forward", data
		return r.notSent(&op, h, err)
	}
	r.abandoned.note("", r.links.run(rid, lifecycle), true)
	return nil
}

// Notice sends the acceptance notice of what was asked with a reply subject, if one was asked for, with headers beside it;
// a reply subject that is empty or no fabric caller's asks for none.
func (r *Router) Notice(replyTo string, h nats.Header) {
	if blob, _ := wire.ParseReply(replyTo); blob.Flags&wire.FlagNotice == 0 {
		return
	}
	r.counters.answers.notices.Add(1)
	if err := r.nc.PublishMsg(&nats.Msg{Subject: replyTo + wire.NoticeSuffix, Data: r.ridBytes, Header: h}); err != nil {
		r.log.Debug("sending an acceptance notice", zap.Error(err))
	}
}

// SenderOf reads from a reply subject who waits there; ok is false for a plain NATS client.
func SenderOf(replyTo string) (s Sender, ok bool) { return senderOf(replyTo) }

// Asked is what a reply subject says of the operation that is answered there: whether nobody waits for a reply, whether the
// notice of acceptance was asked for, and the caller's deadline on the store's clock, zero when it said none.
func Asked(replyTo string) (oneway, notice bool, deadline time.Time) {
	blob, _ := wire.ParseReply(replyTo)
	return oneWay(replyTo, blob), blob.Flags&wire.FlagNotice != 0, blob.Deadline
}

// AnswerRefusal is AnswerError with headers beside the error's own.
func (r *Router) AnswerRefusal(replyTo string, err error, extra nats.Header) error {
	if replyTo == "" {
		return nil
	}
	e := asOutcome(err)
	h := nats.Header(e.Headers(e.Acceptance))
	h[wire.HeaderFrom] = []string{r.cfg.RID}
	maps.Copy(h, extra)
	return r.nc.PublishMsg(&nats.Msg{Subject: replyTo, Header: h})
}
