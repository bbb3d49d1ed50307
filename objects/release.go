package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// DefaultReleaseRate bounds the releases of one bulk release in a second, unless the request says otherwise.
	DefaultReleaseRate = 500
	// MaxReleaseRate is the greatest rate.
	MaxReleaseRate = 10_000

	// releasePage is how many records a bulk release reads at a time.
	releasePage = 256
	// maxReleasedNamed bounds the objects that a report names.
	maxReleasedNamed = 1000
)

// releaseOne is Actors.Release and Spots.Release.
func (s *Service) releaseOne(ctx context.Context, kind kvlocation.ObjectKind, id string, generation uint64) error {
	r, err := s.Release(ctx, ReleaseRequest{Kind: kind, ID: id, Generation: generation}, nil)
	if err != nil {
		return err
	}
	if !r.Done {
		return outcome.FromContext(ctx, "release", outcome.NotAccepted, kvlocation.ObjectKey{Kind: kind, ID: id}.String(), "its owner is not proven gone yet; the proof goes on, and the next release finds it")
	}
	return nil
}

// The outcomes of one object of a release.
const (
	outcomeReleased = "released"
	outcomeWould    = "would release"
	outcomeSkipped  = "skipped"
	outcomeFailed   = "failed"
)

// Release takes the authority over objects from an owner that is provably gone, and frees their IDs (of an object that its
// owner has given up for a move, the move's target is meant): one object by exact
// generation, or all of one process run. It proves the owner gone first, once per run, which takes one TTL of its lease;
// progress, if not nil, is called then and after every page of records. When ctx ends first, the report is not Done, and
// a call with its Cursor goes on. What was released is written down as audit entries.
//
// Errors are *outcome.Error: InvalidOperation with kvlocation.ErrNodeAlive while the owner lives, which says until when;
// NotFound for a reference to another incarnation; InvalidOperation for a request that is not allowed; Unavailable when
// the store does not answer, with what had been done in the report.
func (s *Service) Release(ctx context.Context, req ReleaseRequest, progress func(ReleaseReport)) (ReleaseReport, error) {
	if progress == nil {
		progress = func(ReleaseReport) {}
	}
	if err := req.check(); err != nil {
		return ReleaseReport{}, outcome.Wrap("release", outcome.InvalidOperation, outcome.NotAccepted, req.target(), "", err)
	}
	if req.By == "" {
		req.By = cmp.Or(s.cfg.RID, "a client")
	}
	if req.ID != "" {
		return s.releaseExact(ctx, req, progress)
	}
	return s.releaseOwner(ctx, req, progress)
}

func (r *ReleaseRequest) target() string {
	if r.ID != "" {
		return kvlocation.ObjectKey{Kind: r.Kind, ID: r.ID}.String()
	}
	return fmt.Sprintf("objects of node %q lifecycle %d", r.RID, r.Lifecycle)
}

func (r *ReleaseRequest) check() error {
	if r.Rate == 0 {
		r.Rate = DefaultReleaseRate
	}
	if r.Rate < 1 || r.Rate > MaxReleaseRate {
		return fmt.Errorf("Rate %d is not allowed: it must be 1 to %d", r.Rate, MaxReleaseRate)
	}
	if r.ID == "" {
		if r.Generation != 0 {
			return errors.New("Generation is given without an ID")
		}
		if err := wire.CheckName("RID", r.RID); err != nil {
			return err
		}
		if r.Lifecycle == 0 {
			return errors.New("Lifecycle is missing: an owner is one process run, RID and lifecycle")
		}
		return nil
	}
	switch {
	case r.RID != "" || r.Lifecycle != 0:
		return errors.New("ID and RID are both given: a release means one object or one owner")
	case r.Kind != kvlocation.KindActor && r.Kind != kvlocation.KindSpot:
		return fmt.Errorf("Kind %q is not allowed: it must be %s or %s", r.Kind, kvlocation.KindActor, kvlocation.KindSpot)
	case isEntry(kvlocation.ObjectKey{Kind: r.Kind, ID: r.ID}):
		return errors.New("an Entry Spot has no record to release: it ends with its node")
	case r.Generation == 0:
		return errors.New("Generation is missing: a release means one exact incarnation")
	}
	_, err := wire.EscapeID(r.ID)
	return err
}

