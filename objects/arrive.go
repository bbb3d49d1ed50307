package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/outcome"
)

// Arrival is one unit that comes to this node: the target's side of a move. Its methods are called in the order Expect,
// Load, Feed (any number of times, also before Load has returned), Open; Abort instead of Open.
//
// Concurrency: all methods may be called from any goroutine.
type Arrival struct {
	s      *Service
	unit   Unit
	op     string
	expiry *time.Timer
	done   chan struct{}
	ctx    context.Context // of Load; ends with Abort
	cancel context.CancelFunc

	step  sync.Mutex // held by Load, Open and Abort while they run
	slots map[*regType]int
	most  int64
	began time.Time // of Load
	parts []*arriving

	mu     sync.Mutex
	phase  arrivePhase
	fed    map[uint64]Held
	bytes  int
	prefix uint64
}

// arrivePhase is how far an arrival has come.
type arrivePhase uint8

const (
	arriveExpected arrivePhase = iota // Next: loading, over
	arriveLoading                     // Next: loaded, over
	arriveLoaded                      // Next: over (open, abort)
	arriveOver
)

// arriving is one object of an arrival.
type arriving struct {
	o     *object
	inst  Object
	cargo *cargoObject
}

// Expect reserves slots for a unit's objects until the given moment, or until Load begins. op is the move's operation ID. What
// this node follows of the unit's last move is followed until Load, and goes on when the arrival is aborted. Errors are *outcome.Error with
// NotAccepted, Unavailable but where said: ErrUnknownType (NotConfigured), ErrMoveDisabled and ErrPolicy (InvalidOperation)
// when the type here says something else than at the source, ErrNoSlot, ErrMoving when the object is here or arrives
// already.
func (s *Service) Expect(u Unit, op string, until time.Time) (*Arrival, error) {
	fail := func(kind outcome.Kind, detail string, cause error) (*Arrival, error) {
		return nil, outcome.Wrap("move", kind, outcome.NotAccepted, u.Key.String(), detail, cause)
	}
	if err := s.admit(); err != nil {
		return nil, err
	}
	switch {
	case s.rt.draining.Load():
		return fail(outcome.Unavailable, "node "+s.cfg.RID+" is shutting down", nil)
	case s.closedToNew.Load():
		return fail(outcome.Unavailable, "node "+s.cfg.RID+" is moving its own objects away", nil)
	case s.rt.find(u.Key.Kind, u.Key.ID) != nil:
		return fail(outcome.Unavailable, "node "+s.cfg.RID+" has it", ErrMoving)
	}
	a := &Arrival{s: s, unit: u, op: op, done: make(chan struct{}), slots: make(map[*regType]int), fed: make(map[uint64]Held)}
	for _, t := range u.Types {
		reg := s.rt.typeOf(t.Class, t.Type)
		var cause error
		switch {
		case reg == nil:
			a.giveBack()
			return fail(outcome.NotConfigured, fmt.Sprintf("node %s registers no %s type %.80q", s.cfg.RID, t.Class, t.Type), ErrUnknownType)
		case reg.Move == MoveDisabled:
			cause = ErrMoveDisabled
		case reg.Move != t.Policy, t.Class == u.Class && t.Type == u.Type && reg.Members != u.Members:
			cause = ErrPolicy
		}
		if cause != nil {
			a.giveBack()
			return fail(outcome.InvalidOperation, "type "+quote(t.Type)+" at node "+s.cfg.RID, cause)
		}
		a.most += int64(max(t.Count, 0)) * (int64(reg.MaxState) + int64(reg.MailboxBytes))
		for range t.Count {
			if err := a.slot(reg); err != nil {
				a.giveBack()
				return fail(outcome.Unavailable, err.Error(), ErrNoSlot)
			}
		}
	}
	a.ctx, a.cancel = context.WithCancel(s.ctx)
	if !s.moves.await(a) {
		a.giveBack()
		a.cancel()
		return fail(outcome.Unavailable, "", ErrMoving)
	}
	a.expiry = time.AfterFunc(time.Until(until), a.expire)
	s.stats.arrivals.Add(1)
	return a, nil
}

// MaxBytes bounds what the unit's objects may bring, in bytes: the sum of what their types allow here, whatever the source says.
func (a *Arrival) MaxBytes() int64 { return a.most }

// slot takes one more slot for an object of a type.
func (a *Arrival) slot(reg *regType) error {
	if err := a.s.rt.reserve(reg); err != nil {
		return plain(err)
	}
	a.slots[reg]++
	return nil
}

// giveBack gives back the slots that no object has come to use.
func (a *Arrival) giveBack() {
	for reg, n := range a.slots {
		for range n {
			a.s.rt.unreserve(reg)
		}
	}
	clear(a.slots)
}

// is returns how far the arrival has come.
func (a *Arrival) is() arrivePhase {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.phase
}

// become goes from one phase to the next; it returns false when the arrival is in another.
func (a *Arrival) become(from, to arrivePhase) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != from {
		return false
	}
	a.phase = to
	return true
}

// Done is closed once the arrival is over: opened, aborted or expired.
func (a *Arrival) Done() <-chan struct{} { return a.done }

// expire ends a reservation that nobody came to use.
func (a *Arrival) expire() {
	if a.is() == arriveExpected {
		a.abort(arriveExpected, errors.New("the reservation has expired"))
	}
}

// Abort ends the arrival: the instances are dropped, and what arrived meanwhile is refused. A Load that runs ends. It may be called any number of times; after Open it does nothing.
func (a *Arrival) Abort(cause error) {
	a.cancel()
	a.step.Lock()
	defer a.step.Unlock()
	a.abort(a.is(), cause)
}

func (a *Arrival) abort(from arrivePhase, cause error) {
	if from == arriveOver || !a.become(from, arriveOver) {
		return
	}
	a.end()
	for _, p := range a.parts {
		p.o.setSlot(nil) // the companion's value lives on at the source
		p.o.abort(outcome.Wrap("", outcome.Unavailable, outcome.NotAccepted, p.o.target(), "its move to node "+a.s.cfg.RID+" was given up", cause))
	}
	a.giveBack()
	a.s.stats.arriveAborted.Add(1)
	a.s.log.Debug("the arrival of an object ended", zap.String("object", a.unit.Key.String()), zap.Error(cause))
}

// end ends the arrival's part in the Service.
func (a *Arrival) end() {
	a.cancel()
	a.expiry.Stop()
	a.s.moves.over(a)
	close(a.done)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fed = nil
}

// Feed takes one held message of the source. Messages come in any order and more than once. The error is CapacityExceeded
// beyond what one unit may hold: the arrival goes on without it.
func (a *Arrival) Feed(h Held) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.fed[h.number]; twice || a.phase == arriveOver || h.number == 0 {
		return nil
	}
	if h.number > maxHeld || a.bytes+h.Size() > maxHeldBytes+maxHeld*heldRest {
		return outcome.New("move", outcome.CapacityExceeded, outcome.NotAccepted, a.unit.Key.String(), "more is held than a unit may hold")
	}
	a.fed[h.number] = h
	a.bytes += h.Size()
	for {
		if _, ok := a.fed[a.prefix+1]; !ok {
			return nil
		}
		a.prefix++
	}
}

// heldRest is what a held message may have beside what counts in the hold.
const heldRest = 4 << 10

// Prefix is the last number of the unbroken prefix of the held messages that have come.
func (a *Arrival) Prefix() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.prefix
}
