package channels

import (
	"context"
	"sync"
	"time"
)

// handlerScope is the parent of the contexts of the handlers that run in one period of ownership.
type handlerScope struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newHandlerScope() *handlerScope {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &handlerScope{ctx, cancel}
}

// handlerContext is a handler's context. It lives inside the Request, and makes a real context with a timer only when
// the handler asks for something that needs one: most handlers never do.
type handlerContext struct {
	parent   context.Context
	pulse    *pulse
	deadline time.Time // on the store's clock; zero for none

	mu     sync.Mutex
	real   context.Context
	cancel context.CancelFunc
	over   bool
}

// materialise returns the real context.
func (c *handlerContext) materialise() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real != nil {
		return c.real
	}
	local, ok := time.Time{}, false
	if !c.deadline.IsZero() {
		local, ok = c.pulse.localDeadline(c.deadline)
	}
	if ok {
		c.real, c.cancel = context.WithDeadline(c.parent, local)
	} else {
		c.real, c.cancel = context.WithCancel(c.parent)
	}
	if c.over {
		c.cancel()
	}
	return c.real
}

// finish ends the context after the handler returned.
func (c *handlerContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *handlerContext) Deadline() (time.Time, bool) { return c.materialise().Deadline() }
func (c *handlerContext) Done() <-chan struct{}       { return c.materialise().Done() }
func (c *handlerContext) Err() error                  { return c.materialise().Err() }
func (c *handlerContext) Value(key any) any           { return c.materialise().Value(key) }
