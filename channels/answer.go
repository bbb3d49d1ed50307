package channels

import (
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// answerStats counts the answers of one server or service.
type answerStats struct {
	replied, errorReplies, oversized, lost, notices atomic.Uint64
}

// oneWay reports whether nobody waits for a reply to what was asked with the given reply subject.
func oneWay(replyTo string, blob wire.ReplyBlob) bool {
	return replyTo == "" || blob.Flags&wire.FlagOneWay != 0
}

// asOutcome makes an error of a handler one of ours.
func asOutcome(err error) *outcome.Error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		e = outcome.Wrap("", outcome.InternalFailure, outcome.Accepted, "", "", err)
	}
	return e
}

// reply sends the answer to what was accepted, or an error reply when it cannot be sent as it is. The error says that
// neither could be sent.
func (r *Router) reply(to string, reply Reply, stats *answerStats) error {
	var err error
	if len(reply.Header) == 0 {
		err = r.nc.Publish(to, reply.Data)
	} else {
		if name := reservedHeader(reply.Header); name != "" {
			e := fail("", outcome.InternalFailure, outcome.Accepted, "", "the handler set the reserved header %q", name)
			return r.replyError(to, e, outcome.Accepted, stats)
		}
		err = r.nc.PublishMsg(&nats.Msg{Subject: to, Header: reply.Header, Data: reply.Data})
	}
	switch {
	case err == nil:
		stats.replied.Add(1)
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		stats.oversized.Add(1)
		e := outcome.New("", outcome.CapacityExceeded, outcome.Accepted, "", "the handler ran, but its reply is too large: "+tooLarge(reply.Data, reply.Header, r.nc.MaxPayload()))
		return r.replyError(to, e, outcome.Accepted, stats)
	case errors.Is(err, nats.ErrBadHeaderMsg):
		e := outcome.Wrap("", outcome.InternalFailure, outcome.Accepted, "", "the handler ran, but its reply has a header that NATS does not allow", err)
		return r.replyError(to, e, outcome.Accepted, stats)
	}
	stats.lost.Add(1)
	r.log.Debug("sending a reply", zap.String("subject", to), zap.Error(err))
	return err
}

// replyError sends an error as the answer.
func (r *Router) replyError(to string, e *outcome.Error, acc outcome.Acceptance, stats *answerStats) error {
	h := nats.Header(e.Headers(acc))
	h[wire.HeaderFrom] = []string{r.cfg.RID}
	if err := r.nc.PublishMsg(&nats.Msg{Subject: to, Header: h}); err != nil {
		stats.lost.Add(1)
		r.log.Debug("sending an error reply", zap.String("subject", to), zap.Error(err))
		return err
	}
	stats.errorReplies.Add(1)
	return nil
}

// Answer sends the answer of an operation whose reply subject was kept (Inbound.ReplyTo), perhaps by another node; it is
// what Inbound.Reply is for a message in hand. Of a one-way operation it sends the acceptance. It does nothing for an
// empty subject. The error says that the answer could not be sent.
func (r *Router) Answer(replyTo string, data []byte, h nats.Header) error {
	if blob, _ := wire.ParseReply(replyTo); oneWay(replyTo, blob) {
		if replyTo == "" {
			return nil
		}
		r.counters.answers.notices.Add(1)
		return r.nc.Publish(replyTo+wire.NoticeSuffix, r.ridBytes)
	}
	return r.reply(replyTo, Reply{Data: data, Header: h}, &r.counters.answers)
}

// AnswerError is Answer with an error. An *outcome.Error keeps its kind and its acceptance; any other is
// InternalFailure and Accepted. A one-way operation hears it too, unless its acceptance was first.
func (r *Router) AnswerError(replyTo string, err error) error {
	if replyTo == "" {
		return nil
	}
	e := asOutcome(err)
	return r.replyError(replyTo, e, e.Acceptance, &r.counters.answers)
}
