package objects

import (
	"context"
	"sync"
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
type turn struct {
	o   *object
	req Request // belongs to the handler while it runs

	mu       sync.Mutex
	running  bool
	period   *period
	deadline instant // 0 for none
	chain    *chain  // of the enclosing turns
	own      *chain  // with this turn; made when it is asked for
	real     context.Context
	cancel   context.CancelFunc
}

// begin starts a turn about e in the given period of ownership.
func (t *turn) begin(p *period, e *envelope) {
	t.req = Request{self: &t.o.me, data: e.data, header: e.header, oneWay: e.oneWay, timer: e.timer, broadcast: e.broadcast, from: e.from}
	t.mu.Lock()
	t.running, t.period, t.deadline = true, p, 0
	if !e.oneWay {
		t.deadline = instant(e.deadline.Load())
	}
	if t.chain != nil || e.chain != nil {
		t.chain, t.own = e.chain, nil
	}
	t.mu.Unlock()
}

// finish ends the turn. It returns false when the turn must not be used again.
func (t *turn) finish() bool {
	t.req = Request{}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running, t.period = false, nil
	if t.real == nil {
		return true
	}
	t.cancel()
	return false
}

// realLocked makes a context with a timer, once somebody asks for what needs one: most handlers never do.
func (t *turn) realLocked() context.Context {
	switch {
	case t.real != nil:
	case !t.running:
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		t.real, t.cancel = ctx, cancel
	case t.deadline != 0:
		t.real, t.cancel = context.WithDeadline(t.period.ctx, localTime(t.deadline))
	default:
		t.real, t.cancel = context.WithCancel(t.period.ctx)
	}
	return t.real
}

// Deadline is the caller's.
func (t *turn) Deadline() (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running || t.deadline == 0 {
		return time.Time{}, false
	}
	return localTime(t.deadline), true
}

// Done is closed at the deadline, when ownership is lost, and when the turn is over.
func (t *turn) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.realLocked().Done()
}

// Err says why Done is closed.
func (t *turn) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.real != nil:
		return t.real.Err()
	case !t.running:
		return context.Canceled
	case t.period.ctx.Err() != nil || t.deadline != 0 && tick() >= t.deadline:
		return t.realLocked().Err()
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
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.real != nil:
		return t.real.Value(key)
	case t.running:
		return t.period.ctx.Value(key)
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
	t.mu.Lock()
	p := t.period
	t.mu.Unlock()
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
	if t.own == nil {
		t.own = &chain{parent: t.chain, kind: t.o.reg.kind, id: t.o.id, depth: 1}
		if t.chain != nil {
			t.own.depth = t.chain.depth + 1
		}
	}
	return t.own
}

// localTime is a moment of the monotonic clock on this machine's wall clock.
func localTime(at instant) time.Time { return time.Now().Add(at.sub(tick())) }
