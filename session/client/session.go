package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// session is one session, on one connection.
type session struct {
	c       *Client
	via     carrier
	node    string
	number  uint64
	welcome []byte
	silence time.Duration // without a frame for so long the connection is given up
	most    int           // of a payload
	room    int           // of requests that wait

	writing sync.Mutex // orders what is written

	mu      sync.Mutex
	waiting map[uint64]*call
	next    uint64
	by      map[string]*Binding // by token
	away    bool                // the node goes away: nothing new is sent
	quiet   chan struct{}       // closed when nothing waits any more while away
	over    error               // why the session is over
}

// call is one request that waits for its answer.
type call struct {
	op, target string
	// bind is the binding that the answer makes.
	bind *Binding
	done chan struct{}
	h    frame.Header
	data []byte
	err  error
}

func newSession(c *Client, via carrier, h *frame.Header, welcome []byte) *session {
	heartbeat := time.Duration(max(h.Heartbeat, 1)) * time.Millisecond
	return &session{
		c: c, via: via, node: h.RID, number: h.Number, welcome: welcome, silence: heartbeat*5/2 + time.Second/2,
		most: h.MaxMessage, room: h.InFlight, waiting: make(map[uint64]*call), by: make(map[string]*Binding), quiet: make(chan struct{}),
	}
}

var (
	errSilent = errors.New("nothing came from the node for two and a half heartbeats")
	errAway   = errors.New("the node goes away")
)

// serve reads until the session is over, and returns why.
func (s *session) serve() error {
	stop := context.AfterFunc(s.c.ctx, func() { s.bye(errClosed) })
	defer stop()
	silent := time.AfterFunc(s.silence, func() { s.fail(errSilent) })
	defer silent.Stop()
	for {
		in, err := s.via.read()
		if err != nil {
			s.fail(err)
			s.via.close()
			return s.end()
		}
		silent.Reset(s.silence)
		switch {
		case in.gone:
			s.answerErr(in.id, in.err)
			s.fail(in.err)
		case in.err != nil:
			s.answerErr(in.id, in.err)
		default:
			s.take(in.data)
		}
	}
}

// fail begins the end of the session: the first reason counts.
func (s *session) fail(err error) {
	s.mu.Lock()
	first := s.over == nil
	if first {
		s.over = err
	}
	s.mu.Unlock()
	if first {
		go s.via.close()
	}
}

// bye leaves in order.
func (s *session) bye(why error) {
	_ = s.send(0, &frame.Header{Type: frame.Bye}, nil) // the connection ends in either case
	s.fail(why)
}

// end ends what waits, and returns why the session is over.
func (s *session) end() error {
	s.mu.Lock()
	over := s.over
	calls := s.waiting
	s.waiting = nil
	bound := s.by
	s.by = nil
	s.mu.Unlock()
	for _, k := range calls {
		kind := outcome.Unavailable
		if errors.Is(over, errClosed) {
			kind = outcome.ShuttingDown
		}
		k.err = outcome.Wrap(k.op, kind, outcome.Unknown, k.target, "the connection was lost before the answer came", over)
		close(k.done)
	}
	for _, b := range bound {
		b.unbound(s)
	}
	return over
}

func (s *session) leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

func (s *session) send(id uint64, h *frame.Header, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.via.write(id, frame.Make(h, payload))
}