// releaseExact releases one object.
func (s *Service) releaseExact(ctx context.Context, req ReleaseRequest, progress func(ReleaseReport)) (ReleaseReport, error) {
	key := kvlocation.ObjectKey{Kind: req.Kind, ID: req.ID}
	report := ReleaseReport{DryRun: req.DryRun}
	l, err := s.store.ReadWith(ctx, key)
	switch {
	case err != nil:
		return report, renamed(err, "release", key)
	case l.Phase() == kvlocation.PhaseMissing:
		return report, otherGeneration("release", key, 0, req.Generation)
	case l.Generation() != req.Generation:
		return report, otherGeneration("release", key, l.Generation(), req.Generation)
	case l.Spot != nil:
		return report, outcome.New("release", outcome.InvalidOperation, outcome.NotAccepted, key.String(),
			"it is located by its Spot, "+spotIn(l.Record.With).String()+", and is released with that only")
	}
	e := l.Entry
	if req.DryRun {
		st, err := s.store.LeaseOf(ctx, e.Record.Holder().RID)
		if err != nil {
			return report, renamed(err, "release", key)
		}
		r := described(e)
		if r.Outcome = outcomeWould; st.Live && st.Lifecycle == e.Record.Holder().Lifecycle {
			r.Outcome, r.Why = outcomeSkipped, livesUntil(st)
		}
		report.note(r)
		report.Done = true
		return report, nil
	}
	gone, err := s.prove(ctx, e.Record.Holder(), &report, progress)
	if err != nil {
		return report, renamed(err, "release", key)
	}
	if gone == nil {
		return report, nil
	}
	r, err := s.releaseEntry(ctx, req, e, *gone)
	report.note(r)
	report.Done = err == nil
	s.logRelease(req, report)
	return report, renamed(err, "release", key)
}

// releaseOwner releases what one process run owns.
func (s *Service) releaseOwner(ctx context.Context, req ReleaseRequest, progress func(ReleaseReport)) (ReleaseReport, error) {
	report := ReleaseReport{DryRun: req.DryRun, Cursor: req.Cursor}
	filter := kvlocation.ScanFilter{Kind: req.Kind, Class: req.Class, Type: req.Type, RID: req.RID, Lifecycle: req.Lifecycle}
	if req.Cursor == "" {
		if err := s.ownsAny(ctx, req, filter); err != nil {
			return report, ended(ctx, err)
		}
	}
	var gone *kvlocation.GoneProof
	alive := ""
	if req.DryRun {
		st, err := s.store.LeaseOf(ctx, req.RID)
		if err != nil {
			return report, ended(ctx, err)
		}
		if st.Live && st.Lifecycle == req.Lifecycle {
			alive = livesUntil(st)
		}
	} else {
		var err error
		run := kvlocation.Owner{RID: req.RID, Lifecycle: req.Lifecycle}
		if gone, err = s.prove(ctx, run, &report, progress); err != nil || gone == nil {
			return report, err
		}
	}
	defer func() { s.logRelease(req, report) }()
	under := withGrace(ctx) // the one that is under way when ctx ends is counted, unless the store hangs
	every := time.NewTicker(time.Second / time.Duration(req.Rate))
	defer every.Stop()
	for {
		es, next, err := s.store.ScanPage(ctx, filter, report.Cursor, releasePage)
		if err == nil && !req.DryRun && len(es) > 0 {
			err = s.stillGone(ctx, req)
		}
		if err != nil {
			return report, ended(ctx, err)
		}
		for _, e := range es {
			if req.DryRun {
				r := described(e)
				if r.Outcome = outcomeWould; alive != "" {
					r.Outcome, r.Why = outcomeSkipped, alive
				}
				report.note(r)
				continue
			}
			select {
			case <-every.C:
			case <-ctx.Done():
				return report, nil // the cursor is that of this page: what was released is not found again
			}
			if o := e.Record.Holder(); !gone.Covers(o.RID, o.Lifecycle, o.Lease) {
				// The run came back after that proof, adopted the object, and has gone again.
				if gone, err = s.prove(ctx, o, &report, progress); err != nil || gone == nil {
					return report, err
				}
			}
			r, err := s.releaseEntry(under, req, e, *gone)
			if err != nil && ctx.Err() != nil {
				return report, nil
			}
			report.note(r)
			if err != nil {
				return report, err
			}
		}
		report.Cursor = next
		if report.Done = next == ""; report.Done {
			return report, nil
		}
		progress(report)
	}
}

// ownsAny refuses a release of nothing at once, before anything is proven.
func (s *Service) ownsAny(ctx context.Context, req ReleaseRequest, filter kvlocation.ScanFilter) error {
	for cursor := ""; ; {
		es, next, err := s.store.ScanPage(ctx, filter, cursor, 1)
		switch {
		case err != nil:
			return err
		case len(es) > 0:
			return nil
		case next == "":
			what := "no object"
			if req.Kind != "" || req.Class != "" || req.Type != "" {
				what = "no such object"
			}
			return outcome.New("release", outcome.NotFound, outcome.NotAccepted, req.target(), fmt.Sprintf("node %q lifecycle %d owns %s (any more)", req.RID, req.Lifecycle, what))
		}
		cursor = next
	}
}

