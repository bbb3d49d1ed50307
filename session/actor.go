package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// slot is what sessions have in the slot of an Actor: how many bindings it has had, and the present one. It belongs to the
// Actor's turns.
type slot struct {
	number uint64
	b      *Binding
}

// captured is a slot's form in a move.
type captured struct {
	Number  uint64  `json:"number"`
	Token   string  `json:"token,omitempty"`
	Own     uint64  `json:"own,omitempty"`
	Session *Ref    `json:"session,omitempty"`
	Subject string  `json:"subject,omitempty"`
	Data    []byte  `json:"data,omitempty"`
	Last    *uint64 `json:"last,omitempty"`
}

// companion is the Actors' side of sessions.
type companion struct{ s *Service }

// Capture writes down the slot.
func (p companion) Capture(_ *objects.Self, v any) ([]byte, error) {
	st, ok := v.(*slot)
	if !ok {
		return nil, fmt.Errorf("session: the slot holds %T", v)
	}
	out := captured{Number: st.number}
	if b := st.b; b != nil {
		b.mu.Lock()
		last, over := b.last, b.why != ""
		b.mu.Unlock()
		if over {
			return json.Marshal(out)
		}
		out.Token, out.Own, out.Session, out.Subject, out.Data, out.Last = b.token, b.number, &b.session, b.subject, b.data, &last
	}
	return json.Marshal(out)
}

// Restore reads the slot at the target. Nothing uses it before Opened.
func (p companion) Restore(self *objects.Self, data []byte) (any, error) {
	var in captured
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("session: what was captured is not what it must be: %w", err)
	}
	st := &slot{number: in.Number}
	if in.Token == "" {
		return st, nil
	}
	if in.Session == nil || in.Last == nil {
		return nil, errors.New("session: what was captured names a token without its session")
	}
	st.b = &Binding{
		s: p.s, actor: self.ActorRef(), session: *in.Session, token: in.Token, number: in.Own, subject: in.Subject, data: in.Data, last: *in.Last,
	}
	return st, nil
}

// Opened begins with the binding at the target: its session's node is told where the Actor is now (FO-6a).
func (p companion) Opened(self *objects.Self, v any) {
	b, ok := present(v)
	if !ok {
		return
	}
	b.actor = self.ActorRef()
	b.start()
	p.s.tell(b.session.run(), &notice{Kind: noticeMoved, Session: b.session.ID, Token: b.token, Place: placeOf(self)})
}

func placeOf(self *objects.Self) objects.Place {
	return objects.Place{RID: self.RID(), Lifecycle: self.Lifecycle(), Generation: self.Generation(), OwnerGeneration: self.OwnerGeneration()}
}

// Ended is called when the Actor is over here.
func (p companion) Ended(_ *objects.Self, v any, why objects.CloseReason) {
	b, ok := present(v)
	if !ok {
		return
	}
	b.mu.Lock()
	b.away = true
	if why == objects.CloseMoved {
		b.live = false // what waits is still sent: it came before what the target pushes
	}
	b.mu.Unlock()
	switch why {
	case objects.CloseMoved:
		p.s.bound.remove(b)
	case objects.CloseLost:
		p.s.over(b, ReasonLost, "the Actor is not at its node any more")
	default:
		p.s.over(b, ReasonClosed, "the Actor was closed")
	}
}

// Admit lets a relayed message to its turn if it came through the present binding (FO-6c).
func (p companion) Admit(self *objects.Self, v any, token string) error {
	if b, ok := present(v); ok && b.token == token && b.Ended() == "" {
		return nil
	}
	p.s.stats.relaysStale.Add(1)
	return outcome.New("relay", outcome.InvalidOperation, outcome.Accepted, self.ActorRef().String(),
		"it came through a binding that the Actor does not have any more: bind again")
}

// start makes a binding the present one, here.
func (b *Binding) start() {
	b.mu.Lock()
	b.live = true
	b.mu.Unlock()
	b.s.bound.add(b)
}

