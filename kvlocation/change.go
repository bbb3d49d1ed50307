package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// Change is a record write that was applied. Beside an error only Entry may be set: see Create.
type Change struct {
	// Entry is what the key holds as far as is known: what was written, or, when Overwritten, what was read.
	Entry Entry
	// Overwritten is true when the write was applied and somebody has written the record since. Entry then decides
	// what the caller may do.
	Overwritten bool
	// FirstSent is the moment just before the first sending that may have been the applied one.
	FirstSent monotime.Time
	// Repeated is true when the write was sent more than once.
	Repeated bool
}

// NewObject is an object to create.
type NewObject struct {
	Key ObjectKey
	// Class and Type say what the object is. Entry Spots have no record.
	Class Class
	Type  string
	// Owner is the creator: a process run with its present lease generation.
	Owner Owner
	// With and Activation are JSON values or nil, carried as they are.
	With       json.RawMessage
	Activation json.RawMessage
	// AssumeMissing begins without a read, as if the key held nothing: right for an object that was just looked up
	// and not found. When it is wrong, the creation costs one write and one read more, and ends the same.
	AssumeMissing bool
}

// Create secures the Creating record of a missing object for its owner: only who gets a nil error may run the factory.
// A name that exists with another class or type is a TypeMismatch.
//
// Errors, here and in the other operations on records, are *outcome.Error:
//   - NotAccepted: definitely not applied. AlreadyExists, TypeMismatch, NotFound and InvalidOperation are said from
//     the record as it was during the call and have an *IllegalMove as cause; Change.Entry then is that record's.
//     CapacityExceeded means a record above MaxRecord; Unavailable means that nothing was sent, or nothing that could have been applied.
//   - Unavailable with Unknown: sent, and whether it was applied is not known. Nothing that the write would allow
//     may begin (FO-7e). The cause is a *Pending, with which Resolve or GiveUp go on.
func (s *Store) Create(ctx context.Context, o NewObject) (Change, error) {
	at := Entry{Key: o.Key}
	if o.AssumeMissing {
		at.read, at.Record.Phase = true, PhaseMissing
	}
	return s.change(ctx, at, Action{
		Verb: VerbCreate, Class: o.Class, Type: o.Type, Owner: o.Owner, With: o.With, Activation: o.Activation,
	})
}

// Ready opens an object whose factory has run: at is the entry of its Creating record (as Create or Takeover
// returned it), owner the creator under its present lease generation. It clears Activation. Errors: see Create.
func (s *Store) Ready(ctx context.Context, at Entry, owner Owner) (Change, error) {
	return s.change(ctx, at, at.action(VerbReady, owner))
}

// Takeover makes owner the creator of a Creating record whose creator's lease is absent. ObjectGeneration and stored
// input stay, the owner generation grows by one. Errors: see Create.
func (s *Store) Takeover(ctx context.Context, at Entry, owner Owner, absent Absence) (Change, error) {
	a := at.action(VerbTakeover, owner)
	a.Absent = absent
	return s.change(ctx, at, a)
}

// Cancel ends a Creating record: by its creator, or by anybody with evidence that the creator's lease is absent.
// Errors: see Create.
func (s *Store) Cancel(ctx context.Context, at Entry, by Owner, absent Absence) (Change, error) {
	a := at.action(VerbCancel, by)
	a.Absent = absent
	return s.change(ctx, at, a)
}

// Adopt puts the owner's new lease generation into the record of a Ready object. After its lease had lapsed, an owner
// opens an object only after this. Errors: see Create.
func (s *Store) Adopt(ctx context.Context, at Entry, owner Owner) (Change, error) {
	return s.change(ctx, at, at.action(VerbAdopt, owner))
}

// SetWith writes what a Ready object belongs to, by its owner, which has adopted it under its present lease
// generation. with is a JSON value, or nil for nothing. Errors: see Create.
func (s *Store) SetWith(ctx context.Context, at Entry, owner Owner, with json.RawMessage) (Change, error) {
	a := at.action(VerbWith, owner)
	a.With = with
	return s.change(ctx, at, a)
}

// CloseObject ends the incarnation that at names, by its owner. The delete marker stays for 10 minutes. Errors: see Create.
func (s *Store) CloseObject(ctx context.Context, at Entry, owner Owner) (Change, error) {
	return s.change(ctx, at, at.action(VerbClose, owner))
}