// do sends a request and waits for its answer.
func (s *session) do(ctx context.Context, k *call, h *frame.Header, payload []byte) error {
	refused := func(kind outcome.Kind, detail string) error {
		return outcome.New(k.op, kind, outcome.NotAccepted, k.target, detail)
	}
	if len(payload) > s.most {
		return refused(outcome.CapacityExceeded, "the message is larger than the node allows")
	}
	ctx, cancel := bound(ctx, s.c.cfg.RequestTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return outcome.FromContext(ctx, k.op, outcome.NotAccepted, k.target, "it had ended before anything was sent")
	}
	deadline, _ := ctx.Deadline()
	h.MS = max(1, time.Until(deadline).Milliseconds())
	k.done = make(chan struct{})
	s.writing.Lock() // the numbers go out in their order
	s.mu.Lock()
	var err error
	switch {
	case s.over != nil || s.waiting == nil:
		err = refused(outcome.Unavailable, "the session is over: the client is connecting")
	case s.away:
		err = refused(outcome.Unavailable, "the node goes away: the client is about to connect elsewhere")
	case len(s.waiting) >= s.room:
		err = refused(outcome.CapacityExceeded, "as many requests wait for an answer as the node allows")
	default:
		s.next++
		h.ID = s.next
		s.waiting[h.ID] = k
	}
	s.mu.Unlock()
	if err != nil {
		s.writing.Unlock()
		return err
	}
	err = s.via.write(h.ID, frame.Make(h, payload))
	s.writing.Unlock()
	if err != nil {
		s.fail(err) // a part of it may have gone out: serve ends it as Unknown
	}
	select {
	case <-k.done:
		return k.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	if s.waiting[h.ID] == k {
		delete(s.waiting, h.ID)
		s.restLocked()
		s.mu.Unlock()
		return outcome.FromContext(ctx, k.op, outcome.Unknown, k.target, "no answer came")
	}
	s.mu.Unlock()
	<-k.done
	return k.err
}

// bound gives a call without a deadline one.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// restLocked tells that nothing waits any more, once the node goes away.
func (s *session) restLocked() {
	if s.away && len(s.waiting) == 0 {
		select {
		case <-s.quiet:
		default:
			close(s.quiet)
		}
	}
}

// answer ends a request; late answers change nothing.
func (s *session) answer(id uint64, h frame.Header, data []byte, err *outcome.Error) {
	s.mu.Lock()
	k := s.waiting[id]
	delete(s.waiting, id)
	s.restLocked()
	if k != nil && err == nil && k.bind != nil {
		s.by[h.Token] = k.bind // before the first push is read
	}
	s.mu.Unlock()
	if k == nil {
		return
	}
	k.h, k.data = h, data
	if err != nil {
		out := *err
		out.Op, out.Target = k.op, k.target
		k.err = &out
	} else if k.bind != nil {
		k.bind.bound(s, &h)
	}
	close(k.done)
}

func (s *session) answerErr(id uint64, err *outcome.Error) { s.answer(id, frame.Header{}, nil, err) }

// take handles one frame of the node's.
func (s *session) take(data []byte) {
	h, payload, err := frame.Parse(data)
	if err != nil {
		s.fail(outcome.Wrap("read", outcome.ProtocolError, outcome.Unknown, "", "the node sent what is no frame", err))
		return
	}
	switch h.Type {
	case frame.Ping:
		if err := s.send(0, &frame.Header{Type: frame.Pong}, nil); err != nil {
			s.fail(err)
		}
	case frame.OK:
		s.answer(h.ID, h, payload, nil)
	case frame.Err:
		s.answerErr(h.ID, said(&h))
	case frame.Push:
		if b := s.binding(h.Token); b != nil && s.c.cfg.OnPush != nil {
			p := Push{Data: payload, Seq: h.Seq, Owner: h.Owner}
			select {
			case s.c.tell <- func() { s.c.cfg.OnPush(b, p) }:
			case <-s.c.ctx.Done():
			}
		}
	case frame.Moved:
		if b := s.binding(h.Token); b != nil {
			b.moved(&h)
			s.c.event(Event{Kind: EventMoved, Binding: b, Node: h.RID})
		}
	case frame.Ended:
		s.mu.Lock()
		b := s.by[h.Token]
		delete(s.by, h.Token)
		s.mu.Unlock()
		if b != nil {
			b.end(h.Why, outcome.New("session", outcome.NotFound, outcome.NotAccepted, b.ref, h.Text))
		}
	case frame.GoAway:
		s.goAway(time.Duration(h.MS) * time.Millisecond)
	case frame.Bye:
		e := said(&h)
		e.Op, e.Acceptance = "session", outcome.Unknown
		s.fail(e)
	}
}

// said is an error that the node said.
func said(h *frame.Header) *outcome.Error {
	kind, ok := outcome.ParseKind(h.Kind)
	if !ok {
		kind = outcome.ProtocolError
	}
	acc, _ := outcome.ParseAcceptance(h.Acceptance) // what cannot be read claims nothing
	return &outcome.Error{Kind: kind, Acceptance: acc, Detail: h.Text, Remote: true}
}

func (s *session) binding(token string) *Binding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[token]
}

// goAway leaves once nothing waits any more, and after half of the time in any case.
func (s *session) goAway(left time.Duration) {
	s.mu.Lock()
	if s.away {
		s.mu.Unlock()
		return
	}
	s.away = true
	s.restLocked()
	s.mu.Unlock()
	s.c.event(Event{Kind: EventGoAway, Node: s.node})
	s.c.wg.Go(func() {
		timer := time.NewTimer(left / 2)
		defer timer.Stop()
		select {
		case <-s.quiet:
		case <-timer.C:
		case <-s.c.ctx.Done():
			return
		}
		s.bye(errAway)
	})
}
