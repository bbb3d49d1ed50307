package objects

import (
	"context"
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
	c, err := callChain(ctx, op)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, outcome.FromContext(ctx, op, outcome.NotAccepted, "", "it had ended before anything was sent")
	}
	e := envelopes.Get().(*envelope)
	e.op, e.data, e.header, e.oneWay, e.chain = op, data, h, oneWay, c
	e.size = sizeOf(data, h)
	if oneWay {
		e.word.Store(envLeft)
	} else {
		e.deadline.Store(int64(rt.deadline(ctx)))
	}
	return e, nil
}

// deadline is when an operation under ctx ends at the latest.
func (rt *runtime) deadline(ctx context.Context) instant {
	timeout := rt.defaultTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(time.Until(at), rt.maxTimeout)
	}
	return tick().add(timeout)
}

// newRemote returns mail that came from elsewhere. It must be offered, or released after its refusal was sent.
func newRemote(from origin) *envelope {
	e := envelopes.Get().(*envelope)
	e.op, e.from, e.data, e.header, e.oneWay = opRequest, from, from.Data(), from.Header(), from.OneWay()
	e.size = sizeOf(e.data, e.header)
	e.word.Store(envLeft)
	if at, ok := from.LocalDeadline(); ok {
		e.deadline.Store(max(1, int64(tick().add(time.Until(at)))))
	}
	if e.header != nil {
		e.chain = parseChain(e.header.Get(wire.HeaderChain))
	}
	return e
}

// request is a Request or, one-way, a Send to an object of this process: a Send returns once the mailbox has it. Errors
// are those of Actors.Request.
func (rt *runtime) request(ctx context.Context, o *object, op string, data []byte, h nats.Header, oneWay bool) (Reply, error) {
	e, err := rt.newLocal(ctx, op, data, h, oneWay)
	if err != nil {
		return Reply{}, err
	}
	because, held := o.offerOneWay(e)
	switch {
	case because != whyNot:
		e.release()
		return Reply{}, because.refusal(op, o.target(), false)
	case held != nil:
		return Reply{}, held.wait(ctx, o.key(), rt.deadline(ctx))
	case oneWay:
		return Reply{}, nil
	}
	return rt.wait(ctx, o.key(), e)
}

// waitHeld waits for mail of this process whose object may have been creating when it took it: for the acceptance of
// one-way mail on held, what hold returned before the offer, and for the answer of any other.
func (rt *runtime) waitHeld(ctx context.Context, key kvlocation.ObjectKey, e *envelope, held *hold) (Reply, error) {
	if held != nil {
		return Reply{}, held.wait(ctx, key, rt.deadline(ctx))
	}
	return rt.wait(ctx, key, e)
}

// wait waits for the answer of mail that an object has taken, until ctx or the mail's deadline ends, whatever the turn
// does. It releases the mail.
func (rt *runtime) wait(ctx context.Context, key kvlocation.ObjectKey, e *envelope) (Reply, error) {
	done := ctx.Done()
	op, c := e.op, e.chain
	if done == nil {
		e.arm()
	} else if _, ok := ctx.Deadline(); !ok {
		e.arm()
	}
	for {
		if done == nil {
			<-e.done
		} else {
			select {
			case <-e.done:
			case <-done:
			}
		}
		w := e.word.Load()
		for w&envState == envWaiting {
			if ctx.Err() == nil && !e.overdue() {
				break
			}
			if !e.word.CompareAndSwap(w, w|envLeft) {
				w = e.word.Load()
				continue
			}
			return Reply{}, leftError(ctx, op, key, c, w&envAccepted != 0)
		}
		if w&envState == envEnded {
			reply, err := e.reply, e.err
			e.release()
			return reply, err
		}
	}
}

// leftError is the end of a wait without an answer.
func leftError(ctx context.Context, op string, key kvlocation.ObjectKey, c *chain, accepted bool) error {
	acceptance, detail := outcome.NotAccepted, "the object was not ready to take it by then"
	if accepted {
		acceptance, detail = outcome.Accepted, "the turn has not ended"
		if way := c.cycle(key); way != "" {
			detail = "the turns wait for each other in a cycle: " + way
		}
	}
	return outcome.FromContext(expired(ctx), op, acceptance, targetName(key.Kind, key.ID), detail)
}

// overdue reports whether the deadline has passed.
func (e *envelope) overdue() bool {
	d := e.deadline.Load()
	return d != 0 && int64(tick()) >= d
}

// arm makes sure that the waiting caller is nudged at the deadline. The alarm stays set from one use of the envelope to
// the next: most calls end early and have the same timeout, so it goes off once in a timeout, finds that the deadline
// has moved, and is set again; a call costs no timer.
//
// Either arm sees that the alarm is off, or the alarm sees the deadline: each side writes before it reads.
func (e *envelope) arm() {
	deadline := e.deadline.Load()
	if at := e.alarmAt.Load(); at != 0 && at <= deadline {
		return
	}
	e.alarmAt.Store(deadline)
	e.setAlarm(deadline)
}

func (e *envelope) setAlarm(deadline int64) {
	after := instant(deadline).sub(tick())
	if e.alarm == nil {
		e.alarm = time.AfterFunc(after, e.ring)
		return
	}
	e.alarm.Reset(after)
}

// ring is the alarm.
func (e *envelope) ring() {
	e.alarmAt.Store(0)
	switch deadline := e.deadline.Load(); {
	case deadline == 0: // not in use
	case int64(tick()) >= deadline:
		e.nudge()
	default:
		e.alarmAt.Store(deadline)
		e.setAlarm(deadline)
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
