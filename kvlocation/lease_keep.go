package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// keep renews the lease, one write after the other, until the lease is over.
func (l *Lease) keep() {
	defer l.wg.Done()
	timer := time.NewTimer(l.cfg.Renew)
	defer timer.Stop()
	failing := false
	for {
		var done chan error
		select {
		case <-l.run.Done():
			return
		case <-timer.C:
		case done = <-l.verify:
		}
		started := monotime.Now()
		err := l.round(l.run)
		if done != nil {
			done <- err
		}
		if err != nil && !failing && l.run.Err() == nil {
			l.s.log.Warn("lease not renewed yet", zap.Error(err))
		}
		failing = err != nil
		// Renewals are spaced by their sendings: one that hung through an election is followed by the next at once.
		wait := l.cfg.Renew - monotime.Since(started)
		if err != nil {
			wait = max(wait, min(l.cfg.Renew, time.Second)/2)
		}
		timer.Reset(max(wait, MinRenew/2))
	}
}

// watchIdentity compares the store's identity and clock beside every renewal. It is no part of the renewals because
// either may hang while the other tells what is the matter.
func (l *Lease) watchIdentity() {
	defer l.wg.Done()
	tick := time.NewTicker(l.cfg.Renew)
	defer tick.Stop()
	for {
		select {
		case <-l.run.Done():
			return
		case <-l.s.identity.lost:
			l.endWithStore()
			return
		case <-tick.C:
		}
		err := l.s.checkIdentity(l.run, l.clock)
		if l.run.Err() != nil {
			return
		}
		if l.s.setFault(err) {
			l.streamMissing(err)
		}
		if err == nil {
			l.reportSkew()
		}
	}
}

// streamMissing tells the lease's owner that a stream is missing.
func (l *Lease) streamMissing(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.emit(LeaseEvent{Kind: LeaseStreamMissing, Generation: l.Generation(), Err: why})
	}
}

// endWithStore ends the lease because the store is another one than it was.
func (l *Lease) endWithStore() {
	ctx, cancel := context.WithTimeout(l.run, l.s.attempt)
	defer cancel()
	why := l.s.explainRefusal(ctx)
	kind := LeaseRolledBack
	if errors.Is(why, ErrMadeAgain) {
		kind = LeaseMadeAgain
	}
	l.end(kind, why)
}

func (l *Lease) reportSkew() {
	skew, _ := l.clock.Skew()
	l.mu.Lock()
	report := skew.Abs() > MaxSkew && !l.skewed
	l.skewed = skew.Abs() > MaxSkew
	l.mu.Unlock()
	if report {
		l.s.log.Warn("this machine's clock differs from the store's: deadlines are judged on the store's, logs are not comparable",
			zap.Duration("store_ahead_by", skew))
	}
}

// round makes one attempt to have the lease for another TTL: a renewal while it is held, else coming back.
func (l *Lease) round(ctx context.Context) error {
	if err := l.settle(ctx); err != nil {
		return err
	}
	if !l.isHeld() {
		return l.comeBack(ctx)
	}
	v := l.value
	v.Lifecycle, v.Generation = l.lifecycle, l.Generation()
	l.send(v, l.base.revision)
	if err := l.settle(ctx); err != nil {
		return err
	}
	if !l.isHeld() {
		return l.comeBack(ctx)
	}
	return nil
}

