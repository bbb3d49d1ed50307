package objects

import (
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

const (
	routeShards = 64
	// evictSample is how many routes are looked at to find one to drop: the one that expires first of them.
	evictSample = 8
)

// place is where an object is, or is being made, as somebody said. Its text form is the value of the header
// Fabric-Route: rid lifecycle generation owner-generation phase.
type place struct {
	rid             string
	lifecycle       uint64
	generation      uint64
	ownerGeneration uint64
	phase           kvlocation.Phase
}

// newer reports whether p says more than q: routes are replaced only by a higher (ObjectGeneration, owner generation).
func (p place) newer(q place) bool {
	if p.generation != q.generation {
		return p.generation > q.generation
	}
	return p.ownerGeneration > q.ownerGeneration
}

func (p place) is(rid string, lifecycle uint64) bool { return p.rid == rid && p.lifecycle == lifecycle }

func (p place) String() string {
	b := make([]byte, 0, 64)
	b = append(append(b, p.rid...), ' ')
	b = append(strconv.AppendUint(b, p.lifecycle, 10), ' ')
	b = append(strconv.AppendUint(b, p.generation, 10), ' ')
	b = append(strconv.AppendUint(b, p.ownerGeneration, 10), ' ')
	return string(append(b, p.phase...))
}

// parsePlace reads the text form; ok is false for anything else, the "-" of a node that knows nothing included.
func parsePlace(text string) (p place, ok bool) {
	f := strings.Split(text, " ")
	if len(f) != 5 || wire.CheckName("RID", f[0]) != nil {
		return p, false
	}
	p.rid, p.phase = f[0], kvlocation.Phase(f[4])
	for i, to := range []*uint64{&p.lifecycle, &p.generation, &p.ownerGeneration} {
		n, err := strconv.ParseUint(f[i+1], 10, 64)
		if err != nil {
			return place{}, false
		}
		*to = n
	}
	return p, p.lifecycle != 0 && p.generation != 0 && (p.phase == kvlocation.PhaseCreating || p.phase == kvlocation.PhaseReady)
}

// placeOf is what an entry that is Creating or Ready says; one that is located by reference says what its Spot's does.
func placeOf(l kvlocation.Located) place {
	owner, phase := l.Owner(), l.Phase()
	if phase == kvlocation.PhaseMoving { // its source takes what is for it until the move is committed, and after
		phase = kvlocation.PhaseReady
	}
	return place{rid: owner.RID, lifecycle: owner.Lifecycle, generation: l.Generation(), ownerGeneration: l.OwnerGeneration(), phase: phase}
}

// route is a place to which messages go, with what a message needs, so that sending one over it makes nothing new. It
// is not changed once it stands in the cache.
type route struct {
	place
	class   Class
	typ     string
	key     kvlocation.ObjectKey
	target  string // for errors: actor "alice"
	subject string // of an ordinary message
	expires monotime.Time
}

// routes is the cache of Ready objects' routes. Missing, Creating and failures are never in it.
type routes struct {
	seed   maphash.Seed
	ttl    time.Duration
	most   int // in one shard
	shards [routeShards]routeShard

	hits, misses, dropped, evicted atomic.Uint64
}

type routeShard struct {
	mu sync.RWMutex
	// by holds the routes of Actors and Spots apart (kindIndex), so that a look-up makes no key.
	by [2]map[string]*route
}

func kindIndex(k kvlocation.ObjectKind) int {
	if k == kvlocation.KindActor {
		return 0
	}
	return 1
}

func (rs *routes) init(most int, ttl time.Duration) {
	rs.seed, rs.ttl = maphash.MakeSeed(), ttl
	rs.most = max(1, most/routeShards)
	for i := range rs.shards {
		rs.shards[i].by = [2]map[string]*route{{}, {}}
	}
}

func (rs *routes) shard(id string) *routeShard {
	return &rs.shards[maphash.String(rs.seed, id)%routeShards]
}

// get returns the route of an object, or nil when there is none that still counts.
func (rs *routes) get(kind kvlocation.ObjectKind, id string) *route {
	sh := rs.shard(id)
	sh.mu.RLock()
	r := sh.by[kindIndex(kind)][id]
	sh.mu.RUnlock()
	if r == nil || monotime.Now() >= r.expires {
		rs.misses.Add(1)
		return nil
	}
	rs.hits.Add(1)
	return r
}

// put enters a route. An entry with higher generations stays, unless it has expired.
func (rs *routes) put(r *route) {
	now := monotime.Now()
	r.expires = now.Add(rs.ttl)
	sh := rs.shard(r.key.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := sh.by[kindIndex(r.key.Kind)]
	if old := m[r.key.ID]; old != nil {
		if now < old.expires && old.newer(r.place) {
			return
		}
	} else if len(sh.by[0])+len(sh.by[1]) >= rs.most {
		sh.evict()
		rs.evicted.Add(1)
	}
	m[r.key.ID] = r
}

// evict drops the route that expires first among a few. It must be called with the lock held.
func (sh *routeShard) evict() {
	var victim *route
	for _, m := range sh.by {
		n := 0
		for _, r := range m {
			if victim == nil || r.expires < victim.expires {
				victim = r
			}
			if n++; n == evictSample {
				break
			}
		}
	}
	if victim != nil {
		delete(sh.by[kindIndex(victim.key.Kind)], victim.key.ID)
	}
}

// drop removes a route that was found stale, unless a newer one took its place.
func (rs *routes) drop(r *route) {
	sh := rs.shard(r.key.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := sh.by[kindIndex(r.key.Kind)]
	if m[r.key.ID] == r {
		delete(m, r.key.ID)
		rs.dropped.Add(1)
	}
}

// forget removes the route of an incarnation that is known to have ended.
func (rs *routes) forget(key kvlocation.ObjectKey, generation uint64) {
	sh := rs.shard(key.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := sh.by[kindIndex(key.Kind)]
	if r := m[key.ID]; r != nil && r.generation <= generation {
		delete(m, key.ID)
	}
}

// known returns how many routes the cache holds.
func (rs *routes) known() int {
	n := 0
	for i := range rs.shards {
		sh := &rs.shards[i]
		sh.mu.RLock()
		n += len(sh.by[0]) + len(sh.by[1])
		sh.mu.RUnlock()
	}
	return n
}

// newRoute makes the route of an object at a place.
func (s *Service) newRoute(key kvlocation.ObjectKey, token string, class Class, typ string, p place) *route {
	return &route{
		place: p, class: class, typ: typ, key: key, target: key.String(),
		subject: s.subject(p.rid, p.lifecycle, verbMessage, key.Kind, token),
	}
}

// learn enters what a node said about where an object is.
func (s *Service) learn(key kvlocation.ObjectKey, token string, class Class, typ string, p place) {
	if p.phase == kvlocation.PhaseReady && !p.is(s.cfg.RID, s.cfg.Lifecycle) {
		s.routes.put(s.newRoute(key, token, class, typ, p))
	}
}
