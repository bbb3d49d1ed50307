package objects

import (
	"context"
	"errors"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// settleLimit is how long the result of a record write is pursued; the store cannot tell it later than after 9 min.
	settleLimit = 9 * time.Minute
	// settlePause is the pause between two rounds of that.
	settlePause = 100 * time.Millisecond
)

// settle makes a record write and pursues it until its result is definite (FO-7a, FO-7e), beyond the operation's own time.
// A write that was lost for ever is decided and made anew.
func (s *Service) settle(write func() (kvlocation.Change, error)) (kvlocation.Change, error) {
	ch, err := write()
	for end := monotime.Now().Add(settleLimit); err != nil && s.ctx.Err() == nil && monotime.Now() < end; {
		var p *kvlocation.Pending
		switch {
		case errors.As(err, &p):
			s.stats.unresolved.Add(1)
			s.pause(settlePause)
			ch, err = s.store.Resolve(s.ctx, p)
		case errors.Is(err, kvlocation.ErrConflict):
			ch, err = write()
		default:
			return ch, err
		}
	}
	return ch, err
}

// pursue runs f, which may have to settle a record write, and waits for it as long as ctx allows: then the result is
// Unknown to the caller, and f goes on. not is called instead of f when the Service stops.
func (s *Service) pursue(ctx context.Context, key kvlocation.ObjectKey, f func() error, not func()) error {
	done := make(chan error, 1)
	if !s.spawn(func() { done <- f() }) {
		not()
		return outcome.New("", outcome.ShuttingDown, outcome.NotAccepted, key.String(), "this program is shutting down")
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return outcome.FromContext(ctx, "", outcome.Unknown, key.String(), "the store has not said yet what became of the change of its record")
	}
}

// pause waits, or until the Service ends.
func (s *Service) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// neverSent reports errors of a record write that is certain not to have been applied, and may be tried again.
func neverSent(err error) bool {
	return errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted)
}

// illegal reports whether the record was not in the state that a write needs.
func illegal(err error) bool {
	var m *kvlocation.IllegalMove
	return errors.As(err, &m)
}

// cancelRecord ends a Creating record, however long the store takes. A nil error means that it is cancelled.
func (s *Service) cancelRecord(at kvlocation.Entry, absent kvlocation.Absence) error {
	for end := monotime.Now().Add(settleLimit); ; {
		ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.Cancel(s.ctx, at, s.owner(), absent) })
		switch {
		case err == nil && ch.Overwritten && ch.Entry.Phase() != kvlocation.PhaseMissing && ch.Entry.Generation() == at.Generation():
			return errOvertaken(at.Key, ch.Entry)
		case err == nil:
			return nil
		case !neverSent(err) || s.ctx.Err() != nil || monotime.Now() > end:
			return err
		}
		s.pause(settlePause)
	}
}
