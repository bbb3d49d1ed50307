package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// exactRequest is what every operation on an exact incarnation says.
type exactRequest struct {
	Generation uint64 `json:"generation"`
}

// end is Destroy and Close: the caller's side.
func (s *Service) end(ctx context.Context, op string, kind kvlocation.ObjectKind, id string, generation uint64) error {
	key := kvlocation.ObjectKey{Kind: kind, ID: id}
	if isEntry(key) {
		return outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "an Entry Spot lives as long as its node")
	}
	err := s.askOwner(ctx, op, key, generation, verbEnd, exactRequest{generation}, nil)
	if err == nil {
		s.routes.forget(key, generation)
		return nil
	}
	if !creatorSilent(err) {
		return err
	}
	// A record that is still Creating, and whose creator is gone, is cancelled: exactly that one.
	ctx, cancel := s.bound(ctx)
	defer cancel()
	e, rerr := s.store.Read(ctx, key)
	if rerr != nil || e.Phase() != kvlocation.PhaseCreating || e.Generation() != generation || s.cfg.Lease == nil {
		return err
	}
	absent, aerr := s.store.ConfirmAbsent(ctx, e.Record.Owner.RID, e.Record.Owner.Lifecycle)
	if aerr != nil {
		return err
	}
	if _, err = s.store.Cancel(ctx, e, s.owner(), absent); err == nil {
		s.dropSpilledOf(e)
	}
	return renamed(err, op, key)
}

// exact finds who owns an exact incarnation: an object here, or a route.
func (s *Service) exact(ctx context.Context, op string, key kvlocation.ObjectKey, generation uint64) (*object, *route, error) {
	token, err := wire.EscapeID(key.ID)
	if err != nil {
		return nil, nil, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, string(key.Kind), "", err)
	}
	if generation == 0 {
		return nil, nil, outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "the reference has no generation")
	}
	if isEntry(key) {
		return s.entryOwner(op, key, token, generation)
	}
	o, err := s.present(ctx, key)
	switch {
	case err != nil:
		return nil, nil, renamed(err, op, key)
	case o != nil:
		if g := o.generation.Load(); g != generation && g != 0 {
			return nil, nil, otherGeneration(op, key, g, generation)
		}
		return o, nil, nil
	}
	if r := s.routes.get(key.Kind, key.ID); r != nil && r.generation == generation {
		return nil, r, nil
	}
	e, err := s.lookUp(ctx, op, key)
	switch {
	case errors.Is(err, outcome.NotFound):
		return nil, nil, otherGeneration(op, key, 0, generation)
	case err != nil:
		return nil, nil, err
	}
	if e.Generation() != generation {
		if e, err = s.store.ReadWith(ctx, key); err != nil { // the replica may have been behind
			return nil, nil, renamed(err, op, key)
		}
		if e.Phase() == kvlocation.PhaseMissing || e.Generation() != generation {
			return nil, nil, otherGeneration(op, key, e.Generation(), generation)
		}
	}
	p := placeOf(e)
	if p.is(s.cfg.RID, s.cfg.Lifecycle) {
		if o := s.rt.find(key.Kind, key.ID); o != nil {
			return o, nil, nil
		}
		return nil, nil, s.notHere(ctx, op, key)
	}
	r := s.newRoute(key, token, e.Record.Kind, e.Record.Type, p)
	if p.phase == kvlocation.PhaseReady {
		s.routes.put(r)
	}
	return nil, r, nil
}

// otherGeneration refuses a stale reference. present 0 means that there is no object.
func otherGeneration(op string, key kvlocation.ObjectKey, present, meant uint64) *outcome.Error {
	detail := fmt.Sprintf("the object has generation %d, generation %d was meant", present, meant)
	if present == 0 {
		detail = fmt.Sprintf("there is no object; generation %d was meant", meant)
	}
	return outcome.New(op, outcome.NotFound, outcome.NotAccepted, key.String(), detail)
}

// askOwner runs a verb at the owner of an exact incarnation, here or elsewhere, and reads its answer into out, unless
// that is nil.
func (s *Service) askOwner(ctx context.Context, op string, key kvlocation.ObjectKey, generation uint64, verb string, body, out any) error {
	if _, err := callChain(ctx, op); err != nil {
		return renamed(err, op, key) // the turn that asks has lost its ownership
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	o, r, err := s.exact(ctx, op, key, generation)
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "", err)
	}
	var answer []byte
	if o != nil || r.is(s.cfg.RID, s.cfg.Lifecycle) {
		v, err := s.serve(ctx, verb, key, data)
		if err != nil {
			return renamed(plain(err), op, key)
		}
		if answer, err = json.Marshal(v); err != nil {
			return outcome.Wrap(op, outcome.InternalFailure, outcome.Accepted, key.String(), "", err)
		}
	} else {
		header, err := withChain(ctx, op, key, nil)
		if err != nil {
			return err
		}
		token, _ := wire.EscapeID(key.ID)
		reply, err := s.router.CallRun(ctx, &channels.RunCall{
			Op: op, Target: r.target, RID: r.rid, Lifecycle: r.lifecycle, Data: data, Header: header,
			Subject: s.subject(r.rid, r.lifecycle, verb, key.Kind, token),
		})
		if err != nil {
			s.misled(r, reply.Header, err)
			return inCycle(ctx, key, err)
		}
		answer = reply.Data
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return outcome.Wrap(op, outcome.ProtocolError, outcome.Accepted, key.String(), "the answer cannot be read", err)
	}
	return nil
}

