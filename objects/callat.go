package objects

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Place is where an object is, as somebody said: which process run owns it, and how often it has changed its owner.
type Place struct {
	RID             string `json:"rid"`
	Lifecycle       uint64 `json:"lifecycle"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
}

// Newer reports whether p says more than q: places are replaced only by a higher (ObjectGeneration, owner generation).
func (p Place) Newer(q Place) bool {
	if p.Generation != q.Generation {
		return p.Generation > q.Generation
	}
	return p.OwnerGeneration > q.OwnerGeneration
}

// Way is a prepared way to an object at exactly one process run, for the messages of CallAt. It is immutable.
type Way struct {
	at              Place
	key             kvlocation.ObjectKey
	target, subject string
	mark            string
	marked          nats.Header // of a message without a header of its own; nil without a mark
}

// Way prepares the way to an object at the process run that at names. mark is the value of the companion's header in each
// message; empty for none. The error, InvalidOperation and NotAccepted, says that no object can have the ID.
func (s *Service) Way(at Place, key kvlocation.ObjectKey, mark string) (*Way, error) {
	token, err := wire.EscapeID(key.ID)
	if err != nil {
		return nil, outcome.Wrap("", outcome.InvalidOperation, outcome.NotAccepted, string(key.Kind), "", err)
	}
	w := &Way{at: at, key: key, target: key.String(), subject: s.subject(at.RID, at.Lifecycle, verbMessage, key.Kind, token), mark: mark}
	if mark != "" && s.companion != nil {
		w.marked = nats.Header{s.companion.header: {mark}}
	}
	return w, nil
}

// header is what a message with a header of its own says.
func (w *Way) header(own nats.Header) nats.Header {
	if len(own) == 0 {
		return w.marked
	}
	h := make(nats.Header, len(own)+1)
	maps.Copy(h, own)
	maps.Copy(h, w.marked)
	return h
}

// Message is one message for CallAt.
type Message struct {
	// Op stands in errors: "relay", for example.
	Op     string
	Data   []byte
	Header nats.Header
	// OneWay makes it a Send, Early asks for the notice of acceptance of a request.
	OneWay, Early bool
	// Deadline bounds the operation where the context has no deadline; zero means the Service's default.
	Deadline time.Time
}

// CallAt brings a message to exactly the process run to which the way leads: one attempt, no look-up and no second place
// whatever comes of it, but that the message follows an object that has moved away from there (FO-4.2b). A not-owner
// refusal carries its route (RouteOf), and so does the answer of a message that was followed: then moved is where the
// object is now, and else zero. Errors are those of Actors.Request.
func (s *Service) CallAt(ctx context.Context, w *Way, m *Message) (reply Reply, moved Place, err error) {
	key, at := w.key, w.at
	if err := checkHeader(m.Op, key, m.Header); err != nil {
		return Reply{}, moved, err
	}
	if at.RID == s.cfg.RID && at.Lifecycle == s.cfg.Lifecycle {
		if !m.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, m.Deadline)
			defer cancel()
		}
		if reply, err = s.callHere(ctx, w, m); err == nil {
			return reply, moved, nil
		}
		next := s.passOn(w, m, err)
		if next == nil {
			return reply, moved, err
		}
		w, at = next, next.at
	}
	h, err := withChain(ctx, m.Op, key, w.header(m.Header))
	if err != nil {
		return Reply{}, moved, err
	}
	reply, err = s.router.CallRun(ctx, &channels.RunCall{
		Op: m.Op, Target: w.target, RID: at.RID, Lifecycle: at.Lifecycle, Data: m.Data, Header: h, OneWay: m.OneWay,
		Early: m.Early, Deadline: m.Deadline, Subject: w.subject,
	})
	route := reply.Header.Get(wire.HeaderRoute)
	said, routed := parsePlace(route)
	switch {
	case err != nil && (routed || route == nowhere):
		return Reply{}, moved, &routedError{inCycle(ctx, key, err), said.exported()}
	case err != nil:
		return Reply{}, moved, inCycle(ctx, key, err)
	case routed:
		moved = said.exported()
	}
	return withoutRoute(reply), moved, nil
}

// callHere is CallAt at this process run.
func (s *Service) callHere(ctx context.Context, w *Way, m *Message) (reply Reply, err error) {
	key := w.key
	o := s.rt.find(key.Kind, key.ID)
	if o == nil {
		return Reply{}, s.placed(renamed(plain(s.notOwner(key)), m.Op, key), key)
	}
	mail, err := s.rt.newLocal(ctx, m.Op, m.Data, m.Header, m.OneWay)
	if err != nil {
		return Reply{}, err
	}
	mail.setMark(w.mark)
	because, held := o.offerOneWay(mail)
	switch {
	case because == whyMoved || because == whyClosed:
		mail.release()
		return Reply{}, s.placed(because.refusal(m.Op, o.target(), false), key)
	case because != whyNot:
		mail.release()
		return Reply{}, because.refusal(m.Op, o.target(), false)
	case held != nil:
		err = held.wait(ctx, key, s.rt.deadline(ctx))
	case !m.OneWay:
		reply, err = s.rt.wait(ctx, key, mail)
	}
	if err == nil {
		return reply, nil
	}
	elsewhere, err := s.elsewhere(o, m.Op, err)
	if elsewhere { // it has moved, or its creation has found it at another node
		err = s.placed(err, key)
	}
	return Reply{}, err
}

// passOn returns the way on for a message that its object's place, this process run, has refused since the object has moved: as
// it follows the object when it comes from elsewhere. nil when there is none.
func (s *Service) passOn(w *Way, m *Message, refused error) *Way {
	if at, ok := RouteOf(refused); !ok || !at.Newer(w.at) || outcome.AcceptanceOf(refused) != outcome.NotAccepted {
		return nil
	}
	at, ok := s.onward(w.key, 0, int(sizeOf(m.Data, m.Header)))
	if !ok || at.generation != w.at.Generation {
		return nil
	}
	next, err := s.Way(at.exported(), w.key, w.mark)
	if err != nil {
		return nil
	}
	h := make(nats.Header, len(next.marked)+1)
	maps.Copy(h, next.marked)
	h[wire.HeaderHops] = []string{"1"} // so that the answer says where the object is
	next.marked = h
	s.stats.followed.Add(1)
	return next
}

// placed is err with what this node knows of where the object is.
func (s *Service) placed(err error, key kvlocation.ObjectKey) error {
	at, ok := s.follows.where(key)
	if !ok {
		r := s.routes.get(key.Kind, key.ID)
		if r == nil {
			return err
		}
		at = r.place
	}
	return &routedError{err, at.exported()}
}

func (p place) exported() Place { return Place{p.rid, p.lifecycle, p.generation, p.ownerGeneration} }

// RouteOf returns where an object is, as the node said that refused a message because it does not own the object: the zero
// Place when it knew none. ok is false when the error says nothing about that: the object may be there, and full.
func RouteOf(err error) (p Place, ok bool) {
	var r *routedError
	if !errors.As(err, &r) {
		return p, false
	}
	return r.at, true
}

// routedError is an error with the place that a not-owner answer named.
type routedError struct {
	error
	at Place
}

func (e *routedError) Unwrap() error { return e.error }
