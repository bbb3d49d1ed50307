package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// errReleased is why a lease is closed after Release, errNotKept why it is after Store.Close without one.
var (
	errReleased = fmt.Errorf("%w: it was given back", ErrOwnershipLost)
	errNotKept  = fmt.Errorf("%w: the store was closed", ErrOwnershipLost)
)

// AcquireLease takes the RID for this process run and keeps it until Release. Nobody overwrites a live lease: while
// another process run holds the RID, AcquireLease waits for its lease to expire and tells cfg.OnWait for how long.
// If that lease is renewed meanwhile, the other process is alive and the call is refused.
//
// Errors are *outcome.Error: InvalidOperation for a configuration that is not allowed or deadlines that clash,
// AlreadyExists with ErrRIDInUse when the RID is in use, Unavailable when the store does not answer or a dead run's
// lease does not expire in time, DeadlineExceeded when ctx ended first.
func (s *Store) AcquireLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	target := fmt.Sprintf("node %q", cfg.RID)
	if err := cfg.Validate(s.attempt); err != nil {
		return nil, refused("acquire lease of", target, err)
	}
	cfg = cfg.withDefaults()
	clock := NewClock(cfg.TTL)
	if err := s.insist(ctx, func(ctx context.Context) error { return s.checkIdentity(ctx, clock) }); err != nil {
		return nil, err
	}
	var floor uint64
	for {
		st, err := s.readLease(ctx, cfg.RID, floor)
		if err != nil {
			return nil, err
		}
		if st.held() {
			if err := s.awaitExpiry(ctx, cfg, clock, st); err != nil {
				return nil, err
			}
			floor = st.Revision + 1 // the marker, or whatever came after it
			continue
		}
		l := s.newLease(cfg, clock)
		l.send(leaseValue{V: wire.SchemaVersion, RID: cfg.RID, Host: cfg.Host, TTLMillis: cfg.TTL.Milliseconds(), Since: time.Now().UTC()}, st.Revision)
		res, err := s.resolve(ctx, l.pending)
		if errors.Is(err, ErrConflict) {
			floor = st.Revision + 1
			continue
		}
		if err != nil {
			return nil, err
		}
		if l.start(res) {
			return l, nil
		}
		// The acknowledgement came so late that the lease is over already.
		floor = st.Revision + 1
	}
}

// readLease reads a lease no older than floor.
func (s *Store) readLease(ctx context.Context, rid string, floor uint64) (LeaseState, error) {
	snap, err := s.snapshot(ctx, s.nodes, floor, leaseKey(rid))
	if err != nil {
		return LeaseState{RID: rid}, err
	}
	st, _, err := leaseState(rid, snap.get(leaseKey(rid)))
	if err != nil {
		return st, outcome.Wrap("read lease", outcome.ProtocolError, outcome.NotAccepted, fmt.Sprintf("node %q", rid), "", err)
	}
	return st, nil
}

