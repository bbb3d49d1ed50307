package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// serviceName is the token of the protocol between the nodes in their subjects:
// fab.<mesh>.node.<rid>.<lifecycle>.obj.<verb>.<kind>.<escaped id>.
const serviceName = "obj"

// The verbs.
const (
	verbMessage  = "msg"     // an ordinary message: no header is needed
	verbActivate = "act"     // a message to an object that may have to be made first
	verbNew      = "new"     // make an object; the payload is its input
	verbEnd      = "end"     // Destroy or Close of an exact incarnation
	verbJoin     = "join"    // a Spot's turn: take an Actor in
	verbLeave    = "leave"   // a Spot's turn: let an Actor go
	verbCome     = "come"    // move an Actor to the node of the SpotWide Spot that it is to join
	verbWith     = "with"    // write an Actor's membership, asked for by a turn of the Spot
	verbLeft     = "left"    // tell a Spot that an Actor is no member any more
	verbMembers  = "members" // list a Spot's members
	verbCast     = "cast"    // broadcast to a Spot's members
	verbMember   = "member"  // one message of a broadcast, to a member
	verbWhy      = "why"     // what the node knows of an object in memory
)

// The values of Fabric-Intent.
const (
	intentInstance    = "instance"      // act: a missing Instance Spot is made
	intentRecover     = "recover"       // act: a record whose creator is gone is made on or cancelled
	intentCreate      = "create"        // new: an object that exists is AlreadyExists
	intentGetOrCreate = "get-or-create" // new: an object that exists is the answer
)

// nowhere is the value of Fabric-Route of a node that does not own the object and knows no place.
const nowhere = "-"

const (
	// maxWorking bounds the operations of other nodes that wait for the store or for an object's turn here.
	maxWorking = 16384
	// listenTimeout bounds the subscribing.
	listenTimeout = 10 * time.Second
)

// subject is where a process run takes a verb for an object, whose ID is escaped in token.
func (s *Service) subject(rid string, lifecycle uint64, verb string, kind kvlocation.ObjectKind, token string) string {
	return s.router.RunSubject(rid, lifecycle, serviceName, verb+"."+string(kind)+"."+token)
}

// refusal is an error, always NotAccepted, with what another node of the fabric wants to know beside it.
type refusal struct {
	err *outcome.Error
	// route is the value of Fabric-Route: where the object is, or nowhere; empty when the refusal is about something else.
	route string
	// final: something was begun for the operation, so no other node may be asked to begin it.
	final bool
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// plain is the error without what only nodes want to know.
func plain(err error) error {
	var r *refusal
	if errors.As(err, &r) {
		return r.err
	}
	return err
}

// refusalHeader is what a refusal says beside its error; nil when that is nothing.
func refusalHeader(err error) nats.Header {
	var r *refusal
	if !errors.As(err, &r) {
		return nil
	}
	h := nats.Header{}
	if r.route != "" {
		h[wire.HeaderRoute] = []string{r.route}
	}
	if r.final {
		h[wire.HeaderFinal] = []string{"1"}
	}
	return h
}

// checkHeader refuses headers that only the fabric may set.
func checkHeader(op string, key kvlocation.ObjectKey, h nats.Header) error {
	for name := range h {
		if reserved(name) {
			return outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), fmt.Sprintf("header %q is reserved", name))
		}
	}
	return nil
}

func reserved(name string) bool {
	const prefix = "Fabric-"
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) || strings.EqualFold(name, "Status")
}

// userHeader is a message's header without the fabric's own; nil when nothing is left.
func userHeader(h nats.Header) nats.Header {
	ours := 0
	for name := range h {
		if reserved(name) {
			ours++
		}
	}
	if ours == 0 {
		return h
	}
	var out nats.Header
	for name, values := range h {
		if !reserved(name) {
			if out == nil {
				out = nats.Header{}
			}
			out[name] = values
		}
	}
	return out
}

// withIntent adds what an activation says beside its message.
func withIntent(h nats.Header, intent string, class Class, typ string) nats.Header {
	out := make(nats.Header, len(h)+3)
	maps.Copy(out, h)
	out[wire.HeaderIntent], out[wire.HeaderClass], out[wire.HeaderType] = []string{intent}, []string{string(class)}, []string{typ}
	return out
}

