package session

import (
	"context"
	"errors"
	"time"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// tieState is where a tie stands.
type tieState uint8

const (
	// tieOpening: the Actor is being asked. Pushes that come already wait. Next: open, over.
	tieOpening tieState = iota
	// tieOpen: the Actor has the binding. Next: over.
	tieOpen
	// tieOver: nothing is relayed or pushed any more. Final.
	tieOver
)

// tie is a binding as the session's node knows it; what its Actor's node knows is a Binding.
type tie struct {
	c     *session
	ref   objects.ActorRef
	token string

	// The rest is guarded by session.mu.
	state   tieState
	leaving bool          // it is over because the client has asked for that, and the Actor may not know yet
	number  uint64        // of the binding at its Actor
	place   objects.Place // where the Actor is: the stored route
	to      *objects.Way  // the way there; nil until it is needed
	epoch   uint64        // of the node's connection, in which the Actor's owner has confirmed the token; 0 when it is in doubt
	lane    []request     // what was asked of the Actor and waits for the request that is under way
	busy    bool          // somebody works on the lane
	in      inflow
}

// request is one request of a client's.
type request struct {
	id       uint64
	kind     string // a type of frame
	early    bool
	data     []byte
	deadline time.Time
}

// enqueue returns the request as a job, or puts it behind the earlier ones to the same Actor.
func (c *session) enqueue(token string, op request) (j job) {
	c.mu.Lock()
	t := c.ties[token]
	switch {
	case t == nil || t.state != tieOpen:
		c.mu.Unlock()
		c.fail(op.id, errNoBinding())
		return j
	case t.busy:
		t.lane = append(t.lane, op) // bounded by Config.InFlight
	default:
		t.busy = true
		j = job{t, op}
	}
	c.mu.Unlock()
	return j
}

// work deals with a request and then with the lane: one at a time, so that their order is that of the session. The Actor
// runs one turn at a time in any case.
func (t *tie) work(op request) {
	c := t.c
	for {
		switch {
		case t.isOver():
			c.fail(op.id, errNoBinding())
		case !time.Now().Before(op.deadline):
			c.fail(op.id, outcome.New("", outcome.DeadlineExceeded, outcome.NotAccepted, t.ref.String(), "the client's time was over before its turn"))
		case op.kind == frame.Unbind:
			t.unbind(&op)
		default:
			t.relay(&op)
		}
		c.mu.Lock()
		if len(t.lane) == 0 || c.ended != nil {
			t.lane, t.busy = nil, false
			c.mu.Unlock()
			return
		}
		op = t.lane[0]
		t.lane[0] = request{}
		t.lane = t.lane[1:]
		c.mu.Unlock()
	}
}

func (t *tie) isOver() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.state == tieOver
}

// relay brings one message to the Actor by the stored route, and its answer to the client.
func (t *tie) relay(op *request) {
	c := t.c
	if err := t.confirm(op.deadline); err != nil {
		c.fail(op.id, err)
		return
	}
	way, err := t.way()
	if err != nil {
		c.fail(op.id, err)
		return
	}
	c.s.stats.relays.Add(1)
	reply, moved, err := c.s.objects.CallAt(c.ctx, way, &objects.Message{
		Op: "relay", Data: op.data, OneWay: op.kind == frame.Send, Early: op.early, Deadline: op.deadline,
	})
	if moved != (objects.Place{}) {
		t.follow(moved)
	}
	if err == nil {
		c.reply(op.id, reply.Data)
		return
	}
	c.s.stats.relaysFailed.Add(1)
	c.fail(op.id, err)
	t.misled(err)
}

func actorKey(ref objects.ActorRef) kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: ref.ID}
}

// at is the stored route.
func (t *tie) at() objects.Place {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.place
}

// way is the way to the stored route.
func (t *tie) way() (*objects.Way, error) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.to == nil {
		to, err := t.c.s.objects.Way(t.place, actorKey(t.ref), t.token)
		if err != nil {
			return nil, err
		}
		t.to = to
	}
	return t.to, nil
}

// follow takes over a newer place of the same incarnation, and reports whether it is one.
func (t *tie) follow(p objects.Place) bool {
	c := t.c
	c.mu.Lock()
	newer := t.state != tieOver && p.Generation == t.ref.Generation && p.Newer(t.place)
	if newer {
		t.place, t.to = p, nil
	}
	open := t.state == tieOpen
	c.mu.Unlock()
	if newer && open {
		c.say(&frame.Header{Type: frame.Moved, Token: t.token, RID: p.RID, Owner: p.OwnerGeneration}, nil)
	}
	return newer
}

