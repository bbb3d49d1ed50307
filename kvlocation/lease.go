package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// ErrOwnershipLost is the cause with which a lease's context ends.
var ErrOwnershipLost = errors.New("the node's lease ended: it owns nothing until it has a new one")

// ErrRIDInUse is in the chain of AcquireLease's error when another process run holds the RID and is alive.
var ErrRIDInUse = errors.New("the RID is in use by another process")

// ErrSuperseded is in the chain of errors of a process whose RID another process run has taken. It has to end.
var ErrSuperseded = errors.New("another process run has taken this node's RID: this process has to end")

// LeaseEventKind is what happened to a lease.
type LeaseEventKind uint8

// What may happen to a lease. Those from LeaseSuperseded on are terminal: the channel is closed after one of them.
const (
	// LeaseLapsed: the admission deadline passed without a renewal, or the lease was found expired on the store.
	// Nothing new may start. Next: LeaseRegained, or a terminal event.
	LeaseLapsed LeaseEventKind = iota + 1
	// LeaseRegained: a lease of a new generation was created; the lifecycle stays. What the node owns opens again
	// only after it was adopted under the new generation. Next: any but itself.
	LeaseRegained
	// LeaseStreamMissing: the server says that a stream of the mesh does not exist (see Store.Fault). The lease stays
	// as it was, but its owner cannot rely on the store until Verify says so again. Next: any.
	LeaseStreamMissing
	// LeaseSuperseded: another lifecycle holds the RID.
	LeaseSuperseded
	// LeaseRolledBack: the store lost writes that it had acknowledged.
	LeaseRolledBack
	// LeaseMadeAgain: the store's streams were removed and made again.
	LeaseMadeAgain
)

func (k LeaseEventKind) String() string {
	switch k {
	case LeaseLapsed:
		return "lapsed"
	case LeaseRegained:
		return "regained"
	case LeaseStreamMissing:
		return "a stream is missing"
	case LeaseSuperseded:
		return "superseded"
	case LeaseRolledBack:
		return "store rolled back"
	case LeaseMadeAgain:
		return "store made again"
	}
	return fmt.Sprintf("LeaseEventKind(%d)", uint8(k))
}

// Terminal reports whether the lease is over for this process.
func (k LeaseEventKind) Terminal() bool { return k >= LeaseSuperseded }

// LeaseEvent is one change of a lease.
type LeaseEvent struct {
	Kind LeaseEventKind
	// Generation is the lease generation that ended or began.
	Generation uint64
	// Err says why; nil for LeaseRegained.
	Err error
}

// eventBuffer bounds the events that nobody has read yet. Beyond it the oldest is dropped, so the last one, which
// says how things stand, is never lost.
const eventBuffer = 16

// Lease is a node's hold on its RID.
//
// A lease ends here before it can end on the store: at the admission deadline, which is the first sending of the
// renewal that was acknowledged last, plus TTL, less the margin, on this machine's monotonic clock. A lease
// generation that has lapsed never admits again.
//
// Concurrency: every method may be called from any goroutine.
type Lease struct {
	s     *Store
	cfg   LeaseConfig
	clock *Clock

	lifecycle  uint64
	generation atomic.Uint64
	// deadline is the admission deadline as a monotime.Time; 0 while the lease is closed.
	deadline atomic.Int64
	acked    atomic.Pointer[renewal] // the last renewal whose acknowledgement was received

	mu     sync.Mutex
	held   bool
	ended  error // why the lease is over for this process; nil while it is not
	why    error // why the lease is closed, while it is
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // calls expire
	events chan LeaseEvent
	skewed bool // the skew of the clocks was reported

	// Only the keeper goroutine touches these, and Release after it has ended.
	base    base
	value   leaseValue // of the last write sent
	pending *sending   // a write of unknown result

	publishing sync.Mutex // one PublishDescriptor at a time; it guards the next two
	descRev    uint64     // the revision of the descriptor's key, if known
	descKnown  bool
	published  published

	done   chan struct{} // closed when the goroutines have ended
	verify chan chan error
	run    context.Context // ends with Release or a terminal event
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// renewal is one acknowledged renewal.
type renewal struct {
	revision uint64
	at       monotime.Time // when the acknowledgement was received
}

// base is the last own write of the key that is known to be stored.
type base struct {
	revision  uint64
	firstSent monotime.Time
}

// RID returns the node's name.
func (l *Lease) RID() string { return l.cfg.RID }

// TTL returns the lease's TTL.
func (l *Lease) TTL() time.Duration { return l.cfg.TTL }

// Lifecycle returns the number of this process run: the revision of the first lease it created. It never changes.
func (l *Lease) Lifecycle() uint64 { return l.lifecycle }

// Generation returns the revision at which the present lease was created. After a lapse it is that of the lapsed
// lease until a new one is created.
func (l *Lease) Generation() uint64 { return l.generation.Load() }

// Clock returns the store's clock, which the lease measures with every renewal.
func (l *Lease) Clock() *Clock { return l.clock }

// Admit returns nil while the node may start something new: a message, a timer, a factory, a relocation step. Else
// it returns an *outcome.Error, Unavailable and NotAccepted (FO-7c). It takes no lock and, on success, allocates
// nothing.
func (l *Lease) Admit() error {
	if int64(monotime.Now()) < l.deadline.Load() {
		return nil
	}
	return l.refusal()
}

func (l *Lease) refusal() error {
	l.mu.Lock()
	why := l.why
	if l.ended != nil {
		why = l.ended
	}
	l.mu.Unlock()
	if why == nil {
		why = ErrOwnershipLost // past the deadline, and the timer has not come round yet
	}
	return outcome.Wrap("admit", outcome.Unavailable, outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID), "the node holds no lease", why)
}

