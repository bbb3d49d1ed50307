package session

import (
	"context"
	"sync"
	"time"
)

// suspectEvery is the time between two looks at the lease of a process run that does not answer.
const suspectEvery = time.Second

// suspects are the process runs that have not answered what they were asked last. Those with which no binding is shared any
// more are forgotten.
type suspects struct {
	mu   sync.Mutex
	all  map[run]bool
	more chan struct{} // a nudge: there is a new one
}

func (x *suspects) init() { x.all, x.more = make(map[run]bool), make(chan struct{}, 1) }

// suspect notes that a process run does not answer. It does not block.
func (s *Service) suspect(at run) {
	if at == s.here {
		return
	}
	x := &s.suspects
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all[at] {
		return
	}
	x.all[at] = true
	select {
	case x.more <- struct{}{}:
	default:
	}
}

// checkSuspect looks whether a process run is gone, if it is a suspect.
func (s *Service) checkSuspect(at run, ties []*tie) {
	if !s.suspects.has(at) {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, askTimeout)
	defer cancel()
	if s.isGone(ctx, at) {
		s.suspects.remove(at)
		s.nodeGone(at, ties)
	}
}

func (x *suspects) remove(at run) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.all, at)
}

func (x *suspects) has(at run) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all[at]
}

func (x *suspects) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.all)
}

// keep forgets those that are no partners.
func (x *suspects) keep(partners map[run][]*tie) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for at := range x.all {
		if _, ok := partners[at]; !ok {
			delete(x.all, at)
		}
	}
}
