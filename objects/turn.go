package objects

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// turnKey is the key under which a turn's context answers with the turn.
type turnKey struct{}

// turn is the context of an object's turns, and the holder of their fencing token. The object uses it again and again,
// so that a turn allocates nothing, for as long as no handler asks for Done: whoever has the channel may keep it, so
// that turn is then retired. Between turns the context is over; a handler that keeps it for longer, against the rule,
// sees the object's next turn at worst, never another object's.
//
// The worker writes the atomic fields, at the beginning and at the end of each turn; anybody may read them.
type turn struct {
	o   *object
	req Request // belongs to the handler while it runs

	period   atomic.Pointer[period] // of ownership in which the turn runs; nil between turns
	deadline atomic.Int64           // instant; 0 for none
	chain    atomic.Pointer[chain]  // of the enclosing turns

	// asked: somebody wants a real context, so this turn is the last one. It is written before period is read there,
	// and read after period was written in finish: one side sees the other.
	asked  atomic.Bool
	mu     sync.Mutex
	real   context.Context
	cancel context.CancelFunc
	own    *chain // the chain with this turn; made when it is asked for
}

// begin starts a turn about e in the given period of ownership.
func (t *turn) begin(p *period, e *envelope) {
	t.req = Request{self: &t.o.me, mail: e}
	deadline := int64(e.deadline)
	if e.oneWay {
		deadline = 0
	}
	if t.deadline.Load() != deadline {
		t.deadline.Store(deadline)
	}
	if t.chain.Load() != e.chain {
		t.chain.Store(e.chain)
	}
	t.period.Store(p)
}

// finish ends the turn. It returns false when the turn must not be used again.
func (t *turn) finish() bool {
	t.req.mail = &nothing
	t.period.Store(nil)
	if !t.asked.Load() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.real != nil {
		t.cancel()
	}
	return false
}

// realContext makes a context with a timer, once somebody asks for what needs one: most handlers never do.
func (t *turn) realContext() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.real != nil {
		return t.real
	}
	t.asked.Store(true)
	switch p, deadline := t.period.Load(), t.deadline.Load(); {
	case p == nil:
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		t.real, t.cancel = ctx, cancel
	case deadline != 0:
		t.real, t.cancel = context.WithDeadline(p.ctx, localTime(instant(deadline)))
	default:
		t.real, t.cancel = context.WithCancel(p.ctx)
	}
	return t.real
}

// Deadline is the caller's.
func (t *turn) Deadline() (time.Time, bool) {
	deadline := t.deadline.Load()
	if t.period.Load() == nil || deadline == 0 {
		return time.Time{}, false
	}
	return localTime(instant(deadline)), true
}

// Done is closed at the deadline, when ownership is lost, and when the turn is over.
func (t *turn) Done() <-chan struct{} { return t.realContext().Done() }

// Err says why Done is closed.
func (t *turn) Err() error {
	if t.asked.Load() {
		return t.realContext().Err()
	}
	p := t.period.Load()
	if p == nil {
		return context.Canceled
	}
	if deadline := t.deadline.Load(); p.ctx.Err() != nil || deadline != 0 && int64(tick()) >= deadline {
		return t.realContext().Err()
	}
	return nil
}

// Value answers with the token's holder, and with what context.Cause needs.
func (t *turn) Value(key any) any {
	if key == fence.ContextKey {
		return fence.Holder(t)
	}
	if _, ok := key.(turnKey); ok {
		return t
	}
	if t.asked.Load() {
		return t.realContext().Value(key)
	}
	if p := t.period.Load(); p != nil {
		return p.ctx.Value(key)
	}
	return nil
}

// FenceToken returns the object's token while the turn runs and ownership lasts. After a lapse it returns the token
// with an Unavailable error, after the turn an error of kind InvalidOperation.
func (t *turn) FenceToken() (fence.Token, error) {
	o := t.o
	err := t.usable("fence")
	if outcome.KindOf(err) == outcome.InvalidOperation {
		return fence.Token{}, err
	}
	source := string(o.reg.kind) + "/"
	if id, escapeErr := wire.EscapeID(o.id); escapeErr == nil {
		source += id
	}
	return fence.Token{Source: o.rt.mesh + "/" + source, Epoch: o.rt.epoch, Generation: o.generation.Load(),
		Sequence: o.ownerGeneration.Load()}, err
}

// usable says why the turn may not act any more: it is over (InvalidOperation), or ownership is lost (Unavailable).
func (t *turn) usable(op string) error {
	p := t.period.Load()
	if p == nil && t.o.is() == objectArriving {
		return outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, t.o.target(), "the object's move to this node is not certain yet")
	}
	if p == nil {
		return outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, t.o.target(), "the turn is over: its context ends with it")
	}
	if p != t.o.rt.period.Load() || p.ctx.Err() != nil {
		return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, t.o.target(), "", kvlocation.ErrOwnershipLost)
	}
	return t.o.rt.back.admit()
}

// ownChain returns the chain of turns that ends with this one.
func (t *turn) ownChain() *chain {
	t.mu.Lock()
	defer t.mu.Unlock()
	outer := t.chain.Load()
	if t.own == nil || t.own.parent != outer {
		t.own = &chain{parent: outer, kind: t.o.reg.kind, id: t.o.id, depth: 1}
		if outer != nil {
			t.own.depth = outer.depth + 1
		}
	}
	return t.own
}

// localTime is a moment of the monotonic clock on this machine's wall clock.
func localTime(at instant) time.Time { return time.Now().Add(at.sub(tick())) }
