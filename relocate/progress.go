package relocate

import (
	"context"
	"sync"
	"time"
)

// Progress is how far the moves of this node are.
type Progress struct {
	// Running: a Host is under way, or the last one has ended, in Mode.
	Running bool `json:"running"`
	Mode    Mode `json:"mode,omitzero"`
	// Total is how many units the Host has found so far, Moved and Kept what became of them.
	Total int `json:"total"`
	Moved int `json:"moved"`
	Kept  int `json:"kept"`
	// Moving is how many units are leaving now, Arriving how many are coming.
	Moving   int `json:"moving"`
	Arriving int `json:"arriving"`
	// Since the node started: Departed and Failed are how many moves from here ended well or not, Objects and Bytes how many objects have left with how
	// many bytes of captured state, Arrived how many units have come.
	Departed uint64 `json:"departed"`
	Failed   uint64 `json:"failed"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
	Arrived  uint64 `json:"arrived"`
}

// Progress returns how far the moves are.
func (s *Service) Progress() Progress {
	s.host.mu.Lock()
	p := s.host.progress
	s.host.mu.Unlock()
	p.Moving, p.Arriving = s.departures.count(), s.arrivals.count()
	p.Departed, p.Failed, p.Arrived = s.stats.departed.Load(), s.stats.failed.Load(), s.stats.arrived.Load()
	p.Objects, p.Bytes = s.stats.objects.Load(), s.stats.bytes.Load()
	return p
}

// watchEvery bounds how often a watcher hears of a change.
const watchEvery = 100 * time.Millisecond

// watchers wakes those who watch.
type watchers struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change
	over chan struct{} // closed with the Service
}

func (w *watchers) init() { w.next, w.over = make(chan struct{}), make(chan struct{}) }

func (w *watchers) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

func (w *watchers) close() { close(w.over) }

// changed tells the watchers that the progress has changed.
func (s *Service) changed() {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	close(s.watch.next)
	s.watch.next = make(chan struct{})
}

// Watch sends the progress as it is now, and again whenever it has changed, at most ten times a second, until ctx ends or the Service is closed; then the
// channel is closed. A reader that is slow misses what was between.
func (s *Service) Watch(ctx context.Context) <-chan Progress {
	out := make(chan Progress)
	go func() {
		defer close(out)
		for {
			next := s.watch.wait()
			select {
			case out <- s.Progress():
			case <-ctx.Done():
				return
			case <-s.watch.over:
				return
			}
			select {
			case <-next:
				wait(ctx, watchEvery)
			case <-ctx.Done():
				return
			case <-s.watch.over:
				return
			}
		}
	}()
	return out
}
