package objects

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Operations, as errors name them.
const (
	opRequest = "request"
	opSend    = "send"
)

// newLocal returns mail of this process: for its answer, or with oneWay only for its acceptance. Its deadline is that of
// ctx, the default without one, and at most the runtime's greatest. It must be offered and waited for, or released. The
// error is an *outcome.Error with NotAccepted: ctx has ended, or the turn that ctx belongs to may not call any more.
func (rt *runtime) newLocal(ctx context.Context, op string, data []byte, h nats.Header, oneWay bool) (*envelope, error) {
	c, err := mayCall(ctx, op)
	if err != nil {
		return nil, err
	}
	e := envelopes.Get().(*envelope)
	e.fill(c, data, h, oneWay)
	if !oneWay {
		e.expect(rt.deadline(ctx))
	}
	return e, nil
}

// mayCall returns the chain of turns that encloses a call under ctx, or why it may not be made.
func mayCall(ctx context.Context, op string) (*chain, error) {
	c, err := callChain(ctx, op)
	if err == nil && ctx.Err() != nil {
		err = outcome.FromContext(ctx, op, outcome.NotAccepted, "", "it had ended before anything was sent")
	}
	return c, err
}

// fill makes a blank envelope a message of this process.
func (e *envelope) fill(c *chain, data []byte, h nats.Header, oneWay bool) {
	e.chain, e.data, e.oneWay, e.size = c, data, oneWay, sizeOf(data, h)
	if h != nil {
		e.own().header = h
	}
	if oneWay {
		e.word = envLeft
	} else {
		e.word = envWaiting
	}
}

// expect makes the envelope one whose answer is waited for.
func (e *envelope) expect(deadline instant) {
	m := e.own()
	if m.reply == nil {
		m.reply = &waiter{done: make(chan struct{}, 1)}
	}
	m.deadline = deadline
	m.reply.deadline.Store(int64(deadline))
}

// deadline is when an operation under ctx ends at the latest.
func (rt *runtime) deadline(ctx context.Context) instant { return rt.deadlineFrom(ctx, tick()) }

func (rt *runtime) deadlineFrom(ctx context.Context, now instant) instant {
	timeout := rt.defaultTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(time.Until(at), rt.maxTimeout)
	}
	return now.add(timeout)
}

// newRemote returns mail that came from elsewhere. It must be offered, or released after its refusal was sent.
func newRemote(from origin) *envelope {
	e := envelopes.Get().(*envelope)
	m, h := e.own(), from.Header()
	m.from, e.data, e.oneWay = from, from.Data(), from.OneWay()
	e.size = sizeOf(e.data, h)
	e.word = envLeft
	if at, ok := from.LocalDeadline(); ok {
		m.deadline = max(1, tick().add(time.Until(at)))
	}
	if h != nil {
		e.chain = parseChain(h.Get(wire.HeaderChain))
		m.header = userHeader(h)
	}
	return e
}

// request is a Request or, one-way, a Send to an object of this process: a Send returns once the mailbox has it. Errors
// are those of Actors.Request.
func (rt *runtime) request(ctx context.Context, o *object, op string, data []byte, h nats.Header, oneWay bool) (Reply, error) {
	c, err := mayCall(ctx, op)
	if err != nil {
		return Reply{}, err
	}
	if oneWay {
		because, held := o.send(c, data, h)
		switch {
		case because != whyNot:
			return Reply{}, because.refusal(op, o.target(), false)
		case held != nil:
			return Reply{}, held.wait(ctx, o.key(), rt.deadline(ctx))
		}
		return Reply{}, nil
	}
	now := tick()
	if !rt.admits(now) { // nobody may have told of the lapse yet
		o.refused(mailMessage, whyLapsed)
		return Reply{}, whyLapsed.refusal(op, o.target(), false)
	}
	e := envelopes.Get().(*envelope)
	e.fill(c, data, h, false)
	e.expect(rt.deadlineFrom(ctx, now))
	if because := o.offer(e); because != whyNot {
		e.release()
		return Reply{}, because.refusal(op, o.target(), false)
	}
	return rt.wait(ctx, o.key(), e)
}

