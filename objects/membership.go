package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Membership: an Actor's record says in the field with which Spot it has joined, by exact generation; its owner writes
// that, asked by a turn of the Spot. The Spot's owner keeps the list in memory, for as long as the Spot lives there. The
// record decides: a message of a broadcast is taken only by an Actor that is a member, and one that refuses it so is taken
// off the list.

// farewellTime bounds the time in which the members of a Spot that is closed are told.
const farewellTime = time.Minute

// maxMembers bounds the members of one Spot.
const maxMembers = 100_000

// membership is what an Actor or a Spot has of it in memory.
type membership struct {
	// writing serialises what changes the record of an Actor, and the adoptions of a SpotWide Spot.
	writing chan struct{}
	// lease is the lease generation under which a SpotWide Spot was adopted last; guarded by writing.
	lease uint64

	mu sync.Mutex
	// Of an Actor: the Spot, and the revision of its record at which it was written.
	spot     SpotRef
	revision uint64
	// wide: the Actor is located by reference to its Spot, and its owner generation is the Spot's plus offset.
	wide   bool
	offset int64
	// Of a Spot: its members, each with the revision of the Actor's record that says so, and how many closes wait or
	// run, while which it refuses joins.
	members map[ActorRef]uint64
	closes  int
	// ending: the end of a SpotWide Spot is under way.
	ending bool
}

// membersOf returns an object's membership, which is made when it is first asked for.
func (s *Service) membersOf(o *object) *membership {
	if m := o.m.Load(); m != nil {
		return m
	}
	o.m.CompareAndSwap(nil, &membership{writing: make(chan struct{}, 1)})
	return o.m.Load()
}

func (m *membership) refuseJoins(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if on {
		m.closes++
	} else {
		m.closes--
	}
}

func (m *membership) list() []ActorRef {
	m.mu.Lock()
	defer m.mu.Unlock()
	refs := make([]ActorRef, 0, len(m.members))
	for r := range m.members {
		refs = append(refs, r)
	}
	return refs
}

// hasMembers reports whether a Spot has members.
func (o *object) hasMembers() bool {
	m := o.m.Load()
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.members) > 0
}

// add enters a member, as the Actor's record at that revision says.
func (m *membership) add(a ActorRef, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.members == nil {
		m.members = make(map[ActorRef]uint64)
	}
	m.members[a] = max(m.members[a], revision)
}

// remove takes a off the list, unless it has joined by a record that is newer than what says that it is no member. It
// reports whether it was on the list.
func (m *membership) remove(a ActorRef, revision uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	joined, was := m.members[a]
	if !was || joined > revision {
		return false
	}
	delete(m.members, a)
	return true
}

// joinedAt is the revision at which a joined; 0 when it is not on the list.
func (m *membership) joinedAt(a ActorRef) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members[a]
}

// forGood is above every revision: what ended never comes back.
const forGood = math.MaxUint64

// spotOf returns the Spot that an Actor has joined; zero for none.
func spotOf(o *object) SpotRef {
	m := o.m.Load()
	if m == nil {
		return SpotRef{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spot
}

// joinRequest asks a Spot to take an Actor in or let it go.
type joinRequest struct {
	Generation uint64   `json:"generation"` // the Spot's
	Actor      ActorRef `json:"actor"`
	// Within is true when a turn of the Actor waits for it.
	Within bool `json:"within,omitempty"`
}

// membershipOf is the request of a join or leave that is asked for under ctx.
func membershipOf(ctx context.Context, spot SpotRef, actor ActorRef) joinRequest {
	req := joinRequest{Generation: spot.Generation, Actor: actor}
	if c, err := callChain(ctx, ""); err == nil {
		req.Within = c.cycle(actorKey(actor)) != ""
	}
	return req
}

// withRequest asks an Actor's owner to write its membership.
type withRequest struct {
	Generation uint64 `json:"generation"` // the Actor's
	// Spot is the new one, zero for none; From, unless zero, is the one that it must be in.
	Spot SpotRef `json:"spot,omitzero"`
	From SpotRef `json:"from,omitzero"`
}

// withReply says at which revision of its record the Actor is where it was to be.
type withReply struct {
	Revision uint64 `json:"revision"`
}

// leftRequest tells a Spot that an Actor is no member any more.
type leftRequest struct {
	Generation uint64   `json:"generation"` // the Spot's
	Actor      ActorRef `json:"actor"`
	// Revision is that of the Actor's record which says so.
	Revision uint64 `json:"revision"`
}

// withDoc is the field with of an Actor's record.
type withDoc struct {
	Spot       string `json:"spot"`
	Generation uint64 `json:"generation"`
}

// spotIn reads the field with; zero for none.
func spotIn(with json.RawMessage) SpotRef {
	var d withDoc
	if len(with) == 0 || json.Unmarshal(with, &d) != nil {
		return SpotRef{}
	}
	return SpotRef{ID: d.Spot, Generation: d.Generation}
}

func spotKey(r SpotRef) kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: r.ID}
}

