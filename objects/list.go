package objects

import (
	"context"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// DefaultListLimit is how many objects one page of List has unless more are asked for.
	DefaultListLimit = 100
	// MaxListLimit is how many it has at most.
	MaxListLimit = 1000
)

// locationOf is what an entry says; whether its owner lives is not in it.
func locationOf(e kvlocation.Entry) Location {
	r := e.Record
	l := Location{
		Kind: e.Key.Kind, ID: e.Key.ID, Class: r.Kind, Type: r.Type, Phase: e.Phase(),
		RID: r.Owner.RID, Lifecycle: r.Owner.Lifecycle, Lease: r.Owner.Lease,
		Generation: e.Generation(), OwnerGeneration: r.OwnerGeneration, Revision: e.Revision,
		Activation: len(r.Activation) > 0, Created: r.Created, Updated: r.Updated,
	}
	if l.Kind == kvlocation.KindActor {
		l.Spot = spotIn(r.With)
	}
	return l
}

// live adds what the owner's lease says.
func (l *Location) live(st kvlocation.LeaseState) {
	if l.Alive = st.Live && st.Lifecycle == l.Lifecycle; l.Alive {
		l.LeaseUntil = st.Renewed.Add(st.TTL)
	}
}

// Locate reads where an object is. That there is none is confirmed: NotFound is said only when a write shows that the
// store was asked now. Other errors: Unavailable when the store does not answer, InvalidOperation for an ID that is not
// allowed.
func (s *Service) Locate(ctx context.Context, key kvlocation.ObjectKey) (Location, error) {
	const op = "find"
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if isEntry(key) {
		return s.entryLocation(ctx, op, key)
	}
	e, err := s.store.Lookup(ctx, key)
	if err != nil {
		return Location{}, notFound(err, op, key)
	}
	l := locationOf(e)
	st, err := s.store.LeaseOf(ctx, l.RID)
	if err != nil {
		return Location{}, renamed(err, op, key)
	}
	l.live(st)
	return l, nil
}

// List returns object records, page by page, in the order of the store. Errors: InvalidOperation for a filter, limit or
// cursor that is not allowed, Unavailable when the store does not answer.
func (s *Service) List(ctx context.Context, req ListRequest) (ListPage, error) {
	const op = "list"
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if req.Limit == 0 {
		req.Limit = DefaultListLimit
	}
	if req.Limit < 1 || req.Limit > MaxListLimit {
		return ListPage{}, outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, "objects", fmt.Sprintf("Limit %d is not allowed: it must be 1 to %d", req.Limit, MaxListLimit))
	}
	es, next, err := s.store.ScanPage(ctx, kvlocation.ScanFilter{
		Kind: req.Kind, Class: req.Class, Type: req.Type, RID: req.RID, Lifecycle: req.Lifecycle, Prefix: req.Prefix,
	}, req.Cursor, req.Limit)
	if err != nil {
		return ListPage{}, err
	}
	page := ListPage{Objects: make([]Location, 0, len(es)), Next: next}
	leases := make(map[string]kvlocation.LeaseState)
	for _, e := range es {
		l := locationOf(e)
		st, known := leases[l.RID]
		if !known {
			if st, err = s.store.LeaseOf(ctx, l.RID); err != nil {
				return ListPage{}, outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, "objects", "the lease of node "+l.RID+" cannot be read", err)
			}
			leases[l.RID] = st
		}
		l.live(st)
		page.Objects = append(page.Objects, l)
	}
	return page, nil
}
