package objects

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// beforeCommit is the context of what runs at the target before the move is certain: it answers with a turn that has not
// begun, so that there is no token and nothing can be sent with it.
type beforeCommit struct {
	context.Context
	t *turn
}

// Value answers with the turn.
func (c beforeCommit) Value(key any) any {
	if key == fence.ContextKey {
		return fence.Holder(c.t)
	}
	if _, ok := key.(turnKey); ok {
		return c.t
	}
	return c.Context.Value(key)
}

// Load makes the instances: the factories run, then Restore. What arrives for the objects is held from then on. Errors are
// *outcome.Error with NotAccepted: ErrStateVersion, ErrStateTooLarge, ErrNoMover, ErrMoving, ErrNoSlot, the factory's or
// Restore's own, that of ctx when one of them does not return. After an error Abort is due.
func (a *Arrival) Load(ctx context.Context, c *Cargo) error {
	a.step.Lock()
	defer a.step.Unlock()
	if !a.become(arriveExpected, arriveLoading) {
		return outcome.New("move", outcome.Unavailable, outcome.NotAccepted, a.unit.Key.String(), "the reservation is over")
	}
	a.expiry.Stop()
	a.began = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	if len(c.objects) == 0 || c.objects[0].key != a.unit.Key || c.objects[0].generation != a.unit.Generation {
		return outcome.New("move", outcome.ProtocolError, outcome.NotAccepted, a.unit.Key.String(), "the cargo is of another unit")
	}
	for i := range c.objects {
		if err := a.place(&c.objects[i]); err != nil {
			return err
		}
	}
	for _, p := range a.parts {
		if err := a.load(ctx, p); err != nil {
			return err
		}
	}
	if !a.become(arriveLoading, arriveLoaded) {
		return outcome.FromContext(ctx, "move", outcome.NotAccepted, a.unit.Key.String(), "")
	}
	return nil
}

// place enters one object, whose mail is held from then on.
func (a *Arrival) place(c *cargoObject) error {
	s := a.s
	fail := func(kind outcome.Kind, detail string, cause error) error {
		return outcome.Wrap("move", kind, outcome.NotAccepted, c.key.String(), detail, cause)
	}
	reg := s.rt.typeOf(c.class, c.typ)
	if reg == nil || reg.kind != c.key.Kind {
		return fail(outcome.NotConfigured, fmt.Sprintf("node %s registers no %s type %.80q", s.cfg.RID, c.class, c.typ), ErrUnknownType)
	}
	if a.slots[reg] == 0 { // it has joined since
		if err := a.slot(reg); err != nil {
			return fail(outcome.Unavailable, err.Error(), ErrNoSlot)
		}
	}
	if c.state != nil && len(c.state.Data) > reg.MaxState {
		return fail(outcome.CapacityExceeded, fmt.Sprintf("%d bytes, at most %d", len(c.state.Data), reg.MaxState), ErrStateTooLarge)
	}
	o := s.rt.newObject(reg, c.key.ID)
	o.state = objectArriving
	o.aside().moved = true
	o.identify(c.generation, c.ownerGeneration)
	if s.rt.insert(o) != nil {
		return fail(outcome.Unavailable, "node "+s.cfg.RID+" has it", ErrMoving)
	}
	a.slots[reg]-- // it is the object's from now on
	a.parts = append(a.parts, &arriving{o: o, cargo: c})
	return nil
}

// load runs what is the application's and the companion's of one object's arrival.
func (a *Arrival) load(ctx context.Context, p *arriving) error {
	s, o := a.s, p.o
	ctx, cancel := context.WithTimeoutCause(ctx, o.reg.CreateTimeout, errTooLate)
	defer cancel()
	ctx = beforeCommit{ctx, &turn{o: o}}
	inst, err := s.runFactory(ctx, o, nil)
	if err != nil {
		return outcome.Wrap("move", outcome.KindOf(err), outcome.NotAccepted, o.target(), "making its instance", err)
	}
	p.inst = inst
	done := make(chan error, 1)
	s.pool.run(func() { done <- o.guarded(func() error { return s.restore(ctx, p) }) })
	select {
	case err = <-done:
	case <-ctx.Done():
		return outcome.Wrap("move", outcome.InternalFailure, outcome.NotAccepted, o.target(), "its Restore did not return", context.Cause(ctx))
	}
	if err != nil {
		return outcome.Wrap("move", outcome.KindOf(err), outcome.NotAccepted, o.target(), "restoring its state", err)
	}
	return nil
}

