package session

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// session is one session: a client that is connected to this node, and what it is bound to.
//
// Locks: mu is held for a few instructions, never while anything is called that may block. Service.mu is taken before it,
// and outbound.mu after it.
type session struct {
	s    *Service
	ref  Ref
	who  Identity
	kind Transport
	out  outbound
	born time.Time

	seen   atomic.Int64 // monotime: when something came from the client last
	pinged atomic.Int64 // monotime: when it was pinged last

	ctx    context.Context // of what is done for the client; ends with the session
	cancel context.CancelFunc

	mu       sync.Mutex
	ties     map[string]*tie // by token
	inFlight int             // requests that have no answer yet
	ended    *ending
}

// ending is how a session ends.
type ending struct {
	// kind and text are told to the client. Nothing is said when kind is 0.
	kind outcome.Kind
	text string
	// drop: what waits for the client is dropped.
	drop bool
	// count is the counter of such ends.
	count func(*counters) *atomic.Uint64
}

// The ends of sessions.
var (
	endLeft     = &ending{count: func(c *counters) *atomic.Uint64 { return &c.endedLeft }}
	endLost     = &ending{drop: true, count: func(c *counters) *atomic.Uint64 { return &c.endedLost }}
	endSilent   = &ending{kind: outcome.DeadlineExceeded, text: "nothing came from the client for two heartbeats", drop: true, count: func(c *counters) *atomic.Uint64 { return &c.endedSilent }}
	endSlow     = &ending{kind: outcome.CapacityExceeded, text: "the client reads too slowly: what waits for it has come to its bound", drop: true, count: func(c *counters) *atomic.Uint64 { return &c.endedSlow }}
	endDraining = &ending{kind: outcome.ShuttingDown, text: "the node stops, and the time to leave is over", count: func(c *counters) *atomic.Uint64 { return &c.endedDraining }}
	endEpoch    = &ending{kind: outcome.Unavailable, text: "the node lost its connection to NATS, and frames may be lost", drop: true, count: func(c *counters) *atomic.Uint64 { return &c.endedLost }}
)

// endMalformed is the end of a session whose client does not keep to the protocol.
func endMalformed(text string) *ending {
	return &ending{kind: outcome.ProtocolError, text: text, count: func(c *counters) *atomic.Uint64 { return &c.endedMalformed }}
}

// frame is the last frame of the session; nil for none.
func (e *ending) frame() []byte {
	if e.kind == 0 {
		return nil
	}
	return frame.Make(&frame.Header{Type: frame.Bye, Kind: e.kind.String(), Text: e.text}, nil)
}

// say sends the client a frame that is no push. It does not block.
func (c *session) say(h *frame.Header, payload []byte) {
	if !c.out.put(frame.Make(h, payload), false) {
		c.end(endSlow)
	}
}

// answer ends a request of the client's.
func (c *session) answer(h *frame.Header, payload []byte) {
	c.mu.Lock()
	c.inFlight--
	c.mu.Unlock()
	c.say(h, payload)
}

// reply ends a request with the Actor's reply. It may block while the client reads slowly: the requests behind wait, and a
// reply costs no change of goroutines.
func (c *session) reply(id uint64, data []byte) {
	c.mu.Lock()
	c.inFlight--
	c.mu.Unlock()
	h := frame.Header{Type: frame.OK, ID: id}
	b := frame.Borrow(&h, data)
	if most := c.out.to.most(); most > 0 && len(b.Frame()) > most {
		b.GiveBack()
		b = frame.Borrow(&frame.Header{Type: frame.Err, ID: id, Kind: outcome.CapacityExceeded.String(), Acceptance: outcome.Accepted.String(),
			Text: "the Actor's reply is larger than the client's connection allows"}, nil)
	}
	if !c.out.carryNow(b) {
		c.end(endSlow)
	}
}

// fail ends a request with an error.
func (c *session) fail(id uint64, err error) { c.answer(errFrame(id, err), nil) }

