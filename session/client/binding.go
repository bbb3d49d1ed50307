package client

import (
	"context"
	"errors"
	"slices"
	"sync"

	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// Binding is the client's to one Actor. It lives through sessions: in each new one it is made again.
//
// Concurrency: all methods may be called from any goroutine.
type Binding struct {
	c *Client

	mu     sync.Mutex
	ref    string
	at     *session // nil while there is none
	token  string
	number uint64
	node   string
	owner  uint64
	over   error
}

// Bind binds the session to an Actor: actor/<escaped id>@<generation>, the text form of an objects.ActorRef. Without the
// generation, or with 0 as in objects.ActorRef{ID: id}.String(), it is the present incarnation. Its binding to another session, if there is one, ends. In each later session
// the client binds again to that same incarnation.
//
// The error is an *outcome.Error: NotFound when there is no such Actor, Rejected when the client is not allowed to,
// Unavailable when the Actor's node does not answer or there is no session.
func (c *Client) Bind(ctx context.Context, ref string) (*Binding, error) {
	s, err := c.present("bind", ref)
	if err != nil {
		return nil, err
	}
	b := &Binding{c: c, ref: ref}
	if err := b.bind(ctx, s); err != nil {
		return nil, err
	}
	return b, nil
}

// bind asks for the binding in a session.
func (b *Binding) bind(ctx context.Context, s *session) error {
	ref := b.Ref()
	_, err := s.do(ctx, "bind", ref, b, &frame.Header{Type: frame.Bind, Ref: ref}, nil)
	return err
}

// bound takes the answer to a bind. It runs before the session reads on: before it ends, and the next one binds again what
// is known then.
func (b *Binding) bound(s *session, h *frame.Header) {
	b.mu.Lock()
	b.at, b.token, b.number, b.ref, b.node, b.owner = s, h.Token, h.Number, h.Ref, h.RID, h.Owner
	over := b.over != nil
	b.mu.Unlock()
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if !over && !slices.Contains(b.c.bindings, b) {
		b.c.bindings = append(b.c.bindings, b)
	}
}

func (b *Binding) unbound(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at == s {
		b.at, b.token = nil, ""
	}
}

func (b *Binding) moved(h *frame.Header) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.node, b.owner = h.RID, h.Owner
}

// end ends the binding for good, and tells the application.
func (b *Binding) end(why string, err error) {
	b.mu.Lock()
	b.at, b.token, b.over = nil, "", err
	b.mu.Unlock()
	b.c.forget(b)
	b.c.event(Event{Kind: EventEnded, Binding: b, Why: why, Err: err})
}

func (c *Client) forget(b *Binding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bindings = slices.DeleteFunc(c.bindings, func(x *Binding) bool { return x == b })
}

// Ref is the Actor: actor/<escaped id>@<generation>.
func (b *Binding) Ref() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ref
}

// Where returns where the Actor is, as far as the session's node knows, and its owner generation.
func (b *Binding) Where() (node string, ownerGeneration uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.node, b.owner
}

// Generation is the binding's number at its Actor, in the present session: a later bind has a larger one.
func (b *Binding) Generation() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.number
}

// Ended returns why the binding is over; nil while it is not.
func (b *Binding) Ended() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

func (b *Binding) place() (*session, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at, b.token
}

// present returns the session, the token and the Actor, or why there is no session.
func (b *Binding) present(op string) (s *session, token, ref string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over != nil:
		return nil, "", b.ref, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, b.ref, "the binding is over", b.over)
	case b.at == nil && b.c.ctx.Err() != nil:
		return nil, "", b.ref, outcome.Wrap(op, outcome.ShuttingDown, outcome.NotAccepted, b.ref, "", errClosed)
	case b.at == nil:
		return nil, "", b.ref, outcome.New(op, outcome.Unavailable, outcome.NotAccepted, b.ref, "there is no session, or the Actor is not bound in it yet")
	}
	return b.at, b.token, b.ref, nil
}

// Request sends data to the Actor and returns its reply. The error is an *outcome.Error that says what is known of
// acceptance; nothing is sent again.
func (b *Binding) Request(ctx context.Context, data []byte) ([]byte, error) {
	return b.request(ctx, "request", frame.Request, false, data)
}

// RequestNoticed is Request with a notice as soon as the Actor's mailbox has the message, so that a failure after that says
// Accepted instead of Unknown, where the session's node hears of it. It costs that node one more message.
func (b *Binding) RequestNoticed(ctx context.Context, data []byte) ([]byte, error) {
	return b.request(ctx, "request", frame.Request, true, data)
}

// Send sends data to the Actor and returns once its mailbox has it. Errors are those of Request.
func (b *Binding) Send(ctx context.Context, data []byte) error {
	_, err := b.request(ctx, "send", frame.Send, false, data)
	return err
}

func (b *Binding) request(ctx context.Context, op, typ string, early bool, data []byte) ([]byte, error) {
	s, token, ref, err := b.present(op)
	if err != nil {
		return nil, err
	}
	return s.do(ctx, op, ref, nil, &frame.Header{Type: typ, Token: token, Early: early}, data)
}

// Unbind ends the binding, for good: it is not made again in another session, whatever the error says. While there is no
// session that is all.
func (b *Binding) Unbind(ctx context.Context) error {
	s, token, ref, err := b.present("unbind")
	b.mu.Lock()
	if b.over == nil {
		b.over = errUnbound
	}
	b.at = nil
	b.mu.Unlock()
	b.c.forget(b)
	if s == nil {
		if errors.Is(err, outcome.InvalidOperation) { // it was over before
			return err
		}
		return nil
	}
	s.mu.Lock()
	delete(s.by, token)
	s.mu.Unlock()
	return s.unbind(ctx, ref, token)
}

// unbind asks for the end of a binding.
func (s *session) unbind(ctx context.Context, ref, token string) error {
	_, err := s.do(ctx, "unbind", ref, nil, &frame.Header{Type: frame.Unbind, Token: token}, nil)
	return err
}

var errUnbound = errors.New("it was unbound")

// rebind makes every binding again in a new session.
func (c *Client) rebind(s *session) {
	c.mu.Lock()
	bindings := slices.Clone(c.bindings)
	c.mu.Unlock()
	for _, b := range bindings {
		c.wg.Go(func() { c.bindAgain(b, s) }) // one that has to wait for its Actor keeps no other waiting
	}
}

// bindAgain makes one binding again, or ends it when that cannot be.
func (c *Client) bindAgain(b *Binding, s *session) {
	for tries := 0; b.Ended() == nil; tries++ {
		err := b.bind(c.ctx, s)
		s.mu.Lock()
		over := s.over != nil || s.away
		s.mu.Unlock()
		switch {
		case err == nil && b.Ended() != nil: // unbound meanwhile
			_, token := b.place()
			_ = s.unbind(c.ctx, b.Ref(), token) // it ends with the session at the latest
			return
		case err == nil:
			c.event(Event{Kind: EventBound, Binding: b})
			return
		case over || c.ctx.Err() != nil:
			return
		case passing(err):
			if !c.pause(min(tries, 5)) {
				return
			}
		default:
			b.end("lost", err)
			return
		}
	}
}

// passing reports whether a bind that failed may succeed later.
func passing(err error) bool {
	switch outcome.KindOf(err) {
	case outcome.Unavailable, outcome.DeadlineExceeded, outcome.ShuttingDown, outcome.CapacityExceeded:
		return true
	}
	return false
}