// Context returns a context that is cancelled with ErrOwnershipLost in its cause when the present lease ends. While
// the lease is closed it is cancelled already; after LeaseRegained there is a new one.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx
}

// Events returns what happens to the lease, in order. It has one reader. A reader that falls more than 16 events
// behind loses the oldest. The channel is closed after a terminal event, by Release and by Store.Close.
func (l *Lease) Events() <-chan LeaseEvent { return l.events }

// emit must be called with mu held.
func (l *Lease) emit(e LeaseEvent) {
	for {
		select {
		case l.events <- e:
			return
		default:
		}
		select {
		case <-l.events:
		default:
		}
	}
}

// open lets the lease admit, under the generation that was created or renewed by a write first sent at firstSent.
// It must be called with mu held.
func (l *Lease) open(firstSent monotime.Time) bool {
	deadline := firstSent.Add(l.cfg.TTL - l.cfg.Margin)
	left := deadline.Sub(monotime.Now())
	if left <= 0 {
		return false
	}
	l.held, l.why = true, nil
	l.deadline.Store(int64(deadline))
	l.timer.Reset(min(left, maxTimer))
	return true
}

// maxTimer bounds one sleep of the timer: Go's timers stand still while the machine is suspended, monotime does not.
const maxTimer = time.Second

// expire is the timer's function.
func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		return
	}
	left := monotime.Time(l.deadline.Load()).Sub(monotime.Now())
	if left > 0 {
		l.timer.Reset(min(left, maxTimer))
		return
	}
	l.lapse(fmt.Errorf("%w: no renewal was acknowledged in time", ErrOwnershipLost))
}

// lapse closes a held lease. It must be called with mu held.
func (l *Lease) lapse(why error) {
	if !l.held {
		return
	}
	l.close(why)
	l.emit(LeaseEvent{Kind: LeaseLapsed, Generation: l.Generation(), Err: why})
	l.s.log.Warn("lease lapsed: nothing new starts until there is a new one",
		zap.Uint64("generation", l.Generation()), zap.Error(why))
}

// close must be called with mu held.
func (l *Lease) close(why error) {
	l.held, l.why = false, why
	l.deadline.Store(0)
	l.timer.Stop()
	l.cancel(why)
}

// renewed notes that a renewal first sent at firstSent is stored. It reports whether the lease is held with it.
func (l *Lease) renewed(revision uint64, firstSent monotime.Time) bool {
	now := monotime.Now()
	l.acked.Store(&renewal{revision: revision, at: now})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		return false
	}
	// A renewal that is acknowledged after the deadline comes too late, whatever it would allow: a lapsed
	// generation never serves again. Whoever was refused under the old deadline read the clock before the new one was
	// stored, so the last look finds that too: every refusal is followed by the event.
	old := l.deadline.Load()
	if int64(now) >= old || !l.open(firstSent) || int64(monotime.Now()) >= old {
		l.lapse(fmt.Errorf("%w: the renewal was acknowledged too late", ErrOwnershipLost))
		return false
	}
	return true
}

// regained notes that a lease of a new generation is stored. It reports whether the lease is held with it.
func (l *Lease) regained(revision uint64, firstSent monotime.Time) bool {
	l.acked.Store(&renewal{revision: revision, at: monotime.Now()})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	l.generation.Store(revision) // before it admits: what is admitted belongs to the new generation
	if !l.open(firstSent) {
		return false
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.emit(LeaseEvent{Kind: LeaseRegained, Generation: revision})
	l.s.log.Info("lease regained", zap.Uint64("generation", revision))
	return true
}

// end closes the lease for ever.
func (l *Lease) end(kind LeaseEventKind, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return
	}
	l.ended = why
	l.close(fmt.Errorf("%w: %w", ErrOwnershipLost, why))
	l.emit(LeaseEvent{Kind: kind, Generation: l.Generation(), Err: why})
	l.s.log.Error("lease ended", zap.Stringer("cause", kind), zap.Error(why))
	l.stop()
}

// Held reports whether the lease admits at this moment.
func (l *Lease) Held() bool { return int64(monotime.Now()) < l.deadline.Load() }

// Verify renews the lease now and compares the store's identity, as after a reconnect (FO-10.5). nil means that
// the lease is held and the store is the same one.
//
// Errors are *outcome.Error: Unavailable when the lease is closed or the store does not answer, DataLost when the
// store was rolled back or made again, DeadlineExceeded when ctx ended first.
func (l *Lease) Verify(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case l.verify <- done:
	case <-l.run.Done():
		return l.refusal()
	case <-ctx.Done():
		return outcome.FromContext(ctx, "verify lease", outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID), "")
	}
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-l.run.Done():
		return l.refusal()
	case <-ctx.Done():
		return outcome.FromContext(ctx, "verify lease", outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID), "")
	}
	if err := l.s.checkIdentity(ctx, l.clock); err != nil {
		return err
	}
	return l.Admit()
}

// LeaseOf reads another node's lease, on suspicion. Any replica may answer, so it may be a few milliseconds old; use
// ProvablyGone where something depends on the node's end.
func (s *Store) LeaseOf(ctx context.Context, rid string) (LeaseState, error) {
	m, err := s.get(ctx, s.nodes, leaseKey(rid))
	if err != nil {
		return LeaseState{RID: rid}, err
	}
	st, _, err := leaseState(rid, m)
	if err != nil {
		return st, outcome.Wrap("read lease", outcome.ProtocolError, outcome.NotAccepted, fmt.Sprintf("node %q", rid), "", err)
	}
	return st, nil
}