// errFrame is the answer that says an error.
func errFrame(id uint64, err error) *frame.Header {
	e := asOutcome(err)
	return &frame.Header{Type: frame.Err, ID: id, Kind: e.Kind.String(), Acceptance: e.Acceptance.String(), Text: textOf(e), Remote: e.Remote}
}

func asOutcome(err error) *outcome.Error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		e = outcome.Wrap("", outcome.KindOf(err), outcome.AcceptanceOf(err), "", "", err)
	}
	return e
}

// maxText bounds a text that a client gets, in bytes.
const maxText = 512

// textOf is what an error says beside its kind: one short text of valid UTF-8.
func textOf(e *outcome.Error) string {
	text := e.Detail
	if e.Cause != nil {
		if text != "" {
			text += ": "
		}
		if cause, ok := e.Cause.(*outcome.Error); ok { // of a turn at this node: at another one it was the error itself
			text += textOf(cause)
		} else {
			text += e.Cause.Error()
		}
	}
	return short(text)
}

// short cuts a text that a client gets, so that its frame's header is none too long, whatever is escaped in it.
func short(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.ToValidUTF8(text, "")
}

// take handles one frame of the client's, which it does not keep. It is called by one goroutine at a time, in the order of
// the frames, and does not block. A job that it returns is to be run now.
func (c *session) take(data []byte) (j job) {
	c.seen.Store(int64(monotime.Now()))
	c.s.stats.framesIn.Add(1)
	h, payload, err := frame.Parse(data)
	if err != nil {
		c.end(endMalformed(err.Error()))
		return j
	}
	switch h.Type {
	case frame.Pong:
	case frame.Bye:
		c.end(endLeft)
	case frame.Request, frame.Send, frame.Bind, frame.Unbind:
		return c.request(&h, payload)
	case frame.Hello:
		c.end(endMalformed("a second hello: a session has one"))
	default:
		if h.ID == 0 {
			c.s.stats.framesUnknown.Add(1)
			return j
		}
		c.say(errFrame(h.ID, outcome.New("", outcome.ProtocolError, outcome.NotAccepted, "", "the node knows no frame of type "+quote(h.Type))), nil)
	}
	return j
}

// request begins what a client asks for, or answers why not.
func (c *session) request(h *frame.Header, payload []byte) (j job) {
	if h.ID == 0 {
		c.end(endMalformed(`a ` + h.Type + ` frame without an "id"`))
		return j
	}
	c.mu.Lock()
	switch {
	case c.ended != nil:
		c.mu.Unlock()
		return j
	case c.inFlight >= c.s.cfg.InFlight:
		c.mu.Unlock()
		c.s.stats.refusedBusy.Add(1)
		c.say(errFrame(h.ID, outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "as many requests of the session wait for an answer as may")), nil)
		return j
	}
	c.inFlight++
	c.mu.Unlock()
	op := request{id: h.ID, kind: h.Type, early: h.Early, deadline: c.deadline(h.MS)}
	switch {
	case len(payload) > c.s.cfg.MaxMessage:
		c.fail(h.ID, tooLarge(len(payload), c.s.cfg.MaxMessage))
	case h.Type == frame.Bind:
		c.startBind(op, h.Ref)
	default:
		op.data = bytes.Clone(payload)
		return c.enqueue(h.Token, op)
	}
	return j
}

// deadline is when the client stops waiting.
func (c *session) deadline(ms int64) time.Time {
	d := c.s.cfg.RelayTimeout
	if ms > 0 {
		d = min(time.Duration(min(ms, maxWait.Milliseconds()))*time.Millisecond, maxWait)
	}
	return time.Now().Add(d)
}