// Release ends the incarnation that at names, whose owner is provably gone. Errors: see Create.
func (s *Store) Release(ctx context.Context, at Entry, proof GoneProof) (Change, error) {
	a := at.action(VerbRelease, Owner{})
	a.Gone = proof
	return s.change(ctx, at, a)
}

// action means the incarnation and the owner generation of e.
func (e Entry) action(v Verb, by Owner) Action {
	return Action{Verb: v, Owner: by, Generation: e.Generation(), OwnerGeneration: e.Record.OwnerGeneration}
}

// change reads, decides and writes until the action is applied, or is illegal in a state that the record had during
// the call. at is what the caller knows; when it has read nothing, any replica is asked. What is decided from an old
// state is harmless when it becomes a write, whose expectation then fails; a refusal is confirmed before it is
// returned.
func (s *Store) change(ctx context.Context, at Entry, a Action) (Change, error) {
	var (
		key       = at.Key
		confirmed bool
		looked    uint64 // the revision whose reference was followed
		err       error
		begin     = monotime.Now()
		cancel    context.CancelFunc
		// late is a create that found a marker older than itself. It is lost for as long as that marker or what
		// replaces it stays: only the next write makes sure of that, for the marker may be about to expire.
		late *Pending
	)
	failed := func(err error) error {
		if late != nil && outcome.AcceptanceOf(err) == outcome.NotAccepted {
			return late.failed(err)
		}
		return renamed(err, a.Verb, key)
	}
	// Most operations are one write, which is bounded by itself. Whatever takes more steps has one bound for all.
	bound := func() {
		if cancel == nil {
			ctx, cancel = s.boundFrom(ctx, begin)
		}
	}
	defer func() {
		if cancel != nil {
			cancel()
		}
	}()
	if !at.read {
		bound()
		at, err = s.Peek(ctx, key)
	}
	for {
		if err != nil {
			return Change{}, failed(err)
		}
		a.OpID, a.Now = nuid.Next(), now()
		next, illegal := Transition(at, a)
		if illegal != nil {
			_, referred := at.Record.Reference()
			switch {
			case referred && a.Verb == VerbCreate && looked != at.Revision:
				bound()
				at, a.void, err = s.confirmVoid(ctx, at)
				looked = at.Revision
			case confirmed:
				return Change{Entry: at}, illegalError(key, illegal)
			default:
				bound()
				at, err = s.Read(ctx, key)
			}
			confirmed = true
			continue
		}
		p, prepareErr := s.prepare(at, next, a)
		if prepareErr != nil {
			return Change{}, failed(prepareErr)
		}
		ch, writeErr := s.Resolve(ctx, p)
		if writeErr == nil {
			p.done()
			return ch, nil
		}
		var lost *conflictError
		if !errors.As(writeErr, &lost) {
			return ch, failed(writeErr)
		}
		if late == nil && p.sd.open && p.sd.expect == 0 {
			late = p
		}
		bound()
		at, err = s.readSince(ctx, key, max(lost.current, lost.expected))
		if late != nil && err == nil && (at.Phase() != PhaseMissing || at.Revision > late.sd.mark) {
			late = nil
		}
		confirmed = false
	}
}

// now is what records say about when they were written.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func (s *Store) readSince(ctx context.Context, key ObjectKey, revision uint64) (Entry, error) {
	es, err := s.ReadSince(ctx, revision, key)
	if err != nil {
		return Entry{}, err
	}
	return es[0], nil
}

// bound gives an operation the default time when its context has none.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return s.boundFrom(ctx, monotime.Now())
}

// boundFrom does so for an operation that began earlier.
func (s *Store) boundFrom(ctx context.Context, begin monotime.Time) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout-monotime.Since(begin))
}

// illegalError turns a refusal of Transition into what the caller sees.
func illegalError(key ObjectKey, err error) error {
	kind, verb := outcome.InvalidOperation, "change"
	var illegal *IllegalMove
	if errors.As(err, &illegal) {
		kind, verb = illegal.Kind, string(illegal.Verb)
	}
	return outcome.Wrap(verb, kind, outcome.NotAccepted, key.String(), "", err)
}

// renamed says of an error of a step that it was the whole operation's.
func renamed(err error, verb Verb, key ObjectKey) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Op, out.Target = string(verb), key.String()
	return &out
}
