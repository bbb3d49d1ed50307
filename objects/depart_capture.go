package objects

import (
	"context"
	"fmt"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// work is a piece of accepted mail that goes along.
type work struct {
	e *envelope
	// answer is where this node waits for what the target answers to a caller of this process; nil for other callers.
	answer *channels.Awaited
}

// Capture returns what the unit takes along. It runs the Mover's Capture in a turn of the object. An error leaves the
// move to Abort: the capture's own, ErrStateTooLarge, ErrMoving when an end that was asked for is still to come, that of ctx
// when the capture did not return.
func (d *Departure) Capture(ctx context.Context) (*Cargo, error) {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departSealed {
		return nil, d.misused("Capture")
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	c := &Cargo{objects: make([]cargoObject, len(d.parts))}
	for i, p := range d.parts {
		if err := d.capture(ctx, p, &c.objects[i]); err != nil {
			return nil, err
		}
	}
	d.phase = departCaptured
	return c, nil
}

// capture fills in what one object takes along.
func (d *Departure) capture(ctx context.Context, p *departing, c *cargoObject) error {
	s, o := d.s, p.o
	if s.rt.clock.closes(o) {
		return errMovingNow(o)
	}
	if !o.borrow() {
		return whyClosed.refusal("move", o.target(), false)
	}
	done := make(chan error, 1)
	var got cargoObject // read after done only: a capture that does not return in time writes to nobody's
	s.pool.run(func() {
		err := s.captureTurn(ctx, o, &got)
		o.giveBack()
		done <- err
	})
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return outcome.FromContext(ctx, "move", outcome.NotAccepted, o.target(), "its Capture has not returned")
	}
	*c = got
	c.key, c.class, c.typ = o.key(), o.reg.Class, o.reg.Name
	c.generation, c.ownerGeneration = o.generation.Load(), o.ownerGeneration.Load()
	c.members = s.captureMembership(o)
	due := d.takeWork(p)
	c.timers = s.rt.clock.capture(o, due)
	c.work = make([]parcel, 0, len(p.work))
	for i := range p.work {
		w := &p.work[i]
		if t := w.e.timer; t != nil && !due[t] {
			continue // cancelled; its mail does nothing
		}
		m, err := d.pack(o, w)
		if err != nil {
			return err
		}
		c.work = append(c.work, m)
	}
	return nil
}

// captureTurn runs what is the application's and the companion's of a capture, in a turn of a borrowed object.
func (s *Service) captureTurn(ctx context.Context, o *object, c *cargoObject) error {
	rt := s.rt
	period := rt.period.Load()
	if !rt.admits(tick()) {
		return whyLapsed.refusal("move", o.target(), false)
	}
	if o.lease.Load() != s.leaseGeneration() || !o.activated {
		err := o.adopt(period)
		if err == nil && !o.activated {
			if err = o.activate(period); err == nil {
				o.activated = true
			}
		}
		if err != nil {
			return outcome.Wrap("move", outcome.Unavailable, outcome.NotAccepted, o.target(), "the object could not be made ready", err)
		}
	}
	timeout := rt.deadline(ctx).sub(tick())
	err := o.callback(period, timeout, func(tctx context.Context) error {
		return o.guarded(func() error { return s.captureParts(tctx, o, c) })
	})
	if err != nil {
		return outcome.Wrap("move", outcome.KindOf(err), outcome.NotAccepted, o.target(), "capturing its state", err)
	}
	if period != rt.period.Load() || !rt.admits(tick()) {
		return whyLapsed.refusal("move", o.target(), false)
	}
	return nil
}

func (s *Service) captureParts(ctx context.Context, o *object, c *cargoObject) (err error) {
	if o.reg.Move == MoveState {
		m, ok := o.inst.(Mover)
		if !ok {
			return ErrNoMover
		}
		state, err := m.Capture(ctx, &o.me)
		switch {
		case err != nil:
			return err
		case len(state.Data) > o.reg.MaxState:
			return fmt.Errorf("%w: %d bytes, at most %d", ErrStateTooLarge, len(state.Data), o.reg.MaxState)
		}
		c.state = &state
	}
	if v := o.slotValue(); v != nil && s.companion != nil {
		c.hasCompanion = true
		c.companion, err = s.companion.of.Capture(&o.me, v)
	}
	return err
}

// takeWork takes the accepted mail out of the mailbox; what is held stays. It returns the due timers among it, with false.
func (d *Departure) takeWork(p *departing) (due map[*timer]bool) {
	o := p.o
	var taken mailbox
	o.mu.Lock()
	list := o.box.takeAll()
	for list != nil {
		e := list
		list, e.next = e.next, nil
		if e.isAccepted() {
			taken.push(e)
		} else {
			o.box.push(e)
		}
	}
	o.mu.Unlock()
	now := tick()
	due = make(map[*timer]bool)
	for e := taken.head; e != nil; {
		next := e.next
		e.next = nil
		switch {
		case e.kind == mailFramework:
			e.answer(Reply{}, whySealed.refusal("turn", o.target(), false))
		case e.kind == mailTimer:
			due[e.timer] = false
			p.work = append(p.work, work{e: e})
		case e.kind != mailMessage:
			e.release() // it is made again where it is due
		case !o.expire(e, now):
			p.work = append(p.work, work{e: e})
		}
		e = next
	}
	return due
}

// pack makes the parcel of a piece of work. A caller of this process gets a reply subject of this process.
func (d *Departure) pack(o *object, w *work) (parcel, error) {
	e := w.e
	if e.kind == mailTimer {
		return parcel{timer: e.timer.name, data: e.data, oneWay: true}, nil
	}
	p, local := d.s.parcelOf(e)
	if !local || e.oneWay || e.now()&envState == envLeft {
		return p, nil
	}
	var err error
	if w.answer, err = d.s.router.Await(e.op(), o.target(), localTime(e.deadline), false); err != nil {
		return p, renamed(err, "move", o.key())
	}
	p.reply = w.answer.ReplyTo()
	return p, nil
}
