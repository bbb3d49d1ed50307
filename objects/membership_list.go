package objects

import (
	"cmp"
	"context"
	"slices"

	"natsfabric/kvlocation"
)

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
