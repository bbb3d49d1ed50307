package relocate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

const (
	// maxHeld and maxHeldBytes bound what of the hold is published; they are those of the hold itself.
	maxHeld      = 1024
	maxHeldBytes = 16 << 20
	// askTimeout bounds one question to the other side that is answered at once, readyTimeout the long one.
	askTimeout   = 2 * time.Second
	readyTimeout = time.Second
	// firstLook is when a source that has heard nothing of the commit asks the store, and lookEvery how often from then on.
	firstLook = Fallback + 250*time.Millisecond
	lookEvery = time.Second
)

// departure is the source's side of one move.
type departure struct {
	*runner
	rec  record
	dep  *objects.Departure
	unit objects.Unit
	to   handover
	ttl  time.Duration

	sealing context.CancelFunc // ends a seal or capture that runs

	mu     sync.Mutex
	failed error // the first thing that went wrong
	// notices are T's that were not answered yet; over: this side has come to its end. ogen is T's owner generation, as it says, and fallback that it
	// committed without the marker. asked: *accepted* was sent, or may have been.
	notices  []*channels.Inbound
	over     bool
	ogen     uint64
	fallback bool
	asked    bool
	now      state // as the unit's goroutine has it
	silent   error // what the store said last of a write whose result is unknown

	// The rest belongs to the unit's goroutine, and to what it has begun.
	cargo  []byte
	head   manifest
	handed bool
	bulk   bool // chunks of the cargo went through the relay
	parts  int  // bytes that went through the target's consumer
	moved  Moved
	marks  map[state]time.Time // when a state was entered
	sealed time.Time
}

// handover names what goes through the relay.
type handover = kvlocation.Handover

// fail keeps the first cause.
func (d *departure) fail(err error) {
	if err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = err
	}
}

func (d *departure) cause() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// newDeparture is the source's side of a move to a target that has agreed.
func (s *Service) newDeparture(dep *objects.Departure, t target, op string, begun time.Time) *departure {
	u := dep.Unit()
	d := &departure{
		runner: newRunner(s, op, u.Key.String(), newSource()), dep: dep, unit: u,
		to:    handover{From: s.cfg.RID, RID: t.owner.RID, Lifecycle: t.owner.Lifecycle, Op: op},
		ttl:   min((s.cfg.UnitTimeout+s.cfg.FollowTime).Truncate(time.Second)+time.Second, kvlocation.MaxRelayTTL),
		marks: map[state]time.Time{srcReserving: begun}, now: srcReserving,
	}
	d.rec = record{s: s, op: op, key: u.Key, generation: u.Generation, ownerGeneration: u.OwnerGeneration, source: s.owner(), target: t.owner}
	d.moved = Moved{Key: u.Key, Op: op, From: s.owner(), To: t.owner, Generation: u.Generation, OwnerGeneration: u.OwnerGeneration + 1}
	d.runner.do, d.runner.entered = d.act, d.enter
	return d
}

// depart carries the unit to its end. A ctx that ends gives the move up, as long as that is possible.
func (d *departure) depart(ctx context.Context, begun time.Time) (Moved, error) {
	s := d.s
	var err error
	if d.rec.at, err = d.dep.Entry(ctx); err == nil && !s.departures.add(d.op, d) {
		err = errClosing
	}
	if err != nil {
		s.cancelAt(d.rec.target, d.op)
		d.dep.Abort(err)
		return d.moved, d.result(srcKept, err)
	}
	defer s.departures.remove(d.op)
	stop := context.AfterFunc(ctx, func() {
		d.fail(context.Cause(ctx))
		d.post(event{kind: evGiveUp})
	})
	defer stop()
	if s.isClosing() { // it was not there yet when Close looked
		d.fail(errClosing)
		d.post(event{kind: evGiveUp})
	}
	d.after(s.cfg.UnitTimeout-time.Since(begun), evGiveUp)
	d.post(event{kind: evReserved})
	if !d.run() {
		d.fail(errClosing)
		if d.asked { // what may have been given up is not served again, however the store has decided
			d.dep.Accepted()
			d.dep.Fail(d.cause())
		}
	} else {
		d.acknowledge()
	}
	if d.bulk {
		s.bulky.Add(-1)
	}
	d.sweep()
	return d.moved, d.result(d.runner.unit.state, d.cause())
}