// misled judges the binding after a relay that failed. The relay has ended: it is not sent again.
func (t *tie) misled(err error) {
	route, routed := objects.RouteOf(err)
	e := asOutcome(err)
	ctx, cancel := context.WithTimeout(t.c.ctx, askTimeout)
	defer cancel()
	nobody := channels.IsNobody(err)
	switch {
	case e.Kind == outcome.InvalidOperation && e.Acceptance == outcome.Accepted:
		// The Actor's side may have refused the token: it says so itself.
		t.doubt()
		_ = t.ask(ctx) // what it finds out is told to the client
	case routed, nobody, e.Kind == outcome.NotFound && e.Acceptance == outcome.NotAccepted:
		if nobody {
			t.c.s.suspect(runOf(t.at()))
		}
		_ = t.lookUp(ctx, route) // what it finds out is told to the client
	}
}

// doubt makes the next use of the binding wait for its Actor's word.
func (t *tie) doubt() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.epoch = 0
}

// lookUp finds out where the Actor is. The binding is kept only for the same incarnation (FO-6b); the error says that it
// ended, or that the store does not answer. hint is what a node said, if it said anything.
func (t *tie) lookUp(ctx context.Context, hint objects.Place) error {
	s := t.c.s
	s.stats.lookUps.Add(1)
	p, err := s.locate(ctx, t.ref)
	if errors.Is(err, outcome.NotFound) {
		t.lost("the Actor does not exist any more")
		return errGone(t.ref)
	}
	if err != nil {
		return err
	}
	if hint.Generation == t.ref.Generation && hint.Newer(p) {
		p = hint // the replica that answered was behind
	}
	if !t.follow(p) && s.isGone(ctx, runOf(t.at())) {
		t.lost("the node of the Actor has ended, and what the Actor knew with it")
		return errGone(t.ref)
	}
	return nil
}

// locate reads where an Actor of exactly that incarnation is. NotFound says that there is none.
func (s *Service) locate(ctx context.Context, ref objects.ActorRef) (objects.Place, error) {
	at, err := s.objects.Actors().Find(ctx, ref.ID)
	if err != nil {
		return objects.Place{}, err
	}
	if ref.Generation != 0 && at.Generation != ref.Generation {
		return objects.Place{}, errGone(ref)
	}
	return objects.Place{RID: at.RID, Lifecycle: at.Lifecycle, Generation: at.Generation, OwnerGeneration: at.OwnerGeneration}, nil
}

// confirm makes sure that the Actor's owner has confirmed the token in this epoch of the node's connection (FO-3.2c,
// FO-10.5). In the steady state it asks nobody.
func (t *tie) confirm(deadline time.Time) error {
	c := t.c
	epoch := c.s.router.Epoch()
	if epoch == 0 {
		return errCutOff
	}
	c.mu.Lock()
	confirmed := t.epoch == epoch
	c.mu.Unlock()
	if confirmed {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	return t.ask(ctx)
}

// ask asks the Actor's owner for the token. A binding that is not there is over.
func (t *tie) ask(ctx context.Context) error {
	c := t.c
	epoch := c.s.router.Epoch()
	if epoch == 0 {
		return errCutOff
	}
	c.s.stats.confirms.Add(1)
	a, err := c.s.atActor(ctx, t, verbConfirm, turnRequest{Token: t.token})
	switch {
	case err != nil:
		e := *asOutcome(err)
		e.Acceptance = outcome.NotAccepted // nothing was relayed
		return &e
	case a.Status != statusBound:
		t.lost("the Actor does not have the binding any more")
		return errNoBinding()
	}
	c.mu.Lock()
	t.epoch = epoch
	c.mu.Unlock()
	return nil
}

// lost ends a binding whose Actor has gone, or has ended it.
func (t *tie) lost(text string) { t.finish(ReasonLost, text) }

// finish ends the binding and tells the client; nothing if it has ended.
func (t *tie) finish(why Reason, text string) {
	c := t.c
	c.mu.Lock()
	if t.state == tieOver {
		c.mu.Unlock()
		return
	}
	open := t.state == tieOpen
	t.overLocked()
	delete(c.ties, t.token)
	c.mu.Unlock()
	c.s.stats.tiesEnded.Add(1)
	if open {
		c.say(&frame.Header{Type: frame.Ended, Token: t.token, Ref: t.ref.String(), Why: string(why), Text: text}, nil)
	}
}

// overLocked makes the tie one that is over.
func (t *tie) overLocked() {
	t.state = tieOver
	t.in.clear()
}
