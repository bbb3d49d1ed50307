package objects

import (
	"context"
	goruntime "runtime"
	"sync"
	"sync/atomic"
)

const (
	// A scheduler has a lane for each processor, but maxLanes at most, and no more than can run laneTurns turns at once each.
	maxLanes  = 16
	laneTurns = 64
	// maxIdleWorkers is how many goroutines wait for work at most; more end when they have none.
	maxIdleWorkers = 256
)

// scheduler gives objects with mail to workers. A worker is a goroutine that runs one object's turns, one after the
// other. There are at most max of them, each started when it is needed. A handler that blocks keeps its worker, and
// nobody else's.
//
// It is made of lanes: an object belongs to one of them for good, so that processors do not get into each other's way. Half of
// the workers are shared out among the lanes, and each may start more while the other half, the reserve, lasts. There are no
// more lanes than processors: two that share one while a third has another to itself would not get the same.
//
// While it is closed, by a lapse of the lease, objects stay in their run queues.
type scheduler struct {
	rt    *runtime
	max   int
	lanes []*lane
	of    [256]*lane // by an object's shard

	reserve atomic.Int64 // how many workers any lane may still start beyond its share
	mu      sync.Mutex   // one opens or closes at a time
	lapsed  atomic.Bool  // it is closed; written under mu
}

// lanesFor is how many lanes a scheduler has that runs so many turns at once.
func lanesFor(most int) int { return max(1, min(goruntime.GOMAXPROCS(0), maxLanes, most/laneTurns)) }

func newScheduler(rt *runtime, most, n int) *scheduler {
	s := &scheduler{rt: rt, max: most}
	share := most
	if n > 1 {
		share = most / (2 * n)
	}
	s.reserve.Store(int64(most - n*share))
	for range n {
		s.lanes = append(s.lanes, &lane{s: s, share: share, maxIdle: maxIdleWorkers / n, all: make(map[*worker]struct{})})
	}
	for i := range s.of {
		s.of[i] = s.lanes[i%n]
	}
	return s
}

// ready takes an object that has mail and no worker.
func (s *scheduler) ready(o *object) { s.of[o.shard].ready(o) }

// borrow takes one worker from the reserve, if there is one.
func (s *scheduler) borrow() bool {
	for {
		left := s.reserve.Load()
		if left <= 0 {
			return false
		}
		if s.reserve.CompareAndSwap(left, left-1) {
			return true
		}
	}
}

// giveBack puts a worker that was borrowed back into the reserve, for which a lane may be waiting. That lane has queued its
// object before it found the reserve empty; so either it finds this one, or it is found here.
func (s *scheduler) giveBack(borrowed bool) {
	if !borrowed {
		return
	}
	s.reserve.Add(1)
	s.summon()
}

// summon has each lane with a queue see to a worker.
func (s *scheduler) summon() {
	for _, l := range s.lanes {
		if l.queued.Load() > 0 {
			l.mu.Lock()
			l.summonLocked()
		}
	}
}

// close makes objects wait in the run queues until open.
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
	s.mu.Unlock()
	for _, l := range s.lanes { // also where a queue is being written
		l.mu.Lock()
		l.summonLocked()
	}
}

// quiet waits until no object has mail or a turn, or ctx ends.
func (s *scheduler) quiet(ctx context.Context) error {
	for {
		before := s.placed()
		for _, l := range s.lanes {
			select {
			case <-l.whenQuiet():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if s.placed() == before { // nothing has become active since each of them was seen to be quiet
			return nil
		}
	}
}

// placed returns how often an object has become active.
func (s *scheduler) placed() (n uint64) {
	for _, l := range s.lanes {
		placed, _, _ := l.look()
		n += placed
	}
	return n
}

// stop ends the workers, those that have a turn after it, and waits until all have ended, or ctx has.
func (s *scheduler) stop(ctx context.Context) error {
	s.mu.Lock()
	s.lapsed.Store(false) // what is in a run queue has no mail any more: workers pass over it
	s.mu.Unlock()
	ends := make([]<-chan struct{}, len(s.lanes))
	for i, l := range s.lanes {
		ends[i] = l.stop()
	}
	for _, end := range ends {
		select {
		case <-end:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// queued returns how many objects are in a run queue.
func (s *scheduler) queued() (n int) {
	for _, l := range s.lanes {
		n += int(l.queued.Load())
	}
	return n
}

// busy returns every object that a worker has now, and how many workers there are.
func (s *scheduler) busy() (list []*object, workers int) {
	for _, l := range s.lanes {
		objects, n := l.busy()
		list, workers = append(list, objects...), workers+n
	}
	return list, workers
}

// counts returns how many objects have mail or a turn, and how many workers there are.
func (s *scheduler) counts() (active, workers int) {
	for _, l := range s.lanes {
		_, a, w := l.look()
		active, workers = active+a, workers+w
	}
	return active, workers
}
