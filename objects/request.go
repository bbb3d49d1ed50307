package objects

import (
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
)

// Request is what one turn is about: a message, or a timer that is due. It is valid until the handler returns.
type Request struct {
	self      *Self
	data      []byte
	header    nats.Header
	oneWay    bool
	timer     *timer
	broadcast *SpotRef
	from      origin // nil for what this process sent itself
}

// Data is the payload of the message, or what Self.SetTimer was given. A caller in this process shares the slice: it
// must not be changed.
func (r *Request) Data() []byte { return r.data }

// Header holds the message's headers (a traceparent, for example); nil if there are none. It must not be changed.
func (r *Request) Header() nats.Header { return r.header }

// OneWay reports whether nobody waits for the reply: a Send, a broadcast, a timer.
func (r *Request) OneWay() bool { return r.oneWay }

// Self is the object whose turn it is.
func (r *Request) Self() *Self { return r.self }

// Deadline is when the caller stops waiting, on this machine's clock; ok is false for what nobody waits for. It is
// that of the turn's context.
func (r *Request) Deadline() (deadline time.Time, ok bool) {
	return r.self.o.turn.Deadline()
}

// Sender returns who sent the message, as channels.Request.Sender does. ok is false for a plain NATS client and for a
// timer.
func (r *Request) Sender() (s channels.Sender, ok bool) {
	switch {
	case r.timer != nil:
		return s, false
	case r.from != nil:
		return r.from.Sender()
	}
	rt := r.self.o.rt
	return channels.Sender{RID: rt.rid, Lifecycle: rt.lifecycle}, true
}

// Timer returns the name of the timer that is due; ok is false when the turn is that of a message.
func (r *Request) Timer() (name string, ok bool) {
	if r.timer == nil {
		return "", false
	}
	return r.timer.name, true
}

// Broadcast returns the Spot that sent the message to all its members; ok is false for any other message.
func (r *Request) Broadcast() (spot SpotRef, ok bool) {
	if r.broadcast == nil {
		return SpotRef{}, false
	}
	return *r.broadcast, true
}
