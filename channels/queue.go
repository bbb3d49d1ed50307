package channels

import "sync"

// trimTicks is how many ticks pass between two looks at the idle workers.
const trimTicks = 20

// queue holds the accepted requests of one server and the workers that run them. It is bounded in count and bytes,
// and so are the workers, which start on demand and end when they have been idle for a while.
type queue struct {
	maxCount, maxBytes, maxWorkers int
	run                            func(*Request)

	mu    sync.Mutex
	ring  []*Request // grows to the power of two above the greatest length there was
	head  int
	n     int // in the ring
	count int // in the ring or reserved
	bytes int // of those

	draining bool // nothing more is taken
	stopped  bool // workers end when there is nothing to do

	workers int           // all of them
	coming  bool          // one was woken or started and has not looked at the ring since
	idle    []chan bool   // of those that wait, the longest first; true = work, false = end
	minIdle int           // the fewest that waited since the last trim
	empty   chan struct{} // closed and replaced whenever nothing is queued or running; nil while nobody waits
}

func (q *queue) init(s *Spec, run func(*Request)) {
	q.maxCount, q.maxBytes, q.maxWorkers, q.run = s.Queue, s.QueueBytes, s.Workers, run
}

// offer takes a request, or says at once why not.
func (q *queue) offer(req *Request) why {
	q.mu.Lock()
	if because := q.reserveLocked(req); because != whyNot {
		q.mu.Unlock()
		return because
	}
	q.commitLocked(req)
	return whyNot
}

// reserve takes room for a request, which commit then fills.
func (q *queue) reserve(req *Request) why {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reserveLocked(req)
}

func (q *queue) commit(req *Request) {
	q.mu.Lock()
	q.commitLocked(req)
}

func (q *queue) reserveLocked(req *Request) why {
	size := req.size()
	switch {
	case q.draining:
		return whyDraining
	case size > q.maxBytes:
		return whyTooLarge
	case q.count >= q.maxCount || q.bytes+size > q.maxBytes:
		return whyFull
	}
	q.count++
	q.bytes += size
	return whyNot
}

// commitLocked queues a request whose room is taken, and unlocks.
func (q *queue) commitLocked(req *Request) {
	if q.n == len(q.ring) {
		grown := make([]*Request, max(16, 2*len(q.ring)))
		for i := range q.n {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = req
	q.n++
	q.summonLocked()
}

// summonLocked calls one more worker if something waits, and unlocks. Only one is on its way at a time; it calls the next
// before it runs what it takes. So nothing waits while a worker is free, and under load a worker that has just ended a
// request takes the next, instead of one being woken for each.
func (q *queue) summonLocked() {
	if q.n == 0 || q.coming {
		q.mu.Unlock()
		return
	}
	if last := len(q.idle) - 1; last >= 0 {
		wake := q.idle[last]
		q.idle = q.idle[:last]
		q.minIdle = min(q.minIdle, last)
		q.coming = true
		q.mu.Unlock()
		wake <- true
		return
	}
	start := q.workers < q.maxWorkers
	if start {
		q.workers++
		q.coming = true
	}
	q.mu.Unlock()
	if start {
		go q.work(true)
	}
}

// work is a worker; summoned says that it was started because something waits.
func (q *queue) work(summoned bool) {
	ended := false
	defer func() {
		if !ended { // the handler ended the goroutine (runtime.Goexit): somebody else takes over
			go q.work(false)
		}
	}()
	wake := make(chan bool, 1)
	for {
		q.mu.Lock()
		if summoned {
			q.coming, summoned = false, false
		}
		if q.n == 0 {
			if len(q.idle)+1 == q.workers && q.count == 0 && q.empty != nil {
				close(q.empty)
				q.empty = nil
			}
			if q.stopped {
				q.workers--
				q.mu.Unlock()
				ended = true
				return
			}
			q.idle = append(q.idle, wake)
			q.mu.Unlock()
			if !<-wake {
				ended = true
				return
			}
			summoned = true
			continue
		}
		req := q.ring[q.head]
		q.ring[q.head] = nil
		q.head = (q.head + 1) % len(q.ring)
		q.n--
		q.count--
		q.bytes -= req.size()
		q.summonLocked()
		q.run(req)
	}
}

// trim ends the workers that were not needed since the last call.
func (q *queue) trim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked(min(q.minIdle, len(q.idle)))
	q.minIdle = len(q.idle)
}

func (q *queue) endLocked(n int) {
	for _, wake := range q.idle[:n] {
		wake <- false
	}
	q.idle = append(q.idle[:0], q.idle[n:]...)
	q.workers -= n
}

// drain makes the queue take nothing more. It returns false when it drained already.
func (q *queue) drain() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := !q.draining
	q.draining = true
	return first
}

func (q *queue) isDraining() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.draining
}

// drained returns a channel that is closed once nothing is queued and no handler runs. The queue drains.
func (q *queue) drained() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	c := q.empty
	if q.count == 0 && len(q.idle) == q.workers {
		close(q.empty)
		q.empty = nil
	}
	return c
}

// stop ends the workers: those that wait at once, the others after what was accepted has run.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.endLocked(len(q.idle))
}

// depth returns what waits, and the workers that are busy.
func (q *queue) depth() (count, bytes, busy int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count, q.bytes, q.workers - len(q.idle)
}

// size is what a request counts for in the queue's bytes.
func (r *Request) size() int { return r.msg.Size() }