// unsettled is what the caller of a move hears when its time is over, and the store has still not said what became of a
// write; the unit goes on to ask. It returns nil while there is something else to wait for.
func (d *departure) unsettled() error {
	d.mu.Lock()
	now, why, asked := d.now, d.silent, d.asked
	d.mu.Unlock()
	if why == nil {
		why = errUnitTimeout
	}
	why = &failure{StoreUnavailable, why}
	switch {
	case now == srcPassed, now == srcParting:
		return nil
	case asked: // also when an abort was asked for since: which of the two has won is what the store has not said
		return moveError(d.unit.Key, outcome.Unknown, "the store has not said whether the object was given up; it is asked on, and until then the object serves nowhere", why)
	}
	return moveError(d.unit.Key, outcome.NotAccepted, "the store has not said what became of a write of its record; it is asked on, and the object stays where it is", why)
}

// enter notes when a state is entered, and sets the times that belong to it.
func (d *departure) enter(from, to state) {
	now := time.Now()
	d.marks[to] = now
	d.mu.Lock()
	d.now = to
	d.mu.Unlock()
	switch to {
	case srcPassed:
		d.after(d.s.silence(), evSilent)
		d.after(firstLook, evTick)
	case srcAborting:
		if from == srcSealing {
			d.sealing()
		}
		if d.cause() == nil {
			d.fail(errDeadline(from))
		}
	}
}

// errDeadline says where a move was when its time was over.
func errDeadline(at state) error {
	what := map[state]string{
		srcPreparing: "while the store was asked", srcSealing: "a handler, or Capture, did not return",
		srcHanding: "the target did not say that it was ready", srcAccepting: "while the store was asked",
	}[at]
	return fmt.Errorf("%w: %s", errUnitTimeout, what)
}

// act does what step says.
func (d *departure) act(a action) {
	switch a.kind {
	case doWrite, doResolve:
		again := a.kind == doResolve
		d.mu.Lock()
		d.asked = d.asked || a.verb == wrAccept
		d.mu.Unlock()
		d.spawn(func(ctx context.Context) {
			e := d.rec.write(ctx, a.verb, again, nil)
			if e.fate == refused || e.fate == notApplied {
				d.fail(d.rec.why)
			}
			d.mu.Lock()
			if d.silent = nil; e.fate == unknown || e.fate == notApplied {
				d.silent = d.rec.why
			}
			d.mu.Unlock()
			if ctx.Err() == nil {
				d.post(e)
			}
		})
	case doRead:
		now := d.runner.unit.state == srcParting
		d.spawn(func(ctx context.Context) {
			e := d.rec.read(ctx, now)
			d.post(e)
			if e.view == viewAccepted && !now && d.targetGone(ctx) { // then a last look decides
				d.post(event{kind: evSilent})
			}
			d.after(lookEvery, evTick)
		})
	case doSeal:
		d.seal()
	case doHand:
		d.handed, d.head.Prepared = true, d.rec.at.Revision
		d.spawn(d.hand)
	case doCancel:
		d.s.cancelAt(d.rec.target, d.op)
	case doFree:
		d.dep.Accepted()
	case doCutover:
		d.spawn(d.cutover)
	case doKeep:
		d.dep.Abort(d.cause())
	case doFinish:
		d.finish(a.h)
	case doForsake:
		if d.cause() == nil {
			d.fail(errTargetGone)
		}
		d.dep.Fail(d.cause())
	case doLose:
		d.lose()
	}
}

// seal lets the turns end and captures.
func (d *departure) seal() {
	ctx, cancel := context.WithCancel(d.s.ctx)
	d.sealing = cancel
	d.spawn(func(context.Context) {
		defer cancel()
		begun := time.Now()
		err := d.dep.Seal(ctx)
		d.sealed = time.Now()
		var cargo *objects.Cargo
		if err == nil {
			cargo, err = d.dep.Capture(ctx)
		}
		if err == nil {
			d.cargo, err = cargo.MarshalBinary()
		}
		if err != nil {
			if ctx.Err() == nil {
				d.fail(err)
			}
			d.post(event{kind: evCaptureFailed})
			return
		}
		d.head = manifest{V: version, Size: len(d.cargo)}
		d.head.Bytes, d.head.Work, d.head.Timers, d.head.Objects = cargo.Counts()
		d.moved.Objects, d.moved.Bytes, d.moved.Work = d.head.Objects, d.head.Bytes, d.head.Work
		d.moved.Phases.Seal, d.moved.Phases.Capture = d.sealed.Sub(begun), time.Since(d.sealed)
		d.post(event{kind: evCaptured})
	})
}

