package objects

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// mailKind is what a turn is about.
type mailKind uint8

const (
	mailMessage   mailKind = iota
	mailTimer              // a due timer
	mailFramework          // a turn of the framework: join, leave, close
	mailActivate           // the object must be made ready
	mailIdle               // the object had no turn for a while
	mailClose              // the object's end was asked for
)

// counts reports whether mail of the kind counts in the mailbox's bounds: timers have bounds of their own, and of the
// runtime's own mail there is one piece of each kind at most.
func (k mailKind) counts() bool { return k == mailMessage || k == mailFramework }

// frameworkReserve is how many turns of the framework may wait beyond the mailbox's bounds, so that an object with a
// full mailbox can be closed.
const frameworkReserve = 64

// origin is where a message came from when it did not begin in this process: *channels.Inbound, or a first message out
// of a record.
type origin interface {
	Data() []byte
	Header() nats.Header
	OneWay() bool
	Sender() (channels.Sender, bool)
	// LocalDeadline is the caller's deadline on this machine's clock, the error of the store's clock added. Past
	// judges it on the store's clock.
	LocalDeadline() (time.Time, bool)
	Past(now time.Time) bool
	// Accept sends the acceptance notice, if one is asked for. Reply and Fail answer after it.
	Accept()
	Reply(data []byte, h nats.Header)
	Fail(err error)
}

// The word of an envelope: one state, and whether it was accepted.
//
//	waiting -> ended: the answer stands in the envelope, and its caller takes it
//	waiting -> left:  the caller gave up and never looks again
//
// An envelope that nobody in this process waits for is left from the beginning. Whoever makes the second step, or the
// only one, of the two sides releases the envelope.
const (
	envWaiting  uint32 = 0
	envEnded    uint32 = 1
	envLeft     uint32 = 2
	envState    uint32 = 3
	envAccepted uint32 = 4
	// envPublished: it was held, and is on its way to the node to which its object moves. Whether that takes it, nobody
	// here knows.
	envPublished uint32 = 8
)

// envelope is one piece of mail. Envelopes are pooled: a Send's goes back and forth between its object and its sender,
// any other through the pool. It is one cache line, because each is written by one processor and read by another, and a
// full mailbox of them is out of the caches by the time that it is read.
type envelope struct {
	next *envelope
	word uint32 // changed by step, but by whoever has the envelope alone
	size int32
	kind mailKind
	// oneWay: nobody waits for the reply.
	oneWay bool
	// unnoticed: its acceptance notice is being sent. It has its place, and no turn begins before it. Whoever sends
	// the notice has the envelope until then; guarded by object.mu.
	unnoticed bool
	data      []byte
	chain     *chain // of enclosing turns
	*more            // read by everybody, written only after own
}

// more is what a Send within the process has none of.
type more struct {
	// deadline is when the caller stops waiting; 0 when nobody waits.
	deadline instant
	header   nats.Header
	from     origin // nil for mail of this process
	about    *about // what few messages have
	timer    *timer
	run      func(context.Context) error // of the framework
	// held is for the sender of a one-way message that is not accepted at once.
	held *hold
	// reply is where a caller in this process waits. It stays with the envelope.
	reply *waiter
}

// noMore is that of all envelopes that have none of their own.
var noMore more

// now is the word as it is now.
func (e *envelope) now() uint32 { return atomic.LoadUint32(&e.word) }

func (e *envelope) isAccepted() bool { return e.now()&envAccepted != 0 }

// step changes the word, unless somebody else has.
func (e *envelope) step(from, to uint32) bool { return atomic.CompareAndSwapUint32(&e.word, from, to) }

func newEnvelope() *envelope { return &envelope{more: &noMore} }

// own returns the envelope's own rest, which stays with it.
func (e *envelope) own() *more {
	if e.more == &noMore {
		e.more = &more{}
	}
	return e.more
}

// about is what few messages have beside the rest.
type about struct {
	// broadcast is the Spot that sent the message to all its members.
	broadcast SpotRef
	// mark is the value of the companion's header; empty for none.
	mark string
}

func (e *envelope) broadcast() (spot SpotRef) {
	if e.about != nil {
		spot = e.about.broadcast
	}
	return spot
}

func (e *envelope) mark() string {
	if e.about == nil {
		return ""
	}
	return e.about.mark
}

// setMark notes the value of the companion's header, if there is one.
func (e *envelope) setMark(mark string) {
	if mark != "" {
		e.own().about = &about{mark: mark}
	}
}

var envelopes = sync.Pool{New: func() any { return newEnvelope() }}

// newOwn returns mail of the runtime's own, which nobody waits for.
func newOwn(kind mailKind) *envelope {
	e := envelopes.Get().(*envelope)
	e.kind, e.oneWay = kind, true
	e.word = envLeft
	return e
}

