package relocate

import (
	"context"
	"errors"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// writeAttempt is how long one round of a record write may take before the unit hears that its result is unknown.
	writeAttempt = 3 * time.Second
	// writePause is the first pause before a write that was certainly not applied is tried again, or one of unknown
	// result asked for again; it doubles up to writePauseLast.
	writePause     = 20 * time.Millisecond
	writePauseLast = time.Second
)

// record is one side's hold on the unit's record: what it wrote or read last, and the write under way.
//
// Concurrency: one goroutine at a time, that of the write or read under way; the unit has one write at a time.
type record struct {
	s               *Service
	op              string
	key             kvlocation.ObjectKey
	generation      uint64
	ownerGeneration uint64 // before the move
	source, target  kvlocation.Owner

	at      kvlocation.Entry // what the next write stands on
	pending *kvlocation.Pending
	h       uint64 // of the commit under way
	tries   int    // rounds of the present write without a definite result
	why     error  // what the store said last
}

// view is what an entry says about the move.
func (r *record) view(e kvlocation.Entry) (view, uint64) {
	if e.Generation() != r.generation {
		return viewOther, 0
	}
	m, moving := e.Move()
	moving = moving && m.Op == r.op
	owner, og := e.Record.Owner, e.Record.OwnerGeneration
	switch {
	case moving && e.Preparing():
		return viewPreparing, 0
	case moving && e.Accepted():
		return viewAccepted, 0
	case moving && e.Phase() == kvlocation.PhaseReady && owner.Is(r.target.RID, r.target.Lifecycle) && og == r.ownerGeneration+1:
		return viewCommitted, m.H
	case !moving && e.Phase() == kvlocation.PhaseReady && owner.Is(r.source.RID, r.source.Lifecycle) && og == r.ownerGeneration:
		return viewSource, 0
	}
	return viewOther, 0
}

// write makes one record write, or asks again for the one under way, and says what became of it. prefix is called just
// before a commit is sent, for its h.
func (r *record) write(ctx context.Context, v verb, again bool, prefix func() uint64) event {
	if !r.pause(ctx) {
		if again {
			return event{kind: evWrote, verb: v, fate: unknown}
		}
		return event{kind: evWrote, verb: v, fate: notApplied}
	}
	ctx, cancel := context.WithTimeout(ctx, writeAttempt)
	defer cancel()
	var (
		ch  kvlocation.Change
		err error
	)
	if again {
		ch, err = r.s.cfg.Store.Resolve(ctx, r.pending)
		if errors.Is(err, kvlocation.ErrConflict) { // lost for ever: the record decides what follows
			r.pending = nil
			if r.at, err = r.s.cfg.Store.Read(ctx, r.key); err == nil {
				ch, err = r.send(ctx, v, prefix)
			}
		} else if err != nil {
			if e, ok := r.moved(); ok {
				return r.found(v, e)
			}
		}
	} else {
		ch, err = r.send(ctx, v, prefix)
	}
	return r.judge(v, ch, err)
}

// moved reads the record when the store's answers do not come through, or come too late to tell what became of the write:
// once its revision is another, the write can never be applied any more, and the record says what is.
func (r *record) moved() (kvlocation.Entry, bool) {
	ctx, cancel := context.WithTimeout(r.s.ctx, readAttempt)
	defer cancel()
	e, err := r.s.cfg.Store.Read(ctx, r.key)
	return e, err == nil && e.Revision != r.pending.Expects() // which may be later than r.at: the store has tried again by itself
}

// found is the event of a record that says by itself what has to follow.
func (r *record) found(v verb, e kvlocation.Entry) event {
	r.at, r.pending, r.tries = e, nil, 0
	ev := event{kind: evWrote, verb: v, fate: refused, revision: e.Revision}
	ev.view, ev.h = r.view(e)
	return ev
}

// send makes the write of a verb.
func (r *record) send(ctx context.Context, v verb, prefix func() uint64) (kvlocation.Change, error) {
	store := r.s.cfg.Store
	switch v {
	case wrPrepare, wrAccept, wrCommit: // what begins something needs the lease (FO-7c); the rest settles
		if err := r.s.cfg.Lease.Admit(); err != nil {
			return kvlocation.Change{}, err
		}
	}
	if r.at.Revision == 0 {
		e, err := store.Peek(ctx, r.key)
		if err != nil {
			return kvlocation.Change{}, err
		}
		if r.at = e; e.Generation() != r.generation { // the replica may be behind
			if r.at, err = store.Read(ctx, r.key); err != nil {
				r.at = kvlocation.Entry{}
				return kvlocation.Change{}, err
			}
			if r.at.Generation() != r.generation {
				return kvlocation.Change{Entry: r.at}, &kvlocation.IllegalMove{Verb: kvlocation.VerbAbort, From: r.at.Phase(), Kind: outcome.NotFound, Why: "the object has gone"}
			}
		}
	}
	me := r.s.owner()
	switch v {
	case wrPrepare:
		return store.Prepare(ctx, r.at, me, r.op, r.target)
	case wrAccept:
		return store.Accept(ctx, r.at, me, r.op)
	case wrAbort:
		return store.Abort(ctx, r.at, me, r.op)
	case wrCommit:
		r.h = prefix()
		return store.Commit(ctx, r.at, me, r.op, r.h)
	}
	return store.ClearMove(ctx, r.at, me, r.op)
}

// judge turns the result of a write into an event.
func (r *record) judge(v verb, ch kvlocation.Change, err error) event {
	e := event{kind: evWrote, verb: v, h: 0}
	var (
		p       *kvlocation.Pending
		illegal *kvlocation.IllegalMove
	)
	switch {
	case err == nil:
		e.fate, e.revision = applied, ch.Entry.Revision
		if r.at, r.pending, r.tries = ch.Entry, nil, 0; v == wrCommit {
			e.h = r.h
		}
		if ch.Overwritten {
			var h uint64
			if e.view, h = r.view(ch.Entry); e.view == viewCommitted {
				e.h = h
			}
		}
	case errors.As(err, &p):
		r.pending, r.why = p, err
		r.tries++
		e.fate = unknown
	case errors.As(err, &illegal):
		r.at, r.pending, r.why, r.tries = ch.Entry, nil, err, r.tries+1
		e.fate, e.revision = refused, ch.Entry.Revision
		e.view, e.h = r.view(ch.Entry)
	default:
		r.pending, r.why, r.tries = nil, err, r.tries+1
		e.fate = notApplied
	}
	return e
}

// pause waits before a write is tried again. It reports whether the time was over.
func (r *record) pause(ctx context.Context) bool {
	if r.tries == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(min(writePause<<min(r.tries-1, 8), writePauseLast))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// read reads the record: from any replica, or as it is now.
func (r *record) read(ctx context.Context, now bool) event {
	ctx, cancel := context.WithTimeout(ctx, readAttempt)
	defer cancel()
	f := r.s.cfg.Store.Peek
	if now {
		f = r.s.cfg.Store.Read
	}
	e, err := f(ctx, r.key)
	if err != nil {
		return event{kind: evReadFailed}
	}
	v, h := r.view(e)
	return event{kind: evRecord, view: v, revision: e.Revision, h: h}
}

// readAttempt bounds one read of the record.
const readAttempt = 3 * time.Second
