package client

import (
	"bytes"
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

// call is one request that waits for its answer. Calls are pooled.
//
// Invariant: who takes a call out of session.waiting puts one value into done, unless it is the goroutine that waits.
type call struct {
	op, target string
	// bind is the binding that the answer makes.
	bind *Binding
	data []byte
	err  error

	done  chan struct{}
	timer *time.Timer // made for the first wait without a context's deadline
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// release gives a call back, once nobody can answer it any more.
func (k *call) release() {
	*k = call{done: k.done, timer: k.timer}
	calls.Put(k)
}

func newSession(c *Client, via carrier, h *frame.Header, welcome []byte) *session {
	heartbeat := time.Duration(max(h.Heartbeat, 1)) * time.Millisecond
	return &session{
		c: c, via: via, node: h.RID, number: h.Number, welcome: bytes.Clone(welcome), silence: heartbeat*5/2 + time.Second/2,
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
		k.done <- struct{}{}
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
	return s.write(id, h, payload)
}

// write is called by who has locked writing.
func (s *session) write(id uint64, h *frame.Header, payload []byte) error {
	b := frame.Borrow(h, payload)
	defer b.GiveBack()
	return s.via.write(id, b.Frame())
}

// do sends a request and returns what its answer says. bind is the binding that the answer makes, if it is a bind.
func (s *session) do(ctx context.Context, op, target string, bind *Binding, h *frame.Header, payload []byte) ([]byte, error) {
	if len(payload) > s.most {
		return nil, outcome.New(op, outcome.CapacityExceeded, outcome.NotAccepted, target, "the message is larger than the node allows")
	}
	if ctx.Err() != nil {
		return nil, outcome.FromContext(ctx, op, outcome.NotAccepted, target, "it had ended before anything was sent")
	}
	left := s.c.cfg.RequestTimeout
	deadline, ends := ctx.Deadline()
	if ends {
		left = time.Until(deadline)
	}
	h.MS = max(1, left.Milliseconds())
	k := calls.Get().(*call)
	k.op, k.target, k.bind = op, target, bind
	defer k.release()
	var expired <-chan time.Time
	if !ends {
		if k.timer == nil {
			k.timer = time.NewTimer(left)
		} else {
			k.timer.Reset(left)
		}
		defer k.timer.Stop()
		expired = k.timer.C
	}
	if err := s.begin(k, h, payload); err != nil {
		return nil, err
	}
	select {
	case <-k.done:
		return k.data, k.err
	case <-ctx.Done():
	case <-expired:
	}
	s.mu.Lock()
	if s.waiting[h.ID] != k {
		s.mu.Unlock()
		<-k.done // the answer was first
		return k.data, k.err
	}
	delete(s.waiting, h.ID)
	s.restLocked()
	s.mu.Unlock()
	if ctx.Err() == nil {
		return nil, outcome.Wrap(op, outcome.DeadlineExceeded, outcome.Unknown, target, "no answer came", context.DeadlineExceeded)
	}
	return nil, outcome.FromContext(ctx, op, outcome.Unknown, target, "no answer came")
}

// begin registers a call and sends its request. Once it is registered it is answered: a nil error says so.
func (s *session) begin(k *call, h *frame.Header, payload []byte) error {
	s.writing.Lock() // the numbers go out in their order
	defer s.writing.Unlock()
	if err := s.register(k, h); err != nil {
		return err
	}
	if err := s.write(h.ID, h, payload); err != nil {
		s.fail(err) // a part of it may have gone out: serve ends it as Unknown
	}
	return nil
}

// register gives a call its number, or says why it can't be sent.
func (s *session) register(k *call, h *frame.Header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, detail := outcome.Unavailable, ""
	switch {
	case s.over != nil || s.waiting == nil:
		detail = "the session is over: the client is connecting"
	case s.away:
		detail = "the node goes away: the client is about to connect elsewhere"
	case len(s.waiting) >= s.room:
		kind, detail = outcome.CapacityExceeded, "as many requests wait for an answer as the node allows"
	default:
		s.next++
		h.ID = s.next
		s.waiting[h.ID] = k
		return nil
	}
	return outcome.New(k.op, kind, outcome.NotAccepted, k.target, detail)
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

// answer ends a request. A late answer changes nothing, but that a binding which nobody has is let go. It keeps neither h
// nor data.
func (s *session) answer(id uint64, h *frame.Header, data []byte, err *outcome.Error) {
	s.mu.Lock()
	k := s.waiting[id]
	delete(s.waiting, id)
	s.restLocked()
	if k != nil && err == nil && k.bind != nil {
		s.by[h.Token] = k.bind // before the first push is read
	}
	unwanted := k == nil && err == nil && h.Ref != "" && s.by[h.Token] == nil
	s.mu.Unlock()
	switch {
	case unwanted: // a bind whose caller has given up
		ref, token := h.Ref, h.Token
		s.c.wg.Go(func() { _ = s.unbind(s.c.ctx, ref, token) }) // it ends with the session at the latest
		return
	case k == nil:
		return
	}
	switch {
	case err != nil:
		out := *err
		out.Op, out.Target = k.op, k.target
		k.err = &out
	case k.bind != nil:
		k.bind.bound(s, h)
	default:
		k.data = bytes.Clone(data)
	}
	k.done <- struct{}{}
}

func (s *session) answerErr(id uint64, err *outcome.Error) { s.answer(id, nil, nil, err) }

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
		s.answer(h.ID, &h, payload, nil)
	case frame.Err:
		s.answerErr(h.ID, said(&h))
	case frame.Push:
		if b := s.binding(h.Token); b != nil && s.c.cfg.OnPush != nil {
			p := Push{Data: bytes.Clone(payload), Seq: h.Seq, Owner: h.Owner}
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
