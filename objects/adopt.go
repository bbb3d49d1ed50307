package objects

import (
	"context"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// admit returns nil while this node may begin something: its lease admits. A client owns nothing.
func (s *Service) admit() error {
	if s.cfg.Lease == nil {
		return outcome.New("admit", outcome.InvalidOperation, outcome.NotAccepted, "", "this program is no node and owns no objects")
	}
	return s.cfg.Lease.Admit()
}

// leaseGeneration is the generation of the present lease, or of the last one.
func (s *Service) leaseGeneration() uint64 {
	if s.cfg.Lease == nil {
		return 0
	}
	return s.cfg.Lease.Generation()
}

// owner is this process run under its present lease generation.
func (s *Service) owner() kvlocation.Owner {
	return kvlocation.Owner{RID: s.cfg.RID, Lifecycle: s.cfg.Lifecycle, Lease: s.leaseGeneration()}
}

// adopt puts the present lease generation into the record of an object whose lease had lapsed. Until that is
// definite the object runs nothing and is not dropped: an attempt of unknown result is repaired by the next one, which
// begins with what the record says. errLost: the record belongs to nobody here any more.
func (s *Service) adopt(ctx context.Context, o *object) error {
	if isEntry(o.key()) {
		return nil // it has no record; the lease alone makes it this node's
	}
	if w, ok := wideOf(o); ok {
		return s.adoptMember(ctx, w)
	}
	if o.isWide() {
		return s.adoptSpot(ctx, o)
	}
	return s.adoptRecord(ctx, o)
}

// adoptRecord is adopt for an object whose record has an owner of its own.
func (s *Service) adoptRecord(ctx context.Context, o *object) error {
	e, err := s.ownEntry(ctx, o)
	if err != nil {
		return err
	}
	owner := s.owner()
	if e.Record.Owner.Lease == owner.Lease {
		return nil
	}
	ch, err := s.store.Adopt(ctx, e, owner)
	switch {
	case illegal(err):
		// An earlier attempt may have been applied after all.
		if e, err = s.ownEntry(ctx, o); err == nil && e.Record.Owner.Lease != owner.Lease {
			err = outcome.New("adopt", outcome.Unavailable, outcome.NotAccepted, o.target(), "its record is held under another lease of this node")
		}
		return err
	case err != nil:
		return err
	case ch.Overwritten && !s.owns(ch.Entry, o):
		return errLost
	}
	s.stats.adopted.Add(1)
	return nil
}

// ownEntry reads the entry of an object of this node. errLost is said only of what was read for certain.
func (s *Service) ownEntry(ctx context.Context, o *object) (kvlocation.Entry, error) {
	e, err := s.store.Peek(ctx, o.key())
	if err == nil && !s.owns(e, o) {
		e, err = s.store.Read(ctx, o.key()) // the replica may have been behind
	}
	if err == nil && !s.owns(e, o) {
		return e, errLost
	}
	return e, err
}

// present returns the object that this node has of an ID; nil for none. One that was not adopted under the present lease
// speaks for its ID only if its record, read now, confirms it; else it is dropped. The error is the store's: nobody can
// tell.
func (s *Service) present(ctx context.Context, key kvlocation.ObjectKey) (*object, error) {
	o := s.rt.find(key.Kind, key.ID)
	if o == nil || isEntry(key) || o.isCreating() || s.adopted(o) || o.is() == objectSealed {
		return o, nil // whoever moves or closes it finds out what becomes of it
	}
	if w, ok := wideOf(o); ok {
		return s.presentMember(ctx, o, w)
	}
	e, err := s.store.Read(ctx, key)
	if err == nil && !s.owns(e, o) {
		s.rt.lose(o, lostError("turn", o))
		return nil, nil
	}
	return o, err
}

// adopted reports whether an object is open under the present lease, which admits.
func (s *Service) adopted(o *object) bool {
	return o.lease.Load() == s.leaseGeneration() && s.admit() == nil
}

// owns reports whether an entry is that of an open object of this node.
func (s *Service) owns(e kvlocation.Entry, o *object) bool {
	if ref, ok := e.Record.Reference(); ok {
		return e.Generation() == o.generation.Load() && s.ownsMember(ref, o)
	}
	return (e.Phase() == kvlocation.PhaseReady || e.Preparing()) && e.Record.Owner.Is(s.cfg.RID, s.cfg.Lifecycle) &&
		e.Generation() == o.generation.Load() && e.Record.OwnerGeneration == o.ownerGeneration.Load()
}

// lostError is the end of an operation on an object that turned out to be another's, or gone.
func lostError(op string, o *object) *outcome.Error {
	return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, o.target(), "", errLost)
}
