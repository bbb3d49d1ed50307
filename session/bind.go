package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"natsfabric/internal/wire"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// actorTries bounds the nodes that one operation on a binding asks: an Actor that moves faster is Unavailable.
const actorTries = 4

// startBind begins a bind.
func (c *session) startBind(op request, refText string) {
	if !c.s.spawn(func() { c.bind(&op, refText) }) {
		c.fail(op.id, errStopping)
	}
}

// bind binds the session to an Actor: its turn decides.
func (c *session) bind(op *request, refText string) {
	ctx, cancel := context.WithDeadline(c.ctx, op.deadline)
	defer cancel()
	t, err := c.tie(ctx, refText)
	if err != nil {
		c.fail(op.id, err)
		return
	}
	epoch := c.s.router.Epoch() // before the Actor is asked: what is lost behind it is lost behind the answer too
	a, err := c.s.atActor(ctx, t, verbBind, turnRequest{
		Token: t.token, Session: &t.c.ref, Subject: c.who.Subject, Data: c.who.Data,
	})
	if err == nil && a.Status != statusBound {
		err = errGone(t.ref)
	}
	if err != nil {
		c.drop(t)
		c.fail(op.id, err)
		if outcome.AcceptanceOf(err) != outcome.NotAccepted {
			c.s.farewell([]*tie{t}) // it may have been bound
		}
		return
	}
	c.mu.Lock()
	if t.state != tieOpening { // the session has ended meanwhile, or the Actor the binding
		ended := c.ended != nil
		c.inFlight--
		c.mu.Unlock()
		if ended {
			c.s.farewell([]*tie{t})
			return
		}
		c.say(errFrame(op.id, outcome.New(opBind, outcome.NotFound, outcome.Accepted, "", "the binding was made, and the Actor has ended it since")), nil)
		return
	}
	// The answer, then the pushes that came meanwhile, then the end if that came too; and a request finds the binding open.
	t.number, t.epoch = a.Number, epoch
	c.inFlight--
	ok := c.out.put(frame.Make(&frame.Header{
		Type: frame.OK, ID: op.id, Token: t.token, Number: a.Number, Ref: t.ref.String(), RID: t.place.RID, Owner: t.place.OwnerGeneration,
	}, nil), false)
	ok = t.openLocked() && ok
	c.mu.Unlock()
	c.s.stats.binds.Add(1)
	c.endUnless(ok)
	t.maybeEnd()
}

// tie makes the tie for a bind that is allowed.
func (c *session) tie(ctx context.Context, refText string) (*tie, error) {
	ref, err := parseRef(refText)
	if err != nil {
		return nil, err
	}
	switch {
	case c.s.isDraining():
		return nil, outcome.New(opBind, outcome.ShuttingDown, outcome.NotAccepted, "", errDraining.Detail)
	case c.s.router.Epoch() == 0:
		return nil, errCutOff
	}
	place, err := c.s.locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	ref.Generation = place.Generation
	if c.s.cfg.Authorize != nil {
		_, err := decide(ctx, c.s, "the authorizer", func() {}, func() (struct{}, error) { return struct{}{}, c.s.cfg.Authorize(ctx, c.who, ref) })
		if err != nil {
			return nil, c.s.denied(ctx, opBind, err)
		}
	}
	t := &tie{c: c, ref: ref, token: rand.Text(), place: place}
	t.in.next = 1
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended != nil:
		return nil, errStopping
	case len(c.ties) >= c.s.cfg.MaxBindings:
		return nil, outcome.New(opBind, outcome.Unavailable, outcome.NotAccepted, "", fmt.Sprintf("the session has its %d bindings already", c.s.cfg.MaxBindings))
	}
	c.ties[t.token] = t
	return t, nil
}