// release gives the envelope back. Neither side may use it any more.
func (e *envelope) release() {
	e.clear()
	envelopes.Put(e)
}

// clear makes it blank, but for the word, which is set when it is used again.
func (e *envelope) clear() {
	if m := e.more; m != &noMore {
		if m.reply != nil {
			m.reply.clear()
		}
		*m = more{reply: m.reply}
	}
	e.next, e.kind, e.oneWay, e.size, e.data, e.chain = nil, mailMessage, false, 0, nil, nil
}

// op is the operation, as errors name it.
func (e *envelope) op() string {
	switch {
	case e.kind == mailTimer:
		return "timer"
	case e.kind != mailMessage:
		return "turn"
	case !e.broadcast().IsZero():
		return "broadcast to"
	case e.oneWay:
		return opSend
	}
	return opRequest
}

// accept notes the acceptance. It returns false when the caller has left before it: the mail then never runs.
func (e *envelope) accept() bool {
	if e.held != nil {
		if !e.held.end(nil) {
			return false
		}
		e.own().held = nil // its sender has heard
	}
	for {
		w := e.now()
		if w&envState == envLeft && e.from == nil && !e.oneWay {
			return false
		}
		if e.step(w, w|envAccepted) {
			return true
		}
	}
}

// hold is what the sender of a one-way message waits on while the message is held without being accepted. It ends once:
// by the acceptance or refusal, or by the sender, who leaves.
type hold struct {
	op   string
	over atomic.Bool
	// published: the message is on its way to the node to which its object moves.
	published atomic.Bool
	// until is when the sender leaves; an instant, 0 before it waits.
	until atomic.Int64
	done  chan error
}

// publish notes that the mail goes to the node to which its object moves. It returns false when its caller of this process
// has left before.
func (e *envelope) publish() bool {
	if e.held != nil {
		e.held.published.Store(true)
		return !e.held.over.Load()
	}
	for {
		w := e.now()
		if w&envState == envLeft {
			return e.from != nil
		}
		if e.step(w, w|envPublished) {
			return true
		}
	}
}

// hold makes the sender of a local one-way message wait for its acceptance. It returns nil for any other mail.
func (e *envelope) hold() *hold {
	if e.held == nil && e.oneWay && e.from == nil && e.kind == mailMessage {
		e.own().held = &hold{op: e.op(), done: make(chan error, 1)}
	}
	return e.held
}

// end tells the sender that the message was accepted, or with err why not. It returns false when the sender has left.
func (h *hold) end(err error) bool {
	if !h.over.CompareAndSwap(false, true) {
		return false
	}
	h.done <- err
	return true
}

// wait waits for the acceptance until ctx ends or the deadline passes.
func (h *hold) wait(ctx context.Context, key kvlocation.ObjectKey, deadline instant) error {
	h.until.Store(int64(deadline))
	t := time.NewTimer(deadline.sub(tick()))
	defer t.Stop()
	select {
	case err := <-h.done:
		return err
	case <-t.C:
	case <-ctx.Done():
	}
	if h.over.CompareAndSwap(false, true) {
		acceptance := outcome.NotAccepted
		if h.published.Load() {
			acceptance = outcome.Unknown
		}
		return leftError(ctx, h.op, key, nil, acceptance)
	}
	return <-h.done
}

// past reports whether nobody waits for the answer any more because its deadline has passed.
func (e *envelope) past(now instant) bool {
	if e.from != nil {
		return e.from.Past(time.Now()) // on the store's clock, which also counts suspension
	}
	return e.deadline != 0 && now >= e.deadline
}

// answer ends the mail with a result. The envelope must not be used afterwards.
func (e *envelope) answer(reply Reply, err error) {
	if e.from != nil {
		if err != nil {
			e.from.Fail(err)
		} else {
			e.from.Reply(reply.Data, reply.Header)
		}
		e.release()
		return
	}
	caller := e.reply // whose envelope it is once it has ended
	if caller != nil {
		caller.reply, caller.err = reply, err
	}
	for {
		w := e.now()
		if w&envState == envLeft {
			e.release()
			return
		}
		if e.step(w, w|envEnded) {
			caller.nudge()
			return
		}
	}
}

// mailbox is the mail of one object, in the order of acceptance. It holds nothing while there is none.
type mailbox struct {
	head, tail *envelope
	// ahead is the mail that stands before head: the object's worker has taken it in advance. It counts in the bounds.
	ahead   *ahead
	spare   *envelope // of Sends that have run, while there is mail
	spares  int32
	count   int32 // of those that count in the bounds
	bytes   int32
	notices int32 // how many acceptance notices are being sent
}

