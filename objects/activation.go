package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// activationDoc is the field activation of a Creating record: what the creation is made on from when its creator dies.
// It stands in every Creating record, so a record without it has lost its input. Above kvlocation.MaxInline it is kept
// in the relay stream and pointed to.
type activationDoc struct {
	Input   []byte              `json:"input,omitempty"`
	First   *firstDoc           `json:"first,omitempty"`
	Spilled *kvlocation.Spilled `json:"spilled,omitempty"`

	spill *kvlocation.Spilled // where the rest was read from, or written to
}

// firstDoc is the first message of a cold activation.
type firstDoc struct {
	Op     string      `json:"op"`
	Data   []byte      `json:"data,omitempty"`
	Header nats.Header `json:"header,omitempty"`
	// Reply is the caller's reply subject; empty when the caller was the creator's own process, and died with it.
	Reply string `json:"reply,omitempty"`
	// Deadline is the caller's, on the store's clock in Unix milliseconds; 0 for none.
	Deadline int64 `json:"deadline,omitempty"`
	OneWay   bool  `json:"one_way,omitempty"`
}

// recordRest is what the other fields of a record may take of kvlocation.MaxRecord.
const recordRest = 8 << 10

// size is what counts against kvlocation.MaxInline.
func (d *activationDoc) size() int {
	n := len(d.Input)
	if d.First != nil {
		n += int(sizeOf(d.First.Data, d.First.Header)) + len(d.First.Reply)
	}
	return n
}

// storedFirst is a first message out of a record that was taken over: its caller waits elsewhere, or has given up.
type storedFirst struct {
	s   *Service
	doc firstDoc
}

func (m *storedFirst) Data() []byte                    { return m.doc.Data }
func (m *storedFirst) Header() nats.Header             { return m.doc.Header }
func (m *storedFirst) OneWay() bool                    { return m.doc.OneWay || m.doc.Reply == "" }
func (m *storedFirst) Sender() (channels.Sender, bool) { return channels.Sender{}, false }

// LocalDeadline is the caller's deadline on this machine's clock.
func (m *storedFirst) LocalDeadline() (time.Time, bool) { return m.s.localDeadline(m.doc.Deadline) }

// Past reports whether the deadline has certainly passed.
func (m *storedFirst) Past(time.Time) bool { return m.s.deadlinePast(m.doc.Deadline) }

// Accept sends the acceptance of a one-way message.
func (m *storedFirst) Accept() {
	if m.doc.OneWay {
		m.Reply(nil, nil)
	}
}

// Reply answers the caller on the reply subject that it waits on.
func (m *storedFirst) Reply(data []byte, h nats.Header) {
	if err := m.s.router.Answer(m.doc.Reply, data, h); err != nil {
		m.s.log.Debug("answering a stored first message", zap.Error(err))
	}
}

// Fail answers with an error of an accepted message.
func (m *storedFirst) Fail(err error) {
	if !m.doc.OneWay {
		m.refuse(outcome.Wrap("turn", outcome.KindOf(err), outcome.Accepted, "", "", err))
	}
}

// refuse answers with an error whose acceptance stays.
func (m *storedFirst) refuse(err error) {
	if err := m.s.router.AnswerError(m.doc.Reply, plain(err)); err != nil {
		m.s.log.Debug("answering a stored first message", zap.Error(err))
	}
}

// routed is a message from another node whose reply tells where the object is, so that the next one needs no look-up.
type routed struct {
	*channels.Inbound
	s   *Service
	key kvlocation.ObjectKey
	// followed: it was sent on by the object's earlier owner, so the notice of its acceptance tells the place too.
	followed bool
}

// Accept sends the acceptance notice, if one is asked for.
func (r *routed) Accept() {
	if r.followed {
		r.Inbound.AcceptWith(r.s.withPlace(nil, r.key))
		return
	}
	r.Inbound.Accept()
}

// Reply answers and tells the place.
func (r *routed) Reply(data []byte, h nats.Header) {
	if o := r.s.rt.find(r.key.Kind, r.key.ID); o != nil && !r.OneWay() {
		with := make(nats.Header, len(h)+1)
		for k, v := range h {
			with[k] = v
		}
		with[wire.HeaderRoute] = []string{r.s.placeHere(o).String()}
		h = with
	}
	r.Inbound.Reply(data, h)
}

