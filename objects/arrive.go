package objects

import (
	"context"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Arrival is one unit that comes to this node: the target's side of a move. Its methods are called in the order Expect,
// Load, Feed (any number of times, also before Load has returned), Open; Abort instead of Open.
//
// Concurrency: all methods may be called from any goroutine.
type Arrival struct {
	s    *Service
	unit Unit
}

// Expect reserves for a unit until the given moment: slots for its objects, and this node's own message follow of them
// stops, until the arrival is aborted. Errors are *outcome.Error, Unavailable and NotAccepted: ErrUnknownType, ErrNoSlot,
// ErrMoveDisabled (InvalidOperation) when the type here has another policy, ErrMoving when the object is here or
// arriving.
func (s *Service) Expect(u Unit, op string, until time.Time) (*Arrival, error) {
	return nil, outcome.New("move", outcome.Unavailable, outcome.NotAccepted, u.Key.String(), "")
}

// Done is closed once the reservation is over: opened, aborted or expired.
func (a *Arrival) Done() <-chan struct{} { return nil }

// Load makes the instances: the factories run, then Restore. What arrives for the objects is held from then on. Errors are
// *outcome.Error with NotAccepted: ErrStateVersion, ErrStateTooLarge, ErrNoMover, the factory's or Restore's own, that of ctx
// when one of them does not return. The arrival is then over.
func (a *Arrival) Load(ctx context.Context, c *Cargo) error { return nil }

// Feed takes one held message of the source. Messages come in any order and more than once.
func (a *Arrival) Feed(h Held) error { return nil }

// Prefix is the last number of the unbroken prefix of the held messages that have come.
func (a *Arrival) Prefix() uint64 { return 0 }

// Abort ends the arrival: the instances are dropped, what arrived meanwhile is refused, and this node's own follow of
// the objects goes on. After Open it does nothing.
func (a *Arrival) Abort(cause error) {}

// Open makes the unit this node's, after its commit is known: e is the record as committed, with h. The activation
// callback runs with the token, then the work, the held messages up to h, what has arrived here meanwhile, and what
// comes. It returns at once.
func (a *Arrival) Open(e kvlocation.Entry, h uint64) error { return nil }
