package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// CallOption changes one operation.
type CallOption func(*Call)

// WithInstance gives a Request or Send to a Spot instance intent: an Instance Spot of this type that is Missing is made
// by this message, which is then its first (FO-4.4). One that exists with another class or type is a TypeMismatch.
func WithInstance(typ string) CallOption { return func(c *Call) { c.Type = typ } }

// AtNode makes the object, if it is made by this operation, at the named node and at no other (FO-2.2). It does not say
// where an object that exists is looked for.
func AtNode(rid string) CallOption { return func(c *Call) { c.node = rid } }

// WithHeader adds headers to the message, a traceparent for example. Names that begin with Fabric- and Status are
// refused with InvalidOperation. Headers cost time at both ends; an ordinary message has none. The map is not changed,
// and must not be changed while the operation runs.
func WithHeader(h nats.Header) CallOption {
	return func(c *Call) {
		if c.Header == nil {
			c.Header = h
			return
		}
		merged := maps.Clone(c.Header)
		maps.Copy(merged, h)
		c.Header = merged
	}
}

// WithEarlyAcceptance asks for a notice as soon as the object's mailbox has the request, so that a later timeout or lost
// connection says Accepted instead of Unknown. It costs one more message. Send always asks.
func WithEarlyAcceptance() CallOption { return func(c *Call) { c.early = true } }

// WithTrace fills t with how the operation went, also when it fails. t must not be read before the call returned.
func WithTrace(t *Trace) CallOption { return func(c *Call) { c.trace = t } }

// Trace tells how one operation went.
type Trace struct {
	// RID is the node that was asked last; empty when none was.
	RID string
	// Sent counts the messages that went to other nodes.
	Sent int
	// LookedUp is true when the store was asked, Cached when a cached route was used.
	LookedUp, Cached bool
	// Forwarded is true when the node that was asked to make the object said where it is, and the operation went on
	// to that one.
	Forwarded bool
}

// Call is one Request or Send, as call middleware sees it. Middleware may change Data and Header (not the map itself)
// before it passes the call on.
type Call struct {
	// Op is "request" or "send".
	Op string
	// Kind and ID name the object.
	Kind kvlocation.ObjectKind
	ID   string
	// Type is the type of the Instance Spot that this message may make; empty for an ordinary message.
	Type   string
	Data   []byte
	Header nats.Header
	// OneWay is true for a Send.
	OneWay bool

	node  string
	early bool
	trace *Trace
}

func (c *Call) key() kvlocation.ObjectKey { return kvlocation.ObjectKey{Kind: c.Kind, ID: c.ID} }

// Invoker runs one operation.
type Invoker func(ctx context.Context, call *Call) (Reply, error)

// CallMiddleware wraps an Invoker. It must call the next one at most once: a second time is a second operation.
type CallMiddleware func(Invoker) Invoker

// call runs a Request or Send. To an object of this process, and over a cached route, it allocates nothing of its own.
func (s *Service) call(ctx context.Context, op string, kind kvlocation.ObjectKind, id string, data []byte, oneWay bool, opts []CallOption) (Reply, error) {
	if len(opts) == 0 && s.invoke == nil {
		if o := s.rt.find(kind, id); o != nil {
			reply, err := s.rt.request(ctx, o, op, data, nil, oneWay)
			if err == nil {
				return reply, nil
			}
			if elsewhere, err := s.elsewhere(o, op, err); !elsewhere {
				return reply, err
			}
		}
		if r := s.routes.get(kind, id); r != nil {
			return s.deliver(ctx, r, op, data, nil, oneWay, false)
		}
	}
	c := &Call{Op: op, Kind: kind, ID: id, Data: data, OneWay: oneWay}
	for _, f := range opts {
		f(c)
	}
	if s.invoke != nil {
		return s.invoke(ctx, c)
	}
	return s.invokeCall(ctx, c)
}

