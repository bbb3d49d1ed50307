package kvlocation

import (
	"context"
	"encoding/json"

	"natsfabric/outcome"
)

// Reference says where an Actor is that shares a node with its Spot: wherever that incarnation of the Spot is. It
// stands in the record's field with. Such a record has no owner of its own, so that one write of the Spot's record
// moves any number of members.
type Reference struct {
	// Spot is the Spot's ID, Generation its ObjectGeneration.
	Spot       string `json:"spot"`
	Generation uint64 `json:"generation"`
	// By is "reference".
	By string `json:"by"`
	// Offset is what the Actor's owner generation is above the Spot's. It is chosen so that the Actor's grows by one
	// with each join and leave, and may be below 0.
	Offset int64 `json:"offset"`
}

const byReference = "reference"

// Reference returns by what a Ready record is located, when that is no owner of its own.
func (r *Record) Reference() (Reference, bool) {
	if r.Phase != PhaseReady || r.Owner.RID != "" || len(r.With) == 0 {
		return Reference{}, false
	}
	var ref Reference
	ok := json.Unmarshal(r.With, &ref) == nil && ref.By == byReference && ref.Spot != "" && ref.Generation != 0
	return ref, ok
}

func (ref Reference) key() ObjectKey { return ObjectKey{Kind: KindSpot, ID: ref.Spot} }

// isTo reports whether e is the incarnation that ref means, and lives.
func (ref Reference) isTo(e *Entry) bool {
	return e != nil && e.Key == ref.key() && e.Generation() == ref.Generation &&
		(e.Record.step() == stepReady || e.Record.step() == stepPreparing || e.Record.step() == stepAccepted)
}

// ownerGeneration is the Actor's, while the Spot has its own.
func (ref Reference) ownerGeneration(spot *Entry) uint64 {
	return uint64(int64(spot.Record.OwnerGeneration) + ref.Offset)
}

// Located is an object's entry, with that of the Spot by which it is located, if it is located by reference: both of
// one consistent state of the store.
type Located struct {
	Entry
	// Spot is nil when the object has an owner of its own.
	Spot *Entry
}

// Owner is the process run that has the object, directly or by its Spot. In a move it is the source until the commit.
func (l Located) Owner() Owner {
	if l.Spot != nil {
		return l.Spot.Record.Owner
	}
	return l.Record.Owner
}

// OwnerGeneration is that of the object, directly or by its Spot.
func (l Located) OwnerGeneration() uint64 {
	if ref, ok := l.Record.Reference(); ok && l.Spot != nil {
		return ref.ownerGeneration(l.Spot)
	}
	return l.Record.OwnerGeneration
}

// Phase is that of the object: the Spot's when it is located by one, PhaseMissing when that is gone.
func (l Located) Phase() Phase {
	switch {
	case l.Dangles():
		return PhaseMissing
	case l.Spot != nil:
		return l.Spot.Phase()
	}
	return l.Entry.Phase()
}

// Dangles reports whether the object is located by an incarnation of a Spot that was closed or released: then it is
// gone with it, for ever.
func (l Located) Dangles() bool {
	ref, ok := l.Record.Reference()
	return ok && !ref.isTo(l.Spot)
}

// LookupWith is Lookup that follows a reference: both keys are read in one consistent state. A reference to an
// incarnation of a Spot that was closed or released is NotFound, and confirmed as Lookup confirms it.
func (s *Store) LookupWith(ctx context.Context, key ObjectKey) (Located, error) {
	e, err := s.Lookup(ctx, key)
	if err != nil {
		return Located{Entry: e}, err
	}
	ref, ok := e.Record.Reference()
	if !ok {
		return Located{Entry: e}, nil
	}
	l, err := s.resolveReference(ctx, key, ref, 0)
	if err == nil && l.Phase() == PhaseMissing {
		l, err = s.readWith(ctx, key, ref)
	}
	if err == nil && l.Phase() == PhaseMissing {
		err = outcome.New("look up", outcome.NotFound, outcome.NotAccepted, key.String(), "")
	}
	return l, err
}