// storedMail is the envelope of a stored first message; nil when there is none, or nobody waits for it any more: past its
// deadline it is not run, and its caller hears that.
func (s *Service) storedMail(o *object, first *firstDoc) *envelope {
	if first == nil {
		return nil
	}
	m := &storedFirst{s: s, doc: *first}
	if m.Past(time.Now()) {
		s.stats.firstPast.Add(1)
		m.refuse(outcome.New("turn", outcome.DeadlineExceeded, outcome.NotAccepted, o.target(), "the deadline had passed when the object was made on by another node"))
		return nil
	}
	s.stats.firstTaken.Add(1)
	return newRemote(m)
}

// takeActivation brings another node's message to an object that may have to be made first.
func (s *Service) takeActivation(ctx context.Context, in *channels.Inbound, key kvlocation.ObjectKey) {
	h := in.Header()
	reg, err := s.registered(key, Class(h.Get(wire.HeaderClass)), h.Get(wire.HeaderType))
	if err == nil {
		first := &firstDoc{Op: nuid.Next(), Data: in.Data(), Header: userHeader(h), Reply: in.ReplyTo(), OneWay: in.OneWay()}
		if d, ok := in.Deadline(); ok {
			first.Deadline = d.UnixMilli()
		}
		from := &routed{Inbound: in, s: s, key: key}
		mail := newRemote(from)
		if _, _, err = s.actHere(ctx, key, reg, h.Get(wire.HeaderIntent) == intentInstance, mail, first); err != nil {
			mail.release()
		}
	}
	if err != nil {
		s.fail(in, err)
	}
}

// activateHere is takeActivation for a caller in this process.
func (s *Service) activateHere(ctx context.Context, c *Call, class Class, typ, intent string) (Reply, error) {
	reg, err := s.registered(c.key(), class, typ)
	if err != nil {
		return Reply{}, err
	}
	mail, err := s.rt.newLocal(ctx, c.Op, c.Data, c.Header, c.OneWay)
	if err != nil {
		return Reply{}, err
	}
	bctx, cancel := s.bound(ctx)
	defer cancel()
	first := &firstDoc{Op: nuid.Next(), Data: c.Data, Header: c.Header, OneWay: c.OneWay}
	held, own, err := s.actHere(bctx, c.key(), reg, intent == intentInstance, mail, first)
	if err != nil {
		mail.release()
		return Reply{}, err
	}
	var reply Reply
	switch {
	case held != nil:
		err = held.wait(ctx, c.key(), s.rt.deadline(ctx))
	case !c.OneWay:
		reply, err = s.rt.wait(ctx, c.key(), mail)
	}
	if own && errors.Is(err, outcome.DeadlineExceeded) && errors.Is(err, outcome.NotAccepted) {
		// It stands in the record as the first message: whoever makes on from it may still run it.
		e := *plainCreate(err)
		e.Acceptance = outcome.Unknown
		err = &e
	}
	return reply, err
}

