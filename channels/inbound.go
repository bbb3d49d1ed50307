package channels

import (
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// Inbound is one message to a service. It ends with one call of Refuse, Reply or Fail; what is not ended is Unknown to
// its caller, or Accepted after the notice.
//
// Concurrency: it may be handed from goroutine to goroutine, and is used by one at a time.
type Inbound struct {
	s        *service
	msg      *nats.Msg
	blob     wire.ReplyBlob
	tail     int
	accepted bool
}

// Subject is the subject on which the message came.
func (in *Inbound) Subject() string { return in.msg.Subject }

// Tail is the subject after the service's name and the dot; of a shared subject the whole of it.
func (in *Inbound) Tail() string { return in.msg.Subject[in.tail:] }

// Shared reports whether the message came on a shared subject.
func (in *Inbound) Shared() bool { return in.tail == 0 }

// Data is the payload. It belongs to the service.
func (in *Inbound) Data() []byte { return in.msg.Data }

// Header holds the message's headers; nil if there are none.
func (in *Inbound) Header() nats.Header { return in.msg.Header }

// Deadline is the caller's deadline on the store's clock; ok is false when the caller said none. That of a one-way
// message ends with its acceptance.
func (in *Inbound) Deadline() (deadline time.Time, ok bool) {
	return in.blob.Deadline, !in.blob.Deadline.IsZero()
}

// LocalDeadline is the caller's deadline on the local clock, late by the clock's error; ok is false when the caller said
// none, or the store's clock is not known.
func (in *Inbound) LocalDeadline() (local time.Time, ok bool) {
	if in.blob.Deadline.IsZero() {
		return local, false
	}
	return in.s.r.pulse.localDeadline(in.blob.Deadline)
}

// Past reports whether the deadline has certainly passed at now; false without a deadline.
func (in *Inbound) Past(now time.Time) bool {
	return !in.blob.Deadline.IsZero() && in.s.r.pulse.past(now, in.blob.Deadline)
}

// OneWay reports whether nobody waits for a reply: the acceptance notice ends the operation, or nobody waits at all.
func (in *Inbound) OneWay() bool { return oneWay(in.msg.Reply, in.blob) }

// ReplyTo is the subject on which the caller waits, for Router.Answer; empty when it does not.
func (in *Inbound) ReplyTo() string { return in.msg.Reply }

// Sender returns who sent the message, as Request.Sender does.
func (in *Inbound) Sender() (Sender, bool) { return senderOf(in.msg.Reply) }

// Accept says that the service has taken the message: it sends the acceptance notice if the caller asked for one. It
// must be called before anybody can see the work, so that the notice is true and comes before the reply. A second call
// does nothing.
func (in *Inbound) Accept() { in.AcceptWith(nil) }

// AcceptWith is Accept with headers in the notice.
func (in *Inbound) AcceptWith(h nats.Header) {
	if in.accepted {
		return
	}
	in.accepted = true
	if in.blob.Flags&wire.FlagNotice == 0 {
		return
	}
	if len(h) == 0 {
		in.s.r.notice(in.msg.Reply)
	} else {
		in.s.r.Notice(in.msg.Reply, h)
	}
	in.s.stats.notices.Add(1)
}

// Refuse ends the message with an error of the given kind and NotAccepted: it did not run here, and will not. The
// caller gets the extra headers too.
func (in *Inbound) Refuse(kind outcome.Kind, detail string, extra nats.Header) {
	in.s.stats.refusedByService.Add(1)
	h := in.s.r.refusal(kind, detail)
	maps.Copy(h, extra)
	in.s.r.refuse(in.msg, h)
}

// Reply ends the message with an answer; it is the acceptance, too, of a one-way message that has not been accepted. A
// reply above the server's limit becomes an error reply: CapacityExceeded and Accepted; one with a header that only the
// fabric may set becomes InternalFailure.
func (in *Inbound) Reply(data []byte, h nats.Header) {
	if in.OneWay() {
		in.Accept()
		return
	}
	_ = in.s.r.reply(in.msg.Reply, Reply{Data: data, Header: h}, &in.s.stats.answerStats)
}

// Fail ends an accepted message with an error. An *outcome.Error keeps its kind, any other becomes InternalFailure;
// both say Accepted. Nobody hears it of a one-way message, but for the acceptance if that was still open.
func (in *Inbound) Fail(err error) {
	if in.OneWay() {
		in.Accept()
		return
	}
	_ = in.s.r.replyError(in.msg.Reply, asOutcome(err), outcome.Accepted, &in.s.stats.answerStats)
}
