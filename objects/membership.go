package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Membership: an Actor's record says in the field with which Spot it has joined, by exact generation; its owner writes
// that, asked by a turn of the Spot. The Spot's owner keeps the list in memory, for as long as the Spot lives there. The
// record decides: a message of a broadcast is taken only by an Actor that is a member, and one that refuses it so is taken
// off the list.

// maxMembers bounds the members of one Spot.
const maxMembers = 100_000

// membership is what an Actor or a Spot has of it in memory.
type membership struct {
	// writing serialises what changes the record of an Actor.
	writing chan struct{}

	mu      sync.Mutex
	spot    SpotRef               // of an Actor
	members map[ActorRef]struct{} // of a Spot
	closing bool                  // the Spot refuses joins
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
	m.closing = on
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

func (m *membership) add(a ActorRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.members == nil {
		m.members = make(map[ActorRef]struct{})
	}
	m.members[a] = struct{}{}
}

// remove reports whether a was on the list.
func (m *membership) remove(a ActorRef) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, was := m.members[a]
	delete(m.members, a)
	return was
}

func (m *membership) has(a ActorRef) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.members[a]
	return ok
}

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
}

// withRequest asks an Actor's owner to write its membership.
type withRequest struct {
	Generation uint64 `json:"generation"` // the Actor's
	// Spot is the new one, zero for none; From, unless zero, is the one that it must be in.
	Spot SpotRef `json:"spot,omitzero"`
	From SpotRef `json:"from,omitzero"`
}

// withReply says which Spot the Actor was in before.
type withReply struct {
	Was SpotRef `json:"was,omitzero"`
}

// leftRequest tells a Spot that an Actor is no member any more.
type leftRequest struct {
	Generation uint64   `json:"generation"` // the Spot's
	Actor      ActorRef `json:"actor"`
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
		return s.askOwner(ctx, "join", spotKey(spot), spot.Generation, verbJoin, joinRequest{spot.Generation, actor}, nil)
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
	return s.askOwner(ctx, "leave", spotKey(spot), spot.Generation, verbLeave, joinRequest{spot.Generation, actor}, nil)
}

// serveJoin is a turn of the Spot, settled before it ends.
func (s *Service) serveJoin(ctx context.Context, key kvlocation.ObjectKey, data []byte, join bool) (any, error) {
	var req joinRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
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
	m.mu.Lock()
	closing, n := m.closing, len(m.members)
	m.mu.Unlock()
	switch {
	case closing:
		return outcome.New("join", outcome.Unavailable, outcome.NotAccepted, o.target(), "it is being closed and refuses joins")
	case m.has(actor):
		return nil
	case n >= maxMembers:
		return outcome.New("join", outcome.CapacityExceeded, outcome.NotAccepted, o.target(), fmt.Sprintf("it has %d members already", n))
	}
	if w, ok := o.inst.(MemberWatcher); ok {
		if err := w.Joining(ctx, o.self(), actor); err != nil {
			return outcome.Wrap("join", rejectedKind(err), outcome.NotAccepted, o.target(), "the Spot refused "+actor.String(), err)
		}
	}
	var was withReply
	err := s.askOwner(ctx, "join", actorKey(actor), actor.Generation, verbWith, withRequest{Generation: actor.Generation, Spot: spot}, &was)
	if err != nil && !errors.Is(err, outcome.NotAccepted) {
		err = s.settleWith(actor, err, func(now SpotRef) bool { return now == spot })
	}
	if err != nil {
		return err
	}
	m.add(actor)
	s.stats.joined.Add(1)
	return nil
}

func (s *Service) leaveTurn(ctx context.Context, o *object, m *membership, spot SpotRef, actor ActorRef) error {
	err := s.askOwner(ctx, "leave", actorKey(actor), actor.Generation, verbWith, withRequest{Generation: actor.Generation, From: spot}, nil)
	if err != nil && !errors.Is(err, outcome.NotAccepted) {
		err = s.settleWith(actor, err, func(now SpotRef) bool { return now != spot })
	}
	switch {
	case errors.Is(err, outcome.NotFound), errors.Is(err, outcome.InvalidOperation):
		// That incarnation is gone, or says that it is no member: it is none.
		m.remove(actor)
		return err
	case err != nil:
		return err
	}
	if m.remove(actor) {
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
func (s *Service) settleWith(actor ActorRef, why error, done func(SpotRef) bool) error {
	rctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	e, err := s.store.Read(rctx, actorKey(actor))
	if err != nil || e.Phase() != kvlocation.PhaseReady || e.Generation() != actor.Generation || !done(spotIn(e.Record.With)) {
		return outcome.Wrap("join", outcome.KindOf(why), outcome.Unknown, actorKey(actor).String(), "", why)
	}
	return nil
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
		reply.Was = spotOf(o)
		return s.changeWith(ctx, o, m, reply.Was, req)
	}, func() { <-m.writing })
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// changeWith writes an Actor's membership, if it is what the request says that it is.
func (s *Service) changeWith(ctx context.Context, o *object, m *membership, was SpotRef, req withRequest) error {
	if !req.From.IsZero() && was != req.From {
		return outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, o.target(), "it is no member of "+req.From.String())
	}
	if was == req.Spot {
		return nil
	}
	if err := s.writeWith(ctx, o, req.Spot); err != nil {
		return err
	}
	m.mu.Lock()
	m.spot = req.Spot
	m.mu.Unlock()
	if !was.IsZero() && req.From.IsZero() {
		s.tellLeft(was, ActorRef{ID: o.id, Generation: req.Generation})
	}
	return nil
}