func (s *Service) restore(ctx context.Context, p *arriving) error {
	o, c := p.o, p.cargo
	if o.reg.Move == MoveState {
		m, ok := p.inst.(Mover)
		if !ok {
			return ErrNoMover
		}
		if c.state == nil {
			return errors.New("the cargo has no state")
		}
		if err := m.Restore(ctx, &o.me, *c.state); err != nil {
			return err
		}
	}
	if !c.hasCompanion {
		return nil
	}
	if s.companion == nil {
		return errors.New("the object has a companion, which this node does not know")
	}
	v, err := s.companion.of.Restore(&o.me, c.companion)
	if err == nil {
		o.setSlot(v)
	}
	return err
}

// Open makes the unit this node's, after its commit is known: e is the record as committed, with h. The activation
// callback runs with the token, then the work, the held messages up to h, what has arrived here meanwhile, and what
// comes. It returns at once. The error says that the arrival is not loaded, or that h is above Prefix: nothing is opened.
func (a *Arrival) Open(e kvlocation.Entry, h uint64) error {
	a.step.Lock()
	defer a.step.Unlock()
	fail := func(detail string) error {
		return outcome.New("move", outcome.InvalidOperation, outcome.NotAccepted, a.unit.Key.String(), detail)
	}
	a.mu.Lock()
	fed := a.fed
	switch {
	case a.phase != arriveLoaded:
		a.mu.Unlock()
		return fail("it is not loaded, or open already")
	case h > a.prefix:
		a.mu.Unlock()
		return fail(fmt.Sprintf("held messages up to %d are said to be here, and they are up to %d", h, a.prefix))
	}
	a.phase = arriveOver
	a.mu.Unlock()
	s := a.s
	held := make(map[kvlocation.ObjectKey][]parcel)
	for n := uint64(1); n <= h; n++ {
		held[fed[n].object] = append(held[fed[n].object], fed[n].parcel)
	}
	for i, p := range a.parts {
		if i == 0 {
			p.o.identify(e.Generation(), e.Record.OwnerGeneration)
			if err := s.restoreMembership(p.o, p.cargo.members, e); err != nil {
				s.log.Error("the members of a Spot that moved are not known", zap.Error(err))
			}
		} else {
			p.o.identify(s.memberGenerations(e, p.o))
		}
		s.follows.forget(p.o.key())
	}
	for _, p := range a.parts {
		a.open(p, e.Record.Owner.Lease, held[p.o.key()])
		delete(held, p.o.key())
	}
	for key, list := range held { // of objects that did not come: the source knows no such
		for _, m := range list {
			s.failParcel(m, outcome.New("", outcome.Unavailable, outcome.NotAccepted, key.String(), "it is not part of the unit that moved"))
		}
	}
	a.end()
	s.stats.arrived.Add(1)
	return nil
}

// open opens one object.
func (a *Arrival) open(p *arriving, lease uint64, held []parcel) {
	s, o := a.s, p.o
	o.mu.Lock()
	if o.state != objectArriving { // the Service stops
		o.mu.Unlock()
		return
	}
	o.state = objectCreating // certain from now on, and not open
	o.inst = p.inst
	o.mu.Unlock()
	o.lease.Store(lease)
	_, activates := p.inst.(Activator)
	o.activated = !activates
	if v := o.slotValue(); v != nil {
		s.companion.of.Opened(&o.me, v)
	}
	front := o.activationDue()
	var due []*timer
	for _, m := range p.cargo.work {
		e := s.mailOf(o, m, true)
		if e.timer != nil {
			due = append(due, e.timer)
		}
		o.countAccepted(e)
		front.push(e)
	}
	s.rt.clock.bring(o, p.cargo.timers, time.Since(a.began), due)
	for _, m := range held {
		if e := s.mailOf(o, m, false); o.accepted(e) {
			front.push(e)
		}
	}
	p.cargo = nil
	o.acceptHeld(front)
	if o.reg.IdleAfter > 0 {
		s.rt.clock.watchIdle(o)
	}
}
