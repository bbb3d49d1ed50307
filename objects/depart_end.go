package objects

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// waiting is a message of the hold that was taken out of its mailbox.
type waiting struct {
	o *object
	e *envelope
}

// published is a message that was given to the target with a number.
type published struct {
	o      *object
	e      *envelope
	parcel parcel
	local  bool // its caller is of this process, and somebody waits for the target's answer
}

// Accepted says that the irreversible boundary is written: the instances are freed at once, and nothing is ever unsealed.
func (d *Departure) Accepted() {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departCaptured {
		return
	}
	d.phase = departAccepted
	for _, p := range d.parts {
		o := p.o
		o.inst, o.turn = nil, nil
		d.s.rt.clock.forget(o)
		o.endSlot(CloseMoved)
		rest := p.work[:0]
		for _, w := range p.work {
			switch {
			case w.e.kind == mailTimer:
				w.e.release()
				continue
			case w.answer != nil:
				d.passOn(w.e, w.answer, o)
			default:
				rest = append(rest, w) // until the target is known to have it
			}
			o.reg.count(o).movedOut.Add(1)
		}
		p.work = rest
	}
}

// passOn waits for what the target answers to a caller of this process, and passes it on.
func (d *Departure) passOn(e *envelope, a *channels.Awaited, o *object) {
	s := d.s
	s.owed.add(1)
	key, reg, generation := o.key(), o.reg, o.generation.Load()
	finish := func(reply Reply, err error) {
		s.owed.add(-1)
		switch accepted := e.isAccepted(); {
		case e.held != nil:
			e.held.end(err)
			e.release()
		case err != nil && accepted:
			e.answer(Reply{}, asAccepted(err))
		default:
			e.answer(reply, err)
		}
	}
	if !s.spawn(func() {
		ctx, cancel := context.WithCancelCause(d.owing)
		defer cancel(nil)
		defer context.AfterFunc(s.ctx, func() { cancel(errStops) })()
		reply, err := a.Wait(ctx)
		if why := context.Cause(ctx); why != nil && err != nil {
			kind := outcome.Unavailable
			if s.ctx.Err() != nil {
				kind = outcome.ShuttingDown
			}
			err = outcome.Wrap(e.op(), kind, outcome.AcceptanceOf(err), key.String(), "no answer came from the node to which the object moved", why)
		}
		s.heard(key, reg.Class, reg.Name, generation, reply.Header)
		finish(withoutRoute(reply), err)
	}) {
		a.Cancel()
		finish(Reply{}, outcome.New(e.op(), outcome.ShuttingDown, outcome.Unknown, key.String(), "this node shuts down"))
	}
}

// asAccepted is the error of a message that had been accepted before.
func asAccepted(err error) error {
	e := *plainCreate(err)
	e.Acceptance = outcome.Accepted
	return &e
}

// Held returns the next messages of the hold, in order, at most most of them and about bytes of them, but one at least if
// there is any. They are published from then on.
func (d *Departure) Held(most, bytes int) (list []Held) {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departAccepted {
		return nil
	}
	d.collect()
	for len(d.queue) > 0 && len(list) < most && (bytes > 0 || len(list) == 0) {
		w := d.queue[0]
		d.queue[0] = waiting{}
		d.queue = d.queue[1:]
		p, local, ok := d.ship(w)
		if !ok {
			continue
		}
		d.count++
		d.out = append(d.out, published{o: w.o, e: w.e, parcel: p, local: local})
		d.s.stats.published.Add(1)
		h := Held{number: d.count, object: w.o.key(), parcel: p}
		bytes -= h.Size()
		list = append(list, h)
	}
	return list
}

// HeldCount is the number of the last message that Held has returned.
func (d *Departure) HeldCount() uint64 {
	d.step.Lock()
	defer d.step.Unlock()
	return d.count
}

// collect takes what is held out of the mailboxes, behind the queue.
func (d *Departure) collect() {
	for _, p := range d.parts {
		p.o.mu.Lock()
		list := p.o.box.takeAll()
		p.o.mu.Unlock()
		d.enqueue(p.o, list)
	}
}

func (d *Departure) enqueue(o *object, list *envelope) {
	for list != nil {
		e := list
		list, e.next = e.next, nil
		d.queue = append(d.queue, waiting{o, e})
	}
}

// ship makes the parcel of a held message. ok is false when the message has ended instead: nobody waits for it any more.
func (d *Departure) ship(w waiting) (p parcel, local, ok bool) {
	s, o, e := d.s, w.o, w.e
	switch {
	case e.kind != mailMessage:
		e.release()
		return p, false, false
	case e.past(tick()):
		o.refused(e.kind, whyPast)
		o.endHeld(e, whyPast.refusal(e.op(), o.target(), e.from != nil))
		return p, false, false
	}
	if p, local = s.parcelOf(e); !local {
		return p, false, true
	}
	if !e.publish() {
		e.release()
		return p, true, false
	}
	until := localTime(e.deadline)
	if e.held != nil {
		until = time.Now().Add(s.cfg.DefaultTimeout)
		if at := e.held.until.Load(); at != 0 {
			until = localTime(instant(at))
		}
	}
	answer, err := s.router.Await(e.op(), o.target(), until, e.oneWay)
	if err != nil {
		o.endHeld(e, err)
		return p, true, false
	}
	p.reply = answer.ReplyTo()
	d.passOn(e, answer, o)
	return p, true, true
}