// left reports whether the Actor is not here any more.
func (b *Binding) left() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

// turn runs bind, unbind or confirm as a turn of the Actor.
func (s *Service) turn(ctx context.Context, verb string, ref objects.ActorRef, r *turnRequest) (turnAnswer, error) {
	if verb == verbBind && (r.Session == nil || r.Token == "") {
		return turnAnswer{}, outcome.New(verb, outcome.ProtocolError, outcome.NotAccepted, ref.String(), "a bind names a session and a token")
	}
	var a turnAnswer
	err := s.objects.InTurn(ctx, ref, func(ctx context.Context, self *objects.Self, v *any) error {
		if self.Class() != kvlocation.ClassActor {
			return outcome.New(verb, outcome.TypeMismatch, outcome.Accepted, ref.String(), "only an Actor has bindings")
		}
		st, _ := (*v).(*slot)
		if st == nil {
			st = &slot{}
		}
		switch verb {
		case verbBind:
			*v = st
			a = s.bindTurn(ctx, self, st, r)
		case verbUnbind:
			s.unbindTurn(ctx, self, st, r.Token, r.Why)
			a.Status = statusNotBound
		default:
			a.Status = statusNotBound
			if st.b != nil && st.b.token == r.Token {
				a.Status, a.Number = statusBound, st.b.number
			}
		}
		return nil
	})
	if err == nil {
		return a, nil
	}
	e := asOutcome(err)
	if e.Acceptance != outcome.NotAccepted {
		return turnAnswer{}, err
	}
	switch p, routed := objects.RouteOf(err); {
	case e.Kind == outcome.NotFound:
		return turnAnswer{Status: statusGone, Text: e.Detail}, nil
	case routed:
		return turnAnswer{Status: statusElsewhere, Place: &p, Text: textOf(e)}, nil
	case e.Kind == outcome.Unavailable, e.Kind == outcome.ShuttingDown:
		return turnAnswer{Status: statusElsewhere, Text: textOf(e)}, nil
	}
	return turnAnswer{}, err
}

// bindTurn binds a session. One that is bound is replaced: it hears so (FO-6c).
func (s *Service) bindTurn(ctx context.Context, self *objects.Self, st *slot, r *turnRequest) turnAnswer {
	if old := st.b; old != nil {
		if old.token == r.Token {
			return turnAnswer{Status: statusBound, Number: old.number} // the same bind, once more
		}
		st.b = nil
		s.over(old, ReasonReplaced, "another session was bound to the Actor")
		s.unbound(ctx, self, old, ReasonReplaced)
	}
	st.number++
	b := &Binding{s: s, actor: self.ActorRef(), session: *r.Session, token: r.Token, number: st.number, subject: r.Subject, data: r.Data}
	st.b = b
	b.start()
	s.stats.bound.Add(1)
	if w, ok := self.Instance().(Watcher); ok {
		_ = s.safely("Watcher.Bound", func() error { w.Bound(ctx, self, b); return nil }) // a panic was counted
	}
	return turnAnswer{Status: statusBound, Number: b.number}
}

// unbindTurn ends the binding of a token; another one it does not touch (FO-6c).
func (s *Service) unbindTurn(ctx context.Context, self *objects.Self, st *slot, token string, why Reason) {
	b := st.b
	if b == nil || b.token != token {
		s.stats.unbindsStale.Add(1)
		return
	}
	st.b = nil
	s.quiet(b, why)
	s.unbound(ctx, self, b, why)
}

func (s *Service) unbound(ctx context.Context, self *objects.Self, b *Binding, why Reason) {
	if w, ok := self.Instance().(Watcher); ok {
		_ = s.safely("Watcher.Unbound", func() error { w.Unbound(ctx, self, b, why); return nil }) // a panic was counted
	}
}