// listen subscribes to what other nodes ask of this one, and to the gateway.
func (s *Service) listen() error {
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	return s.router.Listen(ctx, channels.Service{Name: serviceName, Handle: s.handle, Shared: []string{s.cfg.Mesh.Call() + ".>"}})
}

// handle takes one message of another program. It runs on the subscription's goroutine and does not block.
func (s *Service) handle(in *channels.Inbound) {
	if in.Shared() {
		s.gateway(in)
		return
	}
	verb, rest, _ := strings.Cut(in.Tail(), ".")
	kindText, token, _ := strings.Cut(rest, ".")
	key, err := keyOf(kindText, token)
	if err != nil {
		in.Refuse(outcome.ProtocolError, err.Error(), nil)
		return
	}
	switch verb {
	case verbMessage:
		s.takeMessage(in, key)
	case verbMember:
		s.takeMember(in, key)
	case verbActivate:
		s.work(in, func(ctx context.Context) { s.takeActivation(ctx, in, key) })
	case verbNew:
		s.answer(in, func(ctx context.Context) (any, error) { return s.takeCreation(ctx, in, key) })
	case verbEnd, verbJoin, verbLeave, verbCome, verbWith, verbLeft, verbMembers, verbCast, verbWhy:
		s.answer(in, func(ctx context.Context) (any, error) { return s.serve(ctx, verb, key, in.Data()) })
	default:
		in.Refuse(outcome.ProtocolError, fmt.Sprintf("node %s knows no verb %q", s.cfg.RID, verb), nil)
	}
}

// keyOf reads the last two tokens of a subject. An ID that needs no escape costs nothing.
func keyOf(kindText, token string) (kvlocation.ObjectKey, error) {
	kind := kvlocation.ObjectKind(kindText)
	if kind != kvlocation.KindActor && kind != kvlocation.KindSpot {
		return kvlocation.ObjectKey{}, fmt.Errorf("object kind %.80q is not allowed: it must be %s or %s", kindText, kvlocation.KindActor, kvlocation.KindSpot)
	}
	id, err := wire.UnescapeID(token)
	return kvlocation.ObjectKey{Kind: kind, ID: id}, err
}

// work runs what has to wait in a goroutine of its own, whose context ends with the operation's deadline, or refuses.
func (s *Service) work(in *channels.Inbound, f func(ctx context.Context)) {
	if s.working.Add(1) > maxWorking {
		s.working.Add(-1)
		in.Refuse(outcome.Unavailable, fmt.Sprintf("%d operations are under way at node %s already", maxWorking, s.cfg.RID), nil)
		return
	}
	started := s.spawn(func() {
		defer s.working.Add(-1)
		ctx, cancel := s.deadlineOf(in)
		defer cancel()
		if n := hopsOf(in.Header()); n > 0 {
			ctx = context.WithValue(ctx, hopsKey{}, n)
		}
		f(ctx)
	})
	if !started {
		s.working.Add(-1)
		in.Refuse(outcome.Unavailable, "node "+s.cfg.RID+" is shutting down", nil)
	}
}

// answer is work that ends with a JSON value or an error.
func (s *Service) answer(in *channels.Inbound, f func(ctx context.Context) (any, error)) {
	s.work(in, func(ctx context.Context) {
		v, err := f(ctx)
		var data []byte
		if err == nil {
			data, err = json.Marshal(v)
		}
		switch {
		case err == nil:
			in.Reply(data, nil)
		case !s.gaveUp(ctx, in, err):
			s.fail(in, err)
		}
	})
}

// gaveUp reports whether err says no more than that the caller's own time is over, while what it asked for may go on. The
// caller ends by itself then, and its end is Unknown: an answer that comes at the same moment would make it a matter of luck
// which of the two it sees.
func (s *Service) gaveUp(ctx context.Context, in *channels.Inbound, err error) bool {
	_, said := in.LocalDeadline()
	return said && ctx.Err() != nil && s.ctx.Err() == nil &&
		outcome.KindOf(err) == outcome.DeadlineExceeded && outcome.AcceptanceOf(err) != outcome.NotAccepted
}

