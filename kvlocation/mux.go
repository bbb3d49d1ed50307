package kvlocation

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// maxParts bounds the messages of one answer to a read of several keys; the server itself stops at 1,024.
const maxParts = 1100

// mux receives the answers to everything that one store sends: one subscription, one token per write or read
// attempt. It exists because nats.go's own request calls return one error for "not sent" and "sent, no answer", and
// let an ordinary disconnect pass unnoticed until the timeout.
type mux struct {
	nc     *nats.Conn
	sub    *nats.Subscription
	prefix string // inbox and a final dot; the token follows
	status chan nats.Status
	done   chan struct{} // closed when the status watcher has ended

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*call
}

// call is one waiter, and the buffers of what it sends. Calls are pooled: everything in one belongs to the goroutine
// that took it, except parts and answers, which the mux fills under its mutex while the call is registered.
type call struct {
	mux     *mux
	token   uint64
	answers chan *nats.Msg // nil: the connection was lost
	several bool           // the answer has parts and ends with a status message
	parts   []*nats.Msg
	timer   *time.Timer

	msg    nats.Msg
	header nats.Header
	values [8][1]string // the backing of header's values
	used   int
}

var callPool = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &call{answers: make(chan *nats.Msg, 4), timer: t, header: make(nats.Header, 8)}
}}

func newMux(nc *nats.Conn) (*mux, error) {
	m := &mux{nc: nc, prefix: nc.NewInbox() + ".", calls: make(map[uint64]*call), done: make(chan struct{})}
	sub, err := nc.Subscribe(m.prefix+"*", m.deliver)
	if err != nil {
		return nil, err
	}
	m.sub = sub
	m.status = nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	go m.watch()
	return m, nil
}

// watch wakes every waiter when the connection is lost. It ends when close removes the listener.
func (m *mux) watch() {
	defer close(m.done)
	for range m.status {
		m.wake()
	}
}

func (m *mux) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		select {
		case c.answers <- nil:
		default:
		}
	}
}

// close ends the mux; those who wait are woken as if the connection were lost.
func (m *mux) close() {
	defer m.wake()
	_ = m.sub.Unsubscribe() // fails only on a closed connection, which has no subscriptions
	m.nc.RemoveStatusListener(m.status)
	<-m.done
}

func (m *mux) deliver(msg *nats.Msg) {
	if len(msg.Subject) <= len(m.prefix) {
		return
	}
	token, err := strconv.ParseUint(msg.Subject[len(m.prefix):], 36, 64)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[token]
	if c == nil {
		return // the answer to a call that has ended
	}
	if c.several && statusOf(msg) == "" {
		if len(c.parts) < maxParts {
			c.parts = append(c.parts, msg)
		}
		return
	}
	select {
	case c.answers <- msg:
	default: // several answers to one write are waiting already; the first one decides
	}
}

// statusOf returns the status of a message that carries nothing but a status, else "".
func statusOf(msg *nats.Msg) string {
	if len(msg.Data) != 0 || len(msg.Header) == 0 {
		return ""
	}
	if v := msg.Header["Status"]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// take registers a call with a fresh token. The caller gives it back with put.
func (m *mux) take(several bool) *call {
	c := callPool.Get().(*call)
	c.mux, c.several = m, several
	m.mu.Lock()
	m.register(c)
	m.mu.Unlock()
	return c
}

// renew gives c a fresh token: answers to what it sent before are dropped.
func (m *mux) renew(c *call) {
	m.mu.Lock()
	delete(m.calls, c.token)
	c.parts = nil
	m.register(c)
	m.mu.Unlock()
	for len(c.answers) > 0 {
		<-c.answers
	}
}

func (m *mux) register(c *call) {
	m.next++
	c.token = m.next
	m.calls[c.token] = c
	var buf [64]byte
	c.msg.Reply = string(strconv.AppendUint(append(buf[:0], m.prefix...), c.token, 36))
}

// parts returns what came before the final message of an answer.
func (m *mux) parts(c *call) []*nats.Msg {
	m.mu.Lock()
	defer m.mu.Unlock()
	return c.parts
}

func (m *mux) put(c *call) {
	m.mu.Lock()
	delete(m.calls, c.token)
	m.mu.Unlock()
	// Nothing is delivered to c any more.
	for len(c.answers) > 0 {
		<-c.answers
	}
	c.timer.Stop()
	c.mux, c.parts = nil, nil
	clear(c.header)
	c.used = 0
	c.msg = nats.Msg{}
	callPool.Put(c)
}

// set adds a header to what the call sends.
func (c *call) set(key, value string) {
	v := &c.values[c.used]
	c.used++
	v[0] = value
	c.header[key] = v[:]
	c.msg.Header = c.header
}

// waitEnd says how a wait ended.
type waitEnd uint8

const (
	answered    waitEnd = iota
	connLost            // the connection was lost after the sending
	attemptOver         // nothing came in time
	contextOver         // the caller's context ended
)

// maxExtensions is how often a wait for an answer in parts is extended because parts came.
const maxExtensions = 8

// wait waits for the answer for at most d, or for that long again while the parts of one come.
func (c *call) wait(ctx context.Context, d time.Duration) (*nats.Msg, waitEnd) {
	c.timer.Reset(d)
	defer c.timer.Stop()
	seen, extensions := 0, 0
	for {
		select {
		case m := <-c.answers:
			if m == nil {
				return nil, connLost
			}
			return m, answered
		case <-c.timer.C:
			n := 0
			if c.several {
				n = len(c.mux.parts(c))
			}
			if n == seen || extensions == maxExtensions {
				return nil, attemptOver
			}
			seen, extensions = n, extensions+1
			c.timer.Reset(d)
		case <-ctx.Done():
			return nil, contextOver
		}
	}
}

// pause waits for d, and reports false when the context ended meanwhile.
func (c *call) pause(ctx context.Context, d time.Duration) bool {
	c.timer.Reset(d)
	defer c.timer.Stop()
	select {
	case <-c.timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
