package channels

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
)

// PeerState is what a router knows of another process run.
type PeerState uint32

// The states of a peer.
const (
	// PeerUnknown: not greeted in this connection epoch. It is picked by selection; a direct operation greets it
	// first. Next: any.
	PeerUnknown PeerState = iota
	// PeerReady: it answered in this connection epoch. Next: PeerUnknown with the next epoch, PeerSuspect, PeerGone.
	PeerReady
	// PeerSuspect: a probe stayed unanswered for 2 s. Selection goes around it. Next: PeerReady by any answer,
	// PeerNotReady, PeerGone.
	PeerSuspect
	// PeerNotReady: probes stayed unanswered for 5 s, or its lease is gone. Never picked. Next: PeerReady by any
	// answer, PeerGone.
	PeerNotReady
	// PeerGone: the server says that nothing listens on its inbox, so it sits in no queue group either. Next:
	// PeerReady by an answer, PeerUnknown when its descriptor is written again.
	PeerGone
)

// String returns the state in words.
func (s PeerState) String() string {
	return [...]string{"unknown", "ready", "suspect", "not ready", "gone"}[s]
}

// selectable reports whether select-one may pick the peer.
func (s PeerState) selectable() bool { return s == PeerUnknown || s == PeerReady }

// avoided reports whether the peer may still sit in a queue group although it must not be picked.
func (s PeerState) avoided() bool { return s == PeerSuspect || s == PeerNotReady }

// PeerStatus is one peer as Router.Peers reports it.
type PeerStatus struct {
	RID       string
	Lifecycle uint64
	State     PeerState
	// Epoch is the peer's own connection epoch as its last hello said; 0 before the first.
	Epoch uint64
	// Listed is false for a process run whose descriptor is gone but which may still sit in a queue group.
	Listed bool
}

type linkKey struct {
	rid       string
	lifecycle uint64
}

// link is what this router knows of one process run.
type link struct {
	linkKey
	state atomic.Uint32 // a PeerState; written under links.mu
	// greeted is true once the peer has answered in this connection epoch; written under links.mu.
	greeted atomic.Bool

	// The rest is guarded by links.mu.
	member   kvlocation.Member
	listed   bool
	epoch    uint64
	greeting *greeting // the handshake under way
	probing  bool
	probed   monotime.Time // when it was probed last; 0 = never
}

func (l *link) is() PeerState { return PeerState(l.state.Load()) }

// ready reports whether the peer answered in this epoch and is not known to have gone silent since. A suspect one is
// ready only if it answered: suspicion outlives an epoch, and falls on peers that were never greeted, too.
func (l *link) ready() bool {
	s := l.is()
	return (s == PeerReady || s == PeerSuspect) && l.greeted.Load()
}

// links holds one link per process run in the directory, and those that left it without leaving the queue groups.
type links struct {
	r  *Router
	mu sync.Mutex
	// all is bounded by the directory plus maxGhosts.
	all map[linkKey]*link
	// detours are the channels that go around their queue groups, or did a while ago; turnBack is when the first of
	// them is to be looked at again.
	detours  map[string]*detour
	turnBack time.Time
	// version counts the changes of who is selectable.
	version atomic.Uint64
}

// maxGhosts bounds the links whose descriptor is gone.
const maxGhosts = 64

func (ls *links) init(r *Router) { ls.r, ls.all = r, make(map[linkKey]*link) }

// of returns the link of a member.
func (ls *links) of(m *kvlocation.Member) *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.ofLocked(m)
}

func (ls *links) ofLocked(m *kvlocation.Member) *link {
	key := linkKey{m.RID, m.Lifecycle}
	l := ls.all[key]
	if l == nil {
		l = &link{linkKey: key, member: *m, listed: true}
		ls.all[key] = l
	}
	return l
}

// run returns the link of a process run. Of one that is not listed, because the directory does not know it yet or does
// not know it any more, it returns a link that is kept by nobody: each operation greets it anew.
func (ls *links) run(rid string, lifecycle uint64) *link {
	key := linkKey{rid, lifecycle}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.all[key]; l != nil {
		return l
	}
	return &link{linkKey: key}
}

