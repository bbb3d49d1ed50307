package objects

import (
	"context"
	"errors"
	"sync/atomic"

	"natsfabric/outcome"
)

// seal is a halt between two turns of an object: none runs, what arrives is held without being accepted, and turns of the
// framework are refused with errSealed. It begins with beginSeal and ends with unseal or with the object.
type seal struct {
	rested  chan struct{} // closed once no turn runs and no acceptance notice is being sent
	resting bool          // rested is closed; guarded by object.mu
	over    chan struct{} // closed when the seal has ended
	room    *holdRoom     // bounds what is held, beside the mailbox's bounds; nil for these alone
}

// holdRoom bounds what the objects of one unit hold together.
type holdRoom struct {
	messages, bytes atomic.Int64
}

const (
	// maxHeld and maxHeldBytes bound the hold of a unit.
	maxHeld      = 1024
	maxHeldBytes = 16 << 20
)

// take takes room for a message and reports whether there was any.
func (r *holdRoom) take(size int32) bool {
	if r.messages.Add(1) <= maxHeld && r.bytes.Add(int64(size)) <= maxHeldBytes {
		return true
	}
	r.messages.Add(-1)
	return false
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

// beginSeal seals an open object: from now on no turn begins. room may be nil. The error is an *outcome.Error with
// NotAccepted: the object is not open, or its end was asked for.
func (o *object) beginSeal(room *holdRoom) (*seal, error) {
	sd := o.aside()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.state == objectClosed:
		return nil, whyClosed.refusal("move", o.target(), false)
	case o.state != objectOpen || o.closing.Load() != nil:
		return nil, outcome.Wrap("move", outcome.Unavailable, outcome.NotAccepted, o.target(), "", ErrMoving)
	}
	sd.seal = &seal{rested: make(chan struct{}), over: make(chan struct{}), room: room}
	o.state = objectSealed
	o.restLocked()
	return sd.seal, nil
}

// restLocked tells whoever sealed the object that it rests, if it does.
func (o *object) restLocked() {
	if o.state != objectSealed || o.busy || o.box.notices > 0 {
		return
	}
	if sl := o.side.Load().seal; !sl.resting {
		sl.resting = true
		close(sl.rested)
	}
}

// awaitRest waits until the turn that runs has ended. When that turn asked for the object's end, the error says so.
func (o *object) awaitRest(ctx context.Context, sl *seal) error {
	select {
	case <-sl.rested:
	case <-sl.over:
		return whyClosed.refusal("move", o.target(), false)
	case <-ctx.Done():
		return outcome.FromContext(ctx, "move", outcome.NotAccepted, o.target(), "its turn has not ended")
	}
	if o.closing.Load() != nil {
		return outcome.Wrap("move", outcome.Unavailable, outcome.NotAccepted, o.target(), "", ErrMoving)
	}
	return nil
}

// seal seals an object and waits until it rests. After an error it is not sealed.
func (o *object) seal(ctx context.Context) error {
	sl, err := o.beginSeal(nil)
	if err != nil {
		return err
	}
	if err = o.awaitRest(ctx, sl); err != nil {
		o.unseal(mailbox{})
	}
	return err
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

// whenUnsealed waits for the end of the seal for which a turn of the framework was refused with err. again is true when the
// turn is to be tried once more, where the object is then; else err is the turn's own.
func (s *Service) whenUnsealed(ctx context.Context, o *object, err error) (again bool, _ error) {
	if !errors.Is(err, errSealed) {
		return false, err
	}
	sl := o.sealed()
	if sl == nil {
		return true, nil
	}
	select {
	case <-sl.over:
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
	close(sd.seal.over)
	sd.seal = nil
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
