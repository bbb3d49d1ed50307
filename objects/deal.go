package objects

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"natsfabric/outcome"
)

const (
	// admitEvery is for how long the lease's word is good. It is far below the lease's margin, and a freeze is longer.
	admitEvery = time.Millisecond
	// adoptTimeout bounds one adoption.
	adoptTimeout = 30 * time.Second
	// retryAfter is when what failed between turns is tried again without new mail.
	retryAfter = time.Second
)

// take returns the next mail. Without any it returns nil, and with rest the object rests: the worker has it no more.
func (o *object) take(w *worker, now instant, rest bool) *envelope {
	if e := w.ahead.next(); e != nil {
		return e
	}
	done := w.done
	w.done = blanks{}
	o.mu.Lock()
	o.box.recall() // nothing is left, but it counts
	var e, spare, refused *envelope
	if o.state == objectSealed {
		e = o.nextLocked(&refused)
	} else if e = o.box.pop(); e != nil && o.state == objectOpen {
		o.box.takeAhead(&w.ahead)
	}
	if done.n > 0 {
		spare = o.box.keep(done)
	}
	if e == nil && rest {
		o.busy, o.idle = false, now
		if o.state == objectSealed {
			o.restLocked()
		}
		o.since.Store(0)
		if spare == nil { // else the few that are left are not worth keeping
			spare = o.box.unspare()
		}
		o.box.unspare()
	}
	o.mu.Unlock()
	o.refuseSealed(refused)
	if spare != nil {
		spareChains.Put(spare)
	}
	return e
}

// deal does what a piece of mail asks for, on the worker that has the object, and returns the time after it. ran is
// false when the lease has lapsed: the mail is back in its place.
func (o *object) deal(w *worker, e *envelope, now instant) (after instant, ran bool) {
	if o.expire(e, now) {
		return now, true
	}
	p := o.rt.period.Load()
	if !o.rt.admits(now) {
		return now, !o.putBack(e)
	}
	o.since.Store(int64(now))
	if o.lease.Load() != o.rt.back.leaseGeneration() || !o.activated {
		lapsed, ok := o.becomeReady(e, p)
		now = tick()
		switch {
		case !ok:
			return now, !lapsed
		case o.expire(e, now):
			return now, true
		case !o.rt.admits(now):
			return now, !o.putBack(e)
		}
	}
	switch e.kind {
	case mailMessage:
		o.reg.count(o).run.Add(1)
		after = o.runTurn(w, e, p)
	case mailFramework:
		after = o.runTurn(w, e, p)
	case mailTimer:
		if !o.rt.clock.begin(e.timer) {
			e.release()
			after = now
			break
		}
		o.reg.count(o).timers.Add(1)
		after = o.runTurn(w, e, p)
	case mailIdle:
		if o.stillIdle() {
			o.askClose(CloseIdle)
		}
		fallthrough
	default:
		e.release()
		after = now
	}
	if reason := o.closing.Load(); reason != nil {
		o.runClose(p, *reason)
		after = tick()
	}
	return after, true
}

// expire ends mail whose caller has stopped waiting before its turn.
func (o *object) expire(e *envelope, now instant) bool {
	if e.oneWay || !e.past(now) {
		return false
	}
	if e.kind == mailMessage {
		o.reg.count(o).expired.Add(1)
	}
	e.answer(Reply{}, outcome.New(e.op(), outcome.DeadlineExceeded, outcome.Accepted, o.target(), "the deadline passed before the turn"))
	return true
}

// admits reports whether something new may begin. The lease's word is good for admitEvery; a lapse that is told of, or
// found here, counts at once.
func (rt *runtime) admits(now instant) bool {
	if rt.sched.lapsed.Load() {
		return false
	}
	if now.sub(instant(rt.admitted.Load())) < admitEvery {
		return true
	}
	if rt.back.admit() != nil {
		rt.sched.closeUnlessAdmitted()
		return false
	}
	rt.admitted.Store(int64(now))
	return true
}

// putBack puts mail back before everything else. It returns false when the object is closed: the mail has then ended.
func (o *object) putBack(e *envelope) bool {
	o.mu.Lock()
	if o.state == objectClosed {
		cause := o.cause
		o.mu.Unlock()
		o.end(e, cause)
		return false
	}
	o.box.putBack(e)
	o.mu.Unlock()
	return true
}

