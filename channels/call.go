package channels

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

const (
	// maxRefused bounds the refusers that one operation remembers and names.
	maxRefused = 64

	// After a refusal the next selection follows at once; when it comes back from a member that had refused before,
	// or when nobody takes it, it waits a random part of a span that doubles from the first to the last of these.
	backoffFirst = time.Millisecond
	backoffLast  = 100 * time.Millisecond
)

// operation is one Request, Send or SendUnconfirmed of a channel, or one CallRun, on its way. It lives on its caller's
// stack.
type operation struct {
	ch     *Channel // nil in a CallRun
	call   Call
	target string // as errors name it
	stats  *callStats
	flags  wire.Flags
	// deadline is the operation's, on the local clock. timed is true when ctx does not end by then on its own.
	deadline time.Time
	timed    bool

	refused []string // who refused since the last time that everybody had
	last    *outcome.Error
	backoff time.Duration
}

// target is where one attempt goes.
type target struct {
	subject string
	link    *link // nil for the queue group
}

// operate runs one operation of a channel to its one end.
func (r *Router) operate(ctx context.Context, op *operation) (Reply, error) {
	call := &op.call
	if op.ch.invalid != nil {
		return Reply{}, outcome.Wrap(call.Op, outcome.InvalidOperation, outcome.NotAccepted, op.target, "", op.ch.invalid)
	}
	if err := op.check(ctx); err != nil {
		return Reply{}, err
	}
	switch {
	case call.Op == opSendUnconfirmed && call.RID == "":
		// It waits for nothing, so it needs no deadline.
		to, err := r.selectTarget(op)
		if err == nil {
			err = r.publish(op, to.subject, "")
		}
		return Reply{}, err
	case call.Op == opSend:
		op.flags = wire.FlagNotice | wire.FlagOneWay
	case call.early:
		op.flags = wire.FlagNotice
	}
	op.begin(ctx, r.cfg.DefaultTimeout)
	if call.RID != "" {
		return r.operateDirect(ctx, op)
	}
	for {
		to, err := r.selectTarget(op)
		if err == nil {
			reply, again, e := r.attempt(ctx, op, to)
			if !again {
				return reply, e
			}
			err = r.selectAgain(ctx, op)
		}
		if err != nil {
			return Reply{}, err
		}
		op.stats.reselected.Add(1)
		if call.trace != nil {
			call.trace.Reselected++
		}
	}
}

// operateDirect runs an operation at the node that the caller named (FO-3.1c): one attempt, whatever comes of it.
func (r *Router) operateDirect(ctx context.Context, op *operation) (Reply, error) {
	to, err := r.directTarget(ctx, op)
	if err != nil {
		return Reply{}, err
	}
	return r.attemptOnce(ctx, op, to)
}

// attemptOnce makes the one attempt of an operation whose target the caller named.
func (r *Router) attemptOnce(ctx context.Context, op *operation, to target) (Reply, error) {
	reply, again, err := r.attempt(ctx, op, to)
	switch {
	case !again:
		return reply, err
	case op.last != nil:
		return reply, op.last
	}
	return Reply{}, nobody(op)
}

// nobody is the error of an operation at a node whose inbox nothing listens on.
func nobody(op *operation) error {
	return outcome.Wrap(op.call.Op, outcome.Unavailable, outcome.NotAccepted, directName(op), "the process has gone, or its connection is down", errNobody)
}

func directName(op *operation) string {
	return op.target + " at node " + strconv.Quote(op.call.RID)
}

// check refuses what cannot even be begun.
func (op *operation) check(ctx context.Context) error {
	if ctx.Err() != nil {
		return outcome.FromContext(ctx, op.call.Op, outcome.NotAccepted, op.target, "the context had ended before anything was sent")
	}
	if len(op.call.Header) > 0 {
		if name := reservedHeader(op.call.Header); name != "" {
			return fail(op.call.Op, outcome.InvalidOperation, outcome.NotAccepted, op.target, "header %q is reserved", name)
		}
	}
	return nil
}

// begin fixes the deadline.
func (op *operation) begin(ctx context.Context, standard time.Duration) {
	now := time.Now()
	deadline, ok := ctx.Deadline()
	switch {
	case !ok:
		op.deadline, op.timed = now.Add(standard), true
	case deadline.Sub(now) > MaxTimeout:
		op.deadline, op.timed = now.Add(MaxTimeout), true
	default:
		op.deadline = deadline
	}
}

