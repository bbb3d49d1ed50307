package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"natsfabric/channels"
	"natsfabric/fence"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// Binding is what an Actor knows of the session that is bound to it. It moves with the Actor, as another value: it must not
// be kept from one turn to the next where an Actor may move (From and Of return the present one).
//
// Concurrency: all methods may be called from any goroutine.
type Binding struct {
	s       *Service
	actor   objects.ActorRef
	session Ref
	token   string
	number  uint64
	subject string
	data    []byte

	mu     sync.Mutex
	live   bool // it is the Actor's present binding, here
	why    Reason
	last   uint64 // the number of the last push
	queue  []push
	bytes  int
	busy   bool // somebody sends
	away   bool // the Actor is over here
	unsent bool // its node was told that it is over: what waits is not sent any more
}

// Session names the session.
func (b *Binding) Session() Ref { return b.session }

// Actor names the Actor.
func (b *Binding) Actor() objects.ActorRef { return b.actor }

// Generation counts the bindings of the Actor, from 1: a later one has a larger number.
func (b *Binding) Generation() uint64 { return b.number }

// Subject is Identity.Subject.
func (b *Binding) Subject() string { return b.subject }

// Data is Identity.Data. It must not be changed.
func (b *Binding) Data() []byte { return b.data }

// Ended returns why the binding is over; empty while it is not.
func (b *Binding) Ended() Reason {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.why
}

// Push sends data to the client. ctx must be that of the Actor's present turn, or derived from it. It does not wait: a nil
// error says that the push stands in the binding's queue here. From there it goes to the client in order, at most once,
// across moves of the Actor, for as long as the session lives; the client sees a number with each, from 1, and so a gap
// where one was lost. data must not be changed after the call.
//
// The error is an *outcome.Error with NotAccepted: Unavailable when the binding is over (its text says why) or ownership is
// lost, CapacityExceeded when what waits here for the session's node has come to Config.Outbound or Config.OutboundBytes,
// or the push is larger than that node can take, InvalidOperation outside of a turn.
func (b *Binding) Push(ctx context.Context, data []byte) error {
	token, err := fence.FromContext(ctx)
	if err != nil {
		e := *asOutcome(err)
		e.Op, e.Target, e.Acceptance = "push", b.actor.String(), outcome.NotAccepted
		return &e
	}
	if most := b.s.mostPush(); len(data) > most {
		return b.refusal(outcome.CapacityExceeded, fmt.Sprintf("the push has %d bytes, %d are allowed", len(data), most))
	}
	b.mu.Lock()
	switch {
	case token.Generation != b.actor.Generation:
		b.mu.Unlock()
		return b.refusal(outcome.InvalidOperation, "the turn is that of another object")
	case !b.live:
		why := b.why
		b.mu.Unlock()
		if why == "" {
			why = "the Actor is at another node"
		}
		return b.refusal(outcome.Unavailable, "the binding is over: "+string(why))
	case len(b.queue) >= b.s.cfg.Outbound, len(b.queue) > 0 && b.bytes+len(data) > b.s.cfg.OutboundBytes:
		b.mu.Unlock()
		b.s.stats.pushesRefused.Add(1)
		return b.refusal(outcome.CapacityExceeded, "as many pushes wait for the session's node as may")
	}
	b.last++
	b.queue = append(b.queue, push{seq: b.last, owner: token.Sequence, data: data})
	b.bytes += len(data)
	b.sendLocked()
	return nil
}

func (b *Binding) refusal(kind outcome.Kind, text string) *outcome.Error {
	return outcome.New("push", kind, outcome.NotAccepted, b.actor.String(), text)
}

// Unbind ends the binding from the Actor's side: the client is told, with up to 512 bytes of the text, after the pushes so
// far. It does nothing when the binding is over. Watcher.Unbound is not called.
func (b *Binding) Unbind(text string) { b.s.endBinding(b, ReasonActor, text) }

// Watcher is implemented by Actors that want to know who is bound to them. Both run in turns of the Actor, with the
// fencing token in ctx; a panic is counted and changes nothing.
type Watcher interface {
	// Bound tells that a session was bound. Where it took the place of another, Unbound of that one came before.
	Bound(ctx context.Context, self *objects.Self, b *Binding)
	// Unbound tells that a binding is over: every binding that Bound told of ends so once, unless the Actor ended it
	// itself or is over.
	Unbound(ctx context.Context, self *objects.Self, b *Binding, why Reason)
}