func (ls *links) stateOf(m *kvlocation.Member) PeerState { return ls.of(m).is() }

// reconcile takes over a new list of members.
func (ls *links) reconcile(members *kvlocation.Members) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.all {
		l.listed = false
	}
	all := members.All()
	for i := range all {
		l := ls.ofLocked(&all[i])
		if l.member.Revision != all[i].Revision && l.is() == PeerGone {
			l.state.Store(uint32(PeerUnknown)) // it has written since: greet it again
		}
		l.member, l.listed = all[i], true
	}
	ghosts := 0
	for key, l := range ls.all {
		if l.listed {
			continue
		}
		if ghosts++; !l.is().avoided() || ghosts > maxGhosts {
			delete(ls.all, key)
		}
	}
	ls.rerouteLocked()
}

// forgetReady makes every ready peer unknown: what was ready in one connection epoch is not in the next (FO-10.5).
// Suspicion stays, because the suspect is still in the server's queue groups.
func (ls *links) forgetReady() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.all {
		l.greeted.Store(false)
		if l.is() == PeerReady {
			l.state.Store(uint32(PeerUnknown))
		}
	}
}

// set changes a link's state.
func (ls *links) set(l *link, s PeerState) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.setLocked(l, s)
}

func (ls *links) setLocked(l *link, s PeerState) {
	if s == PeerReady {
		l.greeted.Store(true)
	}
	old := l.is()
	if old == s {
		return
	}
	l.state.Store(uint32(s))
	if ls.all[l.linkKey] != l { // one that was made anew since, or that is kept by nobody
		return
	}
	if !l.listed && !s.avoided() {
		delete(ls.all, l.linkKey)
	}
	if old.selectable() != s.selectable() || old.avoided() != s.avoided() {
		ls.rerouteLocked()
	}
	switch s {
	case PeerSuspect:
		ls.r.counters.suspects.Add(1)
	case PeerNotReady:
		ls.r.counters.notReady.Add(1)
	}
}

// rerouteLocked computes the channels that need a route of their own, and the routes.
func (ls *links) rerouteLocked() {
	ls.version.Add(1)
	members := ls.r.cfg.Directory.Members()
	var routes map[string]*route
	for _, l := range ls.all {
		if !l.is().avoided() {
			continue
		}
		for _, c := range l.member.Channels {
			if routes[c.Name] != nil {
				continue
			}
			if routes == nil {
				routes = make(map[string]*route)
			}
			routes[c.Name] = ls.routeLocked(members.Channel(c.Name), c.Name)
		}
	}
	now := time.Now()
	for name, d := range ls.detours {
		if routes[name] != nil || !d.active(now) {
			continue
		}
		if rt := ls.routeLocked(members.Channel(name), name); len(rt.members) > 0 {
			if routes == nil {
				routes = make(map[string]*route)
			}
			routes[name] = rt
		}
	}
	if routes == nil {
		ls.r.routes.Store(nil)
		return
	}
	ls.r.routes.Store(&routes)
}

func (ls *links) routeLocked(members []kvlocation.Member, channel string) *route {
	rt := &route{}
	for i := range members {
		m := &members[i]
		l := ls.ofLocked(m)
		if w := share(m, channel); w > 0 && l.is().selectable() {
			rt.members = append(rt.members, routeMember{
				link: l, weight: w, subject: ls.r.cfg.Mesh.NodeChannel(m.RID, m.Lifecycle, channel),
			})
		}
	}
	return rt
}

// Peers returns what the router knows of the other process runs, sorted by RID and lifecycle.
func (r *Router) Peers() []PeerStatus {
	r.links.mu.Lock()
	defer r.links.mu.Unlock()
	peers := make([]PeerStatus, 0, len(r.links.all))
	for _, l := range r.links.all {
		peers = append(peers, PeerStatus{RID: l.rid, Lifecycle: l.lifecycle, State: l.is(), Epoch: l.epoch, Listed: l.listed})
	}
	slices.SortFunc(peers, func(a, b PeerStatus) int {
		return cmp.Or(cmp.Compare(a.RID, b.RID), cmp.Compare(a.Lifecycle, b.Lifecycle))
	})
	return peers
}
