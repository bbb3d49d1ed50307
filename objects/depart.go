package objects

import (
	"context"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Departure is one unit that leaves this node: the source's side of a move. Its methods are called in the order Depart,
// Entry, Seal, Capture, Accepted, Held (any number of times), then Finish or Fail once; Abort instead, until Accepted.
//
// Concurrency: methods are called by one goroutine at a time; Abort may be called while Seal or Capture runs.
type Departure struct {
	s    *Service
	unit Unit
}

// Depart begins the departure of an object of this node: generation names its incarnation, 0 whatever is here. Nothing is
// held yet, and the object goes on. Errors are *outcome.Error with NotAccepted: Unavailable when the object is not here
// (RouteOf tells where it is, if that is known) or not open; NotFound for another generation; InvalidOperation with
// ErrMoveDisabled, ErrNoMover or ErrMember, and for an Entry Spot; Unavailable with ErrMoving. It ends with Abort, Finish
// or Fail.
func (s *Service) Depart(ctx context.Context, key kvlocation.ObjectKey, generation uint64) (*Departure, error) {
	return nil, outcome.New("move", outcome.Unavailable, outcome.NotAccepted, key.String(), "")
}

// Unit describes what departs.
func (d *Departure) Unit() Unit { return d.unit }

// Entry returns the unit's own record, adopted under the present lease and without an activation pointer: what the first
// write of a move stands on. It costs one read. The error is that of the store, or Unavailable when the object is not this
// node's any more, and is then dropped.
func (d *Departure) Entry(ctx context.Context) (kvlocation.Entry, error) {
	return kvlocation.Entry{}, nil
}

// Seal lets the turns that run end, and holds what arrives from then on, without accepting it: at most 1,024 messages and
// 16 MiB for the unit; more is refused. Timers stop. After an error nothing is sealed: DeadlineExceeded or Canceled of ctx
// when a handler did not return, Unavailable with ErrMoving when the object is being closed.
func (d *Departure) Seal(ctx context.Context) error { return nil }

// Capture returns what the unit takes along. It runs the Mover's Capture in a turn of the object. An error leaves the
// move to Abort: the capture's own, ErrStateTooLarge, that of ctx when the capture did not return.
func (d *Departure) Capture(ctx context.Context) (*Cargo, error) { return nil, nil }

// Abort ends the departure before Accepted: what was captured stands first again, what was held is accepted behind it, and
// the object goes on. cause is logged.
func (d *Departure) Abort(cause error) {}

// Accepted says that the irreversible boundary is written: the instances are freed at once, and nothing is ever unsealed.
func (d *Departure) Accepted() {}

// Held returns the next messages of the hold, in order, at most most of them and about bytes of them, but one at least if
// there is any. They are published from then on.
func (d *Departure) Held(most, bytes int) []Held { return nil }

// HeldCount is the number of the last message that Held has returned.
func (d *Departure) HeldCount() uint64 { return 0 }

// Finish says that the move is committed: target has taken the held messages up to h, in owner generation
// ownerGeneration. The rest of the hold goes there in order, before what arrives later, which follows it for the time of
// follow (0: never). It returns once everything is on its way.
func (d *Departure) Finish(h uint64, target kvlocation.Owner, ownerGeneration uint64, follow time.Duration) {
}

// Fail ends a departure after Accepted whose target is gone, or whose h cannot be read any more: what was published ends
// with Unknown, what was not with NotAccepted, both Unavailable.
func (d *Departure) Fail(cause error) {}
