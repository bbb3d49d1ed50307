package objects

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// castConcurrency is to how many members a broadcast sends at the same time.
	castConcurrency = 64
	// maxCastFailures bounds the failures that a result names.
	maxCastFailures = 100
)

// BroadcastResult says what became of a broadcast.
type BroadcastResult struct {
	// Members is how many it was for, Accepted how many mailboxes have it, Refused how many certainly have not, and
	// Unknown of how many nobody can tell.
	Members  int `json:"members"`
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`
	Unknown  int `json:"unknown"`
	// Failures names members that do not certainly have it, at most 100.
	Failures []BroadcastFailure `json:"failures,omitempty"`
}

// BroadcastFailure is one member that does not certainly have a broadcast.
type BroadcastFailure struct {
	Actor      ActorRef `json:"actor"`
	Kind       string   `json:"kind"`
	Acceptance string   `json:"acceptance"`
	Why        string   `json:"why"`
}

func (r *BroadcastResult) note(a ActorRef, err error) {
	switch {
	case err == nil:
		r.Accepted++
		return
	case errors.Is(err, outcome.NotAccepted):
		r.Refused++
	default:
		r.Unknown++
	}
	if len(r.Failures) < maxCastFailures {
		r.Failures = append(r.Failures, BroadcastFailure{
			Actor: a, Kind: outcome.KindOf(err).String(), Acceptance: outcome.AcceptanceOf(err).String(), Why: err.Error(),
		})
	}
}

// castRequest asks a Spot's owner for a broadcast.
type castRequest struct {
	Generation uint64 `json:"generation"`
	Data       []byte `json:"data"`
}

// broadcast is Spots.Broadcast.
func (s *Service) broadcast(ctx context.Context, ref SpotRef, data []byte) (r BroadcastResult, err error) {
	err = s.askOwner(ctx, "broadcast to", spotKey(ref), ref.Generation, verbCast, castRequest{ref.Generation, data}, &r)
	return r, err
}

func (s *Service) serveCast(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req castRequest
	if isEntry(key) {
		if err := s.entryRequest(key, data, &req, &req.Generation); err != nil {
			return nil, err
		}
		return s.cast(ctx, SpotRef{ID: key.ID, Generation: s.cfg.Lifecycle}, nil, s.entryMembers(), req.Data), nil
	}
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	switch {
	case err != nil:
		return nil, err
	case o.isCreating():
		return nil, outcome.New("", outcome.Unavailable, outcome.NotAccepted, key.String(), "it is being created")
	}
	if !s.adopted(o) { // a turn would have done that before
		if err := s.adopt(ctx, o); errors.Is(err, errLost) {
			return nil, lostError("", o)
		} else if err != nil {
			return nil, err
		}
	}
	return s.selfBroadcast(ctx, o, req.Data)
}

// selfBroadcast sends data to every member of a Spot of this node.
func (s *Service) selfBroadcast(ctx context.Context, o *object, data []byte) (BroadcastResult, error) {
	if o.reg.kind != kvlocation.KindSpot {
		return BroadcastResult{}, outcome.New("broadcast to", outcome.InvalidOperation, outcome.NotAccepted, o.target(), "only a Spot has members")
	}
	if err := s.admit(); err != nil {
		return BroadcastResult{}, err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	ref := o.self().SpotRef()
	if o.isWide() {
		return s.castWide(ctx, o, ref, data), nil
	}
	return s.cast(ctx, ref, o.m.Load(), s.selfMembers(o), data), nil
}

// cast sends data to members, some at a time. One that says that it is no member is taken off the list.
func (s *Service) cast(ctx context.Context, spot SpotRef, m *membership, members []ActorRef, data []byte) BroadcastResult {
	r := BroadcastResult{Members: len(members)}
	var mu sync.Mutex
	each(members, func(a ActorRef) {
		var joined uint64
		if m != nil {
			joined = m.joinedAt(a)
		}
		err := s.castTo(ctx, spot, a, data)
		if m != nil && (errors.Is(err, errNoMember) || errors.Is(err, outcome.NotFound)) {
			m.remove(a, joined) // unless it has joined anew since
		}
		mu.Lock()
		defer mu.Unlock()
		r.note(a, err)
	})
	s.stats.broadcasts.Add(1)
	return r
}

// castWide is cast for a SpotWide Spot, whose members are all here: no message goes out.
func (s *Service) castWide(ctx context.Context, o *object, spot SpotRef, data []byte) BroadcastResult {
	members := s.selfMembers(o)
	r := BroadcastResult{Members: len(members)}
	var mu sync.Mutex
	each(members, func(ref ActorRef) {
		err := error(outcome.Wrap("broadcast to", outcome.InvalidOperation, outcome.NotAccepted, actorKey(ref).String(), "", errNoMember))
		if a := s.memberHere(o, ref); a != nil {
			err = s.castHere(ctx, a, spot, data)
		}
		mu.Lock()
		defer mu.Unlock()
		r.note(ref, err)
	})
	s.stats.broadcasts.Add(1)
	return r
}

// each calls f for every member, for some at the same time.
func each[T any](members []T, f func(T)) {
	var wg sync.WaitGroup
	next := make(chan T)
	for range min(castConcurrency, len(members)) {
		wg.Go(func() {
			for a := range next {
				f(a)
			}
		})
	}
	for _, a := range members {
		next <- a
	}
	close(next)
	wg.Wait()
}

// errNoMember is in the chain of errors of a member's message that its Actor refused because it is no member.
var errNoMember = errors.New("the actor is no member of the spot")

// noMember is the value of Fabric-Spot in that refusal.
const noMember = nowhere

// castTo sends one member its message, to the exact incarnation.
func (s *Service) castTo(ctx context.Context, spot SpotRef, a ActorRef, data []byte) error {
	const op = "broadcast to"
	key := actorKey(a)
	o, r, err := s.exact(ctx, op, key, a.Generation)
	if err != nil {
		return err
	}
	if o != nil {
		return s.castHere(ctx, o, spot, data)
	}
	header, err := withChain(ctx, op, key, nats.Header{wire.HeaderSpot: {spot.String()}})
	if err != nil {
		return err
	}
	token, _ := wire.EscapeID(a.ID)
	reply, err := s.router.CallRun(ctx, &channels.RunCall{
		Op: op, Target: r.target, RID: r.rid, Lifecycle: r.lifecycle, Data: data, Header: header, OneWay: true,
		Subject: s.subject(r.rid, r.lifecycle, verbMember, key.Kind, token),
	})
	if err != nil {
		s.misled(r, reply.Header, err)
		if reply.Header.Get(wire.HeaderSpot) == noMember {
			return outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "", errNoMember)
		}
	}
	return err
}

// castHere offers a member of this node its message.
func (s *Service) castHere(ctx context.Context, o *object, spot SpotRef, data []byte) error {
	if !s.isMember(o, spot) {
		return outcome.Wrap("broadcast to", outcome.InvalidOperation, outcome.NotAccepted, o.target(), "", errNoMember)
	}
	e, err := s.rt.newLocal(ctx, "broadcast to", data, nil, true)
	if err != nil {
		return err
	}
	e.own().about = &about{broadcast: spot}
	because, held := o.offerOneWay(e)
	switch {
	case because != whyNot:
		e.release()
		return because.refusal("broadcast to", o.target(), false)
	case held != nil:
		return held.wait(ctx, o.key(), s.rt.deadline(ctx))
	}
	return nil
}

// isMember reports whether an Actor of this node is in a Spot.
func (s *Service) isMember(o *object, spot SpotRef) bool {
	in, ok := s.selfSpot(o)
	return ok && in == spot
}

// takeMember takes a member's message from the owner of the Spot.
func (s *Service) takeMember(in *channels.Inbound, key kvlocation.ObjectKey) {
	spot, err := ParseSpotRef(in.Header().Get(wire.HeaderSpot))
	if err != nil {
		in.Refuse(outcome.ProtocolError, err.Error(), nil)
		return
	}
	o := s.rt.find(key.Kind, key.ID)
	switch {
	case o == nil:
		if !s.follow(in, key, verbMember) {
			s.fail(in, s.notOwner(key))
		}
		return
	case o.is() == objectArriving: // what it has joined is known once it is open
		in.Refuse(outcome.Unavailable, "it is arriving at node "+s.cfg.RID, nil)
		return
	case !s.isMember(o, spot):
		in.Refuse(outcome.InvalidOperation, errNoMember.Error(), nats.Header{wire.HeaderSpot: {noMember}})
		return
	}
	e := newRemote(in)
	e.own().about = &about{broadcast: spot}
	if because := o.offer(e); because != whyNot {
		e.release()
		s.refuseInbound(o, in, because, verbMember)
	}
}