// actHere puts mail into the mailbox of an object here, which is made first if it is missing (instance) or made on if its
// creator is gone. held is what the sender of one-way mail of this process waits on, and own is true when the mail is the
// first message of a record. On an error, *outcome.Error or *refusal and NotAccepted, the mail is still the caller's.
func (s *Service) actHere(ctx context.Context, key kvlocation.ObjectKey, reg *regType, instance bool, mail *envelope, first *firstDoc) (held *hold, own bool, err error) {
	for range createTries {
		if o := s.rt.find(key.Kind, key.ID); o != nil {
			if o.reg != reg {
				if o, err = s.present(ctx, key); err != nil {
					return nil, false, err
				} else if o == nil || o.reg == reg {
					continue
				}
				return nil, false, &refusal{err: mismatch("", key, o.reg.Class, o.reg.Name, reg.Class, reg.Name), final: true}
			}
			switch because, held := o.offerOneWay(mail); because {
			case whyNot:
				return held, false, nil
			case whyClosed:
				continue
			default:
				return nil, false, &refusal{err: because.refusal("", key.String(), mail.from != nil), final: true}
			}
		}
		d, _ := ctx.Deadline()
		ord := &order{key: key, reg: reg, mail: mail, deadline: d, inline: mail.from != nil}
		if instance && reg.Class == kvlocation.ClassInstanceSpot {
			ord.doc.First = first
		} else if err := s.abandonedRecord(ctx, ord); err != nil {
			if s.rt.find(key.Kind, key.ID) != nil {
				continue // another operation made it here while the record was read
			}
			return nil, false, err
		}
		f, took, err := s.begin(ord)
		switch {
		case err != nil:
			return nil, false, err
		case took && ord.inline:
			s.fly(f, ord)
			return nil, true, nil
		case took:
			return ord.held, ord.doc.First != nil, nil
		case f == nil || s.rt.find(key.Kind, key.ID) != nil:
			continue
		}
		select {
		case <-f.done: // it is ending
		case <-ctx.Done():
			return nil, false, outcome.FromContext(ctx, "", outcome.NotAccepted, key.String(), "another creation was ending")
		}
	}
	return nil, false, outcome.New("", outcome.Unavailable, outcome.NotAccepted, key.String(), "it is made and closed all the time")
}

// abandonedRecord finds the Creating record of an order that makes nothing new, and the evidence that its creator is gone.
func (s *Service) abandonedRecord(ctx context.Context, ord *order) error {
	l, err := s.store.ReadWith(ctx, ord.key)
	if err != nil {
		return err
	}
	e := l.Entry
	if l.Phase() == kvlocation.PhaseMissing {
		return &refusal{err: outcome.New("", outcome.NotFound, outcome.NotAccepted, ord.key.String(), "there is no object of this ID"), final: true}
	}
	if r := e.Record; r.Kind != ord.reg.Class || r.Type != ord.reg.Name {
		return &refusal{err: mismatch("", ord.key, r.Kind, r.Type, ord.reg.Class, ord.reg.Name), final: true}
	}
	ord.absent, err = s.creatorGone(ctx, l)
	ord.found = &e
	return err
}

// creatorGone returns the evidence that a record is Creating and its creator's lease is absent. Else its error, *refusal,
// says where the object is.
func (s *Service) creatorGone(ctx context.Context, e kvlocation.Located) (kvlocation.Absence, error) {
	p := placeOf(e)
	at := &refusal{
		err:   outcome.New("", outcome.Unavailable, outcome.NotAccepted, e.Key.String(), fmt.Sprintf("its record is %s at node %s", p.phase, p.rid)),
		route: p.String(),
	}
	switch {
	case p.phase != kvlocation.PhaseCreating && p.phase != kvlocation.PhaseReady:
		at.route, at.final = "", true
		return kvlocation.Absence{}, at
	case p.is(s.cfg.RID, s.cfg.Lifecycle):
		// No flight is under way and no object is here: what this process left behind serves nobody (FO-10.11).
		at.route, at.final = "", true
		at.err.Detail = "its record is " + string(p.phase) + " at this node, which does not have it in memory"
		if p.phase != kvlocation.PhaseCreating {
			return kvlocation.Absence{}, at
		}
		return kvlocation.Absence{}, nil
	case p.phase == kvlocation.PhaseReady:
		return kvlocation.Absence{}, at
	}
	absent, err := s.store.ConfirmAbsent(ctx, p.rid, p.lifecycle)
	if errors.Is(err, kvlocation.ErrNodeAlive) {
		return absent, at
	}
	return absent, err
}