// awaitExpiry waits until the lease st has expired or was given back.
func (s *Store) awaitExpiry(ctx context.Context, cfg LeaseConfig, clock *Clock, st LeaseState) error {
	target := fmt.Sprintf("node %q", cfg.RID)
	started := monotime.Now()
	remaining := st.TTL
	if now, _, ok := clock.Now(); ok {
		remaining = min(remaining, max(0, st.Renewed.Add(st.TTL).Sub(now)))
	}
	most := cfg.MaxWait
	if most <= 0 {
		most = 2*st.TTL + 30*time.Second
	}
	s.log.Debug("waiting for the lease of another process run with this RID to expire", // OnWait tells people
		zap.Uint64("lifecycle", st.Lifecycle), zap.Duration("at_most", remaining))
	pause := min(time.Second, st.TTL/4)
	for {
		waited := monotime.Since(started)
		if cfg.OnWait != nil {
			cfg.OnWait(LeaseWait{Holder: st, Remaining: max(0, remaining-waited)})
		}
		switch {
		case waited > most && remaining > waited:
			return outcome.New("acquire lease of", outcome.Unavailable, outcome.NotAccepted, target,
				fmt.Sprintf("lifecycle %d%s may hold its lease for %v more, and MaxWait %v is over: wait longer, or stop that process run",
					st.Lifecycle, onHost(st.Host), (remaining-waited).Round(time.Second), most))
		case waited > most:
			return outcome.New("acquire lease of", outcome.Unavailable, outcome.NotAccepted, target,
				fmt.Sprintf("the lease of lifecycle %d did not expire within %v although it was not renewed: has the store a leader?", st.Lifecycle, most))
		}
		if err := s.sleep(ctx, pause); err != nil {
			if ctx.Err() == nil {
				return unavailable("acquire lease of", target, err)
			}
			return outcome.FromContext(ctx, "acquire lease of", outcome.NotAccepted, target,
				fmt.Sprintf("while waiting for the lease of lifecycle %d to expire", st.Lifecycle))
		}
		now, err := s.readLease(ctx, cfg.RID, st.Revision)
		switch {
		case err != nil:
			if outcome.KindOf(err) != outcome.Unavailable || ctx.Err() != nil {
				return err
			}
		case !now.held(), now.Proof != st.Proof:
			return nil
		case now.Live && now.Revision > st.Revision:
			return outcome.Wrap("acquire lease of", outcome.AlreadyExists, outcome.NotAccepted, target,
				fmt.Sprintf("lifecycle %d%s has held it since %s and renewed its lease while this process waited", now.Lifecycle, onHost(now.Host), now.Since.Format(time.RFC3339)), ErrRIDInUse)
		}
	}
}

func onHost(host string) string {
	if host == "" {
		return ""
	}
	return " on host " + host
}

func (s *Store) newLease(cfg LeaseConfig, clock *Clock) *Lease {
	return &Lease{
		s: s, cfg: cfg, clock: clock,
		events: make(chan LeaseEvent, eventBuffer), verify: make(chan chan error), done: make(chan struct{}),
	}
}

// start makes a lease of the acknowledged first write, if it came in time.
func (l *Lease) start(res writeResult) bool {
	l.pending = nil
	l.base = base{revision: res.revision, firstSent: res.firstSent}
	l.lifecycle = res.revision
	l.generation.Store(res.revision)
	l.acked.Store(&renewal{revision: res.revision, at: monotime.Now()})
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.run, l.stop = context.WithCancel(l.s.ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(time.Hour, l.expire)
	if !l.open(res.firstSent) {
		l.timer.Stop()
		l.cancel(errReleased)
		l.stop()
		return false
	}
	l.wg.Add(2)
	go l.keep()
	go l.watchIdentity()
	go func() { // the channel may be closed once nobody sends any more, and only a held lease can lapse
		defer close(l.done)
		l.wg.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.held {
			l.close(errNotKept)
		}
		close(l.events)
	}()
	return true
}

// Release gives the lease back: it admits nothing more from the call on, its context ends, and the key is deleted by
// compare-and-set, so that a successor need not wait. Release waits for the lease's goroutines. It may be called any
// number of times; only the first call writes.
//
// Errors are *outcome.Error, Unavailable when the store does not answer before ctx ends: the lease then expires by
// itself. A lease that has expired, or that somebody else holds, is none.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	first := l.ended == nil
	if first {
		l.ended = errReleased
		l.close(errReleased)
	}
	l.mu.Unlock()
	l.stop()
	<-l.done
	if !first {
		return nil
	}
	return l.delete(ctx)
}

// maxDeletes bounds the attempts to delete a key that moved: only a pending renewal of the lease itself can move it.
const maxDeletes = 3

func (l *Lease) delete(ctx context.Context) error {
	rev := l.base.revision
	for range maxDeletes {
		opID := nuid.Next()
		v := l.value.next(opID)
		v.Lifecycle, v.Generation = l.lifecycle, l.Generation()
		w := l.s.leaseWrite(l.cfg.RID, v, opID, rev, markerTTL)
		w.marker = true
		_, err := l.s.write(ctx, w)
		if !errors.Is(err, ErrConflict) {
			return err
		}
		st, err := l.s.readLease(ctx, l.cfg.RID, rev)
		if err != nil {
			return err
		}
		if !st.Live || st.Lifecycle != l.lifecycle || st.Revision <= rev {
			return nil
		}
		rev = st.Revision
	}
	return nil
}
