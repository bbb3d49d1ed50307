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
)

// lane is a part of a scheduler that shares nothing with the others but the reserve: its objects' run queue, and their workers.
//
// Objects that get mail stand in the run queue, in that order. One worker at a time is summoned for them, and when it
// comes and finds more it summons the next: so a burst is shared by as many workers as it takes and wakes no goroutine
// for each message, and an object whose handler blocks holds up nobody behind it.
type lane struct {
	s       *scheduler
	share   int // how many workers it may have whatever the others have
	maxIdle int // how many wait for work at most; more end when they have none

	mu         sync.Mutex
	head, tail *object // the run queue, each object once
	idle       []*worker
	all        map[*worker]struct{}
	stopped    bool
	placed     uint64        // how often an object has become active
	quiet      chan struct{} // closed when active becomes 0; nil while nobody waits
	gone       chan struct{} // closed when the last worker has ended; nil while nobody waits

	queued atomic.Int64 // length of the run queue
	active atomic.Int64 // objects that are in the run queue or with a worker; written under mu
	// coming: a summoned worker is on its way. It is set under mu, behind the writing of queued; the worker clears it
	// and reads queued afterwards: so either who queues sees that nobody comes, or who comes sees what is queued.
	coming atomic.Bool
	_      [64]byte // lanes share no cache line
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
	// idled counts how often it has found no more to do since it last let all others go first.
	idled int
}

// ready takes an object that has mail and no worker.
func (l *lane) ready(o *object) {
	l.mu.Lock()
	l.placed++
	l.active.Add(1)
	l.placeLocked(o)
}

// placeLocked sees that a worker gets to o, and unlocks.
func (l *lane) placeLocked(o *object) {
	l.pushLocked(o)
	l.summonLocked()
}

// summonLocked summons a worker for the head of the run queue, unless one is on its way or none is to be had: then one
// that has ended a turn will look. It unlocks.
func (l *lane) summonLocked() {
	if l.head == nil || l.s.lapsed.Load() || !l.coming.CompareAndSwap(false, true) {
		l.mu.Unlock()
		return
	}
	if last := len(l.idle) - 1; last >= 0 {
		w := l.idle[last]
		l.idle = l.idle[:last]
		o := l.popLocked()
		l.mu.Unlock()
		w.wake <- o
		return
	}
	if !l.stopped && (len(l.all) < l.share || l.s.borrow()) {
		w := &worker{wake: make(chan *object, 1)}
		l.all[w] = struct{}{}
		go l.work(w, l.popLocked())
	} else {
		l.coming.Store(false)
	}
	l.mu.Unlock()
}

// arrived is called by a worker that was summoned.
func (l *lane) arrived() {
	l.coming.Store(false)
	if l.queued.Load() > 0 {
		l.mu.Lock()
		l.summonLocked()
	}
}

func (l *lane) pushLocked(o *object) {
	o.queued = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.queued = o
	}
	l.tail = o
	l.queued.Add(1)
}

func (l *lane) popLocked() *object {
	o := l.head
	if o == nil {
		return nil
	}
	l.head = o.queued
	if l.head == nil {
		l.tail = nil
	}
	o.queued = nil
	l.queued.Add(-1)
	return o
}

// work is a worker.
func (l *lane) work(w *worker, o *object) {
	normal := false
	defer func() {
		if !normal { // a handler ended the goroutine with runtime.Goexit; its turn is settled
			l.replace(w)
		}
	}()
	l.arrived()
	for o != nil {
		w.cur.Store(o)
		after := l.run(w, o)
		w.cur.Store(nil)
		o = l.next(w, o, after)
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
func (l *lane) run(w *worker, o *object) after {
	now := tick()
	end := now.add(timeBudget)
	for n := 1; ; n++ {
		alone := l.alone()
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
		if l.queued.Load() > 0 {
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

// alone reports whether no other object of the lane has mail or a turn.
func (l *lane) alone() bool { return l.active.Load() == 1 }

// next settles what o's worker has left and returns what it is to run next; nil ends the worker.
func (l *lane) next(w *worker, o *object, how after) *object {
	l.mu.Lock()
	if how == afterIdle {
		l.quietLocked()
	} else {
		l.pushLocked(o)
	}
	if o := l.takeLocked(); o != nil {
		return o
	}
	// Whoever was answered a moment ago runs before all that waits for the processor, and so does the worker that it wakes: the
	// two could keep the others from it for long. Now and then the worker goes behind them, as the one that is on its way.
	if w.idled++; w.idled >= turnBudget && !l.s.lapsed.Load() && l.coming.CompareAndSwap(false, true) {
		w.idled = 0
		l.mu.Unlock()
		goruntime.Gosched()
		l.coming.Store(false)
		l.mu.Lock()
		if o := l.takeLocked(); o != nil {
			return o
		}
	}
	if l.stopped || len(l.idle) >= l.maxIdle || len(l.all) > l.share { // nobody idles on what is borrowed
		borrowed := l.endLocked(w)
		l.mu.Unlock()
		l.s.giveBack(borrowed)
		return nil
	}
	l.idle = append(l.idle, w)
	l.mu.Unlock()
	if o = <-w.wake; o != nil {
		l.arrived()
	}
	return o
}

// takeLocked takes the head of the run queue, unless the lease has lapsed; then it summons a worker for the next, and unlocks.
func (l *lane) takeLocked() *object {
	if l.s.lapsed.Load() {
		return nil
	}
	o := l.popLocked()
	if o != nil {
		l.summonLocked()
	}
	return o
}

// quietLocked counts an object that is neither queued nor with a worker any more.
func (l *lane) quietLocked() {
	if l.active.Add(-1) == 0 && l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
}

// endLocked takes a worker out. borrowed is true when it was one from the reserve, which is to be given back.
func (l *lane) endLocked(w *worker) (borrowed bool) {
	borrowed = len(l.all) > l.share
	delete(l.all, w)
	if len(l.all) == 0 && l.gone != nil {
		close(l.gone)
		l.gone = nil
	}
	return borrowed
}

// replace ends a worker whose goroutine has been ended by the handler, and places its object anew.
func (l *lane) replace(w *worker) {
	o := w.cur.Load()
	o.recall()
	l.mu.Lock()
	borrowed := l.endLocked(w)
	l.placeLocked(o)
	l.s.giveBack(borrowed)
}

// whenQuiet returns a channel that is closed once no object of the lane has mail or a turn.
func (l *lane) whenQuiet() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active.Load() == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if l.quiet == nil {
		l.quiet = make(chan struct{})
	}
	return l.quiet
}

// stop ends the workers, those that have a turn after it, and returns a channel that is closed when all have ended.
func (l *lane) stop() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, w := range l.idle {
		w.wake <- nil
		l.endLocked(w) // none is borrowed
	}
	l.idle = nil
	c := make(chan struct{})
	if len(l.all) == 0 {
		close(c)
		return c
	}
	if l.gone == nil {
		l.gone = c
	}
	return l.gone
}

// busy returns every object that a worker has now, and how many workers there are.
func (l *lane) busy() (list []*object, workers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.all {
		if o := w.cur.Load(); o != nil {
			list = append(list, o)
		}
	}
	return list, len(l.all)
}

// look returns how many objects have become active so far, how many are, and how many workers there are.
func (l *lane) look() (placed uint64, active, workers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.placed, int(l.active.Load()), len(l.all)
}