func actorKey(r ActorRef) kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: r.ID}
}

// join is Actors.Join.
func (s *Service) join(ctx context.Context, actor ActorRef, spot SpotRef) error {
	if !isEntry(spotKey(spot)) {
		return s.askOwner(ctx, "join", spotKey(spot), spot.Generation, verbJoin, membershipOf(ctx, spot, actor), nil)
	}
	// To join an Entry Spot is to leave the other one.
	ctx, cancel := s.bound(ctx)
	defer cancel()
	at, err := s.Locate(ctx, actorKey(actor))
	switch {
	case err != nil:
		return renamed(err, "join", actorKey(actor))
	case at.Generation != actor.Generation:
		return otherGeneration("join", actorKey(actor), at.Generation, actor.Generation)
	case spot.ID != entryPrefix+at.RID || spot.Generation != at.Lifecycle:
		return outcome.New("join", outcome.InvalidOperation, outcome.NotAccepted, actorKey(actor).String(),
			fmt.Sprintf("it lives at node %s (lifecycle %d), whose Entry Spot is another", at.RID, at.Lifecycle))
	case at.Spot.IsZero():
		return nil
	}
	err = s.leave(ctx, actor, at.Spot)
	if errors.Is(err, outcome.NotFound) {
		// The Spot that it had joined is closed, which reads as none; only the record still says it.
		err = s.askOwner(ctx, "join", actorKey(actor), actor.Generation, verbWith, withRequest{Generation: actor.Generation, From: at.Spot}, nil)
	}
	return err
}

// leave is Actors.Leave.
func (s *Service) leave(ctx context.Context, actor ActorRef, spot SpotRef) error {
	if isEntry(spotKey(spot)) {
		return outcome.New("leave", outcome.InvalidOperation, outcome.NotAccepted, spotKey(spot).String(), "an Actor leaves an Entry Spot by joining another Spot")
	}
	return s.askOwner(ctx, "leave", spotKey(spot), spot.Generation, verbLeave, membershipOf(ctx, spot, actor), nil)
}

// serveJoin is a turn of the Spot, settled before it ends.
func (s *Service) serveJoin(ctx context.Context, key kvlocation.ObjectKey, data []byte, join bool) (any, error) {
	var req joinRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
	}
	if o.isWide() {
		return struct{}{}, s.changeWide(ctx, o, req, join)
	}
	m := s.membersOf(o)
	spot := SpotRef{ID: key.ID, Generation: req.Generation}
	return struct{}{}, o.between(ctx, func(ctx context.Context) error {
		if g := o.generation.Load(); g != req.Generation {
			return otherGeneration("", key, g, req.Generation)
		}
		if join {
			return s.joinTurn(ctx, o, m, spot, req.Actor)
		}
		return s.leaveTurn(ctx, o, m, spot, req.Actor)
	})
}

