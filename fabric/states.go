package fabric

import (
	"context"
	"sync"
	"time"

	"natsfabric/kvlocation"
)

// StateChange is one change of a node's host state.
type StateChange struct {
	From, To kvlocation.NodeState
	// Reason says why, in a few words.
	Reason string
	// Err is the failure behind the change to StateError, else nil.
	Err error
	// At is the local time of the change.
	At time.Time
}

// stateCell holds the host state and tells observers of its changes.
type stateCell struct {
	mu       sync.Mutex
	state    kvlocation.NodeState
	reason   string // why it is in that state
	err      error
	watchers map[chan StateChange]struct{}
	ended    chan struct{} // closed at a terminal state
}

func newStateCell() *stateCell {
	return &stateCell{state: kvlocation.StatePreparing, reason: "starting", watchers: map[chan StateChange]struct{}{}, ended: make(chan struct{})}
}

// apply moves the state by one event. It reports the change, and whether there was one.
func (c *stateCell) apply(e event, reason string, err error) (StateChange, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, bad := next(c.state, e)
	if bad != nil || to == c.state {
		return StateChange{}, false
	}
	ch := StateChange{From: c.state, To: to, Reason: reason, Err: err, At: time.Now()}
	c.state, c.reason = to, reason
	if to == kvlocation.StateError {
		c.err = err
	}
	for w := range c.watchers {
		offer(w, ch)
	}
	if terminal(to) {
		close(c.ended)
		for w := range c.watchers {
			close(w)
		}
		clear(c.watchers)
	}
	return ch, true
}

// offer delivers ch, at the cost of the oldest undelivered change when the observer is slow.
func offer(w chan StateChange, ch StateChange) {
	for {
		select {
		case w <- ch:
			return
		default:
		}
		select {
		case <-w:
		default:
		}
	}
}

func (c *stateCell) get() kvlocation.NodeState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// why returns the reason of the last change.
func (c *stateCell) why() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

func (c *stateCell) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// observerBuffer bounds what an observer may have unread.
const observerBuffer = 16

// watch returns a channel of changes that is closed after a terminal state or when ctx ends.
func (c *stateCell) watch(ctx context.Context) <-chan StateChange {
	w := make(chan StateChange, observerBuffer)
	c.mu.Lock()
	if terminal(c.state) {
		close(w)
		c.mu.Unlock()
		return w
	}
	c.watchers[w] = struct{}{}
	c.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, live := c.watchers[w]; live {
			delete(c.watchers, w)
			close(w)
		}
	})
	return w
}