// ReadWith is Read that follows a reference: both keys are read in one consistent state that is no older than the call. An
// object that does not exist, or is gone with its Spot, is no error but PhaseMissing. Other errors are those of Lookup.
func (s *Store) ReadWith(ctx context.Context, key ObjectKey) (Located, error) {
	seq, err := s.probe(ctx, s.location)
	if err != nil {
		return Located{}, err
	}
	e, err := s.readSince(ctx, key, seq)
	if err != nil {
		return Located{}, err
	}
	ref, ok := e.Record.Reference()
	if !ok {
		return Located{Entry: e}, nil
	}
	return s.resolveReference(ctx, key, ref, seq)
}

// readWith is ReadWith where the reference is known already.
func (s *Store) readWith(ctx context.Context, key ObjectKey, ref Reference) (Located, error) {
	seq, err := s.probe(ctx, s.location)
	if err != nil {
		return Located{}, err
	}
	return s.resolveReference(ctx, key, ref, seq)
}

// resolveReference reads an Actor and the Spot that it is located by in one consistent state that is no older than a
// revision. ref is what is known of where that is. The Spot's entry is nil when the Actor has an owner of its own, else
// whatever stands under that key, another incarnation or a marker included.
func (s *Store) resolveReference(ctx context.Context, key ObjectKey, ref Reference, floor uint64) (Located, error) {
	for {
		es, err := s.ReadSince(ctx, floor, key, ref.key())
		if err != nil {
			return Located{}, err
		}
		now, ok := es[0].Record.Reference()
		switch {
		case !ok:
			return Located{Entry: es[0]}, nil
		case now.Spot == ref.Spot:
			return Located{Entry: es[0], Spot: &es[1]}, nil
		}
		ref, floor = now, max(floor, es[0].Revision)
	}
}

// void is evidence that a record, at one revision, is located by an incarnation of a Spot that is gone for ever. It is
// read in one consistent state: the incarnation was there when the record was written, which was earlier, and no later one
// has its generation. So it stays true for as long as the record has that revision.
type void struct{ revision uint64 }

// confirmVoid reads the object no older than the call, and makes the evidence if there is any.
func (s *Store) confirmVoid(ctx context.Context, at Entry) (Entry, void, error) {
	ref, _ := at.Record.Reference()
	l, err := s.readWith(ctx, at.Key, ref)
	if err != nil || !l.Dangles() {
		return l.Entry, void{}, err
	}
	return l.Entry, void{revision: l.Revision}, nil
}

// Join locates an Actor by a SpotWide Spot. at is the Actor's entry, whose owner is owner under the lease generation
// that the record names; spot is the Spot's entry, which the same process run owns. The owner generation grows by one.
// Errors: see Create.
func (s *Store) Join(ctx context.Context, at Entry, owner Owner, spot Entry) (Change, error) {
	a := at.action(VerbJoin, owner)
	a.Spot = &spot
	return s.change(ctx, at, a)
}

// Leave gives an Actor that is located by a SpotWide Spot an owner of its own: owner, which owns that Spot under the
// lease generation that the Spot's entry names. The owner generation grows by one, and the Actor belongs to nothing
// then. Errors: see Create.
func (s *Store) Leave(ctx context.Context, at Entry, owner Owner, spot Entry) (Change, error) {
	return s.change(ctx, at, at.memberAction(VerbLeave, owner, &spot))
}

// CloseMember is CloseObject for an Actor that is located by a SpotWide Spot: by the owner of that Spot, whose entry is
// spot. Errors: see Create.
func (s *Store) CloseMember(ctx context.Context, at Entry, owner Owner, spot Entry) (Change, error) {
	return s.change(ctx, at, at.memberAction(VerbClose, owner, &spot))
}

// memberAction means the incarnation of e, and the owner generation that it has by its Spot.
func (e Entry) memberAction(v Verb, by Owner, spot *Entry) Action {
	a := e.action(v, by)
	a.Spot = spot
	if ref, ok := e.Record.Reference(); ok {
		a.OwnerGeneration = ref.ownerGeneration(spot)
	}
	return a
}