// secure makes the Creating record of an order, or takes one over whose creator is gone (FO-4.3). Its errors are
// *outcome.Error or *refusal.
func (s *Service) secure(ctx context.Context, ord *order) (secured, error) {
	if ord.found != nil {
		return s.takeOver(ctx, ord, *ord.found, ord.absent)
	}
	doc := ord.doc
	field, err := s.encodeDoc(ctx, ord.key, &doc)
	if err != nil {
		return secured{}, err
	}
	for range createTries {
		if err := s.openFor(ctx); err != nil {
			return secured{}, err
		}
		ch, err := s.writeCreating(ctx, ord, field)
		switch {
		case err == nil && ch.Overwritten && !s.stillMine(ch.Entry, ch.Entry, kvlocation.PhaseCreating):
			return secured{lost: true, own: true}, errOvertaken(ord.key, ch.Entry)
		case err == nil:
			if doc.spill != nil {
				if err := s.store.KeepSpilled(ctx, *doc.spill); err != nil {
					s.log.Warn("the input of a creation stays for 10 minutes only", zap.String("object", ord.key.String()), zap.Error(err))
				}
			}
			return secured{at: ch.Entry, doc: doc, own: true}, nil
		case !illegal(err):
			return secured{}, plainCreate(err)
		}
		e, err := s.store.ReadWith(ctx, ord.key)
		if err != nil {
			return secured{}, plainCreate(err)
		}
		if e.Phase() == kvlocation.PhaseMissing {
			continue
		}
		if r := e.Record; r.Kind != ord.reg.Class || r.Type != ord.reg.Name {
			return secured{}, &refusal{err: mismatch("create", ord.key, r.Kind, r.Type, ord.reg.Class, ord.reg.Name), final: true}
		}
		absent, err := s.creatorGone(ctx, e)
		if err != nil {
			return secured{}, err
		}
		if !placeOf(e).is(s.cfg.RID, s.cfg.Lifecycle) {
			return s.takeOver(ctx, ord, e.Entry, absent)
		}
		if err := s.cancelRecord(e.Entry, absent); err != nil {
			return secured{}, plainCreate(err)
		}
	}
	return secured{}, outcome.New("create", outcome.Unavailable, outcome.NotAccepted, ord.key.String(), "it is made and closed all the time")
}

// writeCreating writes the Creating record, as if the key held nothing: two writes and no read make an object.
func (s *Service) writeCreating(ctx context.Context, ord *order, field json.RawMessage) (kvlocation.Change, error) {
	if !ord.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, ord.deadline)
		defer cancel()
	}
	return s.settle(func() (kvlocation.Change, error) {
		return s.store.Create(ctx, kvlocation.NewObject{
			Key: ord.key, Class: ord.reg.Class, Type: ord.reg.Name, Owner: s.owner(), Activation: field, AssumeMissing: true,
		})
	})
}

// plainCreate is an error of the store as that of a creation.
func plainCreate(err error) *outcome.Error {
	var e *outcome.Error
	if errors.As(err, &e) {
		return e
	}
	return outcome.Wrap("create", outcome.InternalFailure, outcome.Unknown, "", "", err)
}

// encodeDoc returns the field activation, after it has put into the relay stream what is too large for the record.
func (s *Service) encodeDoc(ctx context.Context, key kvlocation.ObjectKey, doc *activationDoc) (json.RawMessage, error) {
	whole, err := json.Marshal(doc)
	if err != nil {
		return nil, outcome.Wrap("create", outcome.InvalidOperation, outcome.NotAccepted, key.String(), "", err)
	}
	if doc.size() <= kvlocation.MaxInline && len(whole) <= kvlocation.MaxRecord-recordRest {
		return whole, nil
	}
	if most := s.store.MaxSpill(); len(whole) > most {
		return nil, &refusal{err: outcome.New("create", outcome.CapacityExceeded, outcome.NotAccepted, key.String(),
			fmt.Sprintf("creation input and first message of %d bytes make %d bytes, the store takes %d", doc.size(), len(whole), most)), final: true}
	}
	spilled, err := s.store.Spill(ctx, key, nuid.Next(), whole)
	if err != nil {
		e := plainCreate(err)
		e.Acceptance = outcome.NotAccepted // whatever was written, no record points to it
		return nil, e
	}
	doc.spill = &spilled
	return json.Marshal(activationDoc{Spilled: &spilled})
}