// end ends the session, once: the client is told why, and every Actor that it is bound to.
func (c *session) end(why *ending) {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return
	}
	c.ended = why
	ties := make([]*tie, 0, len(c.ties))
	for _, t := range c.ties {
		ties = append(ties, t)
	}
	clear(c.ties)
	for _, t := range ties {
		t.overLocked()
	}
	c.mu.Unlock()
	why.count(&c.s.stats).Add(1)
	c.cancel()
	c.out.end(why)
	c.s.forget(c)
	c.s.log.Debug("a session is over", zap.Stringer("session", c.ref), zap.String("subject", c.who.Subject), zap.String("why", why.text))
	c.s.farewell(ties)
}

// isOver reports whether the session has ended.
func (c *session) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// forget takes a session out of the list.
func (s *Service) forget(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c.ref.ID)
	if s.draining && len(s.sessions) == 0 {
		select {
		case <-s.emptied:
		default:
			close(s.emptied)
		}
	}
}

// session returns the session of an ID; nil for none.
func (s *Service) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// beat pings every client, and gives up those that have gone silent.
func (s *Service) beat() {
	every := min(max(s.cfg.Heartbeat/8, 5*time.Millisecond), time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := monotime.Now()
	ping := frame.Make(&frame.Header{Type: frame.Ping}, nil)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		now := monotime.Now()
		frozen := now.Sub(last) > s.cfg.Heartbeat // this process was stopped: what came meanwhile has not been read yet
		last = now
		epoch := s.router.Epoch()
		for _, c := range s.owned() {
			switch {
			case frozen:
				c.seen.Store(int64(now))
			case now.Sub(monotime.Time(c.seen.Load())) > 2*s.cfg.Heartbeat+every:
				c.end(endSilent)
			case c.moved(epoch):
				c.end(endEpoch)
			}
			if now.Sub(monotime.Time(c.pinged.Load())) >= s.cfg.Heartbeat {
				c.pinged.Store(int64(now))
				if !c.out.put(ping, false) {
					c.end(endSlow)
				}
			}
		}
	}
}

// moved reports whether frames of the client may have been lost because the node's connection was.
func (c *session) moved(epoch uint64) bool {
	n, ok := c.out.to.(*natsClient)
	return ok && n.epoch != epoch
}

// Info is one session, for people who look at a node.
type Info struct {
	// Session names it, without its ID.
	Session   string    `json:"session"`
	Subject   string    `json:"subject,omitempty"`
	Transport Transport `json:"transport"`
	Since     time.Time `json:"since"`
	// Bindings are the Actors that it is bound to, at most 100.
	Bindings []BindingInfo `json:"bindings,omitempty"`
	// InFlight counts the requests that wait for an answer, Waiting and WaitingBytes what waits for the client.
	InFlight     int `json:"in_flight"`
	Waiting      int `json:"waiting"`
	WaitingBytes int `json:"waiting_bytes"`
}

// BindingInfo is one binding of a session.
type BindingInfo struct {
	Actor string `json:"actor"`
	// RID is where the Actor is, as far as the session's node knows.
	RID             string `json:"rid"`
	OwnerGeneration uint64 `json:"owner_generation"`
	// Generation is the binding's number at its Actor.
	Generation uint64 `json:"generation"`
}

// maxListed bounds the bindings in an Info.
const maxListed = 100

// List returns at most so many of the sessions that this node owns, in no particular order.
func (s *Service) List(most int) []Info {
	var out []Info
	for _, c := range s.owned() {
		if len(out) >= most {
			break
		}
		out = append(out, c.info())
	}
	return out
}

func (c *session) info() Info {
	i := Info{Session: c.ref.String(), Subject: c.who.Subject, Transport: c.kind, Since: c.born}
	i.Waiting, i.WaitingBytes = c.out.waiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	i.InFlight = c.inFlight
	for _, t := range c.ties {
		if t.state == tieOpen && len(i.Bindings) < maxListed {
			i.Bindings = append(i.Bindings, BindingInfo{
				Actor: t.ref.String(), RID: t.place.RID, OwnerGeneration: t.place.OwnerGeneration, Generation: t.number,
			})
		}
	}
	return i
}
