package objects

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
)

// errLost is what backing.adopt returns when the record says that the object is no longer this node's.
var errLost = errors.New("the object's record was changed by another node")

// backing is what the turns need of the protocol around them.
type backing interface {
	// admit returns nil while the node's lease admits new work.
	admit() error
	// leaseGeneration is the generation of the present lease; while there is none, of the last one.
	leaseGeneration() uint64
	// adopt puts the present lease generation into the object's record. It runs between two turns. errLost drops
	// the object; after any other error what waits ends, and the next mail tries again.
	adopt(ctx context.Context, o *object) error
	// closeObject closes the object's record and calls runtime.drop. It runs inside a turn of o, with its context.
	// After an error the object stays open, and it is tried again.
	closeObject(ctx context.Context, o *object, reason CloseReason) error
	// abortHeld answers a message from outside that was held, and never accepted.
	abortHeld(from origin, err error)

	// endSpotLater closes a SpotWide Spot that has members, once its present turn and theirs have ended.
	endSpotLater(spot *object, reason CloseReason)
	// endMembers ends the members of a SpotWide Spot that has ended, their accepted mail with cause, the rest with held.
	endMembers(spot *object, cause, held error)

	// admitMarked asks the companion about mail that carries its header, endCompanion tells it that an object is over.
	admitMarked(o *object, e *envelope) error
	endCompanion(o *object, v any, why CloseReason)

	selfMembers(o *object) []ActorRef
	selfSpot(o *object) (SpotRef, bool)
	selfBroadcast(ctx context.Context, o *object, data []byte) (BroadcastResult, error)
	Actors() *Actors
	Spots() *Spots
	channel(name string) *channels.Channel
}

// objectState is where an object stands in its life here.
type objectState uint8

const (
	// objectCreating: its record is being made. Mail is held without being accepted. Next: open, closed.
	objectCreating objectState = iota
	// objectArriving: it comes from another node, and is made here. Mail is held. Next: open, closed.
	objectArriving
	// objectOpen: turns run. Next: closing, sealed, closed.
	objectOpen
	// objectClosing: a turn is closing the record. Mail is held. Next: open (the close failed), closed.
	objectClosing
	// objectSealed: no turn runs. Mail is held. Next: open, closed.
	objectSealed
	// objectClosed: it is not in the registry any more, and runs nothing. Final.
	objectClosed
)

func (s objectState) holds() bool { return s != objectOpen && s != objectClosed }

// object is one Actor or Spot that this node owns, or is creating. While it is idle it costs this struct, its entry in
// the registry and the turn that it keeps for the next time.
//
// Locks: mu is held for a few instructions, never while anything is called that may block or is the user's own.
type object struct {
	// What everybody reads and hardly anybody writes stands in a cache line of its own; so does what senders and the worker
	// hand to each other, and what only the worker writes at each turn.
	rt  *runtime
	reg *regType
	id  string
	me  Self
	// same is the next object whose ID has the same hash; it is guarded by the registry's part.
	same *object
	// shard is where the object's turns are counted, and which lane it has.
	shard uint8
	// activated belongs to the worker that has the object.
	activated  bool
	generation atomic.Uint64

	mu    sync.Mutex
	state objectState
	// busy: the object stands in the run queue or a worker has it. Invariant: an open object is
	// busy while its oldest mail may run.
	busy bool
	box  mailbox

	since atomic.Int64 // instant: when the last turn began; 0 while no worker has the object
	// lease is the lease generation under which the object was adopted last: written by the worker that has it, which
	// turn belongs to.
	lease atomic.Uint64
	turn  *turn
	// inst is written before the object opens.
	inst Object
	// closing is why its end was asked for; nil while it was not.
	closing atomic.Pointer[CloseReason]
	queued  *object // the next one in the run queue; guarded by lane.mu
	idle    instant // when it became idle; 0 before its first turn; guarded by mu

	ownerGeneration atomic.Uint64
	// side is nil for most objects.
	side atomic.Pointer[side]
	// m is the membership of a Spot, or of an Actor; it belongs to membership.go.
	m      atomic.Pointer[membership]
	cause  error   // why it is closed: what its accepted mail gets; guarded by mu
	timers *timers // nil without any; guarded by clock.mu
}

// newObject returns an object that is being created. It has no instance; it holds its mail until open or abort.
func (rt *runtime) newObject(reg *regType, id string) *object {
	o := &object{rt: rt, reg: reg, id: id, shard: uint8(rt.nextShard.Add(1))}
	o.me.o = o
	return o
}

// self is what the factory gets.
func (o *object) self() *Self { return &o.me }

// identify sets the generations, as soon as the creating write has told them.
func (o *object) identify(generation, ownerGeneration uint64) {
	o.generation.Store(generation)
	o.ownerGeneration.Store(ownerGeneration)
}

