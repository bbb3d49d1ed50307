package objects

import (
	"context"
	"errors"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// writeJoin makes an Actor a member, in a turn of the Actor within a turn of the Spot.
func (s *Service) writeJoin(ctx context.Context, a, spot *object, actor ActorRef) (revision uint64, err error) {
	if err := s.mayWrite(a, actor.Generation); err != nil {
		return 0, err
	}
	at, err := s.ownEntry(ctx, a)
	if err != nil {
		return 0, s.notWritten(a, err)
	}
	held := s.heldEntry(spot)
	ch, err := s.settleMember(a, func() (kvlocation.Change, error) { return s.store.Join(ctx, at, s.owner(), held) })
	if err != nil {
		return 0, err
	}
	ref, ok := ch.Entry.Record.Reference()
	if !ok || ref.Spot != spot.id || ref.Generation != held.Record.Generation || ch.Entry.Generation() != actor.Generation {
		return 0, s.lostMember(a)
	}
	s.becomeMember(a, wideRef{SpotRef{ref.Spot, ref.Generation}, ref.Offset}, ch.Entry.Revision)
	a.renumber(ownerGenerationOf(ref.Offset, held.Record.OwnerGeneration))
	return ch.Entry.Revision, nil
}

// writeLeave gives a member an owner of its own again, in a turn of the Actor within a turn of the Spot.
func (s *Service) writeLeave(ctx context.Context, a, spot *object) error {
	generation := a.generation.Load()
	if err := s.mayWrite(a, generation); err != nil {
		return err
	}
	at, err := s.ownEntry(ctx, a)
	if err != nil {
		return s.notWritten(a, err)
	}
	held, owner := s.heldEntry(spot), s.owner()
	ch, err := s.settleMember(a, func() (kvlocation.Change, error) { return s.store.Leave(ctx, at, owner, held) })
	if err != nil {
		return err
	}
	r := ch.Entry.Record
	if ch.Entry.Phase() != kvlocation.PhaseReady || !r.Owner.Is(s.cfg.RID, s.cfg.Lifecycle) || ch.Entry.Generation() != generation {
		return s.lostMember(a)
	}
	m := s.membersOf(a)
	m.mu.Lock()
	m.spot, m.wide, m.offset, m.revision = SpotRef{}, false, 0, ch.Entry.Revision
	m.mu.Unlock()
	a.lease.Store(r.Owner.Lease)
	a.renumber(r.OwnerGeneration)
	return nil
}

// becomeMember notes that an Actor is located by reference.
func (s *Service) becomeMember(a *object, w wideRef, revision uint64) {
	m := s.membersOf(a)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spot, m.wide, m.offset, m.revision = w.spot, true, w.offset, revision
}

func ownerGenerationOf(offset int64, spots uint64) uint64 { return uint64(int64(spots) + offset) }

// renumber gives an object of this node another owner generation, in a turn of its own. Its activation callback runs before
// the next one.
func (o *object) renumber(ownerGeneration uint64) {
	o.identify(o.generation.Load(), ownerGeneration)
	o.activated = false
	o.offerOwn(mailActivate)
}

// mayWrite says why the membership of an Actor may not be changed now.
func (s *Service) mayWrite(a *object, generation uint64) error {
	if g := a.generation.Load(); g != generation {
		return otherGeneration("", a.key(), g, generation)
	}
	return s.admit()
}

// notWritten is the end of a change of membership that found no record to change.
func (s *Service) notWritten(a *object, err error) error {
	if errors.Is(err, errLost) {
		return s.lostMember(a)
	}
	return outcome.Wrap("", outcome.KindOf(err), outcome.NotAccepted, a.target(), "", err)
}

// lostMember drops an Actor that is not this node's any more.
func (s *Service) lostMember(a *object) error {
	s.rt.lose(a, lostError("turn", a))
	return lostError("", a)
}

// writeLife is how long a write that was sent may come to be applied, at the most.
const writeLife = 10 * time.Minute

// settleMember makes a record write of a membership, and does not return before it is certain that it is applied or never
// will be: else a leave could be applied behind the commit of the Spot's next move, and repeat an owner generation. While the Service
// stops nobody moves the Spot any more. After an error with Unknown the Actor is dropped.
func (s *Service) settleMember(a *object, write func() (kvlocation.Change, error)) (kvlocation.Change, error) {
	ch, err := s.settle(write)
	if err != nil && errors.Is(err, outcome.Unknown) && s.ctx.Err() == nil {
		s.pause(writeLife - settleLimit)
		e, rerr := s.store.Read(s.ctx, a.key())
		switch {
		case rerr == nil && s.owns(e, a):
			return ch, outcome.Wrap("", outcome.Unavailable, outcome.NotAccepted, a.target(), "", err)
		case rerr == nil:
			return kvlocation.Change{Entry: e, Overwritten: true}, nil
		}
	}
	switch {
	case err == nil:
		return ch, nil
	case illegal(err):
		// It was adopted under another lease meanwhile, or is not this node's: its next turn finds out.
		return ch, outcome.Wrap("", outcome.Unavailable, outcome.NotAccepted, a.target(), "", err)
	case errors.Is(err, outcome.Unknown):
		s.rt.drop(a, outcome.New("turn", outcome.Unavailable, outcome.Accepted, a.target(), "its membership was being changed, and the store does not say whether it is"))
	}
	return ch, err
}