// attempt sends the operation to one target and waits for what becomes of it. again is true when it is certain that
// the target did not take it, and another may be tried; op.last is then the refusal, or nil if nobody was there. An
// answer that is an error comes with its headers in reply.
func (r *Router) attempt(ctx context.Context, op *operation, to target) (reply Reply, again bool, err error) {
	call := &op.call
	if call.Op == opSendUnconfirmed {
		return Reply{}, false, r.publish(op, to.subject, "")
	}
	channel := call.Channel
	if to.link != nil {
		channel = ""
	}
	w, e, token, refused := r.waiters.acquire(r.pulse.tick(), channel, to.link, op.flags&wire.FlagOneWay != 0)
	if refused != refusedNot {
		return Reply{}, false, r.notRegistered(op, refused)
	}
	w.reply = wire.AppendReply(w.reply[:0], e.prefix, wire.ReplyBlob{
		Token: token, Deadline: r.pulse.storeDeadline(op.deadline), Flags: op.flags,
	})
	if err := r.publish(op, to.subject, string(w.reply)); err != nil {
		if ok, _ := r.waiters.abandon(w); !ok {
			<-w.done
		}
		r.waiters.release(w)
		return Reply{}, false, err
	}
	got, ended := r.wait(ctx, op, w)
	noticed := r.waiters.release(w)
	if noticed && call.trace != nil {
		call.trace.Noticed = true
	}
	if !ended {
		if !noticed {
			r.abandoned.note(call.Channel, to.link, !errors.Is(ctx.Err(), context.Canceled))
		}
		return Reply{}, false, op.timedOut(ctx, acceptance(noticed))
	}
	if got.msg == nil {
		return Reply{}, false, op.cutOff(got.end, acceptance(noticed))
	}
	return r.judge(op, to, e, got.msg, noticed)
}

// acceptance is what is known of an attempt that was sent and not answered.
func acceptance(noticed bool) outcome.Acceptance {
	if noticed {
		return outcome.Accepted
	}
	return outcome.Unknown
}

// wait waits for the answer of an attempt. ended is false when time or the caller's patience ran out first.
func (r *Router) wait(ctx context.Context, op *operation, w *waiter) (got answer, ended bool) {
	var expired <-chan time.Time
	if op.timed {
		left := time.Until(op.deadline)
		if w.timer == nil {
			w.timer = time.NewTimer(left)
		} else {
			w.timer.Reset(left)
		}
		expired = w.timer.C
	}
	select {
	case got = <-w.done:
		ended = true
	case <-expired:
	case <-ctx.Done():
	}
	if op.timed {
		w.timer.Stop()
	}
	if !ended {
		if ok, _ := r.waiters.abandon(w); !ok {
			return <-w.done, true // the answer was first
		}
	}
	return got, ended
}

// judge reads an answer.
func (r *Router) judge(op *operation, to target, e *epoch, m *nats.Msg, noticed bool) (reply Reply, again bool, err error) {
	call := &op.call
	if len(m.Header) == 0 {
		r.answered(to.link, e)
		return Reply{Data: m.Data}, false, nil
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		op.stats.noResponders.Add(1)
		if call.trace != nil {
			call.trace.NoResponders++
		}
		op.last = nil
		r.noResponders(call.Channel, to.link)
		return Reply{}, true, nil
	}
	r.answered(to.link, e)
	said := outcome.FromHeaders(m.Header, call.Op, op.target)
	reply = Reply{Data: m.Data, Header: m.Header}
	if said == nil {
		return reply, false, nil
	}
	if noticed {
		said.Acceptance = outcome.Accepted // the notice was first, and is not taken back
	}
	if said.Acceptance != outcome.NotAccepted {
		return reply, false, said
	}
	op.stats.refused.Add(1)
	from := m.Header.Get(wire.HeaderFrom)
	if call.trace != nil && len(call.trace.Refused) < maxRefused {
		call.trace.Refused = append(call.trace.Refused, from)
	}
	if said.Kind != outcome.Unavailable {
		return reply, false, said
	}
	op.refusedBy(from, said)
	return reply, true, nil
}

// refusedBy notes a refusal. Who had refused before was drawn again and handed the request back.
func (op *operation) refusedBy(from string, e *outcome.Error) {
	if op.last == nil {
		op.last = e
	}
	if from == "" || len(op.refused) == maxRefused || slices.Contains(op.refused, from) {
		op.slower()
		return
	}
	op.last = e
	op.refused = append(op.refused, from)
}

func (op *operation) slower() {
	op.backoff = min(max(2*op.backoff, backoffFirst), backoffLast)
}

// selectAgain decides whether the operation goes on after nobody took it, and waits until it should. A nil error
// means go on.
func (r *Router) selectAgain(ctx context.Context, op *operation) error {
	if op.last == nil {
		op.slower()
	}
	listed, ready, open := r.candidates(op.ch.name, op.refused)
	switch {
	case op.last == nil && !listed && r.cfg.Directory.Members().Expired():
		return fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, listExpired)
	case op.last == nil && !listed:
		return fail(op.call.Op, outcome.NotFound, outcome.NotAccepted, op.target, "no node lists it and nothing listens")
	case op.last == nil && !ready:
		return fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, "no member that lists it is ready")
	case op.last != nil && !open:
		// Everybody that is known has refused: ask all of them again, more slowly.
		op.refused = op.refused[:0]
		op.slower()
	}
	if op.backoff == 0 {
		if time.Now().Before(op.deadline) && ctx.Err() == nil {
			return nil
		}
		return op.gaveUp(ctx)
	}
	t := time.NewTimer(min(rand.N(op.backoff)+op.backoff/8, max(0, time.Until(op.deadline))))
	defer t.Stop()
	select {
	case <-t.C:
		if time.Now().Before(op.deadline) {
			return nil
		}
	case <-ctx.Done():
	case <-r.ctx.Done():
		return r.notRegistered(op, refusedClosed)
	}
	return op.gaveUp(ctx)
}