func (s *Service) joinTurn(ctx context.Context, o *object, m *membership, spot SpotRef, actor ActorRef) error {
	if err := m.mayJoin(o); err != nil {
		return err
	}
	if m.joinedAt(actor) == 0 {
		if err := askJoining(ctx, o, actor); err != nil {
			return err
		}
	}
	var now withReply
	err := s.askOwner(ctx, "join", actorKey(actor), actor.Generation, verbWith, withRequest{Generation: actor.Generation, Spot: spot}, &now)
	if err != nil && !errors.Is(err, outcome.NotAccepted) {
		now.Revision, err = s.settleWith(actor, err, func(in SpotRef) bool { return in == spot })
	}
	if err != nil {
		return err
	}
	m.add(actor, now.Revision)
	s.stats.joined.Add(1)
	return nil
}

func (s *Service) leaveTurn(ctx context.Context, o *object, m *membership, spot SpotRef, actor ActorRef) error {
	err := s.askOwner(ctx, "leave", actorKey(actor), actor.Generation, verbWith, withRequest{Generation: actor.Generation, From: spot}, nil)
	if err != nil && !errors.Is(err, outcome.NotAccepted) {
		_, err = s.settleWith(actor, err, func(in SpotRef) bool { return in != spot })
	}
	switch {
	case errors.Is(err, outcome.NotFound), errors.Is(err, outcome.InvalidOperation):
		// That incarnation is gone, or says that it is no member: it is none, and joins only in a later turn.
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

// rejectedKind is the kind with which a Spot's refusal of a join counts.
func rejectedKind(err error) outcome.Kind {
	var e *outcome.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return outcome.Rejected
}

// settleWith finds out what became of a change of an Actor's membership whose answer was lost, before the turn of the Spot
// ends: from the record itself. What is still under way then is Unknown.
func (s *Service) settleWith(actor ActorRef, why error, done func(SpotRef) bool) (revision uint64, err error) {
	rctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	e, err := s.store.Read(rctx, actorKey(actor))
	if err != nil || e.Phase() != kvlocation.PhaseReady || e.Generation() != actor.Generation || !done(spotIn(e.Record.With)) {
		return 0, outcome.Wrap("join", outcome.KindOf(why), outcome.Unknown, actorKey(actor).String(), "", why)
	}
	return e.Revision, nil
}

// toldLeft tells a Spot's object that a member has left.
func (s *Service) toldLeft(ctx context.Context, o *object, actor ActorRef) {
	s.stats.left.Add(1)
	if w, ok := o.inst.(MemberWatcher); ok {
		w.Left(ctx, o.self(), actor)
	}
}

// serveWith writes an Actor's membership into its record. It is no turn of the Actor, whose own turn may be what asked for
// the join.
func (s *Service) serveWith(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req withRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
	}
	if err := s.admit(); err != nil {
		return nil, err
	}
	if w, ok := wideOf(o); ok { // its record has no owner of its own: it has to leave that Spot first
		actor := ActorRef{ID: o.id, Generation: req.Generation}
		if err := s.leave(ctx, actor, w.spot); err != nil {
			return nil, err
		}
	}
	m := s.membersOf(o)
	select {
	case m.writing <- struct{}{}:
	case <-ctx.Done():
		return nil, outcome.FromContext(ctx, "", outcome.NotAccepted, key.String(), "another change of its membership is under way")
	}
	var reply withReply
	err = s.pursue(ctx, key, func() error {
		defer func() { <-m.writing }()
		if g := o.generation.Load(); g != req.Generation {
			return otherGeneration("", key, g, req.Generation) // it was still being created when it was looked up
		}
		var err error
		reply.Revision, err = s.changeWith(ctx, o, m, req)
		return err
	}, func() { <-m.writing })
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// changeWith writes an Actor's membership, if it is what the request says that it is.
func (s *Service) changeWith(ctx context.Context, o *object, m *membership, req withRequest) (revision uint64, err error) {
	m.mu.Lock()
	was, at, wide := m.spot, m.revision, m.wide
	m.mu.Unlock()
	if wide {
		return 0, outcome.New("", outcome.Unavailable, outcome.NotAccepted, o.target(), "it has joined "+was.String()+" meanwhile")
	}
	if !req.From.IsZero() && was != req.From {
		return 0, outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, o.target(), "it is no member of "+req.From.String())
	}
	if was == req.Spot {
		return at, nil
	}
	if at, err = s.writeWith(ctx, o, req.Spot); err != nil {
		return 0, err
	}
	m.mu.Lock()
	m.spot, m.revision = req.Spot, at
	m.mu.Unlock()
	if !was.IsZero() && req.From.IsZero() {
		s.tellLeft(was, ActorRef{ID: o.id, Generation: req.Generation}, at)
	}
	return at, nil
}

// writeWith is one compare-and-set on the Actor's record, pursued until its result is definite.
func (s *Service) writeWith(ctx context.Context, o *object, spot SpotRef) (revision uint64, err error) {
	err = s.adopt(ctx, o)
	var e kvlocation.Entry
	if err == nil {
		e, err = s.ownEntry(ctx, o)
	}
	switch {
	case errors.Is(err, errLost):
		return 0, lostError("", o)
	case err != nil: // whatever became of the adoption, the membership was not changed
		return 0, outcome.Wrap("", outcome.KindOf(err), outcome.NotAccepted, o.target(), "", err)
	}
	var with json.RawMessage
	if !spot.IsZero() {
		if with, err = json.Marshal(withDoc{Spot: spot.ID, Generation: spot.Generation}); err != nil {
			return 0, err
		}
	}
	ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.SetWith(ctx, e, s.owner(), with) })
	switch {
	case illegal(err):
		return 0, lostError("", o)
	case err == nil && ch.Overwritten && !s.owns(ch.Entry, o):
		return 0, lostError("", o)
	}
	return ch.Entry.Revision, err
}