// messages returns how much mail counts in the bounds.
func (m *mailbox) messages() int32 {
	m.recall()
	return m.count
}

func (m *mailbox) push(e *envelope) {
	if m.tail == nil {
		m.head = e
	} else {
		m.tail.next = e
	}
	m.tail = e
	m.took(e, 1)
}

// putBack puts e before everything else.
func (m *mailbox) putBack(e *envelope) {
	m.recall()
	e.next = m.head
	m.head = e
	if m.tail == nil {
		m.tail = e
	}
	m.took(e, 1)
}

// prepend puts mail before everything else.
func (m *mailbox) prepend(mail mailbox) {
	if mail.tail == nil {
		return
	}
	m.recall()
	mail.tail.next = m.head
	m.head = mail.head
	if m.tail == nil {
		m.tail = mail.tail
	}
	m.count += mail.count
	m.bytes += mail.bytes
}

// insert puts accepted mail behind what was accepted, before what is held, and returns its place, counted from 1.
func (m *mailbox) insert(e *envelope) (place int) {
	place = 1
	last := (*envelope)(nil)
	for at := m.head; at != nil && at.isAccepted(); last, at = at, at.next {
		place++
	}
	if last == nil {
		e.next, m.head = m.head, e
	} else {
		e.next, last.next = last.next, e
	}
	if e.next == nil {
		m.tail = e
	}
	m.took(e, 1)
	return place
}

// pop takes the oldest; nothing while its acceptance notice is being sent.
func (m *mailbox) pop() *envelope {
	e := m.head
	if e == nil || e.unnoticed {
		return nil
	}
	m.head = e.next
	if m.head == nil {
		m.tail = nil
	}
	e.next = nil
	m.took(e, -1)
	return e
}

// takeAll takes everything out, but for what belongs to those who send its acceptance notice, and returns the list.
func (m *mailbox) takeAll() *envelope {
	m.recall()
	if m.notices == 0 {
		list := m.head
		m.head, m.tail, m.count, m.bytes = nil, nil, 0, 0
		return list
	}
	var taken, left mailbox
	for e := m.head; e != nil; {
		next := e.next
		e.next = nil
		if e.unnoticed {
			left.push(e)
		} else {
			taken.push(e)
		}
		e = next
	}
	m.head, m.tail, m.count, m.bytes = left.head, left.tail, left.count, left.bytes
	return taken.head
}

// cutHeld takes out what was not accepted, which stands behind everything else, and returns the list. It goes on
// counting.
func (m *mailbox) cutHeld() *envelope {
	var last *envelope
	for e := m.head; e != nil; last, e = e, e.next {
		if e.isAccepted() {
			continue
		}
		m.tail = last
		if last == nil {
			m.head = nil
		} else {
			last.next = nil
		}
		return e
	}
	return nil
}

// pushAll puts a list that was cut out back, behind the rest.
func (m *mailbox) pushAll(list *envelope) {
	for list != nil {
		e := list
		list, e.next = e.next, nil
		m.push(e)
	}
}

// append puts what has become of cut mail behind the rest.
func (m *mailbox) append(mail, cut mailbox) {
	if m.tail == nil {
		m.head = mail.head
	} else {
		m.tail.next = mail.head
	}
	if mail.tail != nil {
		m.tail = mail.tail
	}
	m.count += mail.count - cut.count
	m.bytes += mail.bytes - cut.bytes
}

func (m *mailbox) took(e *envelope, sign int32) {
	if e.kind.counts() {
		m.count += sign
		m.bytes += sign * e.size
	}
}

// room says why e does not fit, if so.
func (m *mailbox) room(e *envelope, t *Type) why {
	because := m.roomNow(e, t)
	if because == whyFull && m.ahead != nil { // what the worker has begun with counts no more
		m.recall()
		because = m.roomNow(e, t)
	}
	return because
}

func (m *mailbox) roomNow(e *envelope, t *Type) why {
	switch {
	case !e.kind.counts():
		return whyNot
	case e.kind == mailFramework:
		if int(m.count) >= t.Mailbox+frameworkReserve {
			return whyFull
		}
	case int(e.size) > t.MailboxBytes:
		return whyTooLarge
	case int(m.count) >= t.Mailbox || int(m.bytes)+int(e.size) > t.MailboxBytes:
		return whyFull
	}
	return whyNot
}

// sizeOf is what a message counts for in a mailbox's bytes.
func sizeOf(data []byte, h nats.Header) int32 {
	n := len(data)
	if h == nil {
		return int32(min(n, math.MaxInt32))
	}
	for k, vs := range h {
		for _, v := range vs {
			n += len(k) + len(v)
		}
	}
	return int32(min(n, math.MaxInt32))
}