// gaveUp is the end of an operation that nobody took by its deadline.
func (op *operation) gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return outcome.FromContext(ctx, op.call.Op, outcome.NotAccepted, op.target, "no member had taken it")
	}
	if op.last == nil {
		return outcome.Wrap(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, "nothing listened until the deadline, though a member is ready", context.DeadlineExceeded)
	}
	return outcome.Wrap(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, "all servers full: every member refused until the deadline", op.last)
}

// timedOut is the end of an operation whose attempt was not answered in time.
func (op *operation) timedOut(ctx context.Context, acc outcome.Acceptance) error {
	const detail = "no answer"
	if ctx.Err() != nil {
		return outcome.FromContext(ctx, op.call.Op, acc, op.name(), detail)
	}
	return outcome.Wrap(op.call.Op, outcome.DeadlineExceeded, acc, op.name(), detail, context.DeadlineExceeded)
}

// cutOff is the end of an operation whose attempt cannot be answered any more.
func (op *operation) cutOff(why ending, acc outcome.Acceptance) error {
	if why == endClosed {
		return fail(op.call.Op, outcome.ShuttingDown, acc, op.name(), "this node shut down before the answer came")
	}
	return fail(op.call.Op, outcome.Unavailable, acc, op.name(), "the connection was lost before the answer came")
}

// notRegistered is the end of an operation for which there was no waiter; nothing was sent.
func (r *Router) notRegistered(op *operation, why refusal) error {
	switch why {
	case refusedFull:
		return fail(op.call.Op, outcome.CapacityExceeded, outcome.NotAccepted, op.name(), "%d operations of this process wait for an answer already", r.cfg.MaxInFlight)
	case refusedClosed:
		return fail(op.call.Op, outcome.ShuttingDown, outcome.NotAccepted, op.name(), "this node has shut down")
	default:
		return fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.name(), "this process is not connected")
	}
}

func (op *operation) name() string {
	if op.call.RID != "" {
		return directName(op)
	}
	return op.target
}

// publish hands one attempt to the client library. A nil error means that it may have been sent.
func (r *Router) publish(op *operation, subject, reply string) error {
	header := op.call.Header
	if len(op.refused) > 0 {
		named := make(nats.Header, len(header)+1)
		for k, v := range header {
			named[k] = v
		}
		named[wire.HeaderRefused] = []string{strings.Join(op.refused, ",")}
		header = named
	}
	var err error
	switch {
	case len(header) > 0:
		err = r.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: op.call.Data})
	case reply == "":
		err = r.nc.Publish(subject, op.call.Data)
	default:
		err = r.nc.PublishRequest(subject, reply, op.call.Data)
	}
	if err != nil {
		return r.notSent(op, header, err)
	}
	op.stats.attempts.Add(1)
	if op.call.trace != nil {
		op.call.trace.Attempts++
	}
	return nil
}

// notSent judges an error of publishing (the table of what each error of nats.go means stands in doc.go).
func (r *Router) notSent(op *operation, header nats.Header, err error) error {
	kind, acc, detail := outcome.Unavailable, outcome.NotAccepted, ""
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		detail = "this process is not connected"
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrInvalidConnection):
		kind, detail = outcome.ShuttingDown, "the connection is closed or draining"
	case errors.Is(err, nats.ErrMaxPayload):
		kind = outcome.CapacityExceeded
		detail = tooLarge(op.call.Data, header, r.nc.MaxPayload())
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		kind = outcome.InvalidOperation
	case errors.Is(err, nats.ErrHeadersNotSupported):
		kind, detail = outcome.NotConfigured, "the server is set up without headers"
	default:
		// A failed write of the socket: the buffer it came from may have been sent in part.
		acc, detail = outcome.Unknown, "the connection failed while sending"
	}
	return outcome.Wrap(op.call.Op, kind, acc, op.name(), detail, err)
}

// tooLarge says by how much a message is too large.
func tooLarge(data []byte, header nats.Header, limit int64) string {
	size := len(data)
	if len(header) > 0 {
		size += len("NATS/1.0\r\n\r\n")
		for k, vs := range header {
			for _, v := range vs {
				size += len(k) + len(": ") + len(v) + len("\r\n")
			}
		}
	}
	return "payload and headers of " + strconv.Itoa(size) + " bytes are above the server's limit of " + strconv.FormatInt(limit, 10) + " bytes"
}