// becomeReady adopts the object, when the lease is another than at its last turn, and runs its activation callback.
// When that fails, e and what waits behind it has ended, or is back in its place if the lease has lapsed again.
func (o *object) becomeReady(e *envelope, p *period) (lapsed, ok bool) {
	err := o.adopt(p)
	if err == nil && !o.activated {
		if err = o.activate(p); err == nil {
			o.activated = true
		}
	}
	switch {
	case err == nil:
		return false, true
	case p.ctx.Err() != nil || p != o.rt.period.Load():
		return o.putBack(e), false
	}
	o.unready(e, err)
	return false, false
}

// adopt makes the record name the present lease generation. On errLost the object is dropped.
func (o *object) adopt(p *period) error {
	lease := o.rt.back.leaseGeneration()
	if o.lease.Load() == lease {
		return nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, adoptTimeout)
	defer cancel()
	if err := o.rt.back.adopt(ctx, o); err != nil {
		if errors.Is(err, errLost) {
			o.rt.lose(o, outcome.New("turn", outcome.Unavailable, outcome.Accepted, o.target(), "another node owns the object now"))
		}
		return err
	}
	o.activated = false
	o.lease.Store(lease)
	return nil
}

// activate runs the activation callback in a turn of its own.
func (o *object) activate(p *period) error {
	a, ok := o.inst.(Activator)
	if !ok {
		return nil
	}
	return o.callback(p, o.reg.CreateTimeout, func(ctx context.Context) error {
		return o.guarded(func() error { return a.Activate(ctx, &o.me) })
	})
}

// unready ends what waits for an object that could not be adopted or activated. Timers are tried again.
func (o *object) unready(e *envelope, err error) {
	o.mu.Lock()
	cause := o.cause
	if o.state != objectClosed {
		cause = outcome.Wrap("turn", outcome.Unavailable, outcome.Accepted, o.target(), "the object could not be made ready", err)
		o.rt.log.Warn("an object could not be made ready; its next message tries again", zap.String("object", o.target()), zap.Error(err))
	}
	held := o.box.cutHeld() // of a seal meanwhile
	list := o.box.takeAll()
	o.box.pushAll(held)
	o.mu.Unlock()
	e.next = list
	for e != nil {
		next := e.next
		e.next = nil
		if e.kind == mailTimer {
			o.rt.clock.again(e.timer)
			e.release()
		} else {
			o.end(e, cause)
		}
		e = next
	}
	o.closeLater()
}

// callback runs f in a turn without a message. It returns when f does.
func (o *object) callback(p *period, timeout time.Duration, f func(context.Context) error) error {
	e := envelopes.Get().(*envelope)
	e.kind, e.own().deadline = mailFramework, tick().add(timeout)
	t := o.beginTurn(p, e)
	err := f(t)
	o.endTurn(t)
	e.release()
	return err
}

// guarded runs a callback of the user's, which may panic or end its goroutine: either is an error. It returns when the
// callback does.
func (o *object) guarded(f func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if !returned {
				err = o.panicked(recover())
			}
			done <- err
		}()
		err = f()
		returned = true
	}()
	return <-done
}

// beginTurn returns the object's turn, begun. Somebody who kept it may have asked for its Done in between: then it is
// his.
func (o *object) beginTurn(p *period, e *envelope) *turn {
	if o.turn != nil {
		o.turn.begin(p, e)
		if !o.turn.asked.Load() {
			return o.turn
		}
		o.turn.finish()
	}
	o.turn = &turn{o: o}
	o.turn.begin(p, e)
	return o.turn
}

// endTurn ends the turn; one that must not be used again is left to whoever kept it.
func (o *object) endTurn(t *turn) {
	if !t.finish() {
		o.turn = nil
	}
}

// runTurn runs one turn and answers. It returns the time at the end of the turn. When the handler ends the goroutine,
// the turn is settled all the same.
func (o *object) runTurn(w *worker, e *envelope, p *period) (after instant) {
	t := o.beginTurn(p, e)
	returned := false
	defer func() {
		if !returned {
			err := o.panicked(recover())
			if o.reg.OnPanic == DestroyOnPanic && e.kind != mailFramework {
				o.askClose(ClosePanic)
			}
			after = o.settle(w, t, e, p, Reply{}, err)
		}
	}()
	var reply Reply
	var err error
	if e.about != nil && e.about.mark != "" {
		err = o.rt.back.admitMarked(o, e)
	}
	switch {
	case err != nil:
	case e.run != nil:
		err = e.run(t)
	case o.reg.handle != nil:
		reply, err = o.reg.handle(t, &t.req)
	default:
		reply, err = o.inst.Handle(t, &t.req)
	}
	returned = true
	return o.settle(w, t, e, p, reply, err)
}