// invokeCall is the innermost Invoker.
func (s *Service) invokeCall(ctx context.Context, c *Call) (Reply, error) {
	key := c.key()
	token, err := wire.EscapeID(c.ID)
	switch {
	case err != nil:
		return Reply{}, outcome.Wrap(c.Op, outcome.InvalidOperation, outcome.NotAccepted, string(c.Kind), "", err)
	case c.node != "" && c.Type == "":
		return Reply{}, outcome.New(c.Op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "AtNode says where an object is made, and an ordinary message makes none")
	case c.Type != "" && c.Kind != kvlocation.KindSpot:
		return Reply{}, outcome.New(c.Op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "only a Spot is made by a message")
	}
	if err := checkHeader(c.Op, key, c.Header); err != nil {
		return Reply{}, err
	}
	if isEntry(key) {
		return s.callEntry(ctx, c, token)
	}
	o := s.rt.find(c.Kind, c.ID)
	if o != nil && c.fits(o.reg.Class, o.reg.Name) != nil {
		if o, err = s.present(ctx, key); err != nil {
			return Reply{}, renamed(err, c.Op, key)
		}
	}
	if o != nil {
		if err := c.fits(o.reg.Class, o.reg.Name); err != nil {
			return Reply{}, err
		}
		if reply, elsewhere, err := s.deliverHere(ctx, c, o); !elsewhere {
			return reply, err
		}
	}
	if r := s.routes.get(c.Kind, c.ID); r != nil {
		if err := c.fits(r.class, r.typ); err != nil {
			return Reply{}, err
		}
		if c.trace != nil {
			c.trace.Cached = true
		}
		return s.deliverCall(ctx, c, r)
	}
	ctx, cancel := s.bound(ctx) // the steps that follow share the operation's time
	defer cancel()
	if c.Type != "" {
		return s.activate(ctx, c, token, kvlocation.ClassInstanceSpot, c.Type, intentInstance)
	}
	return s.lookUpAndCall(ctx, c, token)
}

// deliverHere brings a message to an object of this process. elsewhere is true when it has not taken it, and it is to go on.
func (s *Service) deliverHere(ctx context.Context, c *Call, o *object) (reply Reply, elsewhere bool, err error) {
	c.asked(s.cfg.RID)
	if reply, err = s.rt.request(ctx, o, c.Op, c.Data, c.Header, c.OneWay); err != nil {
		elsewhere, err = s.elsewhere(o, c.Op, err)
	}
	return reply, elsewhere, err
}

// elsewhere judges the error of a message to an object of this process: whether it is to go on like one that never found
// the object here, because the object has moved, or the creation that the message waited for has found it at another node;
// and what the error is for the caller.
func (s *Service) elsewhere(o *object, op string, err error) (bool, error) {
	r, refused := err.(*refusal) // as the creation has ended: no cause of a turn's error
	if !refused {
		return errors.Is(err, errMoved), err
	}
	p, ok := parsePlace(r.route)
	if ok {
		token, _ := wire.EscapeID(o.id) // it was escaped before
		s.learn(o.key(), token, o.reg.Class, o.reg.Name, p)
	}
	return ok, renamed(r.err, op, o.key())
}

// fits refuses a message with instance intent to an object of another class or type.
func (c *Call) fits(class Class, typ string) error {
	if c.Type == "" || class == kvlocation.ClassInstanceSpot && typ == c.Type {
		return nil
	}
	return mismatch(c.Op, c.key(), class, typ, kvlocation.ClassInstanceSpot, c.Type)
}

func mismatch(op string, key kvlocation.ObjectKey, class Class, typ string, wantClass Class, wantType string) *outcome.Error {
	return outcome.New(op, outcome.TypeMismatch, outcome.NotAccepted, key.String(),
		fmt.Sprintf("it is of the %s type %q, not of the %s type %q", class, typ, wantClass, wantType))
}

// asked notes which node an operation went to.
func (c *Call) asked(rid string) {
	if c.trace != nil {
		c.trace.RID = rid
	}
}

// lookUpAndCall runs an ordinary message without a cached route: to the Ready owner (FO-4.2a), or to the creator, where
// it waits for the object.
func (s *Service) lookUpAndCall(ctx context.Context, c *Call, token string) (Reply, error) {
	key := c.key()
	if c.trace != nil {
		c.trace.LookedUp = true
	}
	e, err := s.lookUp(ctx, c.Op, key)
	if err != nil {
		return Reply{}, err
	}
	p, r := placeOf(e), e.Record
	switch {
	case p.is(s.cfg.RID, s.cfg.Lifecycle):
		// It was made here a moment ago, or the replica that answered does not know yet that it is closed.
		if o := s.rt.find(c.Kind, c.ID); o != nil {
			if reply, elsewhere, err := s.deliverHere(ctx, c, o); !elsewhere {
				return reply, err
			}
		}
		if at, moved := s.follows.where(key); moved {
			return s.deliverCall(ctx, c, s.newRoute(key, token, r.Kind, r.Type, at))
		}
		return Reply{}, s.notHere(ctx, c.Op, key)
	case p.phase == kvlocation.PhaseCreating:
		reply, err := s.deliverCall(ctx, c, s.newRoute(key, token, r.Kind, r.Type, p))
		if creatorSilent(err) {
			// Nobody accepted, so another node may be asked, once: it finds out whether the creator is gone (FO-4.3).
			return s.activate(ctx, c, token, r.Kind, r.Type, intentRecover)
		}
		return reply, err
	case p.phase != kvlocation.PhaseReady:
		return Reply{}, outcome.New(c.Op, outcome.Unavailable, outcome.NotAccepted, key.String(), "its record is "+string(p.phase)+", which this version does not route by")
	}
	route := s.newRoute(key, token, r.Kind, r.Type, p)
	s.routes.put(route)
	return s.deliverCall(ctx, c, route)
}

