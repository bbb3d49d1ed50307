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

// proofReserve is how much longer than the wait the key of a proof lives.
const proofReserve = 10 * time.Second

// GoneProof says that nobody acts any more on what one process run of a node owned under its leases up to a certain
// one: its lease key was taken, or found under a later lifecycle, and one full TTL has passed since. Only
// ProvablyGone makes one; the zero value proves nothing.
type GoneProof struct {
	rid       string
	lifecycle uint64
	before    uint64 // the revision by which the run had lost its lease
}

// Covers reports whether the proof holds for what the process run owned under the given lease generation. A
// generation that the run created after it was proven gone is not covered.
func (p GoneProof) Covers(rid string, lifecycle, generation uint64) bool {
	return p.before != 0 && p.rid == rid && p.lifecycle == lifecycle && generation < p.before
}

// RID returns the node's name.
func (p GoneProof) RID() string { return p.rid }

// Lifecycle returns the process run that is gone.
func (p GoneProof) Lifecycle() uint64 { return p.lifecycle }

// GoneConfig says how a process run is proven gone.
type GoneConfig struct {
	// By names who asks, for people who look at the key meanwhile. Empty means the store's RID.
	By string
	// TTL is the least time to wait. What the node's descriptor and lease name is waited for in any case, and 18 s
	// when neither is of the process run in question and this is 0.
	TTL time.Duration
}

// wait is one full TTL of the process run's lease. A lease key that the run does not hold any more does not name it; its
// descriptor does, until a later run writes its own.
func (c GoneConfig) wait(lifecycle uint64, lease LeaseState, descriptor *storedMsg) time.Duration {
	wait, known := max(c.TTL, lease.TTL), c.TTL > 0
	if d, err := decodeDescriptor(descriptor); err == nil && d.LeaseTTLMillis > 0 {
		wait = max(wait, time.Duration(d.LeaseTTLMillis)*time.Millisecond)
		known = known || d.Lifecycle == lifecycle
	}
	if !known {
		wait = max(wait, DefaultTTL)
	}
	return min(max(wait, MinTTL), MaxTTL)
}

// ProvablyGone proves that a process run of a node is gone, and waits as long as that takes: one full TTL, counted
// on this machine's clock from the moment at which this process took the run's absent lease key, or first read
// that a later run holds it. The wait covers clocks that differ, renewals that were erased, and a node that was
// frozen: until it ends, the run may still act on what it was admitted to. The key is let go at the end.
//
// Errors are *outcome.Error: InvalidOperation with ErrNodeAlive while that run holds its lease, Unavailable when the
// store does not answer, when another proof is under way, or when the key was lost while waiting;
// DeadlineExceeded when ctx ended first.
func (s *Store) ProvablyGone(ctx context.Context, rid string, lifecycle uint64, cfg GoneConfig) (GoneProof, error) {
	target := fmt.Sprintf("node %q lifecycle %d", rid, lifecycle)
	if err := wire.CheckName("RID", rid); err != nil {
		return GoneProof{}, refused("prove gone", target, err)
	}
	if cfg.TTL < 0 || cfg.TTL > MaxTTL {
		return GoneProof{}, refused("prove gone", target, fmt.Errorf("TTL %v is not allowed: it must be between 0 (the default) and %v", cfg.TTL, MaxTTL))
	}
	if cfg.By == "" {
		cfg.By = s.rid
	}
	for {
		floor, err := s.probe(ctx, s.nodes)
		if err != nil {
			return GoneProof{}, err
		}
		snap, err := s.snapshot(ctx, s.nodes, floor, leaseKey(rid), descKey(rid))
		if err != nil {
			return GoneProof{}, err
		}
		st, _, err := leaseState(rid, snap.get(leaseKey(rid)))
		if err != nil {
			return GoneProof{}, outcome.Wrap("prove gone", outcome.ProtocolError, outcome.NotAccepted, target, "", err)
		}
		wait := cfg.wait(lifecycle, st, snap.get(descKey(rid)))
		switch {
		case st.Live && st.Lifecycle > lifecycle:
			if err := s.waitOut(ctx, target, wait); err != nil {
				return GoneProof{}, err
			}
			return GoneProof{rid: rid, lifecycle: lifecycle, before: st.Revision}, nil
		case st.Live:
			return GoneProof{}, aliveError("prove gone", st)
		case st.Proof != "":
			return GoneProof{}, outcome.New("prove gone", outcome.Unavailable, outcome.NotAccepted, target, st.Proof+" is proving it at this moment")
		}
		p, err := s.takeForProof(ctx, rid, lifecycle, cfg.By, st.Revision, wait)
		if !errors.Is(err, ErrConflict) {
			return p, err
		}
	}
}

