package objects

import (
	"context"
	"encoding/json"
	"errors"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// adoptMember is adopt for an Actor that is located by reference: its Spot's record is adopted, once for all members, and
// nothing of the Actor's own is read. Nobody else can have changed that meanwhile but by the Spot's end.
func (s *Service) adoptMember(ctx context.Context, w wideRef) error {
	spot := s.rt.spotHere(w.spot)
	if spot == nil {
		return errLost
	}
	err := s.adoptSpot(ctx, spot)
	if errors.Is(err, errLost) {
		s.rt.lose(spot, lostError("turn", spot)) // and all its members
	}
	return err
}

// adoptSpot adopts a SpotWide Spot, for itself or for a member: one write, however many ask at the same time.
func (s *Service) adoptSpot(ctx context.Context, spot *object) error {
	m := s.membersOf(spot)
	select {
	case m.writing <- struct{}{}:
		defer func() { <-m.writing }()
	case <-ctx.Done():
		return outcome.FromContext(ctx, "adopt", outcome.NotAccepted, spot.target(), "another adoption of it is under way")
	}
	lease := s.leaseGeneration()
	if m.lease == lease {
		return nil
	}
	err := s.adoptRecord(ctx, spot)
	if err == nil {
		m.lease = lease
	}
	return err
}

// ownsMember reports whether a reference is the one that this node's Actor knows of itself, to a Spot of this node.
func (s *Service) ownsMember(ref kvlocation.Reference, o *object) bool {
	w, ok := wideOf(o)
	return ok && w.spot == SpotRef{ref.Spot, ref.Generation} && w.offset == ref.Offset && s.rt.spotHere(w.spot) != nil
}

// presentMember is present for an Actor that is located by reference: its Spot speaks for it.
func (s *Service) presentMember(ctx context.Context, o *object, w wideRef) (*object, error) {
	spot, err := s.present(ctx, spotKey(w.spot))
	switch {
	case err != nil:
		return o, err
	case spot == nil || spot.generation.Load() != w.spot.Generation:
		s.rt.lose(o, lostError("turn", o))
		return nil, nil
	}
	return o, nil
}

// closeMember closes the record of an Actor that is located by reference and drops it, in a turn of its Spot. With errBusy
// the Spot had no time for it.
func (s *Service) closeMember(ctx context.Context, o *object, w wideRef) error {
	spot := s.rt.spotHere(w.spot)
	if spot == nil {
		return s.endRecord(o, func(context.Context) error { return errLost })
	}
	actor := ActorRef{ID: o.id, Generation: o.generation.Load()}
	return spot.interrupt(ctx, func(tctx context.Context) error {
		held := s.heldEntry(spot)
		err := s.endRecord(o, func(ctx context.Context) error {
			at, err := s.ownEntry(ctx, o)
			if err != nil {
				return err
			}
			owner := s.owner()
			ch, err := s.settleMember(o, func() (kvlocation.Change, error) { return s.store.CloseMember(ctx, at, owner, held) })
			if err == nil && ch.Overwritten && s.owns(ch.Entry, o) {
				err = outcome.New("close", outcome.Unavailable, outcome.NotAccepted, o.target(), "its record was changed meanwhile")
			}
			return err
		})
		if err == nil && s.membersOf(spot).remove(actor, forGood) {
			s.toldLeft(tctx, spot, actor)
		}
		return err
	})
}

// closeMembers prepares the members of a SpotWide Spot for its end: they rest, and their Closing has run. The members that
// are sealed are returned, with an error too. They end when the Spot's record is closed: nothing of theirs is written.
func (s *Service) closeMembers(ctx context.Context, spot *object) (sealed []*object, err error) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	members := s.unitMembers(spot)
	for _, a := range members {
		sl, err := s.sealMember(ctx, a)
		if err != nil {
			return sealed, err
		}
		if sl != nil {
			sealed = append(sealed, a)
		}
	}
	for _, a := range sealed {
		if sl := a.sealed(); sl != nil {
			select {
			case <-sl.rested:
			case <-sl.over:
			case <-ctx.Done():
				return sealed, outcome.FromContext(ctx, "close", outcome.NotAccepted, spot.target(), "the turn of its member, "+a.target()+", has not ended")
			}
		}
	}
	p := s.rt.period.Load()
	each(sealed, func(a *object) {
		if _, ok := a.inst.(Closer); !ok || !a.borrow() {
			return
		}
		err := a.callback(p, a.reg.CreateTimeout, func(ctx context.Context) error { return a.callClosing(ctx, CloseSpot) })
		a.giveBack()
		s.noteClosing(a, err)
	})
	return sealed, nil
}

