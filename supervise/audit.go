package supervise

import (
	"context"
	"sync"
	"time"
)

// The bounds of an eventWriter.
const (
	maxPending = 1024 // events that wait to be written
	maxKnown   = 8192 // events that are known to be written
)

// eventWriter writes events beside the decisions, so that a slow store delays none of them.
type eventWriter struct {
	keys      keys
	retention time.Duration
	stats     *stats

	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	pending []Event         // guarded by mu
	known   map[string]bool // guarded by mu; keys that need not be written again
}

func newEventWriter(k keys, retention time.Duration, st *stats) *eventWriter {
	return &eventWriter{
		keys: k, retention: retention, stats: st, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		known: map[string]bool{},
	}
}

// add takes an event, unless it was taken before.
func (w *eventWriter) add(e Event) {
	key := e.key()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[key] {
		return
	}
	w.stats.event(e.Kind)
	if len(w.pending) >= maxPending {
		w.stats.eventsLost.Add(1)
		return
	}
	if len(w.known) >= maxKnown { // forgetting costs a write that finds its event there
		clear(w.known)
	}
	w.known[key] = true
	w.pending = append(w.pending, e)
	w.flush()
}

// flush tries again what could not be written.
func (w *eventWriter) flush() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// write is the writer's goroutine. It ends with close.
func (w *eventWriter) write() {
	defer close(w.done)
	for {
		stopping := false
		select {
		case <-w.wake:
		case <-w.stop:
			stopping = true
		}
		w.mu.Lock()
		batch := w.pending
		w.pending = nil
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		for i, e := range batch {
			if err := writeEvent(ctx, w.keys, e, w.retention); err != nil {
				w.keep(batch[i:])
				break
			}
		}
		cancel()
		if stopping {
			return
		}
	}
}

// keep puts events back, the newest lost first when there are too many.
func (w *eventWriter) keep(events []Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(events, w.pending...)
	if over := len(w.pending) - maxPending; over > 0 {
		w.stats.eventsLost.Add(uint64(over))
		w.pending = w.pending[:maxPending]
	}
}

// close writes what waits, for a few seconds at most.
func (w *eventWriter) close() {
	close(w.stop)
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.eventsLost.Add(uint64(len(w.pending)))
	w.pending = nil
}