// writeWith is one compare-and-set on the Actor's record, pursued until its result is definite.
func (s *Service) writeWith(ctx context.Context, o *object, spot SpotRef) error {
	err := s.adopt(ctx, o)
	var e kvlocation.Entry
	if err == nil {
		e, err = s.ownEntry(ctx, o)
	}
	switch {
	case errors.Is(err, errLost):
		return lostError("", o)
	case err != nil: // whatever became of the adoption, the membership was not changed
		return outcome.Wrap("", outcome.KindOf(err), outcome.NotAccepted, o.target(), "", err)
	}
	var with json.RawMessage
	if !spot.IsZero() {
		if with, err = json.Marshal(withDoc{Spot: spot.ID, Generation: spot.Generation}); err != nil {
			return err
		}
	}
	ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.SetWith(ctx, e, s.owner(), with) })
	switch {
	case illegal(err):
		return lostError("", o)
	case err == nil && ch.Overwritten && !s.owns(ch.Entry, o):
		return lostError("", o)
	}
	return err
}

// tellLeft tells a Spot, in the background and once, that an Actor is no member any more. If it gets lost, the Spot learns
// it at its next broadcast.
func (s *Service) tellLeft(spot SpotRef, actor ActorRef) {
	s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.DefaultTimeout)
		defer cancel()
		err := s.askOwner(ctx, "leave", spotKey(spot), spot.Generation, verbLeft, leftRequest{spot.Generation, actor}, nil)
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
		if s.membersOf(o).remove(req.Actor) {
			s.toldLeft(ctx, o, req.Actor)
		}
		return nil
	})
}

// farewell tells those whom it concerns that an object was closed here: an Actor's Spot, and a Spot's members, whose records
// name it until then. What of it gets lost is harmless: a reference to a Spot that is closed means none.
func (s *Service) farewell(o *object) {
	if spot := spotOf(o); !spot.IsZero() {
		s.tellLeft(spot, ActorRef{ID: o.id, Generation: o.generation.Load()})
	}
	m := o.m.Load()
	if m == nil || o.reg.kind != kvlocation.KindSpot {
		return
	}
	spot, members := o.self().SpotRef(), m.list()
	if len(members) == 0 {
		return
	}
	s.spawn(func() {
		for _, a := range members {
			if s.ctx.Err() != nil {
				return
			}
			ctx, cancel := context.WithTimeout(s.ctx, s.cfg.DefaultTimeout)
			err := s.askOwner(ctx, "leave", actorKey(a), a.Generation, verbWith, withRequest{Generation: a.Generation, From: spot}, nil)
			cancel()
			if err != nil {
				s.log.Debug("a member was not told that its Spot is closed", zap.Stringer("actor", a), zap.Error(err))
			}
		}
	})
}

// membersReply lists a Spot's members.
type membersReply struct {
	Members []ActorRef `json:"members"`
}

// members is Spots.Members.
func (s *Service) members(ctx context.Context, ref SpotRef) ([]ActorRef, error) {
	var r membersReply
	err := s.askOwner(ctx, "list members of", spotKey(ref), ref.Generation, verbMembers, exactRequest{ref.Generation}, &r)
	return r.Members, err
}

// serveMembers lists the members of a Spot of this node.
func (s *Service) serveMembers(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req exactRequest
	if isEntry(key) {
		return membersReply{s.entryMembers()}, s.entryRequest(key, data, &req, &req.Generation)
	}
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
	}
	return membersReply{s.selfMembers(o)}, nil
}

// selfMembers lists a Spot's members, sorted.
func (s *Service) selfMembers(o *object) []ActorRef {
	if o.reg.kind != kvlocation.KindSpot {
		return nil
	}
	if isEntry(o.key()) {
		return s.entryMembers()
	}
	m := o.m.Load()
	if m == nil {
		return nil
	}
	return sortRefs(m.list())
}

// entryMembers lists the Actors of this node that have joined no Spot.
func (s *Service) entryMembers() []ActorRef {
	var refs []ActorRef
	s.rt.each(func(o *object) {
		if o.reg.kind == kvlocation.KindActor && !o.isCreating() && spotOf(o).IsZero() {
			refs = append(refs, ActorRef{ID: o.id, Generation: o.generation.Load()})
		}
	})
	return sortRefs(refs)
}

func sortRefs(refs []ActorRef) []ActorRef {
	slices.SortFunc(refs, func(a, b ActorRef) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Generation, b.Generation))
	})
	return refs
}

// selfSpot returns the Spot that an Actor is in: the one that it has joined, else its node's Entry Spot.
func (s *Service) selfSpot(o *object) (SpotRef, bool) {
	if o.reg.kind != kvlocation.KindActor {
		return SpotRef{}, false
	}
	if spot := spotOf(o); !spot.IsZero() {
		return spot, true
	}
	return SpotRef{ID: entryPrefix + s.cfg.RID, Generation: s.cfg.Lifecycle}, true
}