// From returns the binding through which the message of this turn came; ok is false for any other message, and for a timer.
func From(req *objects.Request) (b *Binding, ok bool) {
	v, mark := req.Slot()
	if mark == "" {
		return nil, false
	}
	return present(v)
}

// Of returns the present binding of the Actor whose turn it is; ok is false when it has none.
func Of(req *objects.Request) (b *Binding, ok bool) {
	v, _ := req.Slot()
	return present(v)
}

func present(v any) (*Binding, bool) {
	st, ok := v.(*slot)
	if !ok || st.b == nil {
		return nil, false
	}
	return st.b, true
}

const (
	// batchPushes and batchBytes bound one message of pushes to a session's node.
	batchPushes = 64
	batchBytes  = 256 << 10
	// pushReserve is what a push may be below the server's limit: what its message and its frame say beside it.
	pushReserve = 1024
	// resendFirst and resendMost are the waits before a batch is sent again; outlast is how long what an Actor has left
	// behind, when it moved or ended, is tried.
	resendFirst = 50 * time.Millisecond
	resendMost  = time.Second
	outlast     = 30 * time.Second
)

// mostPush is the greatest push.
func (s *Service) mostPush() int { return int(s.cfg.Conn.MaxPayload()) - pushReserve }

// sendLocked makes sure that somebody sends what waits, and unlocks.
func (b *Binding) sendLocked() {
	wake := !b.busy
	b.busy = true
	b.mu.Unlock()
	if wake && !b.s.spawn(b.send) {
		b.mu.Lock()
		b.busy = false
		b.mu.Unlock()
	}
}

// send brings what waits to the session's node, batch by batch. A batch of unknown fate is sent again to that process run:
// its pushes have numbers, by which what comes twice is known.
func (b *Binding) send() {
	wait := resendFirst
	var until time.Time
	for {
		batch, live := b.batch()
		if batch == nil {
			return
		}
		err := b.s.sendPushes(b.session, b.token, batch)
		switch {
		case err == nil, errors.Is(err, outcome.CapacityExceeded):
			b.sent(len(batch), err)
			wait = resendFirst
			continue
		case errors.Is(err, outcome.NotFound):
			b.drop()
			if live {
				b.s.endBinding(b, ReasonDisconnected, "")
			}
			return
		}
		if !asOutcome(err).Remote {
			b.s.suspect(b.session.run())
		}
		if !live {
			if until.IsZero() {
				until = time.Now().Add(outlast)
			} else if time.Now().After(until) {
				b.drop()
				return
			}
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, resendMost)
		case <-b.s.ctx.Done():
			b.drop()
			return
		}
	}
}

// batch returns what to send next; nil, and the sender rests, when there is nothing.
func (b *Binding) batch() (items []push, live bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.queue, b.busy = nil, false
		return nil, false
	}
	n, bytes := 0, 0
	for n < len(b.queue) && n < batchPushes && (n == 0 || bytes+len(b.queue[n].data) <= batchBytes) {
		bytes += len(b.queue[n].data)
		n++
	}
	return b.queue[:n:n], b.live
}

// sent takes what was sent, or can't be, out of the queue.
func (b *Binding) sent(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.s.stats.pushesLost.Add(uint64(n))
	}
	if n > len(b.queue) { // it was dropped meanwhile
		return
	}
	for _, p := range b.queue[:n] {
		b.bytes -= len(p.data)
	}
	b.queue = b.queue[n:]
}

// drop drops what waits; the sender rests.
func (b *Binding) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.stats.pushesLost.Add(uint64(len(b.queue)))
	b.queue, b.bytes, b.busy = nil, 0, false
}

// sendPushes brings a batch to a session.
func (s *Service) sendPushes(to Ref, token string, items []push) error {
	n := len(token) + 16
	for _, p := range items {
		n += len(p.data) + 24
	}
	data := appendPushes(make([]byte, 0, n), token, items)
	if to.run() == s.here {
		switch v, err := s.pushed(to.ID, data); {
		case err != nil:
			return err
		case v == pushOver:
			return outcome.New("push", outcome.NotFound, outcome.NotAccepted, "", "the session or the binding is over")
		case v == pushFull:
			return outcome.New("push", outcome.Unavailable, outcome.NotAccepted, "", "too many pushes wait for one that is missing")
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, askTimeout)
	defer cancel()
	_, err := s.router.CallRun(ctx, &channels.RunCall{
		Op: "push", Target: "session " + to.String(), RID: to.RID, Lifecycle: to.Lifecycle,
		Subject: s.router.RunSubject(to.RID, to.Lifecycle, serviceName, verbPush+"."+to.ID), Data: data, OneWay: true,
	})
	return err
}
