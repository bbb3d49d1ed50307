package kvlocation

import (
	"encoding/json"
	"fmt"
	"time"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// Verb is what an action does to a record.
type Verb string

// The verbs, with the only move that each of them makes.
const (
	VerbCreate    Verb = "create"     // Missing -> Creating
	VerbReady     Verb = "ready"      // Creating -> Ready, by the creator
	VerbTakeover  Verb = "takeover"   // Creating -> Creating, by another process run
	VerbCancel    Verb = "cancel"     // Creating -> Missing
	VerbAdopt     Verb = "adopt"      // Ready -> Ready, Moving (preparing) -> the same: same owner under a newer lease generation
	VerbWith      Verb = "set with"   // Ready -> Ready, by the owner: what the object belongs to
	VerbClose     Verb = "close"      // Ready -> Missing, by the owner
	VerbRelease   Verb = "release"    // Ready -> Missing, of an owner that is provably gone; Moving -> Missing, of whom the move waits for
	VerbPrepare   Verb = "prepare"    // Ready -> Moving (preparing), by the owner
	VerbAccept    Verb = "accept"     // Moving (preparing) -> Moving (accepted), by the owner
	VerbAbort     Verb = "abort"      // Moving (preparing) -> Ready, by the owner or the target
	VerbCommit    Verb = "commit"     // Moving (accepted) -> Ready, by the target, which owns it then
	VerbClearMove Verb = "clear move" // Ready -> Ready, by the owner: the last move is forgotten
	VerbJoin      Verb = "join"       // Ready -> Ready, by the owner: located by reference from then on
	VerbLeave     Verb = "leave"      // Ready -> Ready, by the owner of the Spot that it was located by
	VerbGiveUp    Verb = "give up"    // same phase; moves the revision, so that an earlier write cannot be applied any more
)

// Absence is evidence that a process run did not hold its lease key, at a moment after it was asked for. It suffices
// to take over or cancel a Creating record, where the object has served nobody yet; GoneProof is what the authority
// over a Ready object takes. Only ConfirmAbsent makes one; the zero value is evidence of nothing.
type Absence struct {
	rid       string
	lifecycle uint64
}

// RID returns the node's name.
func (a Absence) RID() string { return a.rid }

// Lifecycle returns the process run that was absent.
func (a Absence) Lifecycle() uint64 { return a.lifecycle }

// Action is one step of a record, with everything that decides it. Which fields count depends on the verb.
type Action struct {
	Verb Verb
	// OpID is the operation ID of the write; a new try has a new one.
	OpID string
	// Now is the writer's wall clock, which goes into the record for people to read.
	Now time.Time
	// Owner is the acting process run with its present lease generation (all verbs but release and give up).
	Owner Owner
	// Generation is the exact ObjectGeneration that is meant (all verbs but create and give up).
	Generation uint64
	// OwnerGeneration is the owner generation that is meant (all verbs of an owner or a target, from ready on).
	OwnerGeneration uint64
	// Class, Type and Activation go into the new record (create).
	Class      Class
	Type       string
	Activation json.RawMessage
	// With goes into the record (create, set with); nil means that the object belongs to nothing.
	With json.RawMessage
	// Absent is the evidence against the recorded creator (takeover; cancel by another than the creator).
	Absent Absence
	// Gone is the proof against whom the record waits for (release).
	Gone GoneProof
	// Move has the move's operation ID (the verbs of a move), its target (prepare), and the number of the last held
	// message that was taken over (commit).
	Move Move
	// Spot is the entry of the Spot that the Actor is, or is to be, located by (join, leave, close of such an Actor).
	Spot *Entry

	// void says that the record is located by what is gone (create).
	void void
}

// target is the phase to which the verb leads from a phase.
func (v Verb) target(from Phase) Phase {
	switch v {
	case VerbCreate, VerbTakeover:
		return PhaseCreating
	case VerbReady, VerbWith, VerbAbort, VerbCommit, VerbClearMove, VerbJoin, VerbLeave:
		return PhaseReady
	case VerbAdopt:
		if from == PhaseMoving {
			return PhaseMoving
		}
		return PhaseReady
	case VerbPrepare, VerbAccept:
		return PhaseMoving
	case VerbGiveUp:
		return from
	}
	return PhaseMissing
}

// source reports whether the verb leads from a state. Creating is decided apart.
func (v Verb) source(from step) bool {
	switch v {
	case VerbReady, VerbTakeover, VerbCancel:
		return from == stepCreating
	case VerbAdopt:
		return from == stepReady || from == stepPreparing
	case VerbRelease:
		return from == stepReady || from == stepPreparing || from == stepAccepted
	case VerbAccept, VerbAbort:
		return from == stepPreparing
	case VerbCommit:
		return from == stepAccepted
	}
	return from == stepReady
}

// IllegalMove says that a record is not in the state that an action needs.
type IllegalMove struct {
	Verb Verb
	From Phase
	To   Phase
	// Kind is how the failure counts for the caller.
	Kind outcome.Kind
	// Why says what stood in the way.
	Why string
}

func (e *IllegalMove) Error() string {
	return fmt.Sprintf("%s cannot lead from %s to %s: %s", e.Verb, e.From, e.To, e.Why)
}

// Transition returns the record that an action makes of an entry: the one function that decides what may follow
// what. It has no effects and reads no clock. Its error is an *IllegalMove.
//
// Invariants (I6): within one incarnation the ObjectGeneration stays and the owner generation never falls; write
// grows by one; a new incarnation's ObjectGeneration, being its revision, is above every earlier one.
func Transition(at Entry, a Action) (Record, error) {
	if err := check(&at, &a); err != nil {
		return Record{}, err
	}
	r := at.Record
	switch a.Verb {
	case VerbCreate:
		r = Record{
			Kind: a.Class, Type: a.Type, Owner: a.Owner, OwnerGeneration: 1,
			With: a.With, Activation: a.Activation, Created: a.Now, Ops: r.Ops,
		}
	case VerbTakeover:
		// What this version does not know about the former owner says nothing about the new one.
		r.Owner = a.Owner
		r.OwnerGeneration++
	case VerbReady:
		r.Owner.Lease, r.Activation = a.Owner.Lease, nil
	case VerbAdopt:
		r.Owner.Lease = a.Owner.Lease
	case VerbWith:
		r.With = a.With
	case VerbPrepare:
		r.Move = &Move{Op: a.Move.Op, Target: a.Move.Target}
	case VerbAccept:
		m := *r.Move
		m.Accepted = true
		r.Move, r.Owner.Lease = &m, a.Owner.Lease
	case VerbAbort:
		r.Move = nil
		if r.Owner.Is(a.Owner.RID, a.Owner.Lifecycle) {
			r.Owner.Lease = a.Owner.Lease
		}
	case VerbCommit:
		m := *r.Move
		m.H = a.Move.H
		r.Move, r.Owner = &m, a.Owner
		r.OwnerGeneration++
	case VerbClearMove:
		r.Move = nil
	case VerbJoin:
		ref := Reference{Spot: a.Spot.Key.ID, Generation: a.Spot.Generation(), By: byReference}
		ref.Offset = int64(r.OwnerGeneration) + 1 - int64(a.Spot.Record.OwnerGeneration)
		with, err := json.Marshal(ref)
		if err != nil {
			return Record{}, err
		}
		r.Owner, r.OwnerGeneration, r.With = Owner{}, 0, with
	case VerbLeave:
		r.Owner, r.OwnerGeneration, r.With = a.Owner, a.OwnerGeneration+1, nil
	case VerbCancel, VerbClose, VerbRelease:
		if a.Spot != nil { // the record had none of its own
			r.OwnerGeneration = a.OwnerGeneration
		}
		r.Owner, r.With, r.Activation, r.Move = Owner{}, nil, nil, nil
	}
	if a.Verb != VerbCreate {
		r.Generation = at.Generation()
	}
	if r.Kind == "" { // nothing stood there
		r.Kind = Class(at.Key.Kind)
	}
	r.V, r.Phase, r.Updated = wire.SchemaVersion, a.Verb.target(at.Phase()), a.Now
	r.Write = at.writes() + 1
	r.Ops = append(append(make([]string, 0, maxOps), r.Ops[max(0, len(r.Ops)-maxOps+1):]...), a.OpID)
	return r, nil
}

// check decides whether the action may follow the entry.
func check(at *Entry, a *Action) error {
	from := at.Phase()
	illegal := func(kind outcome.Kind, format string, args ...any) error {
		return &IllegalMove{Verb: a.Verb, From: from, To: a.Verb.target(from), Kind: kind, Why: fmt.Sprintf(format, args...)}
	}
	r := &at.Record
	switch a.Verb {
	case VerbGiveUp:
		return nil
	case VerbCreate:
		switch {
		case a.Class.Key() != at.Key.Kind || a.Class == ClassEntrySpot || a.Class == classSpot:
			return illegal(outcome.InvalidOperation, "class %q has no record under a key of %s", a.Class, at.Key.Kind)
		case from == PhaseMissing || a.void.revision != 0 && a.void.revision == at.Revision: // nothing, or nothing any more
		case r.Kind != a.Class || r.Type != a.Type:
			return illegal(outcome.TypeMismatch, "it exists as %s of type %q, not as %s of type %q", r.Kind, r.Type, a.Class, a.Type)
		default:
			return illegal(outcome.AlreadyExists, "it exists at %s", r.Owner)
		}
		if !a.Owner.leased() {
			return illegal(outcome.InvalidOperation, "%s is no process run with a lease", a.Owner)
		}
		if err := wire.CheckName("type", a.Type); err != nil {
			return illegal(outcome.InvalidOperation, "%v", err)
		}
		return nil
	}

	// The exact incarnation is meant: once another one is seen, the one that was meant is gone for ever.
	if from == PhaseMissing {
		return illegal(outcome.NotFound, "there is no object")
	}
	if g := at.Generation(); g != a.Generation {
		return illegal(outcome.NotFound, "the object has generation %d, generation %d was meant", g, a.Generation)
	}
	if state := r.step(); !a.Verb.source(state) {
		return illegal(outcome.InvalidOperation, "the record is %s", state)
	}
	owner, ownerGeneration := r.Owner, r.OwnerGeneration
	if ref, ok := r.Reference(); ok {
		if a.Verb != VerbLeave && a.Verb != VerbClose || !ref.isTo(a.Spot) || a.Spot.Accepted() {
			return illegal(outcome.InvalidOperation, "it is located by spot %q of generation %d, with which it moves and ends", ref.Spot, ref.Generation)
		}
		owner, ownerGeneration = a.Spot.Record.Owner, ref.ownerGeneration(a.Spot)
	} else if a.Verb == VerbLeave {
		return illegal(outcome.InvalidOperation, "it is located by no spot")
	}
	mine := owner.Is(a.Owner.RID, a.Owner.Lifecycle)
	if why := a.checkMove(r); why != "" {
		return illegal(outcome.InvalidOperation, "%s", why)
	}
	switch a.Verb {
	case VerbReady, VerbAdopt, VerbWith, VerbClose, VerbPrepare, VerbAccept, VerbClearMove, VerbJoin, VerbLeave:
		return a.checkOwner(illegal, owner, ownerGeneration)
	case VerbAbort:
		if !r.Move.Target.Is(a.Owner.RID, a.Owner.Lifecycle) {
			return a.checkOwner(illegal, owner, ownerGeneration)
		}
	case VerbCommit:
		t := r.Move.Target
		switch {
		case !t.Is(a.Owner.RID, a.Owner.Lifecycle) || ownerGeneration != a.OwnerGeneration:
			return illegal(outcome.InvalidOperation, "it goes to %s from owner generation %d, not to %s from %d", t, ownerGeneration, a.Owner, a.OwnerGeneration)
		case a.Owner.Lease < t.Lease:
			return illegal(outcome.InvalidOperation, "the target agreed under lease %d, lease %d is older", t.Lease, a.Owner.Lease)
		}
	case VerbTakeover:
		switch {
		case mine:
			return illegal(outcome.InvalidOperation, "%s is the creator already", a.Owner)
		case !a.Owner.leased():
			return illegal(outcome.InvalidOperation, "%s is no process run with a lease", a.Owner)
		case !r.Owner.Is(a.Absent.rid, a.Absent.lifecycle):
			return illegal(outcome.InvalidOperation, "there is no evidence that the creator, %s, is absent", r.Owner)
		}
	case VerbCancel:
		if !mine && !r.Owner.Is(a.Absent.rid, a.Absent.lifecycle) {
			return illegal(outcome.InvalidOperation, "there is no evidence that the creator, %s, is absent", r.Owner)
		}
	case VerbRelease:
		awaited, as := r.Holder(), "owner"
		if r.step() == stepAccepted {
			as = "target of its move"
		}
		if !a.Gone.Covers(awaited.RID, awaited.Lifecycle, awaited.Lease) {
			return illegal(outcome.InvalidOperation, "there is no proof that the %s, %s, is gone", as, awaited)
		}
	default:
		return illegal(outcome.InvalidOperation, "there is no such action")
	}
	return nil
}

// checkOwner decides whether the acting process run is the owner, with the lease generation that the verb needs.
func (a *Action) checkOwner(illegal func(outcome.Kind, string, ...any) error, owner Owner, ownerGeneration uint64) error {
	if !owner.Is(a.Owner.RID, a.Owner.Lifecycle) || ownerGeneration != a.OwnerGeneration {
		return illegal(outcome.InvalidOperation, "it belongs to %s under owner generation %d, not to %s under %d",
			owner, ownerGeneration, a.Owner, a.OwnerGeneration)
	}
	if a.Owner.Lease < owner.Lease || (a.Verb == VerbAdopt && a.Owner.Lease == owner.Lease) {
		return illegal(outcome.InvalidOperation, "it is held under lease %d, lease %d is not newer", owner.Lease, a.Owner.Lease)
	}
	switch a.Verb {
	case VerbWith, VerbPrepare, VerbJoin, VerbLeave: // an adoption is a write of its own, for it opens the object
		if a.Owner.Lease != owner.Lease {
			return illegal(outcome.InvalidOperation, "it is held under lease %d and must be adopted under lease %d first", owner.Lease, a.Owner.Lease)
		}
	}
	return nil
}
