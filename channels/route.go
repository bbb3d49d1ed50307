package channels

import (
	"context"
	"math/rand/v2"
	"slices"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// route replaces a channel's queue group while a member sits in it that must not be picked: the callers pick among
// the ready members themselves, by the members' own subjects and with the same weights.
type route struct {
	members []routeMember
}

type routeMember struct {
	link    *link
	subject string
	weight  int
}

// pick draws a member that is not in refused, by weight; ok is false when there is none.
func (rt *route) pick(refused []string) (target, bool) {
	total := 0
	for i := range rt.members {
		if m := &rt.members[i]; !slices.Contains(refused, m.link.rid) {
			total += m.weight
		}
	}
	if total == 0 {
		return target{}, false
	}
	n := rand.N(total)
	for i := range rt.members {
		m := &rt.members[i]
		if slices.Contains(refused, m.link.rid) {
			continue
		}
		if n < m.weight {
			return target{subject: m.subject, link: m.link}, true
		}
		n -= m.weight
	}
	return target{}, false
}

// share is the weight with which a member takes part in a channel's selection; 0 = not at all (FO-3.1a).
func share(m *kvlocation.Member, channel string) int {
	if !m.State.Serves() {
		return 0
	}
	c, ok := m.Channel(channel)
	switch {
	case !ok:
		return 0
	case c.Kind == kvlocation.ClientServer:
		return 1
	case c.Kind == kvlocation.RouteMesh:
		return c.Weight
	}
	return 0 // a kind that this version does not know
}

// listExpired is why nothing is concluded from a list of members: the store's own absence is not a node's (FO-7b).
const listExpired = "the store has not answered for longer than the grace, so the list of members is not to be trusted"

// selectTarget says where the next attempt of a select-one operation goes.
func (r *Router) selectTarget(op *operation) (target, error) {
	if op.call.Op == opSendUnconfirmed {
		// Nobody would tell us that nobody is there.
		switch a := op.ch.audience(); {
		case !a.listed && a.members.Expired():
			return target{}, fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, listExpired)
		case !a.listed:
			return target{}, fail(op.call.Op, outcome.NotFound, outcome.NotAccepted, op.target, "no node lists it")
		case !a.ready:
			return target{}, fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, "no member that lists it is ready")
		}
	}
	routes := r.routes.Load()
	if routes == nil {
		return target{subject: op.ch.subject}, nil
	}
	rt := (*routes)[op.ch.name]
	if rt == nil {
		return target{subject: op.ch.subject}, nil
	}
	if to, ok := rt.pick(op.refused); ok {
		return to, nil
	}
	if to, ok := rt.pick(nil); ok {
		return to, nil
	}
	return target{}, fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, op.target, "no member that lists it is ready")
}

// audience is what candidates says of a channel, for as long as neither the list of members nor a peer's state changes.
type audience struct {
	members       *kvlocation.Members
	version       uint64
	listed, ready bool
}

// audience returns who may take a message of the channel now. It takes no lock while nothing changes.
func (c *Channel) audience() *audience {
	members, version := c.r.cfg.Directory.Members(), c.r.links.version.Load()
	if a := c.known.Load(); a != nil && a.members == members && a.version == version {
		return a
	}
	a := &audience{members: members, version: version}
	a.listed, a.ready, _ = c.r.candidates(c.name, nil)
	c.known.Store(a)
	return a
}

// candidates tells whether any descriptor lists the channel, whether a ready member is known, and whether one is
// known that is not in refused.
func (r *Router) candidates(channel string, refused []string) (listed, ready, open bool) {
	members := r.cfg.Directory.Members().Channel(channel)
	for i := range members {
		m := &members[i]
		if share(m, channel) == 0 || !r.links.stateOf(m).selectable() {
			continue
		}
		ready = true
		if !slices.Contains(refused, m.RID) {
			open = true
			break
		}
	}
	return len(members) > 0, ready, open
}

// directTarget finds the node that the caller named and greets it if need be.
func (r *Router) directTarget(ctx context.Context, op *operation) (target, error) {
	members := r.cfg.Directory.Members()
	if members.Expired() {
		return target{}, fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, directName(op), listExpired)
	}
	m, ok := members.Get(op.call.RID)
	if !ok {
		return target{}, fail(op.call.Op, outcome.NotFound, outcome.NotAccepted, directName(op), "the mesh has no such node")
	}
	if _, serves := m.Channel(op.ch.name); !serves {
		return target{}, fail(op.call.Op, outcome.NotFound, outcome.NotAccepted, directName(op), "the node does not serve it")
	}
	if !m.State.Serves() {
		return target{}, fail(op.call.Op, outcome.Unavailable, outcome.NotAccepted, directName(op), "the node is %s", m.State)
	}
	l := r.links.of(&m)
	if !l.ready() {
		if err := r.greet(ctx, op, l); err != nil {
			return target{}, err
		}
	}
	return target{subject: r.cfg.Mesh.NodeChannel(m.RID, m.Lifecycle, op.ch.name), link: l}, nil
}
