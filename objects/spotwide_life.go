package objects

import (
	"context"
	"encoding/json"
	"errors"
	"time"

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

// endSpot closes a SpotWide Spot with its members, from outside of its turns: the unit rests, the Closing of each member runs,
// then that of the Spot, and the Spot's record is closed, which ends all. Nothing of a member is written. After an error that is
// not errLost all go on.
func (s *Service) endSpot(ctx context.Context, spot *object, why CloseReason) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	if err := s.admit(); err != nil {
		return err
	}
	sealed, err := newUnitSeal(spot, true).seal(ctx, s.unitMembers)
	defer func() {
		for _, o := range sealed {
			o.unseal(mailbox{}) // which does nothing for what has ended
		}
	}()
	switch {
	case err != nil && len(sealed) == 0 && spot.sealed() != nil:
		return whySealed.refusal("close", spot.target(), false)
	case err != nil:
		return renamed(err, "close", spot.key())
	}
	p := s.rt.period.Load()
	each(sealed[1:], func(a *object) {
		if _, ok := a.inst.(Closer); ok {
			s.noteClosing(a, a.borrowed(p, a.reg.CreateTimeout, func(ctx context.Context) error { return a.callClosing(ctx, CloseSpot) }))
		}
	})
	return spot.borrowed(p, adoptTimeout, func(ctx context.Context) error {
		s.noteClosing(spot, spot.callClosing(ctx, why))
		if err := s.admit(); err != nil {
			return err
		}
		return s.endRecord(spot, func(ctx context.Context) error { return s.closeRecord(ctx, spot) })
	})
}

// borrowed runs f as a turn of a sealed object that rests.
func (o *object) borrowed(p *period, timeout time.Duration, f func(context.Context) error) error {
	if !o.borrow() {
		return whyClosed.refusal("close", o.target(), false)
	}
	defer o.giveBack()
	return o.callback(p, timeout, f)
}

// endSpotLater is endSpot for a Spot whose own turn asked for its end; it returns at once.
func (s *Service) endSpotLater(spot *object, why CloseReason) {
	m := s.membersOf(spot)
	m.mu.Lock()
	under := m.ending
	m.ending = true
	m.mu.Unlock()
	if under {
		return
	}
	s.spawn(func() {
		err := s.endSpot(s.ctx, spot, why)
		m.mu.Lock()
		m.ending = false
		m.mu.Unlock()
		if err != nil && !spot.isClosed() {
			spot.notClosed(why, err)
		}
	})
}

// leads reports whether an object of this node is of the unit that o leads: o, or a member of a SpotWide Spot.
func (o *object) leads(kind kvlocation.ObjectKind, id string) bool {
	if kind == o.reg.kind && id == o.id {
		return true
	}
	if !o.isWide() || kind != kvlocation.KindActor {
		return false
	}
	a := o.rt.find(kind, id)
	if a == nil {
		return false
	}
	w, ok := wideOf(a)
	return ok && w.spot == SpotRef{o.id, o.generation.Load()}
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
