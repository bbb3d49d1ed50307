package kvlocation

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"natsfabric/internal/jsonkeep"
	"natsfabric/internal/wire"
)

// Move describes a planned move of an object, in its record. It is written with Preparing and stays after the commit,
// so that the source can read how much of what it handed over was taken, until it is cleared or the next move begins.
type Move struct {
	// Op is the move's operation ID: everything that belongs to the move carries it.
	Op string `json:"op"`
	// Target is the process run that the object goes to, with the lease generation that it had when it agreed.
	Target Owner `json:"target"`
	// Accepted: the source has given the object up (PhaseMoving), or it was moved (PhaseReady).
	Accepted bool `json:"accepted,omitempty"`
	// H is the number of the last held message that the target has taken over, of the unbroken sequence from 1. It means
	// something only once the object was moved.
	H uint64 `json:"h,omitempty"`
	// Unknown keeps the fields that this version does not know.
	Unknown map[string]json.RawMessage `json:"-"`
}

type moveFields Move

var knownMoveFields = jsonkeep.Names(reflect.TypeFor[moveFields]())

// MarshalJSON keeps unknown fields.
func (m Move) MarshalJSON() ([]byte, error) { return m.appendJSON(nil) }

// UnmarshalJSON keeps unknown fields.
func (m *Move) UnmarshalJSON(data []byte) (err error) {
	*m = Move{}
	m.Unknown, err = jsonkeep.Decode(data, (*moveFields)(m), knownMoveFields)
	return err
}

func (m *Move) appendJSON(b []byte) (_ []byte, err error) {
	b = appendString(append(b, `{"op":`...), m.Op)
	if b, err = m.Target.appendJSON(append(b, `,"target":`...)); err != nil {
		return nil, err
	}
	if m.Accepted {
		b = append(b, `,"accepted":true`...)
	}
	if m.H != 0 {
		b = strconv.AppendUint(append(b, `,"h":`...), m.H, 10)
	}
	return appendUnknown(b, m.Unknown)
}

func (p *parser) move() *Move {
	m := new(Move)
	for name := p.first(); name != ""; name = p.next() {
		switch name {
		case "op":
			m.Op = p.string()
		case "target":
			m.Target = p.owner()
		case "accepted":
			m.Accepted = p.isTrue()
		case "h":
			m.H = p.number()
		default:
			p.failed = true
		}
	}
	return m
}

// Move returns the move that the record tells of: one under way (PhaseMoving), or the last one (PhaseReady).
func (e Entry) Move() (Move, bool) {
	if e.Record.Move == nil {
		return Move{}, false
	}
	return *e.Record.Move, true
}

// Preparing reports whether the object is to be moved and its owner still has it.
func (e Entry) Preparing() bool { return e.Record.step() == stepPreparing }

// Accepted reports whether the owner has given the object up for a move that is not committed yet.
func (e Entry) Accepted() bool { return e.Record.step() == stepAccepted }

// Holder is the process run that must be gone before the object may be released: its owner, or the target of the move
// for which the owner has given it up.
func (r *Record) Holder() Owner {
	if r.step() == stepAccepted {
		return r.Move.Target
	}
	return r.Owner
}

// Prepare begins a move of a Ready object, by its owner, which has adopted it under its present lease generation. op
// is the move's operation ID (a name of 1 to 64 characters), target the process run that agreed to take the object,
// under the lease generation that it has. The owner stays who it is. What the record tells of an earlier move is
// forgotten. Errors: see Create; InvalidOperation while a creation's input stands in the record, or when the object is
// located by reference.
func (s *Store) Prepare(ctx context.Context, at Entry, owner Owner, op string, target Owner) (Change, error) {
	a := at.action(VerbPrepare, owner)
	a.Move = Move{Op: op, Target: target}
	return s.change(ctx, at, a)
}

