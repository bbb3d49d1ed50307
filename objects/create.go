package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// createTries bounds how often one creation begins anew because the record changed under it.
const createTries = 4

// createReply is the answer to a creation, JSON between nodes.
type createReply struct {
	RID             string `json:"rid"`
	Lifecycle       uint64 `json:"lifecycle"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	Created         bool   `json:"created"`
}

func (r createReply) place() place {
	return place{rid: r.RID, lifecycle: r.Lifecycle, generation: r.Generation, ownerGeneration: r.OwnerGeneration, phase: kvlocation.PhaseReady}
}

// replyAt says that an object is at p.
func replyAt(p place) createReply {
	return createReply{RID: p.rid, Lifecycle: p.lifecycle, Generation: p.generation, OwnerGeneration: p.ownerGeneration}
}

// created is the result of a creation for its caller.
type created struct {
	generation uint64
	created    bool
}

// create makes an object, or finds it: the caller's side. exclusive makes an existing one an error.
func (s *Service) create(ctx context.Context, op string, class Class, typ, id string, input []byte, exclusive bool, opts []CallOption) (created, error) {
	key := kvlocation.ObjectKey{Kind: class.Key(), ID: id}
	invalid := func(err error) (created, error) {
		return created{}, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, string(key.Kind), "", err)
	}
	token, err := wire.EscapeID(id)
	if err != nil {
		return invalid(err)
	}
	if err := wire.CheckName("type", typ); err != nil {
		return invalid(err)
	}
	if isEntry(key) {
		return invalid(fmt.Errorf("IDs that begin with %q belong to Entry Spots, which are not created", entryPrefix))
	}
	if _, err := callChain(ctx, op); err != nil {
		return created{}, renamed(err, op, key) // the turn that asks has lost its ownership
	}
	c := Call{Op: op, Kind: key.Kind, ID: id, Data: input}
	for _, f := range opts {
		f(&c)
	}
	cs, err := s.choose(op, class, typ, key, c.node)
	if err != nil {
		return created{}, err
	}
	ctx, cancel := s.bound(ctx) // all nodes that are asked share the operation's time
	defer cancel()
	intent := intentGetOrCreate
	if exclusive {
		intent = intentCreate
	}
	for i := range cs {
		c.asked(cs[i].RID)
		got, at, again, err := s.createAt(ctx, &c, token, class, typ, intent, cs[i].RID, cs[i].Lifecycle)
		if at.phase == kvlocation.PhaseCreating && !at.is(cs[i].RID, cs[i].Lifecycle) {
			// It is being made elsewhere: the operation waits there, and goes nowhere else.
			if c.trace != nil {
				c.trace.Forwarded, c.trace.RID = true, at.rid
			}
			got, _, _, err = s.createAt(ctx, &c, token, class, typ, intent, at.rid, at.lifecycle)
			again = false
		}
		if err == nil {
			s.learn(key, token, class, typ, got.place())
			return created{generation: got.Generation, created: got.Created}, nil
		}
		if !again {
			return created{}, renamed(plain(err), op, key)
		}
		if i == len(cs)-1 || ctx.Err() != nil {
			return created{}, nobodyTook(op, key, class, typ, cs[:i+1], err)
		}
	}
	panic("objects: choose returned no node and no error")
}

// createAt asks one node to make an object. at is where a refusal says that it is; again is true when the node has
// certainly begun nothing, so that another may be asked.
func (s *Service) createAt(ctx context.Context, c *Call, token string, class Class, typ, intent, rid string, lifecycle uint64) (got createReply, at place, again bool, err error) {
	var route, final string
	if rid == s.cfg.RID && lifecycle == s.cfg.Lifecycle {
		ctx, cancel := s.bound(ctx)
		defer cancel()
		got, err = s.newHere(ctx, c.key(), class, typ, c.Data, intent == intentCreate, false)
		h := refusalHeader(err)
		route, final = h.Get(wire.HeaderRoute), h.Get(wire.HeaderFinal)
	} else {
		if c.trace != nil {
			c.trace.Sent++
		}
		var reply Reply
		reply, err = s.router.CallRun(ctx, &channels.RunCall{
			Op: c.Op, Target: c.key().String(), RID: rid, Lifecycle: lifecycle,
			Subject: s.subject(rid, lifecycle, verbNew, c.Kind, token),
			Data:    c.Data, Header: withIntent(c.Header, intent, class, typ), Early: c.early,
		})
		route, final = reply.Header.Get(wire.HeaderRoute), reply.Header.Get(wire.HeaderFinal)
		if err == nil {
			if err = json.Unmarshal(reply.Data, &got); err != nil {
				err = outcome.Wrap(c.Op, outcome.ProtocolError, outcome.Accepted, c.key().String(), "the answer cannot be read", err)
			}
		}
	}
	if err == nil || !errors.Is(err, outcome.NotAccepted) {
		return got, place{}, false, err
	}
	at, _ = parsePlace(route)
	return got, at, errors.Is(err, outcome.Unavailable) && route == "" && final == "", err
}

// takeCreation answers another node's creation.
func (s *Service) takeCreation(ctx context.Context, in *channels.Inbound, key kvlocation.ObjectKey) (createReply, error) {
	h := in.Header()
	return s.newHere(ctx, key, Class(h.Get(wire.HeaderClass)), h.Get(wire.HeaderType), in.Data(), h.Get(wire.HeaderIntent) != intentGetOrCreate, true)
}

// newHere makes an object at this node, or says where it is. Its errors are *outcome.Error or *refusal.
// inline says that nobody waits for the goroutine that calls.
func (s *Service) newHere(ctx context.Context, key kvlocation.ObjectKey, class Class, typ string, input []byte, exclusive, inline bool) (createReply, error) {
	reg, err := s.registered(key, class, typ)
	if err != nil {
		return createReply{}, err
	}
	for range createTries {
		f := s.flights.get(key)
		if f == nil {
			o, err := s.present(ctx, key)
			if err != nil {
				return createReply{}, err
			}
			if o != nil && !o.isCreating() {
				return s.existing(o, reg, exclusive)
			}
			var own bool
			d, _ := ctx.Deadline()
			ord := &order{key: key, reg: reg, doc: activationDoc{Input: input}, deadline: d, inline: inline}
			if f, own, err = s.begin(ord); err != nil {
				return createReply{}, err
			}
			if own && inline {
				s.fly(f, ord)
			}
			if own {
				return s.await(ctx, f, key, exclusive, true)
			}
			if f == nil {
				continue // it is open by now
			}
		}
		if f.o.reg != reg {
			return createReply{}, &refusal{err: mismatch("", key, f.o.reg.Class, f.o.reg.Name, class, typ), final: true}
		}
		return s.await(ctx, f, key, exclusive, false)
	}
	return createReply{}, outcome.New("", outcome.Unavailable, outcome.NotAccepted, key.String(), "it is made and closed all the time")
}

// await waits for a creation. own is true for the operation that it was begun for.
func (s *Service) await(ctx context.Context, f *flight, key kvlocation.ObjectKey, exclusive, own bool) (createReply, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		acc := outcome.Unknown
		if !own {
			acc = outcome.NotAccepted // another operation's creation goes on; this one began nothing
		}
		if f.over() {
			break // both at once: the result is there
		}
		return createReply{}, outcome.FromContext(ctx, "create", acc, key.String(), "the creation is under way at node "+s.cfg.RID)
	}
	r := f.result
	switch {
	case f.err == nil && own && (r.Created || !exclusive):
		return r, nil
	case f.err == nil && exclusive:
		return createReply{}, alreadyExists(key, r.place())
	case f.err == nil:
		r.Created = false
		return r, nil
	case !own && !errors.Is(f.err, outcome.NotAccepted):
		return createReply{}, outcome.Wrap("create", outcome.KindOf(f.err), outcome.NotAccepted, key.String(), "another operation was making it", f.err)
	}
	var ref *refusal
	if errors.As(f.err, &ref) {
		if at, ok := parsePlace(ref.route); ok && at.phase == kvlocation.PhaseReady {
			if exclusive {
				return createReply{}, alreadyExists(key, at)
			}
			return replyAt(at), nil
		}
	}
	return createReply{}, f.err
}

func alreadyExists(key kvlocation.ObjectKey, at place) error {
	return &refusal{
		err:   outcome.New("", outcome.AlreadyExists, outcome.NotAccepted, key.String(), fmt.Sprintf("it exists with generation %d at node %s", at.generation, at.rid)),
		route: at.String(), final: true,
	}
}

// existing is the answer of a creation that finds the object open here.
func (s *Service) existing(o *object, reg *regType, exclusive bool) (createReply, error) {
	key := o.key()
	if o.reg != reg {
		return createReply{}, &refusal{err: mismatch("", key, o.reg.Class, o.reg.Name, reg.Class, reg.Name), final: true}
	}
	at := s.placeHere(o)
	if exclusive {
		return createReply{}, alreadyExists(key, at)
	}
	return replyAt(at), nil
}

// placeHere is where an object of this node is.
func (s *Service) placeHere(o *object) place {
	return place{
		rid: s.cfg.RID, lifecycle: s.cfg.Lifecycle, generation: o.generation.Load(), ownerGeneration: o.ownerGeneration.Load(),
		phase: kvlocation.PhaseReady,
	}
}

func (o *object) key() kvlocation.ObjectKey { return kvlocation.ObjectKey{Kind: o.reg.kind, ID: o.id} }

// registered returns a type of this node for a new object.
func (s *Service) registered(key kvlocation.ObjectKey, class Class, typ string) (*regType, error) {
	reg := s.rt.typeOf(class, typ)
	switch {
	case reg == nil:
		return nil, outcome.New("", outcome.NotConfigured, outcome.NotAccepted, key.String(), fmt.Sprintf("node %s registers no %s type %.80q", s.cfg.RID, class, typ))
	case reg.kind != key.Kind || class == kvlocation.ClassEntrySpot || isEntry(key):
		return nil, outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, key.String(), fmt.Sprintf("no object of the class %s can be made there", class))
	}
	return reg, nil
}
