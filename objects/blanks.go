package objects

import "sync"

// blanks is a list of envelopes of Sends that have run.
type blanks struct {
	first, last *envelope
	n           int32
}

// add clears e and adds it.
func (b *blanks) add(e *envelope) {
	e.clear()
	if b.first == nil {
		b.last = e
	}
	e.next, b.first = b.first, e
	b.n++
}

// maxSpares is how many envelopes a mailbox keeps for its senders.
const maxSpares = 64

// spareChains are lists of blank envelopes of Sends; the first one's size says how many.
var spareChains sync.Pool

// blank returns an envelope that is spare, or nil.
func (m *mailbox) blank() *envelope {
	e := m.spare
	if e != nil {
		m.spare, e.next = e.next, nil
		m.spares--
	}
	return e
}

// lend makes a list from the pool spare, unless there is one; it returns the list that is not needed.
func (m *mailbox) lend(list *envelope) (left *envelope) {
	if list == nil || m.spare != nil {
		return list
	}
	m.spare, m.spares = list, list.size
	list.size = 0
	return nil
}

// keep makes blank envelopes spare; when they are too many it returns those that it had.
func (m *mailbox) keep(b blanks) (left *envelope) {
	if m.spares+b.n > maxSpares {
		left = m.unspare()
	}
	b.last.next, m.spare = m.spare, b.first
	m.spares += b.n
	return left
}

// unspare takes all that is spare out, for the pool.
func (m *mailbox) unspare() (list *envelope) {
	if list = m.spare; list != nil {
		list.size = m.spares
		m.spare, m.spares = nil, 0
	}
	return list
}
