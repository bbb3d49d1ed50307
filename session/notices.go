package session

import (
	"context"
	"sync"
	"time"
)

// tellers are the notices that are owed to the nodes of sessions: that an Actor is at another node now, or that a binding
// is over. Each is repeated until its node has answered for that binding, or is gone.
type tellers struct {
	mu sync.Mutex
	by map[run]*teller
}

// teller is what is owed to one process run.
type teller struct {
	pending map[string]*notice // by token: the last word about each binding
	more    chan struct{}      // a nudge: something was added
}

// noticeWaits are the times between two attempts; the last one goes on.
var noticeWaits = [...]time.Duration{time.Second, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}

// noticeBatch is how many notices one message has at most.
const noticeBatch = 256

// tell brings a notice to a process run. It does not wait.
func (s *Service) tell(at run, n *notice) {
	s.tellers.mu.Lock()
	defer s.tellers.mu.Unlock()
	t := s.tellers.by[at]
	if t != nil {
		if old := t.pending[n.Token]; old != nil && (old.Kind == noticeEnded || n.Kind == noticeMoved && old.Place.Newer(n.Place)) {
			return
		}
		t.pending[n.Token] = n
		select {
		case t.more <- struct{}{}:
		default:
		}
		return
	}
	t = &teller{pending: map[string]*notice{n.Token: n}, more: make(chan struct{}, 1)}
	s.owed.add()
	started := s.spawn(func() {
		defer s.owed.done()
		s.deliver(at, t)
	})
	if !started {
		s.owed.done()
		return
	}
	s.tellers.by[at] = t
}

// deliver repeats what is owed to a process run until all of it was answered for.
func (s *Service) deliver(at run, t *teller) {
	for failed := 0; ; {
		batch := s.owedTo(t)
		var answers []status
		ctx, cancel := context.WithTimeout(s.ctx, askTimeout)
		err := s.ask(ctx, at, verbTold, "", batch, &answers)
		if err == nil && len(answers) == len(batch) {
			failed = 0
			s.answered(t, batch, answers)
		} else if failed++; failed > 1 && s.isGone(ctx, at) {
			s.answered(t, batch, nil)
		}
		cancel()
		if s.finishIfEmpty(at, t) {
			return
		}
		if failed == 0 {
			continue
		}
		s.stats.noticesRepeated.Add(1)
		select {
		case <-time.After(noticeWaits[min(failed, len(noticeWaits))-1]):
		case <-t.more:
		case <-s.ctx.Done():
			return
		}
	}
}

// owedTo copies a part of what is owed.
func (s *Service) owedTo(t *teller) []*notice {
	s.tellers.mu.Lock()
	defer s.tellers.mu.Unlock()
	batch := make([]*notice, 0, min(len(t.pending), noticeBatch))
	for _, n := range t.pending {
		if len(batch) == noticeBatch {
			break
		}
		batch = append(batch, n)
	}
	return batch
}

// answered forgets the notices that were answered for; without answers those of a node that is gone.
func (s *Service) answered(t *teller, batch []*notice, answers []status) {
	var over []*Binding
	s.tellers.mu.Lock()
	for i, n := range batch {
		if t.pending[n.Token] == n {
			delete(t.pending, n.Token)
		}
		if n.Kind == noticeMoved && answers != nil && answers[i] == statusOver {
			if b := s.bound.get(n.Token); b != nil {
				over = append(over, b)
			}
		}
	}
	s.tellers.mu.Unlock()
	for _, b := range over {
		s.endBinding(b, ReasonDisconnected, "")
	}
}

// finishIfEmpty ends the teller once nothing is owed.
func (s *Service) finishIfEmpty(at run, t *teller) bool {
	s.tellers.mu.Lock()
	defer s.tellers.mu.Unlock()
	if len(t.pending) > 0 {
		return false
	}
	delete(s.tellers.by, at)
	return true
}
