package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

var errClosed = errors.New("the client is closed")

// Client keeps one session open, at one node after the other.
//
// Concurrency: all methods may be called from any goroutine.
type Client struct {
	cfg Config

	mu       sync.Mutex
	now      *session // nil while there is none
	welcome  []byte
	bindings []*Binding // that are to be made again in the next session

	tell   chan func() // pushes and events on their way to their functions
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// Dial opens a session. It tries each address once, and returns the last error if none has let the client in: an
// *outcome.Error with NotAccepted, of the kind that the node said (Rejected, Unavailable, ShuttingDown, ProtocolError), or
// Unavailable when there was no connection. InvalidOperation names every field of cfg that is wrong, its value and what is
// allowed. After that the client keeps a session open until Close.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	cfg.URLs = slices.Clone(cfg.URLs)
	if err := cfg.check(); err != nil {
		return nil, outcome.Wrap("configure", outcome.InvalidOperation, outcome.NotAccepted, "client of sessions", "", err)
	}
	c := &Client{cfg: cfg, tell: make(chan func(), cfg.Pushes)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	var s *session
	var err error
	at := 0
	for ; at < len(cfg.URLs); at++ {
		if s, err = c.open(ctx, cfg.URLs[at]); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		c.cancel(errClosed)
		return nil, err
	}
	c.begin(s)
	c.wg.Go(c.dispatch)
	c.wg.Go(func() { c.run(s, at) })
	return c, nil
}

// Close ends the session and the client: what waits for an answer ends with ShuttingDown and Unknown. It may be called any
// number of times.
func (c *Client) Close() {
	c.cancel(errClosed)
	c.wg.Wait()
}

// Session returns the node and the number of the present session: the name under which it stands in that node's list. ok
// is false while there is none.
func (c *Client) Session() (node string, number uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil {
		return "", 0, false
	}
	return c.now.node, c.now.number, true
}

// Welcome is what the application said when it let the client in last.
func (c *Client) Welcome() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.welcome
}

// dispatch calls the functions for pushes and events.
func (c *Client) dispatch() {
	for {
		select {
		case f := <-c.tell:
			f()
		case <-c.ctx.Done():
			return
		}
	}
}

// event tells the application, in order.
func (c *Client) event(e Event) {
	if c.cfg.OnEvent == nil {
		return
	}
	select {
	case c.tell <- func() { c.cfg.OnEvent(e) }:
	case <-c.ctx.Done():
	}
}

// run keeps a session open. The waits grow with every attempt, also where a node lets the client in and drops it again, until
// a session has lasted for the longest of them.
func (c *Client) run(s *session, at int) {
	for tries := 0; ; {
		began := time.Now()
		err := s.serve()
		c.mu.Lock()
		c.now = nil
		c.mu.Unlock()
		if c.ctx.Err() != nil {
			return
		}
		c.event(Event{Kind: EventDisconnected, Node: s.node, Err: err})
		if time.Since(began) > c.cfg.MaxBackoff {
			tries = 0
		}
		for first := true; ; first = false {
			if !first || !s.leaving() {
				if !c.pause(tries) {
					return
				}
				tries++
			}
			at = (at + 1) % len(c.cfg.URLs)
			next, err := c.open(c.ctx, c.cfg.URLs[at])
			if c.ctx.Err() != nil {
				return
			}
			if err == nil {
				s = next
				break
			}
			c.event(Event{Kind: EventRefused, Err: err})
		}
		c.begin(s)
		c.rebind(s)
	}
}

// pause waits before another attempt; false once the client closes.
func (c *Client) pause(tries int) bool {
	d := c.cfg.MaxBackoff
	if tries < 30 {
		d = min(d, c.cfg.MinBackoff<<tries)
	}
	d -= rand.N(d/2 + 1)
	select {
	case <-time.After(d):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// open opens a session at one address.
func (c *Client) open(ctx context.Context, url string) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.HandshakeTimeout)
	defer cancel()
	var credentials []byte
	if c.cfg.Credentials != nil {
		var err error
		if credentials, err = c.cfg.Credentials(ctx); err != nil {
			return nil, outcome.Wrap("open session", outcome.NotConfigured, outcome.NotAccepted, url, "there are no credentials", err)
		}
	}
	hello := frame.Make(&frame.Header{Type: frame.Hello, V: frame.Version, Client: c.cfg.Name}, credentials)
	via, err := connect(ctx, &c.cfg, url, hello)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, via.close)
	defer stop()
	refused := func(kind outcome.Kind, detail string, cause error) (*session, error) {
		via.close()
		if ctx.Err() != nil {
			return nil, outcome.FromContext(ctx, "open session", outcome.NotAccepted, url, "the node did not answer the hello")
		}
		return nil, &outcome.Error{Op: "open session", Kind: kind, Acceptance: outcome.NotAccepted, Target: url, Detail: detail, Cause: cause, Remote: cause == nil}
	}
	in, err := via.read()
	switch {
	case err != nil:
		return refused(outcome.Unavailable, "the connection was lost before the welcome", err)
	case in.gone:
		via.close()
		return nil, outcome.New("open session", outcome.Unavailable, outcome.NotAccepted, url, fmt.Sprintf("no node of mesh %q takes sessions", c.cfg.Mesh))
	case in.err != nil:
		return refused(in.err.Kind, in.err.Detail, nil)
	}
	h, payload, err := frame.Parse(in.data)
	switch {
	case err != nil:
		return refused(outcome.ProtocolError, "the welcome is none", err)
	case h.Type == frame.Refused:
		kind, ok := outcome.ParseKind(h.Kind)
		if !ok {
			kind = outcome.ProtocolError
		}
		return refused(kind, h.Text, nil)
	case h.Type != frame.Welcome || h.V != frame.Version:
		return refused(outcome.ProtocolError, "the node answered the hello with "+h.Type, nil)
	}
	if !stop() {
		return refused(outcome.DeadlineExceeded, "", nil)
	}
	if n, ok := via.(*natsCarrier); ok {
		n.mu.Lock()
		n.to = h.To
		n.mu.Unlock()
	}
	return newSession(c, via, &h, payload), nil
}

// begin makes a session the present one.
func (c *Client) begin(s *session) {
	c.mu.Lock()
	c.now, c.welcome = s, s.welcome
	c.mu.Unlock()
	c.event(Event{Kind: EventConnected, Node: s.node, Welcome: s.welcome})
}

// present returns the session, or why there is none.
func (c *Client) present(op, target string) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return nil, outcome.Wrap(op, outcome.ShuttingDown, outcome.NotAccepted, target, "", errClosed)
	case c.now == nil:
		return nil, outcome.New(op, outcome.Unavailable, outcome.NotAccepted, target, "there is no session: the client is connecting")
	}
	return c.now, nil
}
