package objects

import (
	"context"
	"fmt"
	"slices"

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
func locationOf(e kvlocation.Located) Location {
	r, owner := e.Record, e.Owner()
	l := Location{
		Kind: e.Key.Kind, ID: e.Key.ID, Class: r.Kind, Type: r.Type, Phase: e.Phase(),
		RID: owner.RID, Lifecycle: owner.Lifecycle, Lease: owner.Lease,
		Generation: e.Generation(), OwnerGeneration: e.OwnerGeneration(), Revision: e.Revision, ByReference: e.Spot != nil,
		Activation: len(r.Activation) > 0, Created: r.Created, Updated: r.Updated,
	}
	if l.Kind == kvlocation.KindActor {
		l.Spot = spotIn(r.With)
	}
	at := e.Entry
	if e.Spot != nil {
		at = *e.Spot
	}
	if m, ok := at.Move(); ok && l.Phase == kvlocation.PhaseMoving {
		l.Move = &Moving{Op: m.Op, RID: m.Target.RID, Lifecycle: m.Target.Lifecycle, Accepted: m.Accepted}
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
	e, err := s.store.LookupWith(ctx, key)
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
		References: true,
	}, req.Cursor, req.Limit)
	if err != nil {
		return ListPage{}, err
	}
	ls, err := s.located(ctx, es)
	if err != nil {
		return ListPage{}, err
	}
	page := ListPage{Objects: make([]Location, 0, len(es)), Next: next}
	leases := make(map[string]kvlocation.LeaseState)
	for _, at := range ls {
		l := locationOf(at)
		if req.RID != "" && l.RID != req.RID || req.Lifecycle != 0 && l.Lifecycle != req.Lifecycle {
			continue // a member of a Spot of another node
		}
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

// followAtOnce is how many references are followed in one read.
const followAtOnce = 400

// located follows the references of entries that a scan has found. Those whose Spot is gone are left out.
func (s *Service) located(ctx context.Context, es []kvlocation.Entry) ([]kvlocation.Located, error) {
	out := make([]kvlocation.Located, 0, len(es))
	var (
		keys  []kvlocation.ObjectKey // of members, and then of their Spots
		floor uint64
	)
	follow := func() error {
		members := len(keys)
		if members == 0 {
			return nil
		}
		seen := make(map[string]bool)
		for _, e := range es {
			if ref, ok := e.Record.Reference(); ok && !seen[ref.Spot] && slices.Contains(keys[:members], e.Key) {
				seen[ref.Spot] = true
				keys = append(keys, kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: ref.Spot})
			}
		}
		now, err := s.store.ReadSince(ctx, floor, keys...)
		if err != nil {
			return err
		}
		spots := make(map[string]*kvlocation.Entry)
		for i := range now[members:] {
			spots[now[members+i].Key.ID] = &now[members+i]
		}
		for _, e := range now[:members] {
			l := kvlocation.Located{Entry: e}
			if ref, ok := e.Record.Reference(); ok {
				l.Spot = spots[ref.Spot]
			}
			if l.Phase() != kvlocation.PhaseMissing {
				out = append(out, l)
			}
		}
		keys = keys[:0]
		return nil
	}
	for _, e := range es {
		if _, ok := e.Record.Reference(); !ok {
			out = append(out, kvlocation.Located{Entry: e})
			continue
		}
		keys, floor = append(keys, e.Key), max(floor, e.Revision)
		if len(keys) == followAtOnce {
			if err := follow(); err != nil {
				return nil, err
			}
		}
	}
	return out, follow()
}