// maxInline is how many bytes of a cargo, or of a hold, go in one part; a larger cargo is fetched beside the target's consumer, so that one large
// unit does not stand before a small one, and a larger hold goes message by message.
const maxInline = 128 << 10

// inline is maxInline, or less where the server takes only smaller messages.
func (d *departure) inline() int { return min(maxInline, d.s.cfg.Store.MaxSpill()/2) }

// relay hands one part to the target's consumer.
func (d *departure) relay(ctx context.Context, part string, data []byte) *kvlocation.Relaying {
	d.parts += len(data)
	return d.s.cfg.Store.Relay(ctx, d.to, part, data, d.ttl)
}

// hand relays what was captured and asks for relay-ready. T fetches a large cargo while it is still being written.
func (d *departure) hand(ctx context.Context) {
	inline := d.cargo
	if len(inline) > d.inline() {
		ref := d.s.cfg.Store.BulkOf(len(inline))
		d.bulk, d.head.Bulk, inline = true, &ref, nil
		d.s.bulky.Add(1)
		d.spawn(func(ctx context.Context) {
			if err := d.s.cfg.Store.RelayBulk(ctx, d.to, d.cargo, d.ttl, d.s.giveWay().wait); err != nil && ctx.Err() == nil {
				d.giveUp(err)
			}
		})
	}
	d.head.Sum = checksum(d.cargo) // while the first chunks are on their way
	part, err := encode(d.head, inline)
	if err != nil {
		d.giveUp(err)
		return
	}
	r := d.relay(ctx, partCargo, part)
	d.spawn(func(ctx context.Context) {
		if _, err := r.Wait(ctx); err != nil && ctx.Err() == nil {
			d.giveUp(err)
		}
	})
	d.askReady(ctx)
}

// giveUp says that the move has failed.
func (d *departure) giveUp(err error) {
	d.fail(err)
	d.post(event{kind: evFailed})
}

// askReady asks T until it says that it is ready or has failed. What is not answered is asked again.
func (d *departure) askReady(ctx context.Context) {
	for nobody := 0; ctx.Err() == nil; {
		begun := time.Now()
		a, err := d.s.ask(ctx, d.rec.target, verbReady, d.op, d.unit.Key, nil, readyTimeout)
		switch {
		case err == nil && a.Reason == "":
			d.post(event{kind: evReady})
			return
		case err == nil:
			d.giveUp(a.failure(d.rec.target.RID))
			return
		case channels.IsNobody(err):
			if nobody++; nobody == maxNobody {
				d.giveUp(err)
				return
			}
		}
		wait(ctx, againAsk-time.Since(begun))
	}
}

// againAsk is the least time between two questions that go unanswered.
const againAsk = lookEvery / 4

// maxNobody is how many questions that nobody listens for make T gone.
const maxNobody = 4

// cutover publishes what is held, numbered, and the marker: in one part if there is room, else part by part.
func (d *departure) cutover(ctx context.Context) {
	var (
		held  [][]byte
		size  int
		names []string
		most  = d.s.cfg.Store.MaxSpill()
		m     = marker{V: version, Revision: d.rec.at.Revision}
	)
	for _, h := range d.dep.Held(maxHeld, maxHeldBytes) {
		data, err := h.MarshalBinary()
		if err != nil || len(data) > most {
			break // T's prefix ends before it, so that it goes to T on its own afterwards
		}
		held, names = append(held, data), append(names, fmt.Sprintf("%s%d", partHeld, h.Number()))
		size += len(data)
		m.Held = h.Number()
	}
	if size > d.inline() {
		for i, data := range held {
			d.relay(ctx, names[i], data)
		}
		held = nil
	}
	for _, data := range held {
		m.Sizes = append(m.Sizes, len(data))
	}
	var part []byte
	var err error
	if m.Record, err = d.rec.at.Record.MarshalJSON(); err == nil {
		part, err = encode(m, held...)
	}
	if err != nil { // T goes on after its fallback
		d.s.log.Error("the cutover marker cannot be written", zap.String("object", d.name), zap.Error(err))
		return
	}
	d.relay(ctx, partCut, part)
}