// panicked makes the error of a turn that did not return. recovered is nil when it ended its goroutine.
func (o *object) panicked(recovered any) error {
	o.reg.count(o).panics.Add(1)
	what := "the handler ended its goroutine"
	if recovered != nil {
		what = fmt.Sprintf("the handler panicked: %v", recovered)
	}
	o.rt.log.Error("a turn panicked", zap.String("object", o.target()), zap.String("panic", what), zap.ByteString("stack", debug.Stack()))
	return outcome.New("turn", outcome.InternalFailure, outcome.Accepted, o.target(), what)
}

// settle ends a turn and answers. The answer of a turn that outlived its ownership goes out only once the object is
// adopted again.
func (o *object) settle(w *worker, t *turn, e *envelope, p *period, reply Reply, err error) instant {
	o.endTurn(t)
	now := tick()
	if e.oneWay {
		if err != nil {
			o.reg.count(o).failed.Add(1)
		}
		if e.more != &noMore {
			e.release()
			return now
		}
		w.done.add(e)
		return now
	}
	if err != nil {
		if e.kind == mailMessage {
			o.reg.count(o).failed.Add(1)
		}
		if e.from == nil && e.kind == mailMessage {
			err = outcome.Wrap(e.op(), outcome.KindOf(err), outcome.Accepted, o.target(), "", err)
		}
	}
	if lost := o.outlived(p, now); lost != nil {
		o.reg.count(o).withheld.Add(1)
		reply, err = Reply{}, lost
	}
	e.answer(reply, err)
	return now
}

// outlived says that ownership ended while the turn ran and is not certain again.
func (o *object) outlived(p *period, now instant) error {
	rt := o.rt
	admits := rt.admits(now)
	if admits && p == rt.period.Load() {
		return nil
	}
	if !admits {
		return errWithheld(o, "the node's lease lapsed while the turn ran; its result is withheld")
	}
	if o.isClosed() {
		return errWithheld(o, "the node's lease lapsed while the turn closed the object; its result is withheld")
	}
	if err := o.adopt(rt.period.Load()); err != nil {
		return errWithheld(o, "the node's lease lapsed while the turn ran, and the object could not be adopted: "+err.Error())
	}
	return nil
}

// idleSince returns when the object became idle; ok is false when it is not.
func (o *object) idleSince() (since instant, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle, !o.busy && o.state == objectOpen
}

// stillIdle reports whether nothing came since the object was found idle.
func (o *object) stillIdle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.box.recall()
	return o.state == objectOpen && o.box.head == nil && !(o.isWide() && o.hasMembers())
}

// runClose closes the object in a turn. Mail that comes meanwhile is held: it is refused when the close succeeds, and
// accepted when it does not.
func (o *object) runClose(p *period, reason CloseReason) {
	if o.leaves() != nil { // whoever moves it sees that its end was asked for
		return
	}
	if o.isWide() && o.hasMembers() && o.is() == objectOpen {
		o.rt.back.endSpotLater(o, reason)
		return
	}
	o.mu.Lock()
	switch {
	case o.state == objectSealed: // whoever sealed it sees that its end was asked for
		o.mu.Unlock()
		return
	case o.state != objectOpen || reason == CloseIdle && o.box.messages() > 0:
		o.mu.Unlock()
		o.closing.Store(nil)
		return
	}
	o.state = objectClosing
	o.mu.Unlock()
	err := o.callback(p, adoptTimeout, func(ctx context.Context) error { return o.rt.back.closeObject(ctx, o, reason) })
	if o.isClosed() {
		return
	}
	o.notClosed(reason, err)
	o.acceptHeld(o.activationDue())
}

// notClosed tells of a close that has failed, and tries it again after a while.
func (o *object) notClosed(reason CloseReason, err error) {
	o.rt.log.Warn("an object could not be closed; it is tried again", zap.String("object", o.target()), zap.String("reason", string(reason)), zap.Error(err))
	o.closeLater()
}

// closeLater tries a close that was asked for again after a while. One for idleness is due again by itself.
func (o *object) closeLater() {
	if reason := o.closing.Swap(nil); reason != nil && *reason != CloseIdle {
		o.rt.clock.closeAgain(o, *reason)
	}
}

// callClosing runs the object's Closer, for backing.closeObject. A panic is an error like any other.
func (o *object) callClosing(ctx context.Context, reason CloseReason) error {
	c, ok := o.inst.(Closer)
	if !ok {
		return nil
	}
	return o.guarded(func() error { return c.Closing(ctx, &o.me, reason) })
}
