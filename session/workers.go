package session

import "sync"

// maxIdle bounds the goroutines that wait for a request.
const maxIdle = 64

// workers are the goroutines that bring requests to Actors. One that is done takes the next request of any session: its
// stack has grown to what a relay needs, which costs more than the rest of its start. Nothing waits for a worker.
type workers struct {
	mu     sync.Mutex
	idle   []chan job // the last one first
	closed bool
}

// job is a request whose turn in its lane has come.
type job struct {
	t  *tie
	op request
}

// run has a worker run a job, if it is one; the client is told when the Service stops.
func (s *Service) run(j job) {
	if j.t != nil && !s.start(j) {
		j.t.c.fail(j.op.id, errStopping)
	}
}

func (s *Service) start(j job) bool {
	w := &s.workers
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		next <- j
		return true
	}
	w.mu.Unlock()
	return s.spawn(func() { w.work(j) })
}

// work runs a job, and those that follow.
func (w *workers) work(j job) {
	more := make(chan job, 1)
	for ok := true; ok; j, ok = <-more {
		j.t.work(j.op)
		j = job{}
		w.mu.Lock()
		if w.closed || len(w.idle) >= maxIdle {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, more)
		w.mu.Unlock()
	}
}

// close ends the workers that have nothing to do, and the others when they are done.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, more := range w.idle {
		close(more)
	}
	w.idle = nil
}
