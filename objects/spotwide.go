package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Members of a SpotWide Spot: such an Actor is always on its Spot's node. Its record has no owner of its own but a
// reference to the Spot's incarnation, so one write of the Spot's record moves, adopts or ends any number of members. Its
// owner generation is the Spot's plus an offset, which is chosen so that it grows by one with each join and leave.
//
// Join, leave and the end of a member are turns of the Spot, in which nothing else happens to either: they put a turn of
// the framework between two turns of the Actor (interrupt), in which the Actor's record is written and the result of that is
// settled. A turn of the Spot that has ended therefore leaves no write of a membership behind.

// MoveFunc moves an object of this node, of exactly that incarnation, to another node as a unit, and returns once it is
// there. Errors are *outcome.Error.
type MoveFunc func(ctx context.Context, key kvlocation.ObjectKey, generation uint64, toRID string) error

// MoveWith sets what moves an Actor of this node to the node of a SpotWide Spot that it is to join. It must be called
// before the router serves, once. Without it an Actor can join a SpotWide Spot of its own node only.
func (s *Service) MoveWith(f MoveFunc) { s.move = f }

// wideRef is what an Actor that is located by reference knows of it.
type wideRef struct {
	spot   SpotRef
	offset int64
}

// wideOf returns the SpotWide Spot that an Actor is a member of; ok is false when it is in none.
func wideOf(o *object) (w wideRef, ok bool) {
	m := o.m.Load()
	if m == nil || o.reg.kind != kvlocation.KindActor {
		return w, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return wideRef{m.spot, m.offset}, m.wide
}

// isWide reports whether o is a SpotWide Spot.
func (o *object) isWide() bool { return o.reg.Members == SpotWide }

// isSpotWideMember reports whether an Actor is located by reference to a Spot.
func (s *Service) isSpotWideMember(o *object) bool {
	_, ok := wideOf(o)
	return ok
}

// spotHere returns the Spot of that incarnation if it is open at this node.
func (rt *runtime) spotHere(ref SpotRef) *object {
	o := rt.find(kvlocation.KindSpot, ref.ID)
	if o == nil || o.generation.Load() != ref.Generation || o.isCreating() {
		return nil
	}
	return o
}

// actorHere returns the Actor of that incarnation if this node has it. One that is of another incarnation is an error.
func (s *Service) actorHere(ref ActorRef) (*object, error) {
	o := s.rt.find(kvlocation.KindActor, ref.ID)
	if o == nil {
		return nil, nil
	}
	if g := o.generation.Load(); g != ref.Generation && g != 0 {
		return nil, otherGeneration("", actorKey(ref), g, ref.Generation)
	}
	return o, nil
}

// heldEntry is the record of a Spot as this node holds it.
func (s *Service) heldEntry(spot *object) kvlocation.Entry {
	owner := s.owner()
	owner.Lease = spot.lease.Load()
	return kvlocation.Entry{Key: spot.key(), Record: kvlocation.Record{
		Phase: kvlocation.PhaseReady, Kind: spot.reg.Class, Type: spot.reg.Name, Owner: owner,
		Generation: spot.generation.Load(), OwnerGeneration: spot.ownerGeneration.Load(),
	}}
}

// changeWide is a join or leave at a SpotWide Spot: turns of the Spot, until one comes at a gap between two turns of the
// Actor. An Actor that is elsewhere is first moved here; one in another SpotWide Spot leaves that.
func (s *Service) changeWide(ctx context.Context, o *object, req joinRequest, join bool) error {
	if req.Within {
		return outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, actorKey(req.Actor).String(),
			"it changes its membership of a SpotWide Spot between two of its turns, so a turn of its own cannot wait for that")
	}
	m := s.membersOf(o)
	spot := SpotRef{ID: o.id, Generation: req.Generation}
	asked := false // whether the Spot's object has agreed to the join
	for {
		if join {
			if err := s.bring(ctx, spot, req.Actor); err != nil {
				return err
			}
		}
		err := o.between(ctx, func(ctx context.Context) error {
			if g := o.generation.Load(); g != req.Generation {
				return otherGeneration("", o.key(), g, req.Generation)
			}
			if join {
				return s.joinWide(ctx, o, m, spot, req.Actor, &asked)
			}
			return s.leaveWide(ctx, o, m, spot, req.Actor)
		})
		if !errors.Is(err, errBusy) {
			return err
		}
		if !s.awaitGap(ctx, s.rt.find(kvlocation.KindActor, req.Actor.ID)) {
			return late(ctx, err)
		}
	}
}

