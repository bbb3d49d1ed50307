package objects

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// maxFlights bounds the creations under way at one node.
const maxFlights = 16384

// flight is one creation under way at this node. Whoever asks for the same object meanwhile waits for it: their
// messages in the object's mailbox, their creations for done.
type flight struct {
	o    *object
	done chan struct{}
	// These are written before done is closed.
	result createReply
	err    error
}

func (f *flight) over() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// flights holds the creations under way.
type flights struct {
	mu sync.Mutex
	by map[kvlocation.ObjectKey]*flight
}

func (fs *flights) init() { fs.by = make(map[kvlocation.ObjectKey]*flight) }

func (fs *flights) get(key kvlocation.ObjectKey) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.by[key]
}

// any returns one of those under way; nil when there is none.
func (fs *flights) any() *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.by {
		return f
	}
	return nil
}

func (fs *flights) count() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.by)
}

// order is what a flight makes, and for whom.
type order struct {
	key kvlocation.ObjectKey
	reg *regType
	doc activationDoc
	// found is the Creating record that is made on, with the evidence that its creator is absent; nil to make a new
	// object.
	found  *kvlocation.Entry
	absent kvlocation.Absence
	// mail is the operation's own message, which is the first in the mailbox; nil for a creation without one.
	mail *envelope
	// held is what the sender of the mail waits on, if it is one-way and of this process.
	held *hold
	// deadline is when the operation's caller gives up; zero for never.
	deadline time.Time
	// inline is true when whoever begins the flight runs it, because nobody waits for that goroutine.
	inline bool
}

// begin starts a flight unless one is under way, which is returned, or the object is open, for which nil is. own is
// true when it took the order; of an order that is inline the caller then runs the flight (fly). The error says that
// nothing was begun; the order's mail is then still the caller's.
func (s *Service) begin(ord *order) (f *flight, own bool, err error) {
	if err := s.admit(); err != nil {
		return nil, false, err
	}
	if s.rt.draining.Load() {
		return nil, false, outcome.New("create", outcome.ShuttingDown, outcome.NotAccepted, ord.key.String(), "node "+s.cfg.RID+" is shutting down")
	}
	if s.closedToNew.Load() {
		return nil, false, outcome.New("create", outcome.Unavailable, outcome.NotAccepted, ord.key.String(), "node "+s.cfg.RID+" is moving its objects away")
	}
	fs := &s.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.by[ord.key]; f != nil || s.rt.find(ord.key.Kind, ord.key.ID) != nil {
		return f, false, nil
	}
	if len(fs.by) >= maxFlights {
		return nil, false, outcome.New("create", outcome.Unavailable, outcome.NotAccepted, ord.key.String(), fmt.Sprintf("%d creations are under way at node %s already", maxFlights, s.cfg.RID))
	}
	if err := s.rt.reserve(ord.reg); err != nil {
		return nil, false, err
	}
	o := s.rt.newObject(ord.reg, ord.key.ID)
	if ord.mail != nil {
		var because why
		if because, ord.held = o.offerOneWay(ord.mail); because != whyNot {
			s.rt.unreserve(ord.reg)
			return nil, false, because.refusal("create", o.target(), ord.mail.from != nil)
		}
	}
	s.rt.insert(o)
	f = &flight{o: o, done: make(chan struct{})}
	fs.by[ord.key] = f
	if !ord.inline && !s.spawn(func() { s.fly(f, ord) }) {
		f.err = outcome.New("create", outcome.ShuttingDown, outcome.NotAccepted, ord.key.String(), "node "+s.cfg.RID+" is shutting down")
		o.abort(f.err)
		delete(fs.by, ord.key)
		close(f.done)
	}
	return f, true, nil
}

// fly runs a flight to its end.
func (s *Service) fly(f *flight, ord *order) {
	f.result, f.err = s.bringUp(f.o, ord)
	if f.err == nil {
		s.stats.created.Add(1)
	} else {
		s.stats.createFailed.Add(1)
	}
	s.flights.mu.Lock()
	delete(s.flights.by, ord.key)
	s.flights.mu.Unlock()
	close(f.done)
}