// creatorSilent reports whether a creator did not take a message because it could not be reached, not because it said so.
func creatorSilent(err error) bool {
	var e *outcome.Error
	return errors.As(err, &e) && e.Kind == outcome.Unavailable && e.Acceptance == outcome.NotAccepted && !e.Remote
}

// lookUp reads an object's entry for routing.
func (s *Service) lookUp(ctx context.Context, op string, key kvlocation.ObjectKey) (kvlocation.Located, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	e, err := s.store.LookupWith(ctx, key)
	return e, notFound(err, op, key)
}

// notFound is renamed for an error of a read, and says what it means.
func notFound(err error, op string, key kvlocation.ObjectKey) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Op, out.Target = op, key.String()
	switch {
	case e.Detail != "":
	case e.Kind == outcome.NotFound:
		out.Detail = "there is no object of this ID"
	case e.Kind == outcome.Unavailable:
		out.Detail = "the store does not answer"
	}
	return &out
}

// notHere is the end of an operation on an object whose record names this node, which does not have it.
func (s *Service) notHere(ctx context.Context, op string, key kvlocation.ObjectKey) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	e, err := s.store.ReadWith(ctx, key)
	switch {
	case err != nil:
		return notFound(err, op, key)
	case e.Phase() == kvlocation.PhaseMissing:
		return outcome.New(op, outcome.NotFound, outcome.NotAccepted, key.String(), "there is no object of this ID")
	}
	return outcome.New(op, outcome.Unavailable, outcome.NotAccepted, key.String(), "it is not open at its owner, this node")
}

// deliverCall is deliver with what a Call carries.
func (s *Service) deliverCall(ctx context.Context, c *Call, r *route) (Reply, error) {
	if c.trace != nil {
		c.trace.RID = r.rid
		c.trace.Sent++
	}
	return s.deliver(ctx, r, c.Op, c.Data, c.Header, c.OneWay, c.early)
}

// deliver brings an ordinary message to where the object is: one attempt, whatever comes of it (FO-10.2, FO-10.3).
func (s *Service) deliver(ctx context.Context, r *route, op string, data []byte, header nats.Header, oneWay, early bool) (Reply, error) {
	header, err := withChain(ctx, op, r.key, header)
	if err != nil {
		return Reply{}, err
	}
	call := channels.RunCall{
		Op: op, Target: r.target, RID: r.rid, Lifecycle: r.lifecycle, Subject: r.subject,
		Data: data, Header: header, OneWay: oneWay, Early: early,
	}
	reply, err := s.router.CallRun(ctx, &call)
	if err != nil {
		s.misled(r, reply.Header, err)
		return Reply{}, inCycle(ctx, r.key, ownerGone(r, err))
	}
	if reply.Header != nil {
		s.heard(r.key, r.class, r.typ, r.generation, reply.Header)
		return withoutRoute(reply), nil
	}
	return reply, nil
}

// heard learns the place that an answer names: the message was followed there.
func (s *Service) heard(key kvlocation.ObjectKey, class Class, typ string, generation uint64, h nats.Header) {
	if p, ok := parsePlace(h.Get(wire.HeaderRoute)); ok && p.generation == generation {
		token, _ := wire.EscapeID(key.ID) // it was escaped before
		s.learn(key, token, class, typ, p)
	}
}

// ownerGone says whose process it is that nothing listens at any more.
func ownerGone(r *route, err error) error {
	var e *outcome.Error
	if !channels.IsNobody(err) || !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Target = r.target
	out.Detail = fmt.Sprintf("its owner, node %q lifecycle %d, has gone, or its connection is down", r.rid, r.lifecycle)
	return &out
}

// misled judges a route after a failure: it is dropped when nobody listens there or the node is not the owner, and
// replaced when the node knew better. The operation has ended all the same (FO-4.2a).
func (s *Service) misled(r *route, h nats.Header, err error) {
	said := h.Get(wire.HeaderRoute)
	if said == "" && !channels.IsNobody(err) {
		return
	}
	s.routes.drop(r)
	if p, ok := parsePlace(said); ok && p.generation == r.generation && p.newer(r.place) { // another incarnation may be of another type
		token, _ := wire.EscapeID(r.key.ID) // it was escaped before
		s.learn(r.key, token, r.class, r.typ, p)
	}
}

