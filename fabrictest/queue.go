package fabrictest

import (
	"sync"
	"time"
)

// maxWaiting bounds the bytes that wait in one direction of a connection. One
// frame more is let in, so that a large message passes at all.
const maxWaiting = 1 << 20

// maxAside bounds the messages that HoldAlone and its like keep apart in one
// direction of a connection. The next one waits, and with it the direction.
const maxAside = 4096

// item is a frame that waits to be passed on.
type item struct {
	frame
	arrived time.Time
	late    bool // its trigger is done with it
}

// queue holds what waits in one direction of a connection, between the
// goroutine that reads and the one that writes.
type queue struct {
	mu       sync.Mutex
	changed  sync.Cond
	items    []item
	bytes    int
	aside    int  // kept apart by HoldAlone and its like, still to come
	finished bool // the source is at its end
	aborted  bool // the connection is closed
}

func newQueue() *queue {
	q := &queue{}
	q.changed.L = &q.mu
	return q
}

// push appends a frame and waits while too much waits. It reports false when
// the connection is closed.
func (q *queue) push(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= maxWaiting && !q.aborted {
		q.changed.Wait()
	}
	q.add(it)
	return !q.aborted
}

// inject appends a frame that did not come from the source, without waiting.
func (q *queue) inject(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(it)
}

func (q *queue) add(it item) {
	q.items = append(q.items, it)
	q.bytes += len(it.raw)
	q.changed.Broadcast()
}

// pop waits for the next frame. It reports false when there will be none.
func (q *queue) pop() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && (!q.finished || q.aside > 0) && !q.aborted {
		q.changed.Wait()
	}
	if q.aborted || len(q.items) == 0 {
		return item{}, false
	}
	it := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	q.bytes -= len(it.raw)
	q.changed.Broadcast()
	return it, true
}

// empty reports whether pop would wait.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0
}

// setAside announces a frame that will be put back. It waits while too many are
// kept apart.
func (q *queue) setAside() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.aside >= maxAside && !q.aborted {
		q.changed.Wait()
	}
	q.aside++
}

// putBack ends a setAside; with send, the frame is injected.
func (q *queue) putBack(it item, send bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.aside--
	if send {
		q.add(it)
	}
	q.changed.Broadcast()
}

func (q *queue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finished = true
	q.changed.Broadcast()
}

func (q *queue) abort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.aborted = true
	q.changed.Broadcast()
}