// bringUp makes the record, runs the factory, makes the record Ready and opens the object. On an error the object is
// gone and its mail has ended.
func (s *Service) bringUp(o *object, ord *order) (createReply, error) {
	// The period ends when the lease lapses, and when the Service stops.
	ctx, cancel := context.WithTimeoutCause(s.rt.period.Load().ctx, ord.reg.CreateTimeout, errTooLate)
	defer cancel()
	sec, err := s.secure(ctx, ord)
	if err != nil {
		if sec.lost {
			return createReply{}, s.overtaken(o, ord, sec, err)
		}
		o.abort(err)
		return createReply{}, err
	}
	o.identify(sec.at.Generation(), sec.at.Record.OwnerGeneration)
	inst, err := s.runFactory(ctx, o, sec.doc.Input)
	if err != nil {
		return createReply{}, s.undo(o, ord, sec, err)
	}
	if sec.at, err = s.makeReady(ctx, sec.at); err != nil {
		switch {
		case illegal(err), errors.Is(err, errTaken):
			return createReply{}, s.overtaken(o, ord, sec, asUnknown(ord.key, err))
		case errors.Is(err, outcome.Unknown):
			err = asUnknown(ord.key, err)
			o.abort(err)
			return createReply{}, err
		}
		return createReply{}, s.undo(o, ord, sec, err)
	}
	if sec.doc.spill != nil {
		s.dropSpilled(*sec.doc.spill)
	}
	at := placeOf(kvlocation.Located{Entry: sec.at})
	o.open(inst, at.generation, at.ownerGeneration, sec.at.Record.Owner.Lease, s.storedMail(o, sec.stored))
	reply := replyAt(at)
	reply.Created = ord.found == nil && sec.own
	return reply, nil
}

// errTooLate is the cause with which a creation's context ends.
var errTooLate = errors.New("the creation did not end within the type's CreateTimeout")

// secured is a Creating record that is this node's.
type secured struct {
	at  kvlocation.Entry
	doc activationDoc
	// own is true when the record was made for this order, false when another's was taken over.
	own bool
	// stored is the first message of a record that was taken over.
	stored *firstDoc
	// lost is true when the record was this node's and is not any more.
	lost bool
}

// makeReady makes the record Ready. Its error is an *outcome.Error: with Unknown, or an illegal move, the record is not
// certain to be this node's any more.
func (s *Service) makeReady(ctx context.Context, at kvlocation.Entry) (kvlocation.Entry, error) {
	for try := 0; ; try++ {
		if err := s.openFor(ctx); err != nil {
			return at, err
		}
		owner := s.owner()
		ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.Ready(ctx, at, owner) })
		if err == nil {
			if ch.Overwritten && !s.stillMine(ch.Entry, at, kvlocation.PhaseReady) {
				return at, errOvertaken(at.Key, ch.Entry)
			}
			return ch.Entry, nil
		}
		if !neverSent(err) || try == createTries {
			return at, err
		}
		s.pause(settlePause)
	}
}

// openFor returns an error once the creation may not go on: its time is over, or the lease does not admit.
func (s *Service) openFor(ctx context.Context) error {
	if ctx.Err() != nil {
		return outcome.Wrap("create", outcome.Unavailable, outcome.NotAccepted, "", "", context.Cause(ctx))
	}
	return s.admit()
}

// stillMine reports whether an entry is this node's, of the same incarnation and owner generation, in the given phase.
func (s *Service) stillMine(e, as kvlocation.Entry, phase kvlocation.Phase) bool {
	return e.Phase() == phase && e.Record.Owner.Is(s.cfg.RID, s.cfg.Lifecycle) && e.Generation() == as.Generation() &&
		e.Record.OwnerGeneration == as.Record.OwnerGeneration
}

var errTaken = errors.New("another process run has changed the record")

func errOvertaken(key kvlocation.ObjectKey, e kvlocation.Entry) error {
	detail := "the creation was cancelled from outside"
	if e.Phase() != kvlocation.PhaseMissing {
		detail = "the creation was taken over by " + e.Record.Owner.String()
	}
	return outcome.Wrap("create", outcome.Unavailable, outcome.Unknown, key.String(), detail, errTaken)
}