// targetGone reports whether T's process run holds no lease any more, so that it will not commit what it has not sent.
func (d *departure) targetGone(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readAttempt)
	defer cancel()
	to := d.rec.target
	lease, err := d.s.cfg.Store.LeaseOf(ctx, to.RID)
	return err == nil && (!lease.Live || lease.Lifecycle != to.Lifecycle)
}

// finish sends the rest of the hold to T and lets the objects follow.
func (d *departure) finish(h uint64) {
	d.moved.Held = h
	d.mu.Lock()
	if d.ogen != 0 {
		d.moved.OwnerGeneration = d.ogen
	}
	d.moved.Fallback = d.fallback
	d.mu.Unlock()
	now := time.Now()
	p := &d.moved.Phases
	p.Reserve = d.between(srcReserving, srcPreparing)
	p.Prepare = d.between(srcPreparing, srcSealing)
	p.Restore = d.between(srcHanding, srcAccepting)
	p.Accept = d.between(srcAccepting, srcPassed)
	if at, ok := d.marks[srcPassed]; ok {
		p.Commit = now.Sub(at)
	}
	p.Blackout = now.Sub(d.sealed)
	d.dep.Finish(h, d.rec.target, d.moved.OwnerGeneration, d.s.cfg.FollowTime)
}

func (d *departure) between(from, to state) time.Duration {
	a, b := d.marks[from], d.marks[to]
	if a.IsZero() || b.IsZero() {
		return 0
	}
	return b.Sub(a)
}

// lose ends the object here: it was released.
func (d *departure) lose() {
	if d.handed {
		d.dep.Accepted()
		d.dep.Fail(d.cause())
		return
	}
	d.dep.Abort(d.cause())
}

// sweep clears what was relayed, once nobody needs it: T has committed, or will not. Else, and where it is little, it goes by its TTL.
func (d *departure) sweep() {
	switch d.runner.unit.state {
	case srcDone, srcKept, srcLost:
	default:
		return
	}
	parts := d.parts > keepParts
	if !d.bulk && !parts {
		return
	}
	d.s.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		if err := d.s.cfg.Store.ClearRelay(ctx, d.to, parts, d.bulk); err != nil {
			d.s.log.Debug("what was relayed goes by its TTL", zap.String("move", d.op), zap.Error(err))
		}
	})
}

// keepParts is how many bytes of a move's parts are left to their TTL: for each subject that is cleared the server counts what every node's
// consumer has before it, which costs it more than some kilobytes that lie there for a minute.
const keepParts = 16 << 10

// sweepTimeout bounds the clearing of the relay, and of the record's move.
const sweepTimeout = 10 * time.Second

// result is what the caller of a move hears.
func (d *departure) result(end state, cause error) error {
	if end == srcDone {
		return nil
	}
	acc := outcome.NotAccepted
	detail := "it stays where it is"
	switch end {
	case srcKept:
	case srcLost:
		detail = "its record was released meanwhile"
	default:
		acc, detail = outcome.Unknown, "it was given up to node "+d.rec.target.RID+", which has not said that it took it"
	}
	if cause == nil {
		cause = errors.New("the move was given up")
	}
	return moveError(d.unit.Key, acc, detail, cause)
}

// committed takes T's notice. It is answered when this side has come to its end: then T may clear the record.
func (d *departure) committed(n notice, in *channels.Inbound) {
	if !from(in, d.rec.target) {
		in.Refuse(outcome.InvalidOperation, "the notice is for the target to give", nil)
		return
	}
	d.mu.Lock()
	d.ogen, d.fallback = n.OwnerGeneration, n.Fallback
	over := d.over
	if !over {
		if len(d.notices) == maxWaiting {
			d.notices = d.notices[1:]
		}
		d.notices = append(d.notices, in)
	}
	d.mu.Unlock()
	if over {
		reply(in, answer{V: version})
		return
	}
	d.post(event{kind: evCommitted, h: n.H})
}

// acknowledge answers T's notices.
func (d *departure) acknowledge() {
	d.mu.Lock()
	notices := d.notices
	d.notices, d.over = nil, true
	d.mu.Unlock()
	for _, in := range notices {
		reply(in, answer{V: version})
	}
}
