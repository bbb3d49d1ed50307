package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Departure is one unit that leaves this node: the source's side of a move. Its methods are called in the order Depart,
// Entry, Seal, Capture, Accepted, Held (any number of times), then Finish or Fail once; Abort instead, until Accepted.
//
// Concurrency: methods may be called from any goroutine; Abort ends a Seal or Capture that runs.
type Departure struct {
	s    *Service
	lead *object
	unit Unit

	ctx    context.Context // ends with Abort
	cancel context.CancelFunc
	owing  context.Context // of those who wait for the target's answers; ends with Fail
	fail   context.CancelCauseFunc
	left   chan struct{} // closed when the object may be moved, or closed, again

	step  sync.Mutex // held by each method while it runs
	phase departPhase
	parts []*departing // the unit's own object first; known once it is sealed
	out   []published  // what Held has returned
	queue []waiting    // taken out of the mailboxes behind that
	count uint64       // number of the last in out
}

// departPhase is how far a departure has come.
type departPhase uint8

const (
	departBegun    departPhase = iota // Next: sealed, over
	departSealed                      // Next: captured, over
	departCaptured                    // Next: accepted, over (abort)
	departAccepted                    // Next: over (finish, fail)
	departOver
)

// departing is one object of a departure.
type departing struct {
	o    *object
	work []work // what was accepted and has not run, in order
}