// undo ends a creation whose factory failed or that came too late. What failed is told to the callers as NotAccepted only
// once the cancel has won; else as Unknown.
func (s *Service) undo(o *object, ord *order, sec secured, cause error) error {
	if err := s.cancelRecord(sec.at, kvlocation.Absence{}); err != nil {
		if illegal(err) || errors.Is(err, errTaken) {
			return s.overtaken(o, ord, sec, asUnknown(ord.key, err))
		}
		err = asUnknown(ord.key, errors.Join(cause, err))
		o.abort(err)
		return err
	}
	if sec.doc.spill != nil {
		s.dropSpilled(*sec.doc.spill)
	}
	err := &refusal{err: outcome.Wrap("create", outcome.KindOf(cause), outcome.NotAccepted, ord.key.String(), "the creation failed and was cancelled", cause), final: true}
	if sec.stored != nil {
		(&storedFirst{s: s, doc: *sec.stored}).refuse(err)
	}
	o.abort(err)
	return err
}

func asUnknown(key kvlocation.ObjectKey, err error) error {
	kind := outcome.KindOf(err)
	if illegal(err) {
		kind = outcome.Unavailable // the record, not the caller, was not as it had to be
	}
	return outcome.Wrap("create", kind, outcome.Unknown, key.String(), "", err)
}

// overtaken ends a creation whose record is another's: that one runs the stored first message and answers it, so its
// caller, if it is elsewhere, is told nothing here. What else was waiting was never stored anywhere.
func (s *Service) overtaken(o *object, ord *order, sec secured, err error) error {
	s.stats.overtaken.Add(1)
	if sec.own && ord.doc.First != nil {
		if first := o.takeHead(ord.mail); first != nil && first.from != nil {
			first.release()
		} else if first != nil {
			o.endHeld(first, err)
		}
	}
	o.abort(outcome.Wrap("create", outcome.Unavailable, outcome.NotAccepted, ord.key.String(), "", err))
	return err
}

// takeHead takes e out of a mailbox that holds its mail, if it is its head.
func (o *object) takeHead(e *envelope) *envelope {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e == nil || o.box.head != e {
		return nil
	}
	return o.box.pop()
}

// runFactory runs the type's factory in a goroutine of its own, so that one that never returns holds nobody beyond the
// creation's time. What it makes later is not used.
func (s *Service) runFactory(ctx context.Context, o *object, input []byte) (Object, error) {
	if err := s.openFor(ctx); err != nil {
		return nil, err
	}
	type result struct {
		inst Object
		err  error
	}
	done := make(chan result, 1)
	s.stats.factories.Add(1)
	s.stats.factoriesRunning.Add(1)
	s.pool.run(func() {
		r := result{err: outcome.New("create", outcome.InternalFailure, outcome.NotAccepted, o.target(), "the factory ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("a factory panicked", zap.String("object", o.target()), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
				r.err = outcome.New("create", outcome.InternalFailure, outcome.NotAccepted, o.target(), fmt.Sprintf("the factory panicked: %v", p))
			}
			s.stats.factoriesRunning.Add(-1)
			done <- r
		}()
		r.inst, r.err = o.reg.New(ctx, o.self(), input)
		if r.err == nil && r.inst == nil {
			r.err = outcome.New("create", outcome.InternalFailure, outcome.NotAccepted, o.target(), "the factory returned no object")
		}
		if _, ok := r.inst.(Mover); o.reg.Move == MoveState && r.err == nil && !ok {
			o.reg.noMover.Do(func() { // else it is found out when the node is drained
				s.log.Warn("the type's Move is MoveState, and what its factory makes has no Capture and Restore: it will not move",
					zap.String("type", o.reg.Name), zap.String("instance", fmt.Sprintf("%T", r.inst)))
			})
		}
	})
	select {
	case r := <-done:
		if r.err != nil && outcome.KindOf(r.err) == outcome.DeadlineExceeded && ctx.Err() != nil {
			return nil, outcome.Wrap("create", outcome.InternalFailure, outcome.NotAccepted, o.target(), "the factory", context.Cause(ctx))
		}
		return r.inst, r.err
	case <-ctx.Done():
	}
	s.stats.factoriesLate.Add(1)
	kind := outcome.InternalFailure
	if !errors.Is(context.Cause(ctx), errTooLate) {
		kind = outcome.Unavailable
	}
	s.log.Warn("a factory did not return in time", zap.String("object", o.target()), zap.String("type", o.reg.Name))
	return nil, outcome.Wrap("create", kind, outcome.NotAccepted, o.target(),
		fmt.Sprintf("the factory did not return (the type's CreateTimeout is %v)", o.reg.CreateTimeout), context.Cause(ctx))
}