func (l *Lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// send makes the next write of the key the pending one.
func (l *Lease) send(v leaseValue, expect uint64) {
	opID := nuid.Next()
	l.value = v.next(opID)
	l.pending = &sending{write: l.s.leaseWrite(l.cfg.RID, l.value, opID, expect, l.cfg.TTL)}
}

// leaseWrite is the one form in which a lease key is written: compare-and-set with a TTL, since a write without one
// would make the lease permanent.
func (s *Store) leaseWrite(rid string, v leaseValue, opID string, expect uint64, ttl time.Duration) write {
	return write{
		bucket: s.nodes, key: leaseKey(rid), expect: expect, value: v.encode(), opID: opID, ttl: ttl, applied: leaseJudge(opID),
	}
}

// leaseJudge is the operation ID of a write of a lease key.
type leaseJudge string

func (opID leaseJudge) judge(m *storedMsg) verdict {
	// A write that was applied and then erased by an expiry is as good as lost: there is no lease.
	if m != nil && !m.deleted() {
		var got leaseValue
		if json.Unmarshal(m.value, &got) == nil && slices.Contains(got.Ops, string(opID)) {
			return wasApplied
		}
	}
	return wasLost
}

// settle sends the pending write, the same one again if its result is unknown, until that is known. When it returns
// nil nothing is pending. A held lease is renewed by it or, when the key was not at the revision that this process
// had written last, closed.
func (l *Lease) settle(ctx context.Context) error {
	sd := l.pending
	if sd == nil {
		return nil
	}
	res, err := l.s.resolve(ctx, sd)
	switch {
	case err == nil:
		l.pending = nil
		l.base = base{revision: res.revision, firstSent: res.firstSent}
		l.renewed(res.revision, res.firstSent)
		return nil
	case errors.Is(err, ErrConflict):
		l.pending = nil
		l.mu.Lock()
		l.lapse(fmt.Errorf("%w: it expired or was taken: %w", ErrOwnershipLost, err))
		l.mu.Unlock()
		return nil
	case !sd.open:
		l.pending = nil // never reached the store
	case monotime.Since(sd.firstSent) > resolveLimit:
		l.pending = nil // nobody can tell any more; what the key holds decides
		return nil
	}
	return err
}

// comeBack creates the lease anew if nobody has taken the key.
func (l *Lease) comeBack(ctx context.Context) error {
	floor, err := l.s.probe(ctx, l.s.nodes)
	if err != nil {
		return err
	}
	snap, err := l.s.snapshot(ctx, l.s.nodes, floor, leaseKey(l.cfg.RID), descKey(l.cfg.RID))
	if err != nil {
		return err
	}
	m := snap.get(leaseKey(l.cfg.RID))
	if m != nil && m.revision < l.base.revision {
		// Read no older than an own write, the key is behind what was acknowledged.
		l.s.refuse(fmt.Errorf("%w (bucket %s: %s is at revision %d, and %d was acknowledged)",
			ErrRolledBack, l.s.nodes.name, m.key, m.revision, l.base.revision))
		return l.s.refusal()
	}
	if other := descriptorLifecycle(snap.get(descKey(l.cfg.RID))); other > l.lifecycle {
		return l.superseded(fmt.Sprintf("lifecycle %d has published a descriptor", other))
	}
	st, _, err := leaseState(l.cfg.RID, m)
	if err != nil {
		return outcome.Wrap("create lease", outcome.ProtocolError, outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID), "", err)
	}
	// A write at the instant at which the server lets the old lease expire may be erased by the marker of the
	// expiry, acknowledged or not. Over an own lease that still lives, a write therefore counts only when it is
	// acknowledged well before that instant; else the marker is waited for.
	latest := monotime.Time(1<<63 - 1)
	switch {
	case st.Proof != "":
		return l.closed(fmt.Sprintf("%s holds its key to prove that lifecycle %d is gone", st.Proof, l.lifecycle))
	case st.Live && st.Lifecycle != l.lifecycle:
		return l.superseded(fmt.Sprintf("lifecycle %d holds the lease since %s", st.Lifecycle, st.Since.Format(time.RFC3339)))
	case st.Live && st.Revision == l.base.revision:
		latest = l.base.firstSent.Add(l.cfg.TTL - l.cfg.Margin)
	case st.Live:
		latest = 0
	}
	if monotime.Now() >= latest {
		return l.closed("the old lease has not expired on the store yet")
	}
	v := l.value
	v.Lifecycle, v.Generation = l.lifecycle, 0
	l.send(v, st.Revision)
	if err := l.settle(ctx); err != nil {
		return err
	}
	if l.base.revision <= st.Revision || monotime.Now() >= latest || !l.regained(l.base.revision, l.base.firstSent) {
		return l.closed("the new lease was not acknowledged in time")
	}
	return nil
}

// closed is the error of a round that left the lease closed; admission is refused with the same reason.
func (l *Lease) closed(why string) error {
	l.mu.Lock()
	if !l.held {
		l.why = fmt.Errorf("%w: %s", ErrOwnershipLost, why)
	}
	l.mu.Unlock()
	return outcome.New("create lease", outcome.Unavailable, outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID), why)
}

func (l *Lease) superseded(how string) error {
	why := fmt.Errorf("%w (RID %q, lifecycle %d; %s)", ErrSuperseded, l.cfg.RID, l.lifecycle, how)
	l.end(LeaseSuperseded, why)
	return l.refusal()
}