// serve runs a verb on an object of this node. While the object moves it waits for the move's end, and when the object has
// moved it goes on there.
func (s *Service) serve(ctx context.Context, verb string, key kvlocation.ObjectKey, data []byte) (any, error) {
	for {
		v, err := s.serveHere(ctx, verb, key, data)
		if err == nil {
			return v, nil
		}
		o := s.rt.find(key.Kind, key.ID)
		switch {
		case o == nil || errors.Is(err, errMoved):
			if at, moved := s.follows.where(key); moved && errors.Is(err, outcome.NotAccepted) && verb != verbWhy {
				return s.serveThere(ctx, at, verb, key, data)
			}
			return nil, err
		case !errors.Is(err, errSealed):
			return nil, err
		}
		if again, err := s.whenUnsealed(ctx, o, err); !again {
			return nil, err
		}
	}
}

// hopsKey is the key under which a verb's context says how often it was sent on.
type hopsKey struct{}

// serveThere runs a verb where its object has gone.
func (s *Service) serveThere(ctx context.Context, at place, verb string, key kvlocation.ObjectKey, data []byte) (any, error) {
	hops, _ := ctx.Value(hopsKey{}).(int)
	if hops >= MaxHops {
		s.stats.followRefused.Add(1)
		return nil, s.notOwner(key)
	}
	token, _ := wire.EscapeID(key.ID)
	reply, err := s.router.CallRun(ctx, &channels.RunCall{
		Op: verb, Target: key.String(), RID: at.rid, Lifecycle: at.lifecycle, Data: data,
		Header:  nats.Header{wire.HeaderHops: {strconv.Itoa(hops + 1)}},
		Subject: s.subject(at.rid, at.lifecycle, verb, key.Kind, token),
	})
	if err != nil {
		return nil, err
	}
	s.stats.followed.Add(1)
	return json.RawMessage(reply.Data), nil
}

// serveHere runs a verb on an object of this node.
func (s *Service) serveHere(ctx context.Context, verb string, key kvlocation.ObjectKey, data []byte) (any, error) {
	switch verb {
	case verbEnd:
		return s.serveEnd(ctx, key, data)
	case verbJoin, verbLeave:
		return s.serveJoin(ctx, key, data, verb == verbJoin)
	case verbCome:
		return s.serveCome(ctx, key, data)
	case verbWith:
		return s.serveWith(ctx, key, data)
	case verbLeft:
		return s.serveLeft(ctx, key, data)
	case verbMembers:
		return s.serveMembers(ctx, key, data)
	case verbCast:
		return s.serveCast(ctx, key, data)
	}
	return s.facts(key)
}

// local returns the object of this node that an exact operation means, and what the operation says, read into req.
func (s *Service) local(ctx context.Context, key kvlocation.ObjectKey, data []byte, req any, generation *uint64) (*object, error) {
	if err := json.Unmarshal(data, req); err != nil {
		return nil, outcome.Wrap("", outcome.ProtocolError, outcome.NotAccepted, key.String(), "the request cannot be read", err)
	}
	o, err := s.present(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		return nil, s.notOwner(key)
	}
	if g := o.generation.Load(); g != *generation && g != 0 {
		return nil, otherGeneration("", key, g, *generation)
	}
	return o, nil
}

// serveEnd closes an object here: in the order of its mailbox, so what was accepted before runs before.
func (s *Service) serveEnd(ctx context.Context, key kvlocation.ObjectKey, data []byte) (any, error) {
	var req exactRequest
	o, err := s.local(ctx, key, data, &req, &req.Generation)
	if err != nil {
		return nil, err
	}
	if isEntry(key) {
		return nil, outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, key.String(), "an Entry Spot lives as long as its node")
	}
	s.refuseJoins(o, true)
	err = s.endInGap(ctx, o, req.Generation, CloseAsked)
	if err != nil {
		s.refuseJoins(o, false) // it did not run; if it still does, no join runs meanwhile, being a turn too
	}
	return struct{}{}, err
}