// ConfirmAbsent makes the evidence that a process run does not hold its lease key at this moment. It is read no older
// than an own write that is sent after the call.
//
// Errors are *outcome.Error: InvalidOperation with ErrNodeAlive while the run holds its lease, Unavailable when the
// store does not answer.
func (s *Store) ConfirmAbsent(ctx context.Context, rid string, lifecycle uint64) (Absence, error) {
	floor, err := s.probe(ctx, s.nodes)
	if err != nil {
		return Absence{}, err
	}
	st, err := s.readLease(ctx, rid, floor)
	if err != nil {
		return Absence{}, err
	}
	if st.Live && st.Lifecycle == lifecycle {
		return Absence{}, aliveError("confirm absence", st)
	}
	return Absence{rid: rid, lifecycle: lifecycle}, nil
}

// takeForProof takes the absent key, waits, and lets the key go. That the key can be let go by compare-and-set
// shows that nobody else had it meanwhile.
func (s *Store) takeForProof(ctx context.Context, rid string, lifecycle uint64, by string, expect uint64, wait time.Duration) (GoneProof, error) {
	target := fmt.Sprintf("node %q lifecycle %d", rid, lifecycle)
	ttl := (wait + proofReserve + time.Second - 1).Truncate(time.Second)
	opID := nuid.Next()
	v := leaseValue{V: wire.SchemaVersion, RID: rid, Proof: by, Gone: lifecycle, TTLMillis: ttl.Milliseconds(), Since: time.Now().UTC()}.next(opID)
	res, err := s.write(ctx, s.leaseWrite(rid, v, opID, expect, ttl))
	if err != nil {
		return GoneProof{}, err
	}
	s.log.Info("waiting for a node's last lease to be over for certain", zap.String("owner", rid), zap.Uint64("lifecycle", lifecycle), zap.Duration("for", wait))
	waited := s.waitOut(ctx, target, wait)

	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	opID = nuid.Next()
	w := s.leaseWrite(rid, v.next(opID), opID, res.revision, markerTTL)
	w.marker = true
	_, err = s.write(dctx, w)
	switch {
	case waited != nil:
		return GoneProof{}, waited
	case errors.Is(err, ErrConflict):
		return GoneProof{}, outcome.New("prove gone", outcome.Unavailable, outcome.NotAccepted, target, "the key was lost while waiting: "+err.Error())
	case err != nil:
		return GoneProof{}, err
	}
	return GoneProof{rid: rid, lifecycle: lifecycle, before: res.revision}, nil
}

// waitOut waits for d on the clock that also counts suspended time.
func (s *Store) waitOut(ctx context.Context, target string, d time.Duration) error {
	for end := monotime.Now().Add(d); ; {
		left := end.Sub(monotime.Now())
		if left <= 0 {
			return nil
		}
		if err := s.sleep(ctx, min(left, maxTimer)); err != nil {
			if ctx.Err() == nil {
				return unavailable("prove gone", target, err)
			}
			return outcome.FromContext(ctx, "prove gone", outcome.NotAccepted, target, "while waiting for its last lease to be over")
		}
	}
}
