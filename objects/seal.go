package objects

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/outcome"
)

// seal is a halt between two turns of an object: none runs, what arrives is held without being accepted, and turns of the
// framework are refused with errSealed. It begins with beginSeal and ends with unseal or with the object.
type seal struct {
	unit *unitSeal
	over chan struct{} // closed when the seal has ended
	// These are guarded by object.mu. rested is closed once the object has rested for the first time. counted: it has not, or
	// has no rest any more, and counts in unit.busy. serving is how many of the mailbox run all the same, because a turn
	// of the unit waits for the last of them.
	rested  chan struct{}
	resting bool
	counted bool
	serving int
}

// unitSeal is the halt of a unit. While turns of its objects end, what they wait for still runs: a message that such a turn
// has sent to a sealed object of the unit is accepted there, and runs behind what was accepted before. The unit rests when
// none of its objects has a turn.
type unitSeal struct {
	lead *object
	// ends: it is sealed to end here. Objects whose end was asked for are sealed too.
	ends bool

	messages, bytes atomic.Int64 // held, of all objects together

	mu      sync.Mutex
	whole   bool // all objects are sealed
	busy    int
	resting bool
	rested  chan struct{} // closed when the unit rests
}

const (
	// maxHeld and maxHeldBytes bound the hold of a unit, beside the bounds of the mailboxes.
	maxHeld      = 1024
	maxHeldBytes = 16 << 20
)

func newUnitSeal(lead *object, ends bool) *unitSeal {
	return &unitSeal{lead: lead, ends: ends, rested: make(chan struct{})}
}

// take takes room in the hold for a message and reports whether there was any.
func (u *unitSeal) take(size int32) bool {
	if u.messages.Add(1) > maxHeld {
		u.messages.Add(-1)
		return false
	}
	if u.bytes.Add(int64(size)) > maxHeldBytes {
		u.messages.Add(-1)
		u.bytes.Add(-int64(size))
		return false
	}
	return true
}

// waits reports whether a turn of the unit is in a chain.
func (u *unitSeal) waits(c *chain) bool {
	for ; c != nil; c = c.parent {
		if u.lead.leads(c.kind, c.id) {
			return true
		}
	}
	return false
}

// more counts an object that has no rest any more; it returns false once the unit rests.
func (u *unitSeal) more(sl *seal) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.resting && !sl.counted {
		sl.counted = true
		u.busy++
	}
	return !u.resting
}

// less counts an object that rests.
func (u *unitSeal) less(sl *seal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if sl.counted {
		sl.counted = false
		u.busy--
	}
	u.restLocked()
}

func (u *unitSeal) restLocked() {
	if u.whole && u.busy == 0 && !u.resting {
		u.resting = true
		close(u.rested)
	}
}

// seal seals the lead, and when that has ended its turn, so that nobody joins or leaves any more, the members. It returns
// once the unit rests. The objects that are sealed are returned with an error too. The errors are *outcome.Error with
// NotAccepted: that of ctx when a turn has not ended, Unavailable when an object is not open, with ErrMoving when its end was asked
// for.
func (u *unitSeal) seal(ctx context.Context, members func(lead *object) []*object) (sealed []*object, err error) {
	sl, err := u.lead.beginSeal(u)
	if err != nil {
		return nil, err
	}
	sealed = append(sealed, u.lead)
	if err := u.await(ctx, sl.rested, sealed); err != nil {
		return sealed, err
	}
	for _, m := range members(u.lead) {
		switch err := u.sealMember(ctx, m); {
		case err == nil:
			sealed = append(sealed, m)
		case !m.isClosed():
			return sealed, err
		}
	}
	u.mu.Lock()
	u.whole = true
	u.restLocked()
	u.mu.Unlock()
	if err := u.await(ctx, u.rested, sealed); err != nil || u.ends {
		return sealed, err
	}
	for _, o := range sealed {
		if o.closing.Load() != nil {
			return sealed, errMovingNow(o)
		}
	}
	return sealed, nil
}