// activate brings a message to an object that may have to be made, or made on, first: to the nodes in the order of the
// placement, until one takes it, says where the object is, or has begun something.
func (s *Service) activate(ctx context.Context, c *Call, token string, class Class, typ string, intent string) (Reply, error) {
	key := c.key()
	if err := wire.CheckName("type", typ); err != nil {
		return Reply{}, outcome.Wrap(c.Op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "", err)
	}
	cs, err := s.choose(c.Op, class, typ, key, c.node)
	if err != nil {
		return Reply{}, err
	}
	header, err := withChain(ctx, c.Op, key, c.Header)
	if err != nil {
		return Reply{}, err
	}
	header = withIntent(header, intent, class, typ)
	for i := range cs {
		reply, again, err := s.activateAt(ctx, c, token, class, typ, intent, header, &cs[i])
		if !again {
			return reply, err
		}
		if i == len(cs)-1 || ctx.Err() != nil {
			return Reply{}, nobodyTook(c.Op, key, class, typ, cs[:i+1], err)
		}
	}
	panic("objects: choose returned no node and no error")
}

// activateAt asks one node. again is true when it certainly began nothing, so that another may be asked (FO-2.1).
func (s *Service) activateAt(ctx context.Context, c *Call, token string, class Class, typ, intent string, header nats.Header, at *Candidate) (reply Reply, again bool, err error) {
	key := c.key()
	c.asked(at.RID)
	var said nats.Header
	if at.RID == s.cfg.RID && at.Lifecycle == s.cfg.Lifecycle {
		if reply, err = s.activateHere(ctx, c, class, typ, intent); err == nil {
			return reply, false, nil
		}
		said = refusalHeader(err)
		err = plain(err)
	} else {
		if c.trace != nil {
			c.trace.Sent++
		}
		reply, err = s.router.CallRun(ctx, &channels.RunCall{
			Op: c.Op, Target: key.String(), RID: at.RID, Lifecycle: at.Lifecycle,
			Subject: s.subject(at.RID, at.Lifecycle, verbActivate, key.Kind, token),
			Data:    c.Data, Header: header, OneWay: c.OneWay, Early: c.early,
		})
		said = reply.Header
		if err == nil {
			if p, ok := parsePlace(said.Get(wire.HeaderRoute)); ok {
				s.learn(key, token, class, typ, p)
			}
			return withoutRoute(reply), false, nil
		}
	}
	if !errors.Is(err, outcome.NotAccepted) {
		return Reply{}, false, inCycle(ctx, key, err)
	}
	if p, ok := parsePlace(said.Get(wire.HeaderRoute)); ok && !p.is(at.RID, at.Lifecycle) {
		reply, err := s.goOn(ctx, c, token, class, typ, p)
		return reply, false, err
	}
	return Reply{}, errors.Is(err, outcome.Unavailable) && said.Get(wire.HeaderRoute) == "" && said.Get(wire.HeaderFinal) == "", err
}

// goOn delivers a message where the node that was asked to make the object said it is: once, in the same operation.
func (s *Service) goOn(ctx context.Context, c *Call, token string, class Class, typ string, p place) (Reply, error) {
	if c.trace != nil {
		c.trace.Forwarded = true
	}
	if p.is(s.cfg.RID, s.cfg.Lifecycle) {
		o := s.rt.find(c.Kind, c.ID)
		if o == nil {
			return Reply{}, s.notHere(ctx, c.Op, c.key())
		}
		reply, _, err := s.deliverHere(ctx, c, o)
		return reply, err
	}
	r := s.newRoute(c.key(), token, class, typ, p)
	if p.phase == kvlocation.PhaseReady {
		s.routes.put(r)
	}
	return s.deliverCall(ctx, c, r)
}

// withoutRoute takes the fabric's own header out of a reply.
func withoutRoute(r Reply) Reply {
	delete(r.Header, wire.HeaderRoute)
	if len(r.Header) == 0 {
		r.Header = nil
	}
	return r
}

// bound gives an operation of the store the time that the operation has.
func (s *Service) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.cfg.DefaultTimeout)
}

// renamed says of an error of a step that it was the whole operation's; nil stays nil.
func renamed(err error, op string, key kvlocation.ObjectKey) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Op, out.Target = op, key.String()
	return &out
}