// quiet makes a binding one that is over, without telling its session, which knows; what waits for it is dropped.
func (s *Service) quiet(b *Binding, why Reason) {
	b.mu.Lock()
	if b.why == "" {
		b.why = why
		s.stats.unbound.Add(1)
	}
	b.live, b.unsent = false, true
	b.queue, b.bytes = nil, 0
	b.mu.Unlock()
	s.bound.remove(b)
}

// over makes a binding one that is over, and tells its session: after the pushes so far.
func (s *Service) over(b *Binding, why Reason, text string) {
	b.mu.Lock()
	if b.why != "" {
		b.mu.Unlock()
		return
	}
	b.why, b.live = why, false
	last := b.last
	b.mu.Unlock()
	s.stats.unbound.Add(1)
	s.bound.remove(b)
	s.tell(b.session.run(), &notice{Kind: noticeEnded, Session: b.session.ID, Token: b.token, Last: last, Why: why, Text: short(text)})
}

// endBinding ends a binding out of a turn, or without one.
func (s *Service) endBinding(b *Binding, why Reason, text string) {
	if why == ReasonActor {
		s.over(b, why, text)
	} else {
		s.quiet(b, why)
	}
	s.release(b, why)
}

// release takes a binding that is over out of its Actor's slot, in a turn, and tells the Actor unless it knows. An Actor
// that is not here any more needs none: what moved away holds a binding that its session does not know, and finds out.
func (s *Service) release(b *Binding, why Reason) {
	s.owed.add()
	started := s.spawn(func() {
		defer s.owed.done()
		for wait := releaseWait; ; wait = min(2*wait, releaseMost) {
			ctx, cancel := context.WithTimeout(s.ctx, releaseTimeout)
			err := s.objects.InTurn(ctx, b.actor, func(ctx context.Context, self *objects.Self, v *any) error {
				st, _ := (*v).(*slot)
				if st == nil || st.b != b {
					return nil
				}
				st.b = nil
				if why != ReasonActor {
					s.unbound(ctx, self, b, why)
				}
				return nil
			})
			cancel()
			e := asOutcome(err)
			_, routed := objects.RouteOf(err)
			if err == nil || routed || e.Kind == outcome.NotFound || b.left() || s.ctx.Err() != nil {
				return
			}
			s.log.Debug("an Actor could not be told that its binding is over", zap.Stringer("actor", b.actor), zap.Error(err))
			select {
			case <-time.After(wait):
			case <-s.ctx.Done():
				return
			}
		}
	})
	if !started {
		s.owed.done()
	}
}

const (
	releaseWait    = 100 * time.Millisecond
	releaseMost    = 5 * time.Second
	releaseTimeout = 30 * time.Second
)

// boundIndex holds the bindings of the Actors that live here, by the process runs that own their sessions.
type boundIndex struct {
	mu sync.Mutex
	by map[run]map[string]*Binding // by token
}

func (x *boundIndex) init() { x.by = make(map[run]map[string]*Binding) }

func (x *boundIndex) add(b *Binding) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := b.session.run()
	if x.by[at] == nil {
		x.by[at] = make(map[string]*Binding)
	}
	x.by[at][b.token] = b
}

func (x *boundIndex) remove(b *Binding) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := b.session.run()
	if x.by[at][b.token] != b {
		return
	}
	delete(x.by[at], b.token)
	if len(x.by[at]) == 0 {
		delete(x.by, at)
	}
}

// of returns bindings whose sessions a process run owns: all, or with a bound any so many.
func (x *boundIndex) of(at run, most int) []*Binding {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []*Binding
	for _, b := range x.by[at] { // in an order that differs from time to time
		if most > 0 && len(out) >= most {
			break
		}
		out = append(out, b)
	}
	return out
}

func (x *boundIndex) runs() []run {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]run, 0, len(x.by))
	for at := range x.by {
		out = append(out, at)
	}
	return out
}

func (x *boundIndex) count() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.by {
		n += len(m)
	}
	return n
}