// awaitGap waits until an object's turns that wait now have run, or a moment when it takes none; nil is one that is not here. It returns
// false when the operation's time is over.
func (s *Service) awaitGap(ctx context.Context, o *object) bool {
	if o == nil || o.between(ctx, func(context.Context) error { return nil }) != nil {
		t := time.NewTimer(patience / 10)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// late is the end of an operation whose time was over before a busy object came to a gap.
func late(ctx context.Context, busy error) error {
	var e *outcome.Error
	errors.As(busy, &e)
	return outcome.FromContext(ctx, e.Op, outcome.NotAccepted, e.Target, cmp.Or(e.Detail, errBusy.Error()))
}

// comeRequest asks an Actor's owner to move it to another node.
type comeRequest struct {
	Generation uint64 `json:"generation"` // the Actor's
	RID        string `json:"rid"`
}

// bring sees to it that an Actor is at this node and in no other SpotWide Spot.
func (s *Service) bring(ctx context.Context, spot SpotRef, actor ActorRef) error {
	a, err := s.actorHere(actor)
	if err != nil {
		return err
	}
	if a == nil {
		loc, err := s.Locate(ctx, actorKey(actor))
		switch {
		case err != nil:
			return renamed(err, "join", actorKey(actor))
		case loc.ByReference && loc.Generation == actor.Generation:
			if err := s.leave(ctx, actor, loc.Spot); err != nil && !errors.Is(err, outcome.NotFound) {
				return err
			}
		}
		return s.askOwner(ctx, "join", actorKey(actor), actor.Generation, verbCome, comeRequest{actor.Generation, s.cfg.RID}, nil)
	}
	if w, ok := wideOf(a); ok && w.spot != spot {
		return s.leave(ctx, actor, w.spot)
	}
	return nil
}

// serveCome moves an Actor of this node to the node of the Spot that it is to join.
func (s *Service) serveCome(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req comeRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	switch {
	case err != nil:
		return nil, err
	case req.RID == s.cfg.RID:
		return struct{}{}, nil
	case s.move == nil:
		return nil, outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, o.target(),
			"it is at node "+s.cfg.RID+", not at its Spot's node "+req.RID+", and relocation is not wired there")
	}
	return struct{}{}, s.move(ctx, key, req.Generation, req.RID)
}

// mayJoin says in the Spot's turn why it takes no more members.
func (m *membership) mayJoin(o *object) error {
	m.mu.Lock()
	closing, n := m.closes > 0, len(m.members)
	m.mu.Unlock()
	switch {
	case closing:
		return outcome.New("join", outcome.Unavailable, outcome.NotAccepted, o.target(), "it is being closed and refuses joins")
	case n >= maxMembers:
		return outcome.New("join", outcome.CapacityExceeded, outcome.NotAccepted, o.target(), fmt.Sprintf("it has %d members already", n))
	}
	return nil
}

// askJoining asks the Spot's object whether it takes an Actor in.
func askJoining(ctx context.Context, o *object, actor ActorRef) error {
	w, ok := o.inst.(MemberWatcher)
	if !ok {
		return nil
	}
	if err := w.Joining(ctx, o.self(), actor); err != nil {
		return outcome.Wrap("join", rejectedKind(err), outcome.NotAccepted, o.target(), "the Spot refused "+actor.String(), err)
	}
	return nil
}

// joinWide is the turn of the Spot. With errBusy it is to be tried again.
func (s *Service) joinWide(ctx context.Context, o *object, m *membership, spot SpotRef, actor ActorRef, asked *bool) error {
	a, err := s.actorHere(actor)
	if err != nil {
		return err
	}
	var w wideRef
	var wide bool
	if a != nil {
		w, wide = wideOf(a)
	}
	switch {
	case wide && w.spot == spot:
		return nil
	case a == nil, wide:
		return outcome.Wrap("join", outcome.Unavailable, outcome.NotAccepted, actorKey(actor).String(), "it is not where it was a moment ago", errBusy)
	}
	if err := m.mayJoin(o); err != nil {
		return err
	}
	if !*asked {
		if err := askJoining(ctx, o, actor); err != nil {
			return err
		}
		*asked = true
	}
	was := spotOf(a)
	var revision uint64
	if err := a.interrupt(ctx, func(context.Context) (err error) {
		revision, err = s.writeJoin(ctx, a, o, actor)
		return err
	}); err != nil {
		return err
	}
	m.add(actor, revision)
	s.stats.joined.Add(1)
	if !was.IsZero() {
		s.tellLeft(was, actor, revision)
	}
	return nil
}

// leaveWide is the turn of the Spot. With errBusy it is to be tried again.
func (s *Service) leaveWide(ctx context.Context, o *object, m *membership, spot SpotRef, actor ActorRef) error {
	a, err := s.actorHere(actor)
	if err == nil && a == nil {
		err = s.absentMember(ctx, spot, actor)
	}
	if err == nil {
		if w, ok := wideOf(a); !ok || w.spot != spot {
			err = outcome.New("leave", outcome.InvalidOperation, outcome.NotAccepted, a.target(), "it is no member of "+spot.String())
		}
	}
	if err == nil {
		err = a.interrupt(ctx, func(context.Context) error { return s.writeLeave(ctx, a, o) })
	}
	switch {
	case errors.Is(err, outcome.NotFound), errors.Is(err, outcome.InvalidOperation):
		m.remove(actor, forGood)
		return err
	case err != nil:
		return err
	}
	if m.remove(actor, forGood) {
		s.toldLeft(ctx, o, actor)
	}
	return nil
}

// absentMember says why an Actor that is not at its Spot's node cannot leave it.
func (s *Service) absentMember(ctx context.Context, spot SpotRef, actor ActorRef) error {
	key := actorKey(actor)
	l, err := s.store.LookupWith(ctx, key)
	switch {
	case errors.Is(err, outcome.NotFound):
		return otherGeneration("leave", key, 0, actor.Generation)
	case err != nil:
		return renamed(err, "leave", key)
	case l.Generation() != actor.Generation:
		return otherGeneration("leave", key, l.Generation(), actor.Generation)
	case l.Spot == nil || spotIn(l.Record.With) != spot:
		return outcome.New("leave", outcome.InvalidOperation, outcome.NotAccepted, key.String(), "it is no member of "+spot.String())
	}
	return outcome.New("leave", outcome.Unavailable, outcome.NotAccepted, key.String(), "it is not open at its Spot's node, this one")
}
