package objects

import (
	"context"
	"errors"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// shards is how many parts the registry has, so that look-ups and creations of different objects do not wait for each
// other.
const shards = 64

// recents is how many objects are found without a lock; a multiple of shards.
const recents = 16 * shards

// regType is a Type that is registered at this node.
type regType struct {
	Type
	kind kvlocation.ObjectKind
	// handle is Middleware around the instance's Handle; nil when there is no middleware.
	handle  Handler
	noMover sync.Once    // the warning that its instances cannot move
	owned   atomic.Int64 // slots that are taken
	_       [64]byte     // senders write the first counter, and workers read what stands before it
	counts  [countShards]typeCounts
}

// typeKey names a registered type: one name may be a type of several classes.
type typeKey struct {
	class Class
	name  string
}

// runtimeConfig says what a runtime works with; all fields but log are required.
type runtimeConfig struct {
	mesh           string
	rid            string
	lifecycle      uint64
	epoch          uint64
	types          []Type
	capacity       int
	maxTurns       int
	defaultTimeout time.Duration
	maxTimeout     time.Duration
	log            *zap.Logger
}

// runtime holds the objects of this node and runs their turns.
type runtime struct {
	back           backing
	mesh           string
	rid            string
	lifecycle      uint64
	epoch          uint64
	capacity       int
	defaultTimeout time.Duration
	maxTimeout     time.Duration
	log            *zap.Logger

	byKey map[typeKey]*regType
	order []*regType // as they were given
	owned atomic.Int64
	// full is told, without blocking, that a type or the node has become full, or is not full any more.
	full chan struct{}

	seed  maphash.Seed
	parts [shards]part
	// recent has objects that were found last, at the hash of their IDs. It is written with their part's lock held, so what is
	// forgotten does not come back.
	recent [recents]atomic.Pointer[object]

	sched     *scheduler
	clock     *clock
	nextShard atomic.Uint32
	admitted  atomic.Int64 // instant: when the lease's word was asked for last, and was yes
	// period is the present period of ownership; its context ends when the lease lapses.
	period atomic.Pointer[period]
	// draining: new mail is refused. stopped: nothing runs any more.
	draining, stopped atomic.Bool
	lost              lostObjects
}

// part is a part of the registry: by the hash of the ID, which is made once, and from there along object.same.
type part struct {
	mu    sync.RWMutex
	kinds [2]map[uint64]*object // by kindIndex
}

// period is one period in which the lease holds.
type period struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newPeriod() *period {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &period{ctx, cancel}
}

// newRuntime returns a runtime with the types registered. Its error names the type and field that is wrong.
func newRuntime(cfg runtimeConfig, back backing) (*runtime, error) {
	rt := &runtime{
		back: back, mesh: cfg.mesh, rid: cfg.rid, lifecycle: cfg.lifecycle, epoch: cfg.epoch, capacity: cfg.capacity,
		defaultTimeout: cfg.defaultTimeout, maxTimeout: cfg.maxTimeout, log: cfg.log,
		byKey: make(map[typeKey]*regType, len(cfg.types)), full: make(chan struct{}, 1), seed: maphash.MakeSeed(),
	}
	if rt.log == nil {
		rt.log = zap.NewNop()
	}
	entry := ""
	for _, t := range cfg.types {
		if err := t.check(); err != nil {
			return nil, err
		}
		key := typeKey{t.Class, t.Name}
		if _, twice := rt.byKey[key]; twice {
			return nil, errTwice(t)
		}
		if t.Class == kvlocation.ClassEntrySpot {
			if entry != "" {
				return nil, errEntries(entry, t.Name)
			}
			entry = t.Name
		}
		reg := newRegType(t)
		rt.byKey[key], rt.order = reg, append(rt.order, reg)
	}
	for i := range rt.parts {
		rt.parts[i].kinds = [2]map[uint64]*object{{}, {}}
	}
	rt.sched = newScheduler(rt, cfg.maxTurns, lanesFor(cfg.maxTurns))
	rt.clock = newClock(rt)
	rt.period.Store(newPeriod())
	return rt, nil
}

func newRegType(t Type) *regType {
	reg := &regType{Type: t, kind: t.Class.Key()}
	if len(t.Middleware) > 0 {
		reg.handle = func(ctx context.Context, req *Request) (Reply, error) { return req.self.o.inst.Handle(ctx, req) }
		for i := len(t.Middleware) - 1; i >= 0; i-- {
			reg.handle = t.Middleware[i](reg.handle)
		}
	}
	return reg
}

// typeOf returns a registered type; nil when this node has none of that name and class.
func (rt *runtime) typeOf(class Class, name string) *regType { return rt.byKey[typeKey{class, name}] }

// place returns where an object stands in the registry.
func (rt *runtime) place(kind kvlocation.ObjectKind, id string) (p *part, k int, hash uint64) {
	hash = maphash.String(rt.seed, id)
	return &rt.parts[hash%shards], kindIndex(kind), hash
}

// find returns the object that this node owns or is creating; nil when there is none.
func (rt *runtime) find(kind kvlocation.ObjectKind, id string) *object {
	p, k, hash := rt.place(kind, id)
	recent := &rt.recent[hash%recents]
	if o := recent.Load(); o != nil && o.id == id && o.reg.kind == kind {
		return o
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	o := p.kinds[k][hash]
	for o != nil && o.id != id {
		o = o.same
	}
	if o != nil {
		recent.Store(o)
	}
	return o
}

// insert puts o into the registry, unless another one is there: that one is returned.
func (rt *runtime) insert(o *object) (existing *object) {
	p, k, hash := rt.place(o.reg.kind, o.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.kinds[k][hash]
	for existing = first; existing != nil; existing = existing.same {
		if existing.id == o.id {
			return existing
		}
	}
	o.same = first
	p.kinds[k][hash] = o
	return nil
}

// forget takes o out of the registry.
func (rt *runtime) forget(o *object) {
	p, k, hash := rt.place(o.reg.kind, o.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	rt.recent[hash%recents].CompareAndSwap(o, nil)
	first := p.kinds[k][hash]
	if first == o {
		if o.same == nil {
			delete(p.kinds[k], hash)
		} else {
			p.kinds[k][hash] = o.same
		}
		return
	}
	for at := first; at != nil; at = at.same {
		if at.same == o {
			at.same = o.same
			return
		}
	}
}

// each calls f for every object; those that come or go meanwhile may be missed. f may take its time: no lock is held.
func (rt *runtime) each(f func(*object)) {
	for i := range rt.parts {
		p := &rt.parts[i]
		p.mu.RLock()
		list := make([]*object, 0, len(p.kinds[0])+len(p.kinds[1]))
		for _, objects := range p.kinds {
			for _, o := range objects {
				for ; o != nil; o = o.same {
					list = append(list, o)
				}
			}
		}
		p.mu.RUnlock()
		for _, o := range list {
			f(o)
		}
	}
}

// reserve takes a slot of the type and of the node, which abort, drop or unreserve give back. The error is an
// *outcome.Error, Unavailable and NotAccepted. Of several that ask for the last slot exactly one gets it.
func (rt *runtime) reserve(reg *regType) error {
	if n := rt.owned.Add(1); n > int64(rt.capacity) {
		rt.owned.Add(-1)
		return errNoSlot("the node's "+strconv.Itoa(rt.capacity)+" slots are taken", reg)
	} else if n == int64(rt.capacity) {
		rt.noteFull()
	}
	if n := reg.owned.Add(1); n > int64(reg.Capacity) {
		reg.owned.Add(-1)
		rt.owned.Add(-1)
		return errNoSlot("the type's "+strconv.Itoa(reg.Capacity)+" slots are taken", reg)
	} else if n == int64(reg.Capacity) {
		rt.noteFull()
	}
	return nil
}

// unreserve gives back a slot that no object came to use.
func (rt *runtime) unreserve(reg *regType) {
	if reg.owned.Add(-1) == int64(reg.Capacity)-1 {
		rt.noteFull()
	}
	if rt.owned.Add(-1) == int64(rt.capacity)-1 {
		rt.noteFull()
	}
}

// isFull reports whether no slot is left for the type.
func (rt *runtime) isFull(reg *regType) bool {
	return reg.owned.Load() >= int64(reg.Capacity) || rt.owned.Load() >= int64(rt.capacity)
}

// types is what the node's descriptor says of its types.
func (rt *runtime) types() []kvlocation.TypeInfo {
	list := make([]kvlocation.TypeInfo, 0, len(rt.order))
	for _, reg := range rt.order {
		list = append(list, kvlocation.TypeInfo{Name: reg.Name, Class: reg.Class, Capacity: reg.Capacity, Full: rt.isFull(reg)})
	}
	return list
}

// typesChanged gets a value when what types says may have changed.
func (rt *runtime) typesChanged() <-chan struct{} { return rt.full }

func (rt *runtime) noteFull() {
	select {
	case rt.full <- struct{}{}:
	default:
	}
}

func errNoSlot(detail string, reg *regType) error {
	return outcome.New("create", outcome.Unavailable, outcome.NotAccepted, string(reg.Class)+" type "+quote(reg.Name), "no free slot: "+detail)
}

// lostObjects counts the objects that were released, or are somebody else's, since the node held them.
type lostObjects struct {
	mu     sync.Mutex
	n      uint64
	logged time.Time
}

// lostEvery is the shortest time between two lines about lost objects.
const lostEvery = time.Second

// lose drops an object whose record says that it is not this node's any more. That is found when the object is asked for,
// so the line, which comes once a second at most, has the count of all up to then.
func (rt *runtime) lose(o *object, cause *outcome.Error) {
	if !rt.drop(o, cause) {
		return
	}
	rt.lost.mu.Lock()
	rt.lost.n++
	n, now := rt.lost.n, time.Now()
	quiet := now.Sub(rt.lost.logged) < lostEvery
	if !quiet {
		rt.lost.logged = now
	}
	rt.lost.mu.Unlock()
	if !quiet {
		rt.log.Warn("an object was released while this node was away: what it had in memory is dropped",
			zap.String("object", o.target()), zap.Uint64("lost_so_far", n))
	}
}

// drop takes the object out of the registry: what waits for it ends with cause, what is held and not accepted with the
// same kind and NotAccepted. A turn that runs, often the one that calls, goes on, and its answer goes out. It returns false
// when the object had ended already.
func (rt *runtime) drop(o *object, cause *outcome.Error) bool {
	return rt.remove(o, cause, outcome.New(cause.Op, cause.Kind, outcome.NotAccepted, cause.Target, cause.Detail))
}

// vanish takes an object out that has closed because it has moved.
func (rt *runtime) vanish(o *object) {
	rt.forget(o)
	rt.clock.forget(o)
	rt.unreserve(o.reg)
}

// endedBy is why an object is over, for its companion.
func (o *object) endedBy(cause error) CloseReason {
	switch reason := o.closing.Load(); {
	case reason != nil:
		return *reason
	case errors.Is(cause, outcome.NotFound):
		return CloseAsked
	case errors.Is(cause, outcome.ShuttingDown):
		return CloseShutdown
	}
	return CloseLost
}

// remove ends an object. Only its first call does anything, and returns true.
func (rt *runtime) remove(o *object, cause, held error) bool {
	o.mu.Lock()
	if o.state == objectClosed {
		o.mu.Unlock()
		return false
	}
	o.state, o.cause = objectClosed, cause
	list := o.box.takeAll()
	o.box.head, o.box.tail = nil, nil // what is left is ended by those who send its notice
	o.endSealLocked()
	o.mu.Unlock()
	rt.forget(o)
	rt.clock.forget(o)
	rt.unreserve(o.reg)
	if o.isWide() {
		rt.back.endMembers(o, cause, held)
	}
	o.endSlot(o.endedBy(cause))
	for e := list; e != nil; {
		next := e.next
		e.next = nil
		if e.isAccepted() {
			o.end(e, cause)
		} else {
			o.endHeld(e, held)
		}
		e = next
	}
	return true
}

// end ends accepted mail that did not run.
func (o *object) end(e *envelope, cause error) {
	if e.kind == mailMessage {
		o.reg.count(o).dropped.Add(1)
	}
	e.answer(Reply{}, cause)
}

func (o *object) endAll(list *envelope, cause error) {
	for e := list; e != nil; {
		next := e.next
		e.next = nil
		o.end(e, cause)
		e = next
	}
}

// endHeld ends mail that was never accepted.
func (o *object) endHeld(e *envelope, err error) {
	if e.kind == mailMessage {
		o.reg.count(o).refused[whyAborted].Add(1)
	}
	switch {
	case e.from != nil:
		o.rt.back.abortHeld(e.from, err)
		e.release()
	case e.held != nil:
		e.held.end(err)
		e.release()
	default:
		e.answer(Reply{}, err)
	}
}

// lapse closes every object until regained, which must follow: the contexts of running turns end with ErrOwnershipLost,
// nothing new is accepted, and what was accepted waits.
func (rt *runtime) lapse() {
	rt.sched.close()
	rt.period.Load().cancel(kvlocation.ErrOwnershipLost)
}

// regained lets objects run again, each one after it was adopted. The lease must admit already.
func (rt *runtime) regained() {
	old := rt.period.Swap(newPeriod())
	old.cancel(kvlocation.ErrOwnershipLost)
	rt.sched.open()
}

// closedFor says why the node as a whole does not take mail of a kind; within: it is sent by a turn.
func (rt *runtime) closedFor(kind mailKind, within bool) why {
	switch {
	case rt.stopped.Load():
		return whyDraining
	case rt.sched.lapsed.Load() && kind.counts():
		return whyLapsed
	case rt.draining.Load() && kind == mailMessage && !within:
		return whyDraining
	}
	return whyNot
}
