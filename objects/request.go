package objects

import (
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
)

// Request is what one turn is about: a message, or a timer that is due. It is valid until the handler returns; later it
// is empty, or that of the object's next turn.
type Request struct {
	self *Self
	mail *envelope // none between two turns: then nothing
}

// nothing is what a Request is about that is not valid any more.
var nothing = envelope{more: &noMore}

// Data is the payload of the message, or what Self.SetTimer was given. A caller in this process shares the slice: it
// must not be changed.
func (r *Request) Data() []byte { return r.mail.data }

// Header holds the message's headers (a traceparent, for example); nil if there are none. It must not be changed.
func (r *Request) Header() nats.Header { return r.mail.header }

// OneWay reports whether nobody waits for the reply: a Send, a broadcast, a timer.
func (r *Request) OneWay() bool { return r.mail.oneWay }

// Self is the object whose turn it is.
func (r *Request) Self() *Self { return r.self }

// Deadline is when the caller stops waiting, on this machine's clock; ok is false for what nobody waits for. It is
// that of the turn's context.
func (r *Request) Deadline() (deadline time.Time, ok bool) {
	if r.mail.oneWay || r.mail.deadline == 0 {
		return time.Time{}, false
	}
	return localTime(r.mail.deadline), true
}

// Sender returns who sent the message, as channels.Request.Sender does. ok is false for a plain NATS client and for a
// timer.
func (r *Request) Sender() (s channels.Sender, ok bool) {
	switch {
	case r.mail.timer != nil:
		return s, false
	case r.mail.from != nil:
		return r.mail.from.Sender()
	}
	rt := r.self.o.rt
	return channels.Sender{RID: rt.rid, Lifecycle: rt.lifecycle}, true
}

// Timer returns the name of the timer that is due; ok is false when the turn is that of a message.
func (r *Request) Timer() (name string, ok bool) {
	if r.mail.timer == nil {
		return "", false
	}
	return r.mail.timer.name, true
}

// Broadcast returns the Spot that sent the message to all its members; ok is false for any other message.
func (r *Request) Broadcast() (spot SpotRef, ok bool) {
	spot = r.mail.broadcast()
	return spot, !spot.IsZero()
}
