package session

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/objects"
	"natsfabric/outcome"
)

// compareMost is how many bindings of either side one comparison names.
const compareMost = 512

// watch looks after the other side of every binding: it compares what the Actors and sessions here are bound to with what the
// nodes of the others know, some bindings at a time, and finds out about nodes that are gone. One message to each such
// node in half a heartbeat is what that costs. Of one that does not answer the lease is looked at until it does: its end is
// known as soon as the lease is over.
func (s *Service) watch() {
	tick := time.NewTicker(max(s.cfg.Heartbeat/2, 10*time.Millisecond))
	defer tick.Stop()
	var again <-chan time.Time
	for {
		look := s.check
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		case <-s.suspects.more:
			look = s.checkSuspect
		case <-again:
			look = s.checkSuspect
		}
		var wg sync.WaitGroup
		partners := s.partners()
		s.suspects.keep(partners)
		for at, ties := range partners {
			wg.Go(func() { look(at, ties) })
		}
		wg.Wait()
		again = nil
		if s.suspects.count() > 0 {
			again = time.After(suspectEvery)
		}
	}
}

// partners returns the process runs with which this node shares bindings, each with the ties to Actors there.
func (s *Service) partners() map[run][]*tie {
	out := make(map[run][]*tie)
	for _, at := range s.bound.runs() {
		out[at] = nil
	}
	for _, c := range s.owned() {
		c.mu.Lock()
		for _, t := range c.ties {
			if at := runOf(t.place); t.state == tieOpen && at != s.here {
				out[at] = append(out[at], t)
			}
		}
		c.mu.Unlock()
	}
	return out
}

// check compares with one process run.
func (s *Service) check(at run, ties []*tie) {
	ctx, cancel := context.WithTimeout(s.ctx, askTimeout)
	defer cancel()
	c := comparison{RID: s.here.rid, Lifecycle: s.here.lifecycle}
	for _, b := range s.bound.of(at, compareMost) {
		c.Held = append(c.Held, heldBinding{Session: b.session.ID, Token: b.token})
	}
	named := make(map[string]*tie)
	for _, t := range ties[:min(len(ties), compareMost)] { // in an order that differs from time to time
		c.Ties = append(c.Ties, t.token)
		named[t.token] = t
	}
	var said compared
	if err := s.ask(ctx, at, verbCompare, "", c, &said); err != nil {
		s.suspect(at)
		s.checkSuspect(at, ties)
		return
	}
	s.suspects.remove(at)
	for _, token := range said.Over {
		if b := s.bound.get(token); b != nil {
			s.endBinding(b, ReasonDisconnected, "")
		}
	}
	var missing []*tie
	for _, token := range said.Missing {
		if t := named[token]; t != nil {
			missing = append(missing, t)
		}
	}
	// The Actor has moved; or it has let the session go while this node was taken for gone, and nobody could be told.
	s.eachTie(missing, func(ctx context.Context, t *tie) error { return t.ask(ctx) }) // what it finds out is told to the client
}

// eachTie calls f for ties, for some at the same time. When as many have had no answer it leaves the rest to the next round:
// a store that is silent would keep the comparison with other nodes waiting.
func (s *Service) eachTie(ties []*tie, f func(ctx context.Context, t *tie) error) {
	const concurrency = 64
	var silent atomic.Int64
	var wg sync.WaitGroup
	next := make(chan *tie)
	for range min(concurrency, len(ties)) {
		wg.Go(func() {
			for t := range next {
				ctx, cancel := context.WithTimeout(s.ctx, askTimeout)
				switch outcome.KindOf(f(ctx, t)) {
				case outcome.Unavailable, outcome.DeadlineExceeded:
					silent.Add(1)
				}
				cancel()
			}
		})
	}
	for _, t := range ties {
		if silent.Load() >= concurrency {
			break
		}
		next <- t
	}
	close(next)
	wg.Wait()
}

// isGone reports whether a process run has no lease any more: what it knew of sessions is over (FO-6d). While the store
// does not answer nothing is concluded.
func (s *Service) isGone(ctx context.Context, at run) bool {
	if at == s.here {
		return false
	}
	lease, err := s.cfg.LeaseOf(ctx, at.rid)
	return err == nil && (!lease.Live || lease.Lifecycle != at.lifecycle)
}

// nodeGone ends what was shared with a process run that is gone.
func (s *Service) nodeGone(at run, ties []*tie) {
	for _, b := range s.bound.of(at, 0) {
		s.endBinding(b, ReasonNodeGone, "")
	}
	s.eachTie(ties, func(ctx context.Context, t *tie) error { return t.lookUp(ctx, objects.Place{}) }) // what it finds out is told to the client
}

// leaveBindings ends the bindings of the Actors here, because the node stops.
func (s *Service) leaveBindings() {
	for _, at := range s.bound.runs() {
		for _, b := range s.bound.of(at, 0) {
			s.over(b, ReasonLost, "the Actor's node stops")
		}
	}
}

// get returns the binding of a token; nil for none.
func (x *boundIndex) get(token string) *Binding {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.by {
		if b := m[token]; b != nil {
			return b
		}
	}
	return nil
}

// missing returns those of some tokens that no Actor here is bound by to a session of a process run.
func (x *boundIndex) missing(at run, tokens []string) (out []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, token := range tokens {
		if x.by[at][token] == nil {
			out = append(out, token)
		}
	}
	return out
}
