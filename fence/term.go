package fence

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

// The causes with which a term's context ends.
var (
	// ErrTermLost: the term is over by its own clock, or another candidate was seen to have taken the leadership.
	ErrTermLost = errors.New("the term of leadership has ended: what it held is no longer this process's")
	// ErrResigned: the holder gave it up.
	ErrResigned = errors.New("the term of leadership was resigned")
)

// Term is one term of leadership: a Holder whose token is (epoch of the store, revision of the grant).
//
// A term ends by itself when TTL less margin have passed, on this process's monotonic clock, since the first sending of the
// last renewal that was acknowledged; a renewal that hangs does not prolong it, and time in which the process was frozen
// or the machine suspended counts.
//
// Concurrency: its methods may be called from any goroutine.
type Term struct {
	e     *Election
	token Token

	deadline atomic.Int64 // monotime.Time up to which the term is held, 0 once it has ended; written under mu
	ctx      context.Context
	cancel   context.CancelCauseFunc
	keeper   chan struct{} // closed when the renewing goroutine has ended

	mu     sync.Mutex
	at     view        // guarded by mu; the record as it was acknowledged last
	timer  *time.Timer // guarded by mu
	gone   bool        // guarded by mu; the record is known to be another's, or vacant
	resign sync.Mutex  // one Resign at a time
}

func newTerm(e *Election, v view, sent monotime.Time) *Term {
	t := &Term{
		e: e, at: v, keeper: make(chan struct{}),
		token: Token{Source: e.mesh + "/leader/" + e.cfg.Name, Epoch: e.sh.Epoch(), Generation: v.term()},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.ctx = NewContext(t.ctx, t)
	until := sent.Add(e.cfg.TTL - e.cfg.Margin)
	t.deadline.Store(int64(until))
	t.mu.Lock()
	t.timer = time.AfterFunc(until.Sub(monotime.Now()), t.ring)
	t.mu.Unlock()
	go t.keep()
	return t
}

// Token returns the term's token. That it was returned says nothing about whether the term is still held: FenceToken does.
func (t *Term) Token() Token { return t.token }

// Context returns a context that ends with the term and carries its token for guards. Its cause says why: ErrTermLost or
// ErrResigned.
func (t *Term) Context() context.Context { return t.ctx }

// FenceToken returns the token while the term is held, by this process's clock; then ErrTermLost or ErrResigned with the
// token that was held. It makes a Term a Holder.
func (t *Term) FenceToken() (Token, error) {
	if t.held() {
		return t.token, nil
	}
	if cause := context.Cause(t.ctx); cause != nil {
		return t.token, cause
	}
	return t.token, ErrTermLost // past the deadline, and the timer has not come round yet
}

func (t *Term) held() bool { return int64(monotime.Now()) < t.deadline.Load() }

// ring ends the term at its deadline, unless a renewal has moved it.
func (t *Term) ring() {
	t.mu.Lock()
	left := monotime.Time(t.deadline.Load()).Sub(monotime.Now())
	if left > 0 {
		t.timer.Reset(left)
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.finish(fmt.Errorf("%w: no renewal was acknowledged in time", ErrTermLost))
}

// finish ends the term here; the first cause stands.
func (t *Term) finish(why error) {
	t.mu.Lock()
	t.deadline.Store(0) // under mu: a renewal that is acknowledged now must not move it any more
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	if t.ctx.Err() == nil {
		t.e.track.ended(why)
		if !errors.Is(why, ErrResigned) {
			t.e.cfg.Logger.Warn("leads no more", zap.Stringer("token", t.token), zap.Error(why))
		}
	}
	t.cancel(why)
}

// keep renews the term until it ends.
func (t *Term) keep() {
	defer close(t.keeper)
	wait := t.e.cfg.Renew
	for {
		timer := time.NewTimer(wait)
		select {
		case <-t.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if !t.held() {
			t.finish(fmt.Errorf("%w: no renewal was acknowledged in time", ErrTermLost))
			return
		}
		sent := monotime.Now()
		err := t.renew(sent)
		switch {
		case err == nil:
			wait = max(t.e.cfg.Renew-monotime.Since(sent), time.Millisecond)
		case errors.Is(err, errLost), errors.Is(err, errNotYours):
			t.mu.Lock()
			t.gone = true
			t.mu.Unlock()
			t.finish(fmt.Errorf("%w: another candidate has changed the record", ErrTermLost))
			return
		case outcome.KindOf(err) == outcome.DataLost:
			t.finish(fmt.Errorf("%w: %w", ErrTermLost, err))
			return
		default:
			t.e.track.note(err)
			wait = min(t.e.cfg.Renew, time.Second) / 2
		}
	}
}

// renew prolongs the term by one write. The end of the term ends the attempt: a renewal that is acknowledged later is worth
// nothing.
func (t *Term) renew(sent monotime.Time) error {
	t.mu.Lock()
	at := t.at
	t.mu.Unlock()
	v, err := t.e.change(t.ctx, at, renew{run: t.e.self.Run, term: t.token.Generation, ttl: t.e.cfg.TTL})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.at = v
	t.mu.Unlock()
	t.extend(sent.Add(t.e.cfg.TTL - t.e.cfg.Margin))
	t.e.track.renewed(t.e.status(v))
	return nil
}

// extend moves the end of a term that is held. One that has ended stays so.
func (t *Term) extend(until monotime.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held() {
		t.deadline.Store(int64(until))
		t.timer.Reset(until.Sub(monotime.Now()))
	}
}

// Resign ends the term and says in the store that its holder has stopped, so that the next one leads at once, without
// fencing: the work of the term must have ended before. It may be called any number of times, after the term was lost too:
// a holder that has stopped need not be fenced. An error says that the store does not know it; then the next one waits.
func (t *Term) Resign(ctx context.Context) error {
	t.finish(ErrResigned)
	select {
	case <-t.keeper:
	case <-ctx.Done():
		return outcome.FromContext(ctx, "resign", outcome.NotAccepted, fmt.Sprintf("leadership %q", t.e.cfg.Name), "a renewal is under way")
	}
	t.resign.Lock()
	defer t.resign.Unlock()
	for {
		t.mu.Lock()
		at, gone := t.at, t.gone
		t.mu.Unlock()
		if gone {
			// Somebody has taken the record: it may be waiting for this holder to be fenced.
			v, err := confirmed(ctx, t.e.sh, t.e.cfg.Name)
			if err != nil {
				return err
			}
			if at = v; v.rec.Holder == nil || v.rec.Holder.Run != t.e.self.Run || v.term() != t.token.Generation ||
				v.rec.Phase != PhaseLed && v.rec.Phase != PhaseFencing {
				return nil
			}
		}
		_, err := t.e.change(ctx, at, resign{run: t.e.self.Run, term: t.token.Generation, at: time.Now().UTC()})
		switch {
		case err == nil:
			t.e.cfg.Logger.Info("resigned", zap.Stringer("token", t.token))
		case !errors.Is(err, errLost):
			return err
		}
		t.mu.Lock()
		t.gone = true // looked at again, until it is seen that nothing is left to resign
		t.mu.Unlock()
		if err == nil {
			return nil
		}
	}
}