// sealMember seals a member. While its own end is under way, which comes to nothing once the lead is sealed, it is tried again.
func (u *unitSeal) sealMember(ctx context.Context, m *object) error {
	for {
		_, err := m.beginSeal(u)
		if err == nil || m.isClosed() {
			return err
		}
		t := time.NewTimer(patience / 10)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// await waits for the rest of sealed objects.
func (u *unitSeal) await(ctx context.Context, rested <-chan struct{}, sealed []*object) error {
	select {
	case <-rested:
	case <-ctx.Done():
		why := "its turn has not ended"
		for _, o := range sealed[1:] {
			if _, running := o.running(); running {
				why = "the turn of its member, " + o.target() + ", has not ended"
			}
		}
		return outcome.FromContext(ctx, "move", outcome.NotAccepted, u.lead.target(), why)
	}
	if u.lead.isClosed() {
		return whyClosed.refusal("move", u.lead.target(), false)
	}
	return nil
}

func errMovingNow(o *object) error {
	return outcome.Wrap("move", outcome.Unavailable, outcome.NotAccepted, o.target(), "", ErrMoving)
}

// side is what few objects have; it is made when it is first needed.
type side struct {
	// slot is the companion's value, written in turns.
	slot atomic.Pointer[any]
	// seal is the present one; guarded by object.mu.
	seal *seal
	// leaving is the departure under way; guarded by object.mu.
	leaving *Departure
	// moved: the object came here from another node. Written before the factory runs.
	moved bool
}

// aside returns the object's side.
func (o *object) aside() *side {
	if sd := o.side.Load(); sd != nil {
		return sd
	}
	o.side.CompareAndSwap(nil, &side{})
	return o.side.Load()
}

// slotValue is the companion's value; nil for none.
func (o *object) slotValue() any {
	if sd := o.side.Load(); sd != nil {
		if v := sd.slot.Load(); v != nil {
			return *v
		}
	}
	return nil
}

func (o *object) setSlot(v any) {
	if v == nil && o.side.Load() == nil {
		return
	}
	if v == nil {
		o.aside().slot.Store(nil)
		return
	}
	o.aside().slot.Store(&v)
}

// beginSeal seals an open object: from now on no turn begins but what a turn of the unit waits for. The error is an
// *outcome.Error with NotAccepted: the object is not open, or its end was asked for.
func (o *object) beginSeal(u *unitSeal) (*seal, error) {
	sd := o.aside()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.state == objectClosed:
		return nil, whyClosed.refusal("move", o.target(), false)
	case u.ends && sd.leaving != nil: // its record may say so already, and cannot be closed then
		return nil, whySealed.refusal("close", o.target(), false)
	case o.state != objectOpen || o.closing.Load() != nil && !u.ends:
		return nil, errMovingNow(o)
	}
	sd.seal = &seal{unit: u, rested: make(chan struct{}), over: make(chan struct{}), serving: o.dueLocked(u)}
	u.more(sd.seal)
	o.state = objectSealed
	o.restLocked()
	return sd.seal, nil
}

// dueLocked returns how many of the mailbox run in spite of a seal that begins: up to the last request that was accepted
// before, and whose sender is a turn of the unit. That turn would not end otherwise.
func (o *object) dueLocked(u *unitSeal) (due int) {
	place := 0
	o.box.recall()
	for e := o.box.head; e != nil && e.isAccepted(); e = e.next {
		place++
		if e.kind == mailMessage && !e.oneWay && e.chain != nil && u.waits(e.chain) {
			due = place
		}
	}
	return due
}

// restLocked tells whoever sealed the object that it rests, if it does.
func (o *object) restLocked() {
	if o.state != objectSealed || o.busy || o.box.notices > 0 {
		return
	}
	sl := o.side.Load().seal
	if sl.serving > 0 {
		return
	}
	if !sl.resting {
		sl.resting = true
		close(sl.rested)
	}
	sl.unit.less(sl)
}

// servesLocked reports whether a sealed object takes a message because a turn of its unit waits for it. It has no rest then.
func (o *object) servesLocked(e *envelope) bool {
	sl := o.side.Load().seal
	return e.kind == mailMessage && e.chain != nil && sl.unit.waits(e.chain) && sl.unit.more(sl)
}

// nextLocked takes the next mail of a sealed object that a turn of its unit waits for. Turns of the framework among it are
// put on the list refused.
func (o *object) nextLocked(refused **envelope) *envelope {
	for sl := o.side.Load().seal; sl.serving > 0; {
		if head := o.box.head; head == nil || !head.isAccepted() {
			sl.serving = 0 // the rest has ended otherwise
			return nil
		}
		e := o.box.pop()
		if e == nil {
			return nil
		}
		sl.serving--
		if e.kind != mailFramework {
			return e
		}
		e.next, *refused = *refused, e
	}
	return nil
}

// refuseSealed ends turns of the framework that a sealed object had accepted.
func (o *object) refuseSealed(list *envelope) {
	for list != nil {
		e := list
		list, e.next = e.next, nil
		e.answer(Reply{}, whySealed.refusal("turn", o.target(), false))
	}
}

// unseal lets a sealed object run again: first front, which was accepted before and taken out, then what is in the mailbox
// and was accepted, then what was held. It does nothing for an object that is not sealed any more, but end front.
func (o *object) unseal(front mailbox) {
	o.mu.Lock()
	if o.state != objectSealed {
		cause := o.cause
		o.mu.Unlock()
		o.endAll(front.head, cause)
		return
	}
	o.box.prepend(front)
	o.mu.Unlock()
	o.acceptHeld(mailbox{})
	if o.closing.Load() != nil {
		o.offerOwn(mailClose)
	}
}

// leaves returns the departure that the object leads, or nil. While there is one the object is not closed: its record may say
// that it is to be moved, and the end of the move decides where it is closed.
func (o *object) leaves() *Departure {
	sd := o.side.Load()
	if sd == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return sd.leaving
}

// whenUnsealed waits for the end of the seal, or of the departure, for which a turn of the framework was refused with err. again is true when the
// turn is to be tried once more, where the object is then; else err is the turn's own.
func (s *Service) whenUnsealed(ctx context.Context, o *object, err error) (again bool, _ error) {
	if !errors.Is(err, errSealed) {
		return false, err
	}
	var over <-chan struct{}
	if sl := o.sealed(); sl != nil {
		over = sl.over
	} else if d := o.leaves(); d != nil {
		over = d.left
	} else {
		return true, nil
	}
	select {
	case <-over:
		return true, nil
	case <-ctx.Done():
		return false, outcome.FromContext(ctx, "turn", outcome.NotAccepted, o.target(), "the object moves to another node")
	}
}

// endSealLocked ends the object's seal, if it has one.
func (o *object) endSealLocked() {
	sd := o.side.Load()
	if sd == nil || sd.seal == nil {
		return
	}
	sl := sd.seal
	sd.seal = nil
	close(sl.over)
	if !sl.resting {
		close(sl.rested)
	}
	sl.unit.less(sl)
}

// sealed returns the object's present seal, or nil.
func (o *object) sealed() *seal {
	sd := o.side.Load()
	if sd == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return sd.seal
}

// borrow takes a sealed object that rests for a turn of the framework outside of the workers; giveBack ends it. In between
// the object has no other turn, even when it is unsealed.
func (o *object) borrow() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != objectSealed || o.busy {
		return false
	}
	o.busy = true
	return true
}

func (o *object) giveBack() {
	o.mu.Lock()
	o.busy, o.idle = false, tick()
	if o.state == objectOpen && o.box.head != nil {
		o.wakeLocked()
		return
	}
	o.mu.Unlock()
}