// sealMember seals a member; nil when it has ended. While its own end is under way, which has to wait for the Spot, it is
// tried again.
func (s *Service) sealMember(ctx context.Context, a *object) (*seal, error) {
	for {
		sl, err := a.beginSeal(nil)
		switch {
		case err == nil:
			return sl, nil
		case a.isClosed():
			return nil, nil
		}
		s.pause(patience / 10)
		if ctx.Err() != nil {
			return nil, outcome.FromContext(ctx, "close", outcome.NotAccepted, a.target(), err.Error())
		}
	}
}

func unsealAll(list []*object) {
	for _, a := range list {
		a.unseal(mailbox{})
	}
}

// memberHere returns a member of a SpotWide Spot of this node; nil when it is none any more.
func (s *Service) memberHere(spot *object, ref ActorRef) *object {
	a, err := s.actorHere(ref)
	if err != nil || a == nil {
		return nil
	}
	if w, ok := wideOf(a); !ok || w.spot.ID != spot.id || w.spot.Generation != spot.generation.Load() {
		return nil
	}
	return a
}

// unitMembers returns the Actors that move with a Spot: the members of a SpotWide one, between two turns of the Spot.
func (s *Service) unitMembers(o *object) []*object {
	m := o.m.Load()
	if m == nil || !o.isWide() {
		return nil
	}
	var list []*object
	for _, ref := range sortRefs(m.list()) {
		if a := s.memberHere(o, ref); a != nil {
			list = append(list, a)
		}
	}
	return list
}

// endMembers ends the members of a SpotWide Spot that has ended here: they are whatever it is. When it has moved they go
// their own way.
func (s *Service) endMembers(spot *object, cause, held error) {
	if cause == error(errMoved) {
		return
	}
	for _, a := range s.unitMembers(spot) {
		s.rt.remove(a, ofMember(cause, a), ofMember(held, a))
	}
}

// ofMember is the error of a Spot's end as that of a member.
func ofMember(err error, a *object) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Target = a.target()
	if out.Detail == "" {
		out.Detail = "it ended with its Spot"
	}
	return &out
}

// wideDoc is what a Spot's list of members takes along in a move.
type wideDoc struct {
	Actor    ActorRef `json:"actor"`
	Revision uint64   `json:"revision"`
	Offset   *int64   `json:"offset,omitempty"` // of a member that is located by reference
}

// captureMembership is what an object's membership takes along in a move: a Spot's list. An Actor's stands in its record.
func (s *Service) captureMembership(o *object) []byte {
	m := o.m.Load()
	if m == nil || o.reg.kind != kvlocation.KindSpot {
		return nil
	}
	list := m.list()
	docs := make([]wideDoc, 0, len(list))
	for _, ref := range list {
		d := wideDoc{Actor: ref, Revision: m.joinedAt(ref)}
		if o.isWide() {
			a := s.memberHere(o, ref)
			if a == nil {
				continue
			}
			w, _ := wideOf(a)
			d.Offset = &w.offset
		}
		docs = append(docs, d)
	}
	data, err := json.Marshal(docs)
	if err != nil {
		return nil // it cannot fail
	}
	return data
}

// restoreMembership is what Open does with an object's membership: of a Spot, data is what captureMembership returned at
// the source, and all objects of the unit are here; of an Actor that moves by itself, e is its record.
func (s *Service) restoreMembership(o *object, data []byte, e kvlocation.Entry) error {
	if o.reg.kind == kvlocation.KindActor {
		if spot := spotIn(e.Record.With); !spot.IsZero() {
			m := s.membersOf(o)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.spot, m.revision = spot, e.Revision
		}
		return nil
	}
	if len(data) == 0 {
		return nil
	}
	var docs []wideDoc
	if err := json.Unmarshal(data, &docs); err != nil {
		return outcome.Wrap("move", outcome.ProtocolError, outcome.NotAccepted, o.target(), "the list of its members cannot be read", err)
	}
	m := s.membersOf(o)
	spot := SpotRef{ID: o.id, Generation: o.generation.Load()}
	for _, d := range docs {
		m.add(d.Actor, d.Revision)
		if d.Offset == nil {
			continue
		}
		if a := s.rt.find(kvlocation.KindActor, d.Actor.ID); a != nil {
			s.becomeMember(a, wideRef{spot, *d.Offset}, d.Revision)
		}
	}
	return nil
}

// memberGenerations are the numbers of a member at the node to which its Spot has moved, as the Spot's record says.
func (s *Service) memberGenerations(spot kvlocation.Entry, o *object) (generation, ownerGeneration uint64) {
	w, _ := wideOf(o)
	return o.generation.Load(), ownerGenerationOf(w.offset, spot.Record.OwnerGeneration)
}