// decodeDoc reads the field activation. DataLost: it is not there, or what it points to is gone.
func (s *Service) decodeDoc(ctx context.Context, e kvlocation.Entry) (doc activationDoc, err error) {
	lost := func(detail string, err error) (activationDoc, error) {
		return doc, outcome.Wrap("create", outcome.DataLost, outcome.NotAccepted, e.Key.String(), detail, err)
	}
	if len(e.Record.Activation) == 0 {
		return lost("the record has no creation input", nil)
	}
	if err := json.Unmarshal(e.Record.Activation, &doc); err != nil {
		return lost("the creation input cannot be read", err)
	}
	if doc.Spilled == nil {
		return doc, nil
	}
	at := doc.Spilled
	whole, err := s.store.FetchSpilled(ctx, *at)
	switch {
	case errors.Is(err, outcome.Unavailable):
		return doc, plainCreate(err)
	case err != nil:
		return lost("the creation input is gone", err)
	}
	doc = activationDoc{}
	if err := json.Unmarshal(whole, &doc); err != nil {
		return lost("the creation input cannot be read", err)
	}
	doc.spill = at
	return doc, nil
}

// takeOver makes on from a Creating record whose creator is gone, with its own input and first message, or cancels
// exactly that record when these are lost.
func (s *Service) takeOver(ctx context.Context, ord *order, e kvlocation.Entry, absent kvlocation.Absence) (secured, error) {
	if e.Record.Owner.Is(s.cfg.RID, s.cfg.Lifecycle) {
		if err := s.cancelRecord(e, absent); err != nil {
			return secured{}, plainCreate(err)
		}
		return secured{}, &refusal{err: outcome.New("create", outcome.NotFound, outcome.NotAccepted, ord.key.String(), "an unfinished creation of this node was cancelled"), final: true}
	}
	doc, err := s.decodeDoc(ctx, e)
	if errors.Is(err, outcome.DataLost) {
		if cerr := s.cancelRecord(e, absent); cerr != nil {
			return secured{}, plainCreate(cerr)
		}
		s.stats.dataLost.Add(1)
		return secured{}, &refusal{err: plainCreate(err), final: true}
	}
	if err != nil {
		return secured{}, err
	}
	ch, err := s.settle(func() (kvlocation.Change, error) { return s.store.Takeover(ctx, e, s.owner(), absent) })
	switch {
	case illegal(err):
		// Another node was faster: it knows, or the object is gone.
		now, rerr := s.store.ReadWith(ctx, ord.key)
		if rerr != nil {
			return secured{}, plainCreate(rerr)
		}
		r := &refusal{err: outcome.Wrap("create", outcome.Unavailable, outcome.NotAccepted, ord.key.String(), "another node was faster", err), route: nowhere}
		if p := placeOf(now); p.phase == kvlocation.PhaseCreating || p.phase == kvlocation.PhaseReady {
			r.route = p.String()
		}
		return secured{}, r
	case err != nil:
		return secured{}, plainCreate(err)
	case ch.Overwritten && !s.stillMine(ch.Entry, ch.Entry, kvlocation.PhaseCreating):
		return secured{lost: true}, errOvertaken(ord.key, ch.Entry)
	}
	s.stats.takenOver.Add(1)
	s.log.Info("an unfinished creation is made on", zap.String("object", ord.key.String()), zap.Stringer("creator", e.Record.Owner))
	return secured{at: ch.Entry, doc: doc, stored: doc.First}, nil
}

// dropSpilledOf removes what a record pointed to that was cancelled.
func (s *Service) dropSpilledOf(e kvlocation.Entry) {
	var doc activationDoc
	if len(e.Record.Activation) > 0 && json.Unmarshal(e.Record.Activation, &doc) == nil && doc.Spilled != nil {
		s.dropSpilled(*doc.Spilled)
	}
}

// dropSpilled removes what no record points to any more: at once, or in the background when the store is away.
func (s *Service) dropSpilled(p kvlocation.Spilled) {
	const tries = 10
	err := s.store.DropSpilled(s.ctx, p)
	if err == nil {
		return
	}
	again := s.spawn(func() {
		for try := 0; err != nil && try < tries && s.ctx.Err() == nil; try++ {
			s.pause(time.Second)
			err = s.store.DropSpilled(s.ctx, p)
		}
		if err != nil {
			s.log.Warn("spilled input was not removed", zap.Stringer("data", p), zap.Error(err))
		}
	})
	if !again {
		s.log.Warn("spilled input was not removed", zap.Stringer("data", p), zap.Error(err))
	}
}