// offer puts mail into the mailbox, or says at once why not. Mail from outside is told that it was accepted before a
// worker can see it; mail that is held, when the object opens. Once mail was taken only its waiting caller may look at
// it.
//
// Two offers of one sender, one after the other, keep their order.
func (o *object) offer(e *envelope) why {
	because, _ := o.offerOneWay(e)
	return because
}

// offerOneWay is offer for a one-way message of this process: if it is held, its sender waits on the hold, which is nil
// otherwise.
func (o *object) offerOneWay(e *envelope) (because why, h *hold) {
	if because = o.rt.closedFor(e.kind, e.chain != nil); because == whyNot && e.from != nil && e.past(tick()) {
		because = whyPast
	}
	if because == whyNot {
		o.mu.Lock()
		return o.offerLocked(e)
	}
	o.refused(e.kind, because)
	return because, nil
}

// send is offerOneWay for a message that has no envelope yet.
func (o *object) send(c *chain, data []byte, header nats.Header) (because why, h *hold) {
	if because = o.rt.closedFor(mailMessage, c != nil); because != whyNot {
		o.refused(mailMessage, because)
		return because, nil
	}
	o.mu.Lock()
	e, left := o.box.blank(), (*envelope)(nil)
	if e == nil {
		o.mu.Unlock()
		list, _ := spareChains.Get().(*envelope)
		o.mu.Lock()
		left = o.box.lend(list)
		if e = o.box.blank(); e == nil {
			e = newEnvelope()
		}
	}
	e.fill(c, data, header, true)
	if because, h = o.offerLocked(e); because != whyNot {
		e.release()
		left = o.lentInVain(left)
	}
	if left != nil {
		spareChains.Put(left)
	}
	return because, h
}

// lentInVain takes the spare envelopes out of an object that has not become busy; it returns those or left.
func (o *object) lentInVain(left *envelope) *envelope {
	o.mu.Lock()
	defer o.mu.Unlock()
	if left == nil && !o.busy {
		left = o.box.unspare()
	}
	return left
}

func (o *object) refused(kind mailKind, because why) {
	if kind == mailMessage && because != whyMoved { // which goes on where the object is
		o.reg.count(o).refused[because].Add(1)
	}
}

// offerLocked queues e if the object takes it, and unlocks.
func (o *object) offerLocked(e *envelope) (because why, h *hold) {
	switch o.state {
	case objectClosed:
		because = whyClosed
		if o.cause == errMoved {
			because = whyMoved
		}
	case objectSealed:
		if o.servesLocked(e) {
			if because = o.box.room(e, &o.reg.Type); because == whyNot {
				o.acceptLocked(e, true)
				return whyNot, nil
			}
			o.restLocked()
			break
		}
		because = o.roomSealed(e)
	default:
		because = o.box.room(e, &o.reg.Type)
	}
	if because == whyNot {
		return whyNot, o.commitLocked(e)
	}
	o.mu.Unlock()
	o.refused(e.kind, because)
	return because, nil
}

// commitLocked queues e, which fits, and unlocks.
func (o *object) commitLocked(e *envelope) (h *hold) {
	if o.state.holds() {
		h = e.hold()
		o.box.push(e)
		o.mu.Unlock()
		return h
	}
	o.acceptLocked(e, false)
	return nil
}

// acceptLocked accepts and queues e, and unlocks. serve: the object is sealed, and takes it all the same.
func (o *object) acceptLocked(e *envelope, serve bool) {
	e.word |= envAccepted // nobody else has it yet
	o.countAccepted(e)
	queue := o.box.push
	if serve {
		queue = o.serveLocked
	}
	if e.from != nil {
		// The notice goes out without the lock, and behind the taking of the place: what the sender sends once it has
		// the notice stands behind.
		e.unnoticed = true
		o.box.notices++
		queue(e)
		o.mu.Unlock()
		e.from.Accept()
		o.mu.Lock()
		o.box.notices--
		e.unnoticed = false
		switch o.state {
		case objectClosed:
			cause := o.cause
			o.mu.Unlock()
			o.end(e, cause)
			return
		case objectSealed:
			if o.side.Load().seal.serving == 0 { // it was sealed meanwhile
				o.restLocked()
				o.mu.Unlock()
				return
			}
		}
	} else {
		queue(e)
	}
	o.wakeLocked()
}

// serveLocked queues e, which a turn of the unit of a sealed object waits for, behind what was accepted.
func (o *object) serveLocked(e *envelope) {
	sl := o.side.Load().seal
	sl.serving = max(sl.serving, o.box.insert(e))
}

// roomSealed says why a sealed object does not hold e, if so.
func (o *object) roomSealed(e *envelope) why {
	if e.kind == mailFramework {
		return whySealed
	}
	if because := o.box.room(e, &o.reg.Type); because != whyNot || e.kind != mailMessage {
		return because
	}
	if !o.side.Load().seal.unit.take(e.size) {
		return whyHoldFull
	}
	return whyNot
}

// wakeLocked gives the object to a worker unless one has it, and unlocks.
func (o *object) wakeLocked() {
	wake := !o.busy
	o.busy = true
	o.mu.Unlock()
	if wake {
		o.rt.sched.ready(o)
	}
}