// Accept gives the object up in the move op, by its owner, whose present lease generation goes into the record. It is
// the boundary: from here on the object goes to the target or to nobody. Errors: see Create.
func (s *Store) Accept(ctx context.Context, at Entry, owner Owner, op string) (Change, error) {
	return s.change(ctx, at, at.moving(VerbAccept, owner, op))
}

// Abort ends the move op while it is being prepared: by the owner, whose present lease generation goes into the record,
// or by the target. The object is its owner's as before, and the record tells of no move. Errors: see Create;
// InvalidOperation once the object was given up.
func (s *Store) Abort(ctx context.Context, at Entry, by Owner, op string) (Change, error) {
	return s.change(ctx, at, at.moving(VerbAbort, by, op))
}

// Commit makes target, under its present lease generation, the owner of the object that was given up to it in the move
// op. The owner generation grows by one, and the record goes on telling of the move, with h: see Move.H. Errors: see
// Create.
func (s *Store) Commit(ctx context.Context, at Entry, target Owner, op string, h uint64) (Change, error) {
	a := at.moving(VerbCommit, target, op)
	a.Move.H = h
	return s.change(ctx, at, a)
}

// ClearMove lets the record of a Ready object forget the move op, by its owner. Errors: see Create; InvalidOperation
// when the record does not tell of that move (any more).
func (s *Store) ClearMove(ctx context.Context, at Entry, owner Owner, op string) (Change, error) {
	return s.change(ctx, at, at.moving(VerbClearMove, owner, op))
}

// moving means the move op of what action means.
func (e Entry) moving(v Verb, by Owner, op string) Action {
	a := e.action(v, by)
	a.Move.Op = op
	return a
}

// step is the state of a record: its phase, and how far a move has come.
type step uint8

const (
	stepOther step = iota // a phase of another version
	stepMissing
	stepCreating
	stepReady
	stepPreparing // a move, before the boundary: the owner's
	stepAccepted  // a move, behind the boundary: nobody's until the target commits
)

var stepNames = [...]string{"of a phase that this version does not know", "missing", "creating", "ready", "moving (preparing)", "moving (accepted)"}

func (s step) String() string { return stepNames[s] }

func (r *Record) step() step {
	switch r.Phase {
	case PhaseMissing:
		return stepMissing
	case PhaseCreating:
		return stepCreating
	case PhaseReady:
		return stepReady
	case PhaseMoving:
		switch {
		case r.Move == nil:
		case r.Move.Accepted:
			return stepAccepted
		default:
			return stepPreparing
		}
	}
	return stepOther
}

// checkMove says why an action does not fit the move that the record tells of, or the one that it is to begin; ""
// when it does.
func (a *Action) checkMove(r *Record) string {
	switch a.Verb {
	case VerbPrepare:
		switch t := a.Move.Target; {
		case wire.CheckName("operation ID", a.Move.Op) != nil:
			return wire.CheckName("operation ID", a.Move.Op).Error()
		case !t.leased():
			return t.String() + " is no process run with a lease"
		case t.RID == a.Owner.RID:
			return t.String() + " is the node that the object is on"
		case len(r.Activation) > 0:
			return "the input of its creation stands in the record"
		}
	case VerbAccept, VerbAbort, VerbCommit, VerbClearMove:
		switch {
		case r.Move == nil:
			return "the record tells of no move"
		case r.Move.Op != a.Move.Op:
			return fmt.Sprintf("the record tells of the move %q, not of %q", r.Move.Op, a.Move.Op)
		}
	case VerbJoin:
		spot := a.Spot
		switch {
		case r.Kind != ClassActor:
			return fmt.Sprintf("it is no Actor but %s", r.Kind)
		case spot == nil || spot.Key.Kind != KindSpot || spot.Record.step() != stepReady && !spot.Preparing():
			return "the spot is not ready"
		case !spot.Record.Owner.Is(a.Owner.RID, a.Owner.Lifecycle):
			return fmt.Sprintf("the spot belongs to %s, not to %s", spot.Record.Owner, a.Owner)
		}
	}
	return ""
}