// Depart begins the departure of an object of this node: generation names its incarnation, 0 whatever is here. Nothing is
// held yet, and the object goes on. Errors are *outcome.Error with NotAccepted: Unavailable when the object is not here
// (RouteOf tells where it is, if that is known) or not open; NotFound for another generation; InvalidOperation with
// ErrMoveDisabled, ErrNoMover or ErrMember, for an Entry Spot, and for a key of no kind; Unavailable with ErrMoving. It ends with Abort, Finish
// or Fail.
func (s *Service) Depart(ctx context.Context, key kvlocation.ObjectKey, generation uint64) (*Departure, error) {
	const op = "move"
	fail := func(kind outcome.Kind, detail string, cause error) (*Departure, error) {
		return nil, outcome.Wrap(op, kind, outcome.NotAccepted, key.String(), detail, cause)
	}
	if key.Kind != kvlocation.KindActor && key.Kind != kvlocation.KindSpot {
		return fail(outcome.InvalidOperation, fmt.Sprintf("Kind %q is not allowed: it must be actor or spot", key.Kind), nil)
	}
	if isEntry(key) {
		return fail(outcome.InvalidOperation, "an Entry Spot stays at its node", nil)
	}
	o, err := s.present(ctx, key)
	switch {
	case err != nil:
		return nil, renamed(err, op, key)
	case o == nil:
		return nil, s.placed(renamed(plain(s.notOwner(key)), op, key), key)
	case generation != 0 && o.generation.Load() != generation:
		return nil, otherGeneration(op, key, o.generation.Load(), generation)
	case o.reg.Move == MoveDisabled:
		return fail(outcome.InvalidOperation, "type "+quote(o.reg.Name), ErrMoveDisabled)
	case s.isSpotWideMember(o):
		return fail(outcome.InvalidOperation, "", ErrMember)
	}
	d := &Departure{s: s, lead: o, left: make(chan struct{})}
	sd := o.aside()
	o.mu.Lock()
	state, inst := o.state, o.inst
	if state == objectOpen && o.closing.Load() == nil && sd.leaving == nil {
		sd.leaving = d
	}
	taken := sd.leaving == d
	o.mu.Unlock()
	switch {
	case state == objectCreating || state == objectArriving:
		return fail(outcome.Unavailable, "it is being made at this node", nil)
	case !taken:
		return fail(outcome.Unavailable, "", ErrMoving)
	}
	if d.unit, err = s.unitOf(o, inst); err != nil {
		d.leave()
		return fail(outcome.InvalidOperation, "", err)
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.owing, d.fail = context.WithCancelCause(context.Background())
	if !s.moves.begin(d) {
		d.leave()
		return fail(outcome.ShuttingDown, "this program is shutting down", nil)
	}
	s.stats.departures.Add(1)
	return d, nil
}

// unitOf describes the unit that an object leads. The error says why an object of it cannot move.
func (s *Service) unitOf(o *object, inst Object) (Unit, error) {
	u := Unit{
		Key: o.key(), Class: o.reg.Class, Type: o.reg.Name, Policy: o.reg.Move, Members: o.reg.Members,
		Generation: o.generation.Load(), OwnerGeneration: o.ownerGeneration.Load(), AppVersion: s.cfg.AppVersion,
	}
	if err := u.add(o.reg, inst); err != nil {
		return u, err
	}
	for _, m := range s.unitMembers(o) {
		m.mu.Lock()
		inst := m.inst
		m.mu.Unlock()
		if err := u.add(m.reg, inst); err != nil {
			return u, fmt.Errorf("member %s: %w", m.target(), err)
		}
	}
	return u, nil
}

// add counts an object of a type.
func (u *Unit) add(reg *regType, inst Object) error {
	if reg.Move == MoveDisabled {
		return ErrMoveDisabled
	}
	if _, ok := inst.(Mover); reg.Move == MoveState && !ok {
		return ErrNoMover
	}
	u.MaxBytes += int64(reg.MaxState) + int64(reg.MailboxBytes)
	for i := range u.Types {
		if t := &u.Types[i]; t.Class == reg.Class && t.Type == reg.Name {
			t.Count++
			return nil
		}
	}
	u.Types = append(u.Types, UnitType{Class: reg.Class, Type: reg.Name, Policy: reg.Move, Count: 1})
	return nil
}

// leave gives the right to move the object back. An end that was asked for meanwhile is due then.
func (d *Departure) leave() {
	o := d.lead
	o.mu.Lock()
	if sd := o.side.Load(); sd.leaving == d {
		sd.leaving = nil
		close(d.left)
	}
	o.mu.Unlock()
	if o.closing.Load() != nil {
		o.offerOwn(mailClose)
	}
}

// Unit describes what departs.
func (d *Departure) Unit() Unit { return d.unit }

// Entry returns the unit's own record, adopted under the present lease and without an activation pointer: what the first
// write of a move stands on. It costs one read. The error is that of the store, or Unavailable when the object is not this
// node's any more, and is then dropped.
func (d *Departure) Entry(ctx context.Context) (kvlocation.Entry, error) {
	s, o := d.s, d.lead
	for try := 0; ; try++ {
		if err := s.admit(); err != nil {
			return kvlocation.Entry{}, err
		}
		e, err := s.ownEntry(ctx, o)
		switch {
		case errors.Is(err, errLost):
			s.rt.lose(o, lostError("move", o))
			return e, lostError("move", o)
		case err != nil:
			return e, renamed(err, "move", o.key())
		case e.Record.Owner.Lease == s.leaseGeneration():
			return e, nil
		case try == createTries:
			return e, outcome.New("move", outcome.Unavailable, outcome.NotAccepted, o.target(), "its record could not be adopted")
		}
		if err := s.adopt(ctx, o); err != nil && !errors.Is(err, errLost) {
			return e, renamed(err, "move", o.key())
		}
	}
}

// bounded returns ctx, which ends with Abort too.
func (d *Departure) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// misused is the error of a method that was called out of its order.
func (d *Departure) misused(method string) error {
	return outcome.New("move", outcome.InvalidOperation, outcome.NotAccepted, d.lead.target(), method+" is not due: the departure is further, or over")
}

// Seal lets the turns that run end, and holds what arrives from then on, without accepting it: at most 1,024 messages and
// 16 MiB for the unit; more is refused. After an error nothing is sealed: DeadlineExceeded or Canceled of ctx when a
// handler did not return, Unavailable when an object is closed or (ErrMoving) its end was asked for.
func (d *Departure) Seal(ctx context.Context) error {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departBegun {
		return d.misused("Seal")
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	sealed, err := newUnitSeal(d.lead, false).seal(ctx, d.s.unitMembers)
	for _, o := range sealed {
		d.parts = append(d.parts, &departing{o: o})
	}
	if err != nil {
		d.unseal()
		return err
	}
	d.phase = departSealed
	return nil
}

// unseal lets the objects run again, with what was taken out of their mailboxes first.
func (d *Departure) unseal() {
	for _, p := range d.parts {
		var front mailbox
		for _, w := range p.work {
			if w.answer != nil {
				w.answer.Cancel()
			}
			front.push(w.e)
		}
		p.work = nil
		d.s.rt.clock.restore(p.o)
		p.o.unseal(front)
	}
	d.parts = nil
}

// Abort ends the departure before Accepted: what was captured stands first again, what was held is accepted behind it, and
// the object goes on. cause is logged. It may be called any number of times; after Accepted it does nothing.
func (d *Departure) Abort(cause error) {
	d.cancel()
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase >= departAccepted {
		return
	}
	d.phase = departOver
	d.unseal()
	d.leave()
	d.s.moves.end(d)
	d.s.stats.departAborted.Add(1)
	d.s.log.Debug("a move was given up, and the object goes on", zap.String("object", d.lead.target()), zap.Error(cause))
}