// parseRef reads actor/<escaped id>@<generation>; without a generation it means the present incarnation.
func parseRef(text string) (objects.ActorRef, error) {
	ref, err := objects.ParseActorRef(text)
	if token, isActor := strings.CutPrefix(text, "actor/"); isActor && !strings.Contains(token, "@") {
		ref = objects.ActorRef{}
		ref.ID, err = wire.UnescapeID(token)
	}
	if err != nil {
		return objects.ActorRef{}, outcome.New(opBind, outcome.InvalidOperation, outcome.NotAccepted, "", "the reference of an Actor must be actor/<escaped id> with or without @<generation>")
	}
	return ref, nil
}

// drop forgets a tie that never opened.
func (c *session) drop(t *tie) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.overLocked()
	delete(c.ties, t.token)
}

// unbind ends a binding because the client asks for it. The earlier requests have ended. The tie stays among those of the
// session until the Actor knows: whoever asks about it meanwhile is not told that the session is over.
func (t *tie) unbind(op *request) {
	c := t.c
	ctx, cancel := context.WithDeadline(c.ctx, op.deadline)
	defer cancel()
	c.mu.Lock()
	t.overLocked()
	t.leaving = true
	c.mu.Unlock()
	_, err := c.s.atActor(ctx, t, verbUnbind, turnRequest{Token: t.token, Why: ReasonUnbound})
	c.drop(t)
	switch {
	case err == nil:
		c.answer(&frame.Header{Type: frame.OK, ID: op.id, Token: t.token}, nil)
	default:
		// For the client it is over in any case; the Actor hears of it by the next comparison (watch) at the latest.
		c.fail(op.id, err)
	}
}

// farewell tells the Actors of a session that is over, or of a binding that came to nothing. One that does not hear it
// finds out by the next comparison (watch).
func (s *Service) farewell(ties []*tie) {
	if len(ties) == 0 {
		return
	}
	s.owed.add()
	started := s.spawn(func() {
		defer s.owed.done()
		next := make(chan *tie)
		workers := tally{}
		for range min(len(ties), farewells) {
			workers.add()
			go func() {
				defer workers.done()
				for t := range next {
					ctx, cancel := context.WithTimeout(s.ctx, farewellTimeout)
					_, err := s.atActor(ctx, t, verbUnbind, turnRequest{Token: t.token, Why: ReasonDisconnected})
					cancel()
					if err != nil {
						s.stats.farewellsUnheard.Add(1)
					}
				}
			}()
		}
		for _, t := range ties {
			next <- t
		}
		close(next)
		workers.wait(context.Background())
	})
	if !started {
		s.owed.done()
	}
}

// atActor asks for a turn of the binding's Actor, wherever the Actor is: a node that does not own it has done nothing, so
// the next place is asked, within the same time (FO-2.1). The Actor stays the same (FO-10.2). Status gone says that it
// does not exist any more.
func (s *Service) atActor(ctx context.Context, t *tie, verb string, body turnRequest) (turnAnswer, error) {
	token, err := wire.EscapeID(t.ref.ID)
	if err != nil {
		return turnAnswer{}, outcome.Wrap(verb, outcome.InvalidOperation, outcome.NotAccepted, "", "", err)
	}
	body.Generation = t.ref.Generation
	place := t.at()
	for tries := 1; ; tries++ {
		var a turnAnswer
		err := s.ask(ctx, runOf(place), verb, token, body, &a)
		elsewhere := err == nil && a.Status == statusElsewhere
		switch {
		case err == nil && !elsewhere:
			return a, nil
		case err != nil && !(errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted)):
			return a, err
		case s.router.Epoch() == 0:
			return a, errCutOff
		}
		p, lerr := s.locate(ctx, t.ref)
		if errors.Is(lerr, outcome.NotFound) {
			return turnAnswer{Status: statusGone}, nil
		}
		if a.Place != nil && a.Place.Generation == t.ref.Generation && a.Place.Newer(p) {
			p = *a.Place
		}
		if lerr != nil || tries == actorTries || !p.Newer(place) {
			if err == nil {
				err = outcome.New(verb, outcome.Unavailable, outcome.NotAccepted, t.ref.String(), a.Text)
			}
			return a, err
		}
		place = p
		t.follow(p)
	}
}
