package relocate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

const (
	// maxWaiting is how many unanswered questions for relay-ready a target keeps; an older one goes unanswered, its source asks again.
	maxWaiting = 4
	// askEvery is how often a target without a marker asks the store whether the source has accepted.
	askEvery = 100 * time.Millisecond
	// notifyEvery is how often a source that does not acknowledge is told of the commit.
	notifyEvery = time.Second
	// openPause is the pause before a switch to normal dispatch is tried again.
	openPause = 100 * time.Millisecond
)

// arrival is the target's side of one move.
type arrival struct {
	*runner
	rec record
	arr *objects.Arrival
	res reservation

	cargo atomic.Pointer[handed]
	cut   atomic.Pointer[marker]
	held  atomic.Int64 // bytes of the held messages that came

	mu      sync.Mutex
	waiting []*channels.Inbound // questions for relay-ready
	verdict *answer             // what they are told, once it is known
	failed  error

	// The rest belongs to the unit's goroutine, and to what it has begun.
	loading context.CancelFunc
	reads   int
	entry   kvlocation.Entry // as committed
	opened  bool             // it was tried
	bulk    bool             // the cargo is fetched
}

// handed is what S hands over.
type handed struct {
	head manifest
	data []byte // the cargo, unless it is fetched
	err  error
}

// takeCargo takes what S hands over, once.
func (a *arrival) takeCargo(b []byte) {
	if a.cargo.Load() != nil {
		return
	}
	c := &handed{}
	if c.head, c.data, c.err = decodeCargo(b); a.cargo.CompareAndSwap(nil, c) {
		a.post(event{kind: evCargo, revision: c.head.Prepared})
	}
}

// take takes one part of the relay. It does not block.
func (a *arrival) take(p kvlocation.RelayPart) {
	if p.From != a.res.Source.RID {
		return
	}
	switch n, isHeld := heldNumber(p.Part); {
	case p.Part == partCargo:
		a.takeCargo(p.Data)
	case isHeld:
		a.takeHeld(n, p.Data)
	case p.Part == partCut:
		a.takeMarker(p.Data)
	}
}

// takeHeld takes one held message. What cannot be taken ends the prefix.
func (a *arrival) takeHeld(n uint64, data []byte) {
	if n > maxHeld || a.held.Add(int64(len(data))) > 2*maxHeldBytes {
		return // beyond the reservation
	}
	h, err := objects.ParseHeld(data)
	if err == nil && h.Number() == n {
		err = a.arr.Feed(h)
	}
	if err != nil {
		a.s.log.Debug("a held message was not taken", zap.String("move", a.op), zap.Uint64("number", n), zap.Error(err))
	}
}

// takeMarker takes the cutover, and the held messages in it.
func (a *arrival) takeMarker(b []byte) {
	if a.cut.Load() != nil {
		return
	}
	m, held, err := decodeMarker(b)
	if err != nil {
		a.s.log.Warn("a cutover marker that cannot be read", zap.String("move", a.op), zap.Error(err))
		return
	}
	for i, data := range held {
		a.takeHeld(uint64(i+1), data)
	}
	if a.cut.CompareAndSwap(nil, &m) {
		a.post(event{kind: evCut})
	}
}

// fail keeps the first cause.
func (a *arrival) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
}

func (a *arrival) cause() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		return errors.New("the source has given the move up, or its time is over")
	}
	return a.failed
}

// await answers a question for relay-ready, now or when it is known.
func (a *arrival) await(in *channels.Inbound) {
	if !from(in, a.res.Source) {
		in.Refuse(outcome.InvalidOperation, "the question is for the source to ask", nil)
		return
	}
	a.mu.Lock()
	v := a.verdict
	if v == nil {
		if len(a.waiting) == maxWaiting {
			a.waiting = a.waiting[1:]
		}
		a.waiting = append(a.waiting, in)
	}
	a.mu.Unlock()
	if v != nil {
		reply(in, *v)
	}
}

// tell answers all questions for relay-ready, those to come too.
func (a *arrival) tell(v answer) {
	a.mu.Lock()
	if a.verdict == nil || v.Reason != "" {
		a.verdict = &v
	}
	waiting := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	for _, in := range waiting {
		reply(in, v)
	}
}

// arrive carries a reserved unit to its end.
func (s *Service) arrive(a *arrival) {
	a.runner.do, a.runner.entered = a.act, a.enter
	a.after(time.Duration(a.res.Millis)*time.Millisecond, evGiveUp)
	reached := a.run()
	if a.bulk {
		s.bulky.Add(-1)
	}
	if a.runner.unit.state != dstDone && (!reached || a.runner.unit.state == dstDropped) {
		a.tell(refusal(a.cause()))
	}
	if a.verdict != nil && a.verdict.Reason != "" {
		s.verdicts.keep(a.op, *a.verdict)
	}
	if !reached && a.runner.unit.state < dstReady { // later only the record may say so
		a.arr.Abort(errClosing)
	}
}

// refusal is the answer of a unit that failed.
func refusal(err error) answer {
	return answer{V: version, Reason: reasonFor(err), Detail: short(err.Error())}
}

// enter sets the times that belong to a state.
func (a *arrival) enter(from, to state) {
	switch to {
	case dstReady:
		if from == dstLoading {
			a.after(Fallback, evFallback)
		}
	case dstOpen:
		a.after(a.s.silence(), evSilent)
	case dstDropped:
		if a.loading != nil {
			a.loading()
		}
	}
}

