package relocate

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// runner carries one side of one move through step: one goroutine owns the unit and takes events; what has to wait runs in
// goroutines of its own, which post what came of it. All of them have ended when run returns.
type runner struct {
	s    *Service
	op   string
	name string // of the object, for errors
	unit unit
	do   func(action)
	// entered is called when a state is entered, before the actions.
	entered func(from, to state)

	mu     sync.Mutex // guards queue and timers
	queue  []event
	timers map[eventKind]*time.Timer
	wake   chan struct{}
	ctx    context.Context // ends when the unit is terminal or cut off
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newRunner(s *Service, op, name string, u unit) *runner {
	r := &runner{s: s, op: op, name: name, unit: u, wake: make(chan struct{}, 1), timers: map[eventKind]*time.Timer{}}
	r.ctx, r.cancel = context.WithCancel(s.ctx)
	return r
}

// post hands an event to the unit. It does not block. What comes more than once by its nature waits once at most.
func (r *runner) post(e event) {
	r.mu.Lock()
	switch e.kind {
	case evTick, evGiveUp, evSilent, evCancel, evCut, evFailed, evReady, evCommitted, evAcked:
		for _, waiting := range r.queue {
			if waiting.kind == e.kind {
				r.mu.Unlock()
				return
			}
		}
	}
	r.queue = append(r.queue, e)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take returns the next event, or false.
func (r *runner) take() (event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return event{}, false
	}
	e := r.queue[0]
	r.queue = r.queue[1:]
	return e, true
}

// run carries the unit to its end, or until the Service is cut off. It reports whether the end was reached.
func (r *runner) run() bool {
	defer func() {
		r.cancel()
		r.mu.Lock()
		for _, t := range r.timers {
			t.Stop()
		}
		r.mu.Unlock()
		r.wg.Wait()
	}()
	for !r.unit.state.terminal() {
		e, ok := r.take()
		if !ok {
			select {
			case <-r.wake:
				continue
			case <-r.s.ctx.Done():
				return false
			}
		}
		r.step(e)
	}
	return true
}

func (r *runner) step(e event) {
	before := r.unit.state
	next, acts, err := step(r.unit, e)
	if err != nil { // a defect of this package, which must not become one of the object's
		r.s.log.Error("an event that cannot be was dropped", zap.String("object", r.name), zap.String("move", r.op), zap.Error(err))
		return
	}
	r.unit = next
	if next.state != before {
		r.s.log.Debug("move", zap.String("object", r.name), zap.String("move", r.op), zap.Stringer("event", e), zap.Stringer("state", next.state))
		r.entered(before, next.state)
	}
	for _, a := range acts {
		r.do(a)
	}
}

// spawn runs f beside the unit. Its context ends with the unit.
func (r *runner) spawn(f func(ctx context.Context)) {
	r.wg.Go(func() { f(r.ctx) })
}

// after posts an event later; a new time for the same event takes the place of the old one.
func (r *runner) after(d time.Duration, k eventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return
	}
	if t := r.timers[k]; t != nil {
		t.Stop()
	}
	r.timers[k] = time.AfterFunc(d, func() { r.post(event{kind: k}) })
}