// livesUntil says until when an owner holds its lease at most.
func livesUntil(st kvlocation.LeaseState) string {
	return "its owner lives until " + st.Renewed.Add(st.TTL).UTC().Format(time.RFC3339) + " at most, if its lease is not renewed"
}

// logRelease tells of a release that changed something.
func (s *Service) logRelease(req ReleaseRequest, r ReleaseReport) {
	if req.DryRun || r.Released+r.Failed+r.Skipped == 0 {
		return
	}
	s.log.Info("released", zap.String("what", req.target()), zap.Int("released", r.Released), zap.Int("skipped", r.Skipped),
		zap.Int("failed", r.Failed), zap.Bool("done", r.Done), zap.String("by", req.By), zap.String("reason", req.Reason))
}

// stillGone refuses to go on once the owner has come back, under a new lease generation, in the middle of a release.
func (s *Service) stillGone(ctx context.Context, req ReleaseRequest) error {
	st, err := s.store.LeaseOf(ctx, req.RID)
	if err == nil && st.Live && st.Lifecycle == req.Lifecycle {
		return outcome.Wrap("release", outcome.InvalidOperation, outcome.NotAccepted, req.target(), "the owner has come back", kvlocation.ErrNodeAlive)
	}
	return err
}

// ended is nil for an error that only says that the caller's time was over: the report says how far the release came.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// releaseEntry releases one record, and writes down what came of it. What is begun is brought to its end, beyond ctx if
// need be; then the error is Unknown.
func (s *Service) releaseEntry(ctx context.Context, req ReleaseRequest, e kvlocation.Entry, gone kvlocation.GoneProof) (ReleasedObject, error) {
	out := make(chan ReleasedObject, 1)
	err := s.pursue(ctx, e.Key, func() error {
		r, err := s.releaseNow(req, e, gone)
		out <- r
		return err
	}, func() {})
	select {
	case r := <-out:
		return r, err
	default:
		r := described(e)
		r.Outcome, r.Why = outcomeFailed, err.Error()
		return r, err
	}
}

func (s *Service) releaseNow(req ReleaseRequest, e kvlocation.Entry, gone kvlocation.GoneProof) (ReleasedObject, error) {
	r := described(e)
	ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	err := s.releaseRecord(ctx, e, gone)
	switch {
	case err == nil:
		r.Outcome = outcomeReleased
		s.stats.released.Add(1)
	case illegal(err):
		// It was adopted, moved or closed since it was read.
		r.Outcome, r.Why = outcomeSkipped, err.Error()
		if req.ID == "" {
			err = nil
		}
	default:
		r.Outcome, r.Why = outcomeFailed, err.Error() // the store's doing: the next call of the release tries it again
	}
	actx, acancel := context.WithTimeout(s.ctx, storeTimeout)
	defer acancel()
	aerr := s.store.Audit(actx, kvlocation.AuditEntry{
		By: req.By, Action: "release", Kind: r.Kind, ID: r.ID, Class: r.Class, Type: r.Type, Owner: e.Record.Owner,
		Generation: r.Generation, OwnerGeneration: e.Record.OwnerGeneration, Reason: req.Reason, Outcome: r.Outcome,
	}, s.cfg.AuditRetention)
	if aerr != nil {
		s.log.Error("a release is not in the audit", zap.String("object", e.Key.String()), zap.String("outcome", r.Outcome), zap.Error(aerr))
	}
	return r, err
}

// releaseRecord is the compare-and-set: of a Ready object a release, of one that never was a cancel.
func (s *Service) releaseRecord(ctx context.Context, e kvlocation.Entry, gone kvlocation.GoneProof) error {
	if e.Phase() != kvlocation.PhaseCreating {
		_, err := s.settle(func() (kvlocation.Change, error) { return s.store.Release(ctx, e, gone) })
		return err
	}
	absent, err := s.store.ConfirmAbsent(ctx, gone.RID(), gone.Lifecycle())
	if err != nil {
		return err
	}
	_, err = s.settle(func() (kvlocation.Change, error) { return s.store.Cancel(ctx, e, s.owner(), absent) })
	if err == nil {
		s.dropSpilledOf(e)
	}
	return err
}

func described(e kvlocation.Entry) ReleasedObject {
	return ReleasedObject{Kind: e.Key.Kind, ID: e.Key.ID, Class: e.Record.Kind, Type: e.Record.Type, Generation: e.Generation()}
}

func (r *ReleaseReport) note(o ReleasedObject) {
	switch o.Outcome {
	case outcomeReleased, outcomeWould:
		r.Released++
	case outcomeSkipped:
		r.Skipped++
	default:
		r.Failed++
	}
	if len(r.Objects) < maxReleasedNamed {
		r.Objects = append(r.Objects, o)
	}
}
