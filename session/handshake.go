package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// reserve takes a place among the handshakes under way, or says why there is none.
func (s *Service) reserve() *outcome.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return errDraining
	case s.opening >= maxHandshakes:
		return refusal(outcome.Unavailable, fmt.Sprintf("%d handshakes are under way at the node already", maxHandshakes))
	case len(s.sessions)+s.opening >= s.cfg.MaxSessions:
		return refusal(outcome.Unavailable, fmt.Sprintf("the node has its %d sessions already", s.cfg.MaxSessions))
	}
	s.opening++
	return nil
}

func (s *Service) unreserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening--
}

func refusal(kind outcome.Kind, text string) *outcome.Error {
	return outcome.New("open session", kind, outcome.NotAccepted, "", text)
}

// greet judges a hello and asks the authenticator. It gives the place back that reserve has taken: an authenticator that
// does not return in time keeps it until it does.
func (s *Service) greet(ctx context.Context, data []byte, hello Hello) (Identity, *outcome.Error) {
	h, credentials, err := frame.Parse(data)
	var bad *outcome.Error
	switch {
	case err != nil:
		bad = refusal(outcome.ProtocolError, err.Error())
	case h.Type != frame.Hello:
		bad = refusal(outcome.ProtocolError, "the first frame must be a hello")
	case h.V != frame.Version:
		bad = refusal(outcome.ProtocolError, fmt.Sprintf("the client speaks version %d of the protocol, the node version %d", h.V, frame.Version))
	case len(h.Client) > maxClientName:
		bad = refusal(outcome.ProtocolError, fmt.Sprintf("the client's name is longer than %d bytes", maxClientName))
	case len(credentials) > s.cfg.MaxMessage:
		bad = refusal(outcome.CapacityExceeded, tooLarge(len(credentials), s.cfg.MaxMessage).Detail)
	}
	if bad != nil {
		s.unreserve()
		return Identity{}, bad
	}
	hello.Client, hello.Credentials = h.Client, credentials
	who, err := decide(ctx, s, "the authenticator", s.unreserve, func() (Identity, error) { return s.cfg.Authenticate(ctx, hello) })
	switch {
	case err != nil:
		return Identity{}, s.denied(ctx, "open session", err)
	case len(who.Subject) > maxSubject, len(who.Data) > maxIdentityData, hello.Transport == TransportNATS && len(who.Welcome) > s.mostPush():
		s.log.Error("the authenticator's Identity is too large: Subject is at most 255 bytes, Data 4 KiB, Welcome what a NATS message may have",
			zap.Int("subject", len(who.Subject)), zap.Int("data", len(who.Data)), zap.Int("welcome", len(who.Welcome)))
		return Identity{}, refusal(outcome.InternalFailure, "the node's authenticator failed")
	}
	return who, nil
}

// decide asks the application, for as long as ctx allows, and calls done when the application has decided. One that does
// not return in time is left behind; Close waits for it as long as it may.
func decide[T any](ctx context.Context, s *Service, what string, done func(), f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	out := make(chan result, 1)
	s.asked.add()
	go func() {
		defer s.asked.done()
		var r result
		r.err = s.safely(what, func() (err error) {
			r.v, err = f()
			return err
		})
		done() // who hears the result finds it done
		out <- r
	}()
	select {
	case r := <-out:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, outcome.New("", outcome.DeadlineExceeded, outcome.NotAccepted, "", what+" did not decide in time")
	}
}

// opBind stands in the errors of a bind.
const opBind = "bind"

// denied is what a client hears of an authenticator's or authorizer's error.
func (s *Service) denied(ctx context.Context, op string, err error) *outcome.Error {
	level := zap.InfoLevel
	if op == opBind {
		level = zap.DebugLevel // a client may ask as often as it likes
	}
	s.log.Log(level, "a client was refused", zap.String("operation", op), zap.Error(err))
	var e *outcome.Error
	switch {
	case errors.As(err, &e):
		out := *e
		out.Op, out.Acceptance = op, outcome.NotAccepted
		return &out
	case ctx.Err() != nil:
		return outcome.New(op, outcome.DeadlineExceeded, outcome.NotAccepted, "", "the node did not decide in time")
	}
	text := "the client may not open a session"
	if op == opBind {
		text = "the client may not bind to the Actor"
	}
	return outcome.New(op, outcome.Rejected, outcome.NotAccepted, "", text)
}

// safely runs code of the application's; a panic becomes an error that tells the client nothing.
func (s *Service) safely(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.stats.panics.Add(1)
			s.log.Error(what+" panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
			err = outcome.New("", outcome.InternalFailure, outcome.NotAccepted, "", "the node failed: "+what+" panicked")
		}
	}()
	return f()
}

// refuse ends a handshake.
func (s *Service) refuse(to transport, e *outcome.Error) {
	s.stats.refused.Add(1)
	_ = to.send(frame.Make(&frame.Header{Type: frame.Refused, Kind: e.Kind.String(), Text: textOf(e)}, nil)) // it ends in either case
	to.close(&ending{kind: e.Kind, text: e.Detail})
}

// open makes the session of a client that was let in, and welcomes it; nil once the node drains.
func (s *Service) open(to transport, who Identity, subject func(id string) string) (*session, *outcome.Error) {
	c := &session{s: s, who: who, kind: to.kind(), born: time.Now().UTC(), ties: make(map[string]*tie)}
	welcome := who.Welcome
	c.who.Welcome = nil
	c.ref = Ref{RID: s.cfg.RID, Lifecycle: s.cfg.Lifecycle, ID: rand.Text()}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	now := int64(monotime.Now())
	c.seen.Store(now)
	c.pinged.Store(now)
	c.out = outbound{
		to: to, start: s.spawn, failed: func(error) { c.end(endLost) },
		most: s.cfg.Outbound, bytes: s.cfg.OutboundBytes, slow: s.cfg.Slow, stats: &s.stats,
	}
	s.mu.Lock()
	if s.draining || len(s.sessions) >= s.cfg.MaxSessions {
		draining := s.draining
		s.mu.Unlock()
		c.cancel()
		if draining {
			return nil, errDraining
		}
		return nil, refusal(outcome.Unavailable, fmt.Sprintf("the node has its %d sessions already", s.cfg.MaxSessions))
	}
	s.made++
	c.ref.Number = s.made
	s.sessions[c.ref.ID] = c
	// The welcome is the first frame: a go-away, or a push, finds the session only after it was queued.
	c.say(&frame.Header{
		Type: frame.Welcome, V: frame.Version, Session: c.ref.ID, Number: c.ref.Number, RID: s.cfg.RID, To: subject(c.ref.ID),
		Heartbeat: s.cfg.Heartbeat.Milliseconds(), MaxMessage: s.cfg.MaxMessage, InFlight: s.cfg.InFlight,
	}, welcome)
	s.mu.Unlock()
	s.stats.opened.Add(1)
	return c, nil
}