// endInGap is endNow that waits, within ctx, until a member's SpotWide Spot has time for it.
func (s *Service) endInGap(ctx context.Context, o *object, generation uint64, why CloseReason) error {
	for {
		err := s.endNow(ctx, o, generation, why)
		if !errors.Is(err, errBusy) {
			return err
		}
		w, _ := wideOf(o)
		if !s.awaitGap(ctx, s.rt.spotHere(w.spot)) {
			return late(ctx, err)
		}
	}
}

// endNow closes an object, in the order of its mailbox.
func (s *Service) endNow(ctx context.Context, o *object, generation uint64, why CloseReason) error {
	err := o.between(ctx, func(ctx context.Context) error {
		if g := o.generation.Load(); g != generation {
			return otherGeneration("", o.key(), g, generation)
		}
		if o.isWide() {
			return nil // what was accepted before has run, and its members have to end their turns
		}
		return s.closeNow(ctx, o, why)
	})
	if err == nil && o.isWide() {
		err = s.endSpot(ctx, o, why)
	}
	return err
}

// refuseJoins makes a Spot refuse joins, or not any more.
func (s *Service) refuseJoins(o *object, on bool) {
	if o.reg.kind == kvlocation.KindSpot {
		s.membersOf(o).refuseJoins(on)
	}
}

// closeNow closes an object in a framework turn of its own. Mail that comes meanwhile is held.
func (s *Service) closeNow(ctx context.Context, o *object, why CloseReason) error {
	o.mu.Lock()
	switch sd := o.side.Load(); {
	case o.state != objectOpen:
		o.mu.Unlock()
		return lostError("close", o)
	case sd != nil && sd.leaving != nil:
		o.mu.Unlock()
		return whySealed.refusal("close", o.target(), false)
	}
	o.state = objectClosing
	o.mu.Unlock()
	err := s.closeObject(ctx, o, why)
	if err != nil && !errors.Is(err, errLost) {
		o.acceptHeld(o.activationDue())
	}
	return err
}

// closeObject runs Closing, closes the record and drops the object. Inside a turn of the object. While the result of the
// write is unknown the turn goes on, so the object neither serves nor is dropped. An error is NotAccepted, and the object
// is as it was, or has errLost in its chain: it belongs to nobody here any more, and is dropped.
func (s *Service) closeObject(ctx context.Context, o *object, why CloseReason) error {
	if err := s.admit(); err != nil {
		return err
	}
	s.noteClosing(o, o.callClosing(ctx, why))
	if err := s.admit(); err != nil {
		return err // Closing took its time
	}
	if w, ok := wideOf(o); ok {
		return s.closeMember(ctx, o, w)
	}
	return s.endRecord(o, func(ctx context.Context) error { return s.closeRecord(ctx, o) })
}

// noteClosing counts and tells of a Closing that failed.
func (s *Service) noteClosing(o *object, err error) {
	if err != nil {
		s.stats.closingFailed.Add(1)
		s.log.Warn("an object's Closing failed; it is closed all the same", zap.String("object", o.target()), zap.Error(err))
	}
}

// endRecord closes an object's record and drops the object.
func (s *Service) endRecord(o *object, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	err := write(ctx)
	switch {
	case errors.Is(err, errLost):
		s.rt.lose(o, lostError("close", o))
		return outcome.Wrap("close", outcome.Unavailable, outcome.Accepted, o.target(), "", err)
	case err != nil && errors.Is(err, outcome.Unknown):
		// Nobody can tell any more: it must not serve, and its next owner is decided by the record.
		s.rt.drop(o, outcome.New("close", outcome.Unavailable, outcome.Accepted, o.target(), "it was being closed, and the store does not say whether it is"))
		return err
	case err != nil:
		return err
	}
	s.stats.closed.Add(1)
	s.rt.drop(o, outcome.New("turn", outcome.NotFound, outcome.Accepted, o.target(), "the object was closed before the turn"))
	s.farewell(o)
	return nil
}

// storeTimeout bounds one attempt at a record write that has no caller's deadline.
const storeTimeout = 30 * time.Second

// closeRecord closes the record of an object of this node. errLost: it was not this node's any more.
func (s *Service) closeRecord(ctx context.Context, o *object) error {
	e, err := s.ownEntry(ctx, o)
	if err != nil {
		return err
	}
	owner := s.owner()
	ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.CloseObject(ctx, e, owner) })
	switch {
	case illegal(err) && s.owns(ch.Entry, o):
		return outcome.Wrap("close", outcome.Unavailable, outcome.NotAccepted, o.target(), "its record is not one that can be closed now", err)
	case illegal(err):
		return errLost
	case err == nil && ch.Overwritten:
		return nil // the incarnation is closed; somebody has made another since
	}
	return err
}