// deadlineOf is a context that ends when the operation's caller gives up.
func (s *Service) deadlineOf(in *channels.Inbound) (context.Context, context.CancelFunc) {
	if d, ok := in.LocalDeadline(); ok {
		return context.WithDeadline(s.ctx, d)
	}
	return context.WithTimeout(s.ctx, s.cfg.DefaultTimeout)
}

// fail ends a message from outside with an error, whose acceptance stays.
func (s *Service) fail(in *channels.Inbound, err error) {
	var e *outcome.Error
	if !errors.As(err, &e) {
		e = outcome.Wrap("", outcome.InternalFailure, outcome.Accepted, "", "", err)
	}
	switch e.Acceptance {
	case outcome.NotAccepted:
		in.Refuse(e.Kind, textOf(e), refusalHeader(err))
	case outcome.Accepted:
		in.Fail(e)
	default:
		_ = s.router.AnswerError(in.ReplyTo(), e) // a failure to answer is the caller's timeout
	}
}

// textOf is what an error says beside its kind.
func textOf(e *outcome.Error) string {
	switch {
	case e.Cause == nil:
		return e.Detail
	case e.Detail == "":
		return e.Cause.Error()
	}
	return e.Detail + ": " + e.Cause.Error()
}

// abortHeld answers a message from outside that was held for an object that never opened, and so was never accepted.
func (s *Service) abortHeld(from origin, err error) {
	switch m := from.(type) {
	case *channels.Inbound:
		s.fail(m, err)
	case foreign:
		s.fail(m.Inbound, err)
	case *routed:
		s.fail(m.Inbound, err)
	case *storedFirst:
		m.refuse(err)
	case *movedMail:
		m.refuse(err)
	}
}

// takeMessage offers an ordinary message to the object's mailbox, if this node has the object.
func (s *Service) takeMessage(in *channels.Inbound, key kvlocation.ObjectKey) {
	o := s.rt.find(key.Kind, key.ID)
	if o == nil {
		if !s.follow(in, key, verbMessage) {
			s.fail(in, s.notOwner(key))
		}
		return
	}
	var from origin = in
	if h := in.Header(); h != nil && h.Get(wire.HeaderHops) != "" {
		from = &routed{Inbound: in, s: s, key: key, followed: true}
	}
	if because := s.offerInbound(o, in, from); because != whyNot {
		s.refuseInbound(o, in, because, verbMessage)
	}
}

// offerInbound offers a message from outside to an object.
func (s *Service) offerInbound(o *object, in *channels.Inbound, from origin) why {
	mail := newRemote(from)
	if s.companion != nil {
		mail.setMark(in.Header().Get(s.companion.header))
	}
	because := o.offer(mail)
	if because != whyNot {
		mail.release()
	}
	return because
}

// refuseInbound refuses a message that an object has not taken, or sends it on when the object has moved.
func (s *Service) refuseInbound(o *object, in *channels.Inbound, because why, verb string) {
	e := because.refusal("", o.target(), true)
	switch because {
	case whyMoved, whyClosed:
		if !s.follow(in, o.key(), verb) {
			s.fail(in, &refusal{err: e, route: s.hint(o.reg.kind, o.id)})
		}
	default:
		in.Refuse(e.Kind, e.Detail+" at node "+s.cfg.RID, nil)
	}
}

// notOwner refuses a message for an object that is not here, with what this node knows of where it is.
func (s *Service) notOwner(key kvlocation.ObjectKey) error {
	if isEntry(key) && key.ID == entryPrefix+s.cfg.RID {
		return outcome.New("", outcome.NotConfigured, outcome.NotAccepted, key.String(), "node "+s.cfg.RID+" registers no entry_spot type")
	}
	s.stats.notOwner.Add(1)
	return &refusal{
		err:   outcome.New("", outcome.Unavailable, outcome.NotAccepted, key.String(), "node "+s.cfg.RID+" does not own it"),
		route: s.hint(key.Kind, key.ID),
	}
}

// hint is the value of Fabric-Route for an object that is not here.
func (s *Service) hint(kind kvlocation.ObjectKind, id string) string {
	if at, ok := s.follows.where(kvlocation.ObjectKey{Kind: kind, ID: id}); ok {
		return at.String()
	}
	if r := s.routes.get(kind, id); r != nil {
		return r.place.String()
	}
	return nowhere
}