// open makes the object run: first the activation callback, then first (which may be nil), then the mail that was held.
// It returns at once.
func (o *object) open(inst Object, generation, ownerGeneration, lease uint64, first *envelope) {
	o.inst = inst
	o.lease.Store(lease)
	o.identify(generation, ownerGeneration)
	_, activates := inst.(Activator)
	o.activated = !activates
	front := o.activationDue()
	if first != nil && o.accepted(first) {
		front.push(first)
	}
	o.acceptHeld(front)
	if o.reg.IdleAfter > 0 {
		o.rt.clock.watchIdle(o)
	}
}

// accepted accepts mail that was held, and returns false if its caller has left, or stopped waiting, meanwhile.
func (o *object) accepted(e *envelope) bool {
	if e.from != nil && e.past(tick()) {
		o.refused(e.kind, whyPast)
		o.rt.back.abortHeld(e.from, whyPast.refusal(e.op(), o.target(), true))
		e.release()
		return false
	}
	if !e.accept() {
		e.release()
		return false
	}
	if e.from != nil {
		e.from.Accept()
	}
	o.countAccepted(e)
	return true
}

// activationDue is the mail of the activation, if it is due. It belongs to whoever has the object.
func (o *object) activationDue() (front mailbox) {
	if !o.activated {
		front.push(newOwn(mailActivate))
	}
	return front
}

// acceptHeld accepts what is held and opens the object. In front of it stand what the mailbox has accepted before, and
// taken.
func (o *object) acceptHeld(taken mailbox) {
	var cut mailbox // counts what is cut
	for {
		o.mu.Lock()
		list := o.box.cutHeld() // which still counts in the bounds
		if list == nil || o.state == objectClosed {
			break
		}
		o.mu.Unlock()
		for list != nil {
			e := list
			list, e.next = e.next, nil
			cut.took(e, 1)
			if o.accepted(e) {
				taken.push(e)
			}
		}
	}
	if o.state == objectClosed { // by a drop in between, which has ended the rest
		cause := o.cause
		o.mu.Unlock()
		o.endAll(taken.head, cause)
		return
	}
	o.state = objectOpen
	o.box.append(taken, cut)
	o.endSealLocked()
	o.wakeLocked()
}

// abort ends a creation: whatever is held gets err as it is, and the object is gone.
func (o *object) abort(err error) { o.rt.remove(o, err, err) }

// between runs f as a turn of the framework, in the order of the mailbox. The context that f gets is that of the turn,
// with the deadline of ctx. Errors are f's own, or *outcome.Error: why the mailbox did not take it (NotAccepted), or
// DeadlineExceeded once ctx has ended (NotAccepted while the object is being created, Accepted afterwards: f then runs
// or not, by its deadline).
func (o *object) between(ctx context.Context, f func(context.Context) error) error {
	e, err := o.rt.newLocal(ctx, "turn", nil, nil, false)
	if err != nil {
		return err
	}
	e.kind, e.own().run = mailFramework, f
	if because := o.offer(e); because != whyNot {
		e.release()
		return because.refusal("turn", o.target(), false)
	}
	_, err = o.rt.wait(ctx, o.key(), e)
	return err
}

// askClose asks for the object's end after the present turn, or soon when none runs.
func (o *object) askClose(reason CloseReason) {
	if o.reg.Class == kvlocation.ClassEntrySpot || o.is() == objectArriving {
		return // it lives as long as its node; it is not this node's yet
	}
	if o.closing.CompareAndSwap(nil, &reason) {
		o.offerOwn(mailClose)
	}
}

// offerOwn puts a turn of the runtime's own into the mailbox, if it is open; a closed one needs none.
func (o *object) offerOwn(kind mailKind) {
	e := newOwn(kind)
	if o.offer(e) != whyNot {
		e.release()
	}
}

// running returns for how long the present turn has been running; ok is false when none runs.
func (o *object) running() (d time.Duration, ok bool) {
	since := instant(o.since.Load())
	return tick().sub(since), since != 0
}

// recall puts back what the object's worker has taken in advance: it leaves it to another one.
func (o *object) recall() {
	o.mu.Lock()
	o.box.recall()
	o.mu.Unlock()
}

// waiting returns what waits in the mailbox.
func (o *object) waiting() (count, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.box.recall()
	return int(o.box.count), int(o.box.bytes)
}

// isCreating reports whether the object is not open yet.
func (o *object) isCreating() bool {
	s := o.is()
	return s == objectCreating || s == objectArriving
}

// is returns where the object stands.
func (o *object) is() objectState {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state
}

// isClosed reports whether the object is over.
func (o *object) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state == objectClosed
}

// target is how errors name the object.
func (o *object) target() string { return targetName(o.reg.kind, o.id) }

func targetName(kind kvlocation.ObjectKind, id string) string { return string(kind) + " " + quote(id) }
