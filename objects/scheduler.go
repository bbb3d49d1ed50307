package objects

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// turnBudget and timeBudget are how long a worker stays with one object while others wait for a worker. After
	// timeBudget it also lets others have the processor.
	turnBudget = 64
	timeBudget = 250 * time.Microsecond
	// maxIdleWorkers is how many goroutines wait for work at most; more end when they have none.
	maxIdleWorkers = 256
)

// scheduler gives objects with mail to workers. A worker is a goroutine that runs one object's turns, one after the
// other. There are at most max of them, each started when it is needed. A handler that blocks keeps its worker, and
// nobody else's.
//
// Objects that get mail stand in the run queue, in that order. One worker at a time is summoned for them, and when it
// comes and finds more it summons the next: so a burst is shared by as many workers as it takes and wakes no goroutine
// for each message, and an object whose handler blocks holds up nobody behind it.
//
// While it is closed, by a lapse of the lease, objects stay in the run queue.
type scheduler struct {
	rt  *runtime
	max int

	mu         sync.Mutex
	head, tail *object // the run queue, each object once
	idle       []*worker
	all        map[*worker]struct{}
	stopped    bool
	quiet      chan struct{} // closed when active becomes 0; nil while nobody waits
	gone       chan struct{} // closed when the last worker has ended; nil while nobody waits

	queued atomic.Int64 // length of the run queue
	active atomic.Int64 // objects that are in the run queue or with a worker; written under mu
	lapsed atomic.Bool  // it is closed; written under mu
	// coming: a summoned worker is on its way. It is set under mu, behind the writing of queued; the worker clears it
	// and reads queued afterwards: so either who queues sees that nobody comes, or who comes sees what is queued.
	coming atomic.Bool
}

// worker is one goroutine.
type worker struct {
	wake chan *object // nil ends it
	// cur is the object that it has, for those who look for blocked turns.
	cur atomic.Pointer[object]
	// ahead is the mail that it has taken in advance, of cur; done the envelopes of Sends that it has run since it last
	// locked an object.
	ahead ahead
	done  blanks
}

func newScheduler(rt *runtime, max int) *scheduler {
	return &scheduler{rt: rt, max: max, all: make(map[*worker]struct{})}
}

// ready takes an object that has mail and no worker.
func (s *scheduler) ready(o *object) {
	s.mu.Lock()
	s.active.Add(1)
	s.placeLocked(o)
}

// placeLocked sees that a worker gets to o, and unlocks.
func (s *scheduler) placeLocked(o *object) {
	s.pushLocked(o)
	s.summonLocked()
}

// summonLocked summons a worker for the head of the run queue, unless one is on its way or none is to be had: then one
// that has ended a turn will look. It unlocks.
func (s *scheduler) summonLocked() {
	if s.head == nil || s.lapsed.Load() || !s.coming.CompareAndSwap(false, true) {
		s.mu.Unlock()
		return
	}
	if last := len(s.idle) - 1; last >= 0 {
		w := s.idle[last]
		s.idle = s.idle[:last]
		o := s.popLocked()
		s.mu.Unlock()
		w.wake <- o
		return
	}
	if len(s.all) < s.max && !s.stopped {
		w := &worker{wake: make(chan *object, 1)}
		s.all[w] = struct{}{}
		go s.work(w, s.popLocked())
	} else {
		s.coming.Store(false)
	}
	s.mu.Unlock()
}

// arrived is called by a worker that was summoned.
func (s *scheduler) arrived() {
	s.coming.Store(false)
	if s.queued.Load() > 0 {
		s.mu.Lock()
		s.summonLocked()
	}
}

func (s *scheduler) pushLocked(o *object) {
	o.queued = nil
	if s.tail == nil {
		s.head = o
	} else {
		s.tail.queued = o
	}
	s.tail = o
	s.queued.Add(1)
}

func (s *scheduler) popLocked() *object {
	o := s.head
	if o == nil {
		return nil
	}
	s.head = o.queued
	if s.head == nil {
		s.tail = nil
	}
	o.queued = nil
	s.queued.Add(-1)
	return o
}

// work is a worker.
func (s *scheduler) work(w *worker, o *object) {
	normal := false
	defer func() {
		if !normal { // a handler ended the goroutine with runtime.Goexit; its turn is settled
			s.replace(w)
		}
	}()
	s.arrived()
	for o != nil {
		w.cur.Store(o)
		after := s.run(w, o)
		w.cur.Store(nil)
		o = s.next(w, o, after)
	}
	normal = true
}