// Finish says that the move is committed: target has taken the held messages up to h, in owner generation
// ownerGeneration. The rest of the hold goes there in order, before what arrives later, which follows it for the time of
// follow (0: never; what is left of the hold is then refused). It returns once everything is on its way.
func (d *Departure) Finish(h uint64, target kvlocation.Owner, ownerGeneration uint64, follow time.Duration) {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departAccepted {
		return
	}
	d.phase = departOver
	s := d.s
	at := place{
		rid: target.RID, lifecycle: target.Lifecycle, generation: d.unit.Generation, ownerGeneration: ownerGeneration,
		phase: kvlocation.PhaseReady,
	}
	s.follows.add(d, at, follow)
	hand := func(o *object, p parcel) bool {
		if follow <= 0 {
			return false
		}
		s.stats.handedOn.Add(1)
		return s.handOn(d.placeOf(o, at), o.key(), p) == nil
	}
	for i, m := range d.out {
		switch {
		case uint64(i+1) > h && !hand(m.o, m.parcel):
			s.refuseParcel(m.o, m.parcel, d.placeOf(m.o, at))
			fallthrough
		default:
			if !m.local {
				m.e.release()
			}
		}
	}
	pass := func(w waiting) {
		p, local, ok := d.ship(w)
		switch {
		case !ok:
			return
		case !hand(w.o, p):
			s.refuseParcel(w.o, p, d.placeOf(w.o, at))
		}
		if !local {
			w.e.release()
		}
	}
	d.collect()
	for _, w := range d.queue {
		pass(w)
	}
	for _, p := range d.parts {
		d.hear(p.o, at)
		d.close(p.o, errMoved, func(e *envelope) { pass(waiting{p.o, e}) })
		for _, w := range p.work {
			w.e.release()
		}
	}
	d.done()
	s.stats.departed.Add(1)
}

// placeOf is where an object of the unit has gone.
func (d *Departure) placeOf(o *object, at place) place {
	if o != d.lead {
		at.generation = o.generation.Load()
		at.ownerGeneration += o.ownerGeneration.Load() - d.lead.ownerGeneration.Load()
	}
	return at
}

// hear enters an object's new route.
func (d *Departure) hear(o *object, at place) {
	token, _ := wire.EscapeID(o.id)
	d.s.learn(o.key(), token, o.reg.Class, o.reg.Name, d.placeOf(o, at))
}

// close ends an object here. What is held goes to rest, in order; the last look and the end are one step, so what arrives
// later finds the object closed.
func (d *Departure) close(o *object, cause error, rest func(*envelope)) {
	for {
		o.mu.Lock()
		list := o.box.takeAll()
		if list == nil {
			break
		}
		o.mu.Unlock()
		for list != nil {
			e := list
			list, e.next = e.next, nil
			rest(e)
		}
	}
	was := o.state
	o.state, o.cause = objectClosed, cause
	o.endSealLocked()
	o.mu.Unlock()
	if was != objectClosed {
		d.s.rt.vanish(o)
	}
}

// done ends the departure's part in the Service.
func (d *Departure) done() {
	d.leave()
	d.cancel()
	d.parts, d.out, d.queue = nil, nil, nil
	d.s.moves.end(d)
}

// Fail ends a departure after Accepted whose target is gone, or whose h cannot be read any more: what was accepted ends with
// Accepted, what was published with Unknown, what was only held with NotAccepted, all Unavailable.
func (d *Departure) Fail(cause error) {
	d.step.Lock()
	defer d.step.Unlock()
	if d.phase != departAccepted {
		return
	}
	d.phase = departOver
	s := d.s
	end := func(o *object, acc outcome.Acceptance, detail string) error {
		return outcome.Wrap("", outcome.Unavailable, acc, o.target(), detail, cause)
	}
	d.fail(cause)
	d.collect()
	for _, m := range d.out {
		if !m.local { // those hear it already
			s.failParcel(m.parcel, end(m.o, outcome.Unknown, "the node to which its object moved has gone, and may have run it"))
			m.e.release()
		}
	}
	for _, w := range d.queue {
		w.o.endHeld(w.e, end(w.o, outcome.NotAccepted, "the node to which its object moved has gone"))
	}
	for _, p := range d.parts {
		d.close(p.o, end(p.o, outcome.NotAccepted, "the node to which it moved has gone"), func(e *envelope) {
			p.o.endHeld(e, end(p.o, outcome.NotAccepted, "the node to which its object moved has gone"))
		})
		for _, w := range p.work {
			if w.e.from != nil {
				w.e.answer(Reply{}, end(p.o, outcome.Accepted, "the node to which its object moved has gone before its turn was known to end"))
			} else {
				w.e.release()
			}
		}
	}
	d.done()
	s.stats.departFailed.Add(1)
}

// failParcel tells the caller of a parcel an error.
func (s *Service) failParcel(p parcel, err error) {
	_ = s.router.AnswerError(p.reply, err) // a failure to answer is the caller's timeout
}

// refuseParcel tells the caller of a parcel that it was not taken, and where its object is.
func (s *Service) refuseParcel(o *object, p parcel, at place) {
	err := whyMoved.refusal("", o.target(), true)
	_ = s.router.AnswerRefusal(p.reply, err, nats.Header{wire.HeaderRoute: {at.String()}})
}