// wait waits for the answer of mail that an object has taken, until ctx or the mail's deadline ends, whatever the turn
// does. It releases the mail.
func (rt *runtime) wait(ctx context.Context, key kvlocation.ObjectKey, e *envelope) (Reply, error) {
	w, op, c, done := e.reply, e.op(), e.chain, ctx.Done()
	if _, ok := ctx.Deadline(); !ok || done == nil {
		w.arm()
	}
	for {
		if done == nil {
			<-w.done
		} else {
			select {
			case <-w.done:
			case <-done:
			}
		}
		word := e.now()
		for word&envState == envWaiting {
			if ctx.Err() == nil && !w.overdue() {
				break
			}
			if e.step(word, word|envLeft) {
				return Reply{}, leftError(ctx, op, key, c, acceptanceOf(word))
			}
			word = e.now()
		}
		if word&envState == envEnded {
			reply, err := w.reply, w.err
			e.release()
			return reply, err
		}
	}
}

// acceptanceOf is what an envelope's word says.
func acceptanceOf(word uint32) outcome.Acceptance {
	switch {
	case word&envAccepted != 0:
		return outcome.Accepted
	case word&envPublished != 0:
		return outcome.Unknown
	}
	return outcome.NotAccepted
}

// leftError is the end of a wait without an answer.
func leftError(ctx context.Context, op string, key kvlocation.ObjectKey, c *chain, acceptance outcome.Acceptance) error {
	detail := "the object was not ready to take it by then"
	switch acceptance {
	case outcome.Unknown:
		detail = "the object moves to another node, which has not said by then whether it has taken it"
	case outcome.Accepted:
		detail = "the turn has not ended"
		if way := c.cycle(key); way != "" {
			detail = "the turns wait for each other in a cycle: " + way
		}
	}
	return outcome.FromContext(expired(ctx), op, acceptance, targetName(key.Kind, key.ID), detail)
}

// waiter is where one caller at a time waits for an answer.
type waiter struct {
	done     chan struct{} // a nudge: look at the envelope's word
	deadline atomic.Int64  // instant; 0 while nobody waits
	alarmAt  atomic.Int64  // instant at which the alarm goes off; 0 while it is not set
	alarm    *time.Timer
	reply    Reply
	err      error
}

func (w *waiter) clear() {
	w.deadline.Store(0)
	w.reply, w.err = Reply{}, nil
}

// nudge makes the waiting caller look. One nudge that is under way is as good as two.
func (w *waiter) nudge() {
	select {
	case w.done <- struct{}{}:
	default:
	}
}

// overdue reports whether the deadline has passed.
func (w *waiter) overdue() bool {
	d := w.deadline.Load()
	return d != 0 && int64(tick()) >= d
}

// arm makes sure that the waiting caller is nudged at the deadline. The alarm stays set from one use to the next: most
// calls end early and have the same timeout, so it goes off once in a timeout, finds that the deadline has moved, and
// is set again; a call costs no timer.
//
// Either arm sees that the alarm is off, or the alarm sees the deadline: each side writes before it reads.
func (w *waiter) arm() {
	deadline := w.deadline.Load()
	if at := w.alarmAt.Load(); at != 0 && at <= deadline {
		return
	}
	w.setAlarm(deadline)
}

func (w *waiter) setAlarm(deadline int64) {
	w.alarmAt.Store(deadline)
	after := instant(deadline).sub(tick())
	if w.alarm == nil {
		w.alarm = time.AfterFunc(after, w.ring)
		return
	}
	w.alarm.Reset(after)
}

// ring is the alarm.
func (w *waiter) ring() {
	w.alarmAt.Store(0)
	switch deadline := w.deadline.Load(); {
	case deadline == 0: // nobody waits
	case int64(tick()) >= deadline:
		w.nudge()
	default:
		w.setAlarm(deadline)
	}
}

// expired returns ctx if it has ended, and else a context that has by its deadline: the operation's own bound was
// shorter.
func expired(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return ctx
	}
	return overContext
}

// overContext is a context whose deadline has passed.
var overContext = func() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}()