// tellLeft tells a Spot, in the background and once, that an Actor is no member any more. If it gets lost, the Spot learns
// it at its next broadcast.
func (s *Service) tellLeft(spot SpotRef, actor ActorRef, revision uint64) {
	s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.DefaultTimeout)
		defer cancel()
		err := s.askOwner(ctx, "leave", spotKey(spot), spot.Generation, verbLeft, leftRequest{spot.Generation, actor, revision}, nil)
		if err != nil {
			s.log.Debug("a Spot was not told that a member has left", zap.Stringer("spot", spot), zap.Error(err))
		}
	})
}

// serveLeft takes an Actor off a Spot's list, in a turn of the Spot.
func (s *Service) serveLeft(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req leftRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
	}
	return struct{}{}, o.between(ctx, func(ctx context.Context) error {
		if s.membersOf(o).remove(req.Actor, req.Revision) {
			s.toldLeft(ctx, o, req.Actor)
		}
		return nil
	})
}

// farewell tells those whom it concerns that an object was closed here: an Actor's Spot, and a Spot's members, whose records
// name it until then. What of it gets lost is harmless: a reference to a Spot that is closed means none.
func (s *Service) farewell(o *object) {
	if spot := spotOf(o); !spot.IsZero() && !s.isSpotWideMember(o) {
		s.tellLeft(spot, ActorRef{ID: o.id, Generation: o.generation.Load()}, forGood)
	}
	m := o.m.Load()
	if m == nil || o.reg.kind != kvlocation.KindSpot || o.isWide() {
		return
	}
	spot, members := o.self().SpotRef(), m.list()
	if len(members) == 0 {
		return
	}
	s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, farewellTime)
		defer cancel()
		each(members, func(a ActorRef) {
			if ctx.Err() != nil {
				return
			}
			err := s.askOwner(ctx, "leave", actorKey(a), a.Generation, verbWith, withRequest{Generation: a.Generation, From: spot}, nil)
			if err != nil {
				s.log.Debug("a member was not told that its Spot is closed", zap.Stringer("actor", a), zap.Error(err))
			}
		})
	})
}