// after is what becomes of an object when its worker stops running its turns.
type after uint8

const (
	afterIdle  after = iota // it has no mail
	afterYield              // it has, and its budget is used up
	afterLapse              // it has, and the lease has lapsed
)

// run runs turns of o until it has no mail, has used up its budget while others wait, or the lease lapses.
func (s *scheduler) run(w *worker, o *object) after {
	now := tick()
	end := now.add(timeBudget)
	for n := 1; ; n++ {
		alone := s.alone()
		e := o.take(w, now, !alone)
		if e == nil && alone { // a caller who has its answer often asks again at once, and need not wake anybody then
			goruntime.Gosched()
			now = tick()
			n, end = 1, now.add(timeBudget)
			e = o.take(w, now, true)
		}
		if e == nil {
			return afterIdle
		}
		var ran bool
		if now, ran = o.deal(w, e, now); !ran {
			o.since.Store(0)
			return afterLapse // its mail was recalled
		}
		if n < turnBudget && now < end {
			continue
		}
		if s.queued.Load() > 0 {
			o.since.Store(0)
			o.recall()
			return afterYield
		}
		if now >= end {
			goruntime.Gosched()
			end = now.add(timeBudget)
		}
		n = 0
	}
}

// alone reports whether no other object has mail or a turn.
func (s *scheduler) alone() bool { return s.active.Load() == 1 }

// next settles what o's worker has left and returns what it is to run next; nil ends the worker.
func (s *scheduler) next(w *worker, o *object, how after) *object {
	s.mu.Lock()
	if how == afterIdle {
		s.quietLocked()
	} else {
		s.pushLocked(o)
	}
	if !s.lapsed.Load() {
		if o := s.popLocked(); o != nil {
			s.summonLocked()
			return o
		}
	}
	if s.stopped || len(s.idle) >= maxIdleWorkers {
		s.endLocked(w)
		s.mu.Unlock()
		return nil
	}
	s.idle = append(s.idle, w)
	s.mu.Unlock()
	if o = <-w.wake; o != nil {
		s.arrived()
	}
	return o
}

// quietLocked counts an object that is neither queued nor with a worker any more.
func (s *scheduler) quietLocked() {
	if s.active.Add(-1) == 0 && s.quiet != nil {
		close(s.quiet)
		s.quiet = nil
	}
}

func (s *scheduler) endLocked(w *worker) {
	delete(s.all, w)
	if len(s.all) == 0 && s.gone != nil {
		close(s.gone)
		s.gone = nil
	}
}

// replace ends a worker whose goroutine has been ended by the handler, and places its object anew.
func (s *scheduler) replace(w *worker) {
	o := w.cur.Load()
	o.recall()
	s.mu.Lock()
	s.endLocked(w)
	s.placeLocked(o)
}

// close makes objects wait in the run queue until open.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapsed.Store(true)
}

// closeUnlessAdmitted is close for whoever was refused by the lease: it may have come back meanwhile, and then nobody
// would open.
func (s *scheduler) closeUnlessAdmitted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rt.back.admit() != nil {
		s.lapsed.Store(true)
	}
}

// open gives workers to what waits.
func (s *scheduler) open() {
	s.mu.Lock()
	s.lapsed.Store(false)
	s.summonLocked()
}

// whenQuiet returns a channel that is closed once no object has mail or a turn.
func (s *scheduler) whenQuiet() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active.Load() == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if s.quiet == nil {
		s.quiet = make(chan struct{})
	}
	return s.quiet
}

// stop ends the workers, those that have a turn after it, and returns a channel that is closed when all have ended.
func (s *scheduler) stop() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.lapsed.Store(false) // what is in the run queue has no mail any more: workers pass over it
	for _, w := range s.idle {
		w.wake <- nil
		s.endLocked(w)
	}
	s.idle = nil
	c := make(chan struct{})
	if len(s.all) == 0 {
		close(c)
		return c
	}
	if s.gone == nil {
		s.gone = c
	}
	return s.gone
}

// busy returns every object that a worker has now, and how many workers there are.
func (s *scheduler) busy() (list []*object, workers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if o := w.cur.Load(); o != nil {
			list = append(list, o)
		}
	}
	return list, len(s.all)
}

// counts returns how many objects have mail or a turn, and how many workers there are.
func (s *scheduler) counts() (active, workers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.active.Load()), len(s.all)
}
