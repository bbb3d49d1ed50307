package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// maxProofs bounds the proofs that a Service remembers.
	maxProofs = 256
	// proofSoon is how long a release waits before it says that it waits for the proof.
	proofSoon = 500 * time.Millisecond
	// proofTimeout bounds a proof beyond the caller's patience: the longest TTL and the store's time.
	proofTimeout = 3 * time.Minute
)

// proofs remembers which process runs were proven gone, so that each is proven once.
type proofs struct {
	mu sync.Mutex
	by map[ownerRun]*proof
}

type ownerRun struct {
	rid       string
	lifecycle uint64
}

// proof is a proof under way, or done.
type proof struct {
	done  chan struct{}
	ttl   time.Duration // of the run's lease, as its descriptor says, else the default
	until time.Time     // when it ends at the earliest
	// These are written before done is closed.
	gone kvlocation.GoneProof
	err  error
}

func (p *proof) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// prove proves a process run gone, up to the given lease generation at least, or waits for the proof that is under way. nil
// means that ctx ended first: the proof goes on in the background, and a later call finds it.
func (s *Service) prove(ctx context.Context, owner kvlocation.Owner, report *ReleaseReport, progress func(ReleaseReport)) (*kvlocation.GoneProof, error) {
	rid, lifecycle := owner.RID, owner.Lifecycle
	if rid == s.cfg.RID && lifecycle == s.cfg.Lifecycle {
		return nil, outcome.Wrap("release", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("node %q", rid),
			fmt.Sprintf("node %q lifecycle %d is the one that answers", rid, lifecycle), kvlocation.ErrNodeAlive)
	}
	if err := s.forgetProof(ctx, owner); err != nil {
		return nil, err
	}
	p, err := s.beginProof(rid, lifecycle)
	if err != nil {
		return nil, err
	}
	soon := time.NewTimer(proofSoon) // that the owner lives, or that the proof is known, is said at once
	defer soon.Stop()
	for over := false; !over; {
		select {
		case <-p.done:
			over = true
		case <-soon.C:
			report.Waiting, report.Until = true, p.until
			progress(*report)
		case <-ctx.Done():
			report.Waiting, report.Until = true, p.until
			return nil, nil
		}
	}
	report.Waiting, report.Until = false, time.Time{}
	if p.err != nil {
		return nil, naming(rid, lifecycle, p.err)
	}
	return &p.gone, nil
}

// naming says in the error of a proof which node it was about.
func naming(rid string, lifecycle uint64, err error) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Detail = fmt.Sprintf("node %q lifecycle %d: %s", rid, lifecycle, e.Detail)
	return &out
}

// forgetProof forgets a proof that does not count any more: the run has come back since, under a new lease generation.
func (s *Service) forgetProof(ctx context.Context, owner kvlocation.Owner) error {
	run := ownerRun{owner.RID, owner.Lifecycle}
	s.proofs.mu.Lock()
	p := s.proofs.by[run]
	s.proofs.mu.Unlock()
	if p == nil || !p.over() {
		return nil
	}
	st, err := s.store.LeaseOf(ctx, owner.RID)
	if err != nil {
		return err
	}
	if st.Live && st.Lifecycle == owner.Lifecycle || !p.gone.Covers(owner.RID, owner.Lifecycle, owner.Lease) {
		s.proofs.mu.Lock()
		defer s.proofs.mu.Unlock()
		if s.proofs.by[run] == p {
			delete(s.proofs.by, run)
		}
	}
	return nil
}

// beginProof starts a proof, unless one is under way or done.
func (s *Service) beginProof(rid string, lifecycle uint64) (*proof, error) {
	run := ownerRun{rid, lifecycle}
	wait := kvlocation.DefaultTTL
	if m, ok := s.cfg.Directory.Members().Get(rid); ok && m.Lifecycle == lifecycle && m.LeaseTTLMillis > 0 {
		wait = time.Duration(m.LeaseTTLMillis) * time.Millisecond
	}
	ps := &s.proofs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.by[run]; p != nil {
		return p, nil
	}
	if ps.evictLocked(); len(ps.by) >= maxProofs {
		return nil, outcome.New("release", outcome.Unavailable, outcome.NotAccepted, "node "+rid, fmt.Sprintf("%d proofs are under way already", len(ps.by)))
	}
	p := &proof{done: make(chan struct{}), ttl: wait, until: time.Now().Add(wait).UTC()}
	ps.by[run] = p
	if !s.spawn(func() { s.runProof(run, p) }) {
		delete(ps.by, run)
		return nil, outcome.New("release", outcome.ShuttingDown, outcome.NotAccepted, "node "+rid, "this program is shutting down")
	}
	return p, nil
}

// evictLocked makes room for one more: the proofs that are done go first. It must be called with the lock held.
func (ps *proofs) evictLocked() {
	for run, p := range ps.by {
		if len(ps.by) < maxProofs {
			return
		}
		if p.over() {
			delete(ps.by, run)
		}
	}
}

// runProof waits for a process run's last lease to be over for certain. A failure is forgotten, so that the next release
// tries again.
func (s *Service) runProof(run ownerRun, p *proof) {
	ctx, cancel := context.WithTimeout(s.ctx, proofTimeout)
	defer cancel()
	for {
		p.gone, p.err = s.store.ProvablyGone(ctx, run.rid, run.lifecycle, kvlocation.GoneConfig{By: s.cfg.RID, TTL: p.ttl})
		// Another program is proving the same: its key goes away when it is done.
		if p.err == nil || !errors.Is(p.err, outcome.Unavailable) || ctx.Err() != nil {
			break
		}
		s.pause(time.Second)
	}
	if p.err != nil {
		s.proofs.mu.Lock()
		if s.proofs.by[run] == p {
			delete(s.proofs.by, run)
		}
		s.proofs.mu.Unlock()
	}
	close(p.done)
}
