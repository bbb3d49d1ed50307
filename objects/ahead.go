package objects

import "sync/atomic"

// maxAhead is how many messages a worker takes in advance.
const maxAhead = 16

// ahead is the messages that a worker has taken in advance, so that it need not lock the object for each. The worker
// begins with one after the other; recall takes the others back at any time.
type ahead struct {
	begun atomic.Uint32 // how many it has begun with; more than n after recall
	n     uint32        // written by the worker, under object.mu
	mail  [maxAhead]*envelope
	sizes [maxAhead]int32
}

// next returns the next message, or nil. Only the worker calls it.
func (a *ahead) next() *envelope {
	if i := a.begun.Load(); i < a.n && a.begun.CompareAndSwap(i, i+1) {
		return a.mail[i]
	}
	return nil
}

// takeAhead takes messages in advance.
func (m *mailbox) takeAhead(a *ahead) {
	a.n = 0
	for e := m.head; e != nil && a.n < maxAhead && e.kind == mailMessage && !e.unnoticed; e = m.head {
		m.head, e.next = e.next, nil
		a.mail[a.n], a.sizes[a.n] = e, e.size
		a.n++
	}
	if m.head == nil {
		m.tail = nil
	}
	if a.n > 0 {
		a.begun.Store(0)
		m.ahead = a
	}
}

// recall puts back what the worker has taken in advance and not begun with.
func (m *mailbox) recall() {
	a := m.ahead
	if a == nil {
		return
	}
	m.ahead = nil
	begun := a.begun.Swap(maxAhead + 1)
	for _, size := range a.sizes[:begun] {
		m.count--
		m.bytes -= size
	}
	for i := a.n; i > begun; i-- {
		e := a.mail[i-1]
		e.next, m.head = m.head, e
		if m.tail == nil {
			m.tail = e
		}
	}
}