// act does what step says.
func (a *arrival) act(act action) {
	switch act.kind {
	case doWrite, doResolve:
		a.write(act)
	case doRead:
		a.reads++
		now := a.reads%2 == 0 // any replica, and what certainly is so, in turn
		a.spawn(func(ctx context.Context) {
			a.post(a.rec.read(ctx, now))
			a.after(askEvery, evTick)
		})
	case doLoad:
		ctx, cancel := context.WithCancel(a.ctx)
		a.loading = cancel
		a.spawn(func(context.Context) {
			defer cancel()
			if err := a.load(ctx); err != nil {
				a.fail(err)
				a.post(event{kind: evLoadFailed})
				return
			}
			a.post(event{kind: evLoaded})
		})
	case doReady:
		a.tell(answer{V: version, Lease: a.rec.target.Lease})
	case doFail:
		a.tell(refusal(a.cause()))
	case doDrop:
		a.arr.Abort(a.cause())
	case doOpen:
		a.open(act.h)
	case doNotify:
		a.notify()
	}
}

// write makes a record write.
func (a *arrival) write(act action) {
	if m := a.cut.Load(); m != nil && act.kind == doWrite && act.verb == wrCommit && a.rec.at.Revision < m.Revision {
		e, err := kvlocation.EntryAt(a.rec.key, m.Revision, m.Record)
		if err == nil {
			a.rec.at = e
		} else {
			a.s.log.Warn("the record in a cutover marker cannot be read", zap.String("move", a.op), zap.Error(err))
		}
	}
	a.spawn(func(ctx context.Context) {
		e := a.rec.write(ctx, act.verb, act.kind == doResolve, a.arr.Prefix)
		if e.fate == refused || e.fate == notApplied {
			a.fail(a.rec.why)
		}
		if e.verb == wrCommit && (e.fate == applied || e.fate == refused && e.view == viewCommitted) {
			a.entry = a.rec.at
		}
		if ctx.Err() == nil {
			a.post(e)
		}
	})
}

// load restores the unit.
func (a *arrival) load(ctx context.Context) error {
	c := a.cargo.Load()
	head, data, err := c.head, c.data, c.err
	if err != nil {
		return err
	}
	if most := a.arr.MaxBytes() + cargoSlack; int64(head.Size) > most {
		return outcome.Wrap("move", outcome.CapacityExceeded, outcome.NotAccepted, a.name,
			fmt.Sprintf("what was handed over has %d bytes, at most %d are allowed here", head.Size, most), objects.ErrStateTooLarge)
	}
	if head.Bulk != nil {
		a.bulk = true
		a.s.bulky.Add(1)
		release, err := a.s.fetching.enter(ctx, head.Size)
		if err != nil {
			return err
		}
		defer release()
		from := handover{From: a.res.Source.RID, RID: a.s.cfg.RID, Lifecycle: a.s.cfg.Lifecycle, Op: a.op}
		fetching, cancel := context.WithTimeout(ctx, a.s.cfg.UnitTimeout)
		data, err = a.s.cfg.Store.FetchBulk(fetching, from, *head.Bulk, a.s.giveWay().wait)
		cancel()
		if err != nil {
			return err
		}
	}
	if err := head.verify(data); err != nil {
		return err
	}
	cargo, err := objects.ParseCargo(data)
	if err != nil {
		return err
	}
	if err := head.verifyCounts(cargo); err != nil {
		return err
	}
	a.cargo.Store(new(handed)) // its bytes are not needed any more
	return a.arr.Load(ctx, cargo)
}

// cargoSlack is what a cargo may have beyond the captured states: mailboxes, timers, companions.
const cargoSlack = 64 << 20

// open switches to normal dispatch: at once, so that it is done when S hears of the commit; after a pause, if that failed before.
func (a *arrival) open(h uint64) {
	if !a.opened {
		a.opened = true
		a.tryOpen(h)
		return
	}
	a.spawn(func(ctx context.Context) {
		wait(ctx, openPause)
		a.tryOpen(h)
	})
}

func (a *arrival) tryOpen(h uint64) {
	if err := a.arr.Open(a.entry, h); err != nil {
		a.s.log.Warn("a moved object cannot be opened yet", zap.String("object", a.name), zap.Error(err))
		a.post(event{kind: evOpenFailed, h: h})
		return
	}
	a.s.stats.arrived.Add(1)
	a.post(event{kind: evOpened})
}

// notify tells S that the move is committed. Its answer says that it knows h.
func (a *arrival) notify() {
	n := notice{V: version, H: a.rec.h, OwnerGeneration: a.entry.Record.OwnerGeneration, Fallback: a.cut.Load() == nil}
	if m, ok := a.entry.Move(); ok && m.Op == a.op {
		n.H = m.H
	}
	a.spawn(func(ctx context.Context) {
		defer a.after(notifyEvery, evTick)
		data, err := json.Marshal(n)
		if err == nil {
			_, err = a.s.ask(ctx, a.rec.source, verbCommitted, a.op, a.rec.key, data, askTimeout)
		}
		if err == nil {
			a.post(event{kind: evAcked})
		}
	})
}

// wait waits, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
