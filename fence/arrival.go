package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// HeaderToken is the header in which a KV entry that was written through a guard carries its token. The value itself
// stays as it was given.
const HeaderToken = "Fabric-Token"

// DefaultWriteTimeout bounds a guarded write to NATS whose context has no deadline.
const DefaultWriteTimeout = 10 * time.Second

// attemptTimeout is how long one sending of a guarded write is waited for before it is sent again, and again how long
// what the server asked to try later is left alone.
const (
	attemptTimeout = 2 * time.Second
	againAfter     = 5 * time.Millisecond
)

// The answers of JetStream that a guarded write acts on (see kvlocation): the expected sequence is another one; it cannot
// be told because another write is under way; the same message is under way.
const (
	codeWrongLast      = jetstream.JSErrCodeStreamWrongLastSequence
	codeWrongLastOther = jetstream.ErrorCode(10164)
	codeIDInProcess    = jetstream.ErrorCode(10158)
)

// errMoved says that the server refused a write because the expected sequence is another one.
var errMoved = errors.New("the expected sequence is another one")

// arrival sends the writes of one guarded resource to a stream, so that the server compares when they arrive.
type arrival struct {
	js   jetstream.JetStream
	info jetstream.Stream
	name string // of the stream
	// window is for how long the stream knows a message by its ID.
	window time.Duration
}

// openArrival finds the stream and refuses one that may lose the record of the highest token.
func openArrival(ctx context.Context, js jetstream.JetStream, stream string, mayAge bool) (*arrival, jetstream.StreamConfig, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	target := fmt.Sprintf("stream %q", stream)
	s, err := js.Stream(ctx, stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, jetstream.StreamConfig{}, outcome.New("guard", outcome.NotConfigured, outcome.NotAccepted, target, "there is no such stream: make it first")
	case err != nil:
		return nil, jetstream.StreamConfig{}, outcome.Wrap("guard", outcome.Unavailable, outcome.NotAccepted, target, "", err)
	}
	c := s.CachedInfo().Config
	why := ""
	switch {
	case c.Storage == jetstream.MemoryStorage && c.Replicas < 2:
		why = "it is kept in the memory of one server"
	case c.Retention != jetstream.LimitsPolicy:
		why = "its retention removes messages that were consumed"
	case c.Discard != jetstream.DiscardNew && (c.MaxMsgs > 0 || c.MaxBytes > 0):
		why = "its limit of messages or bytes discards the oldest: set discard to new"
	case c.MaxAge > 0 && !mayAge:
		why = "its TTL ends what is old"
	case c.MaxAge > 0 && !c.AllowMsgTTL:
		why = "its maximum age ends what is old: allow message TTLs (AllowMsgTTL), so that the guard's record is exempt"
	}
	if why != "" {
		return nil, c, outcome.New("guard", outcome.InvalidOperation, outcome.NotAccepted, target,
			"the stream would forget the highest token: "+why)
	}
	return &arrival{js: js, info: s, name: stream, window: c.Duplicates}, c, nil
}

// sent is one write on its way. It is sent again, as the same message, until the server says what became of it.
type sent struct {
	msg   *nats.Msg
	open  bool          // an earlier sending has no answer
	since monotime.Time // of the first sending; 0 before it
}

// newSent gives the message an identity unless it has one.
func newSent(m *nats.Msg) *sent {
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	if m.Header.Get(nats.MsgIdHdr) == "" {
		m.Header.Set(nats.MsgIdHdr, nuid.Next())
	}
	return &sent{msg: m}
}

// send sends the write expecting that the last message of a subject is the given one. It returns errMoved when the server
// refused for that; any other error ends the write.
func (a *arrival) send(ctx context.Context, w *sent, expect uint64, subject string) (*jetstream.PubAck, error) {
	for {
		if ctx.Err() != nil {
			return nil, w.failed(outcome.DeadlineExceeded, "the context had ended before", context.Cause(ctx))
		}
		switch {
		case w.since == 0:
			w.since = monotime.Now()
		case w.open && subject != w.msg.Subject && monotime.Since(w.since)+attemptTimeout > a.window:
			// What is compared with another subject's last message is kept from being stored twice by its ID alone.
			return nil, w.failed(outcome.Unavailable, "no answer, and the stream may soon not know the message again", nil)
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		ack, err := a.js.PublishMsg(attempt, w.msg, jetstream.WithRetryAttempts(0), a.expecting(w, expect, subject))
		cancel()
		var api *jetstream.APIError
		switch {
		case err == nil:
			return ack, nil
		case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse):
			// nobody took it: a leader is being elected
		case errors.As(err, &api) && api.ErrorCode == codeWrongLast:
			return nil, errMoved
		case errors.As(err, &api) && (api.ErrorCode == codeWrongLastOther || api.ErrorCode == codeIDInProcess || api.Code == 503 || api.Code == 429):
		case errors.As(err, &api), errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
			return nil, w.failed(outcome.Unavailable, "the write was refused", err)
		case errors.Is(err, nats.ErrConnectionClosed):
			w.open = true // said both of what was not sent and of what was not answered
			return nil, w.failed(outcome.Unavailable, "the connection was closed for good", err)
		default:
			w.open = true // sent, and no answer
		}
		select {
		case <-ctx.Done():
			return nil, w.failed(outcome.DeadlineExceeded, "no answer to the write in time", errors.Join(context.Cause(ctx), err))
		case <-time.After(againAfter):
		}
	}
}

// expecting compares with the last message of subject: in the shorter form where that is the message's own.
func (a *arrival) expecting(w *sent, expect uint64, subject string) jetstream.PublishOpt {
	if subject == w.msg.Subject {
		return jetstream.WithExpectLastSequencePerSubject(expect)
	}
	w.msg.Header.Set(jetstream.ExpectedStreamHeader, a.name)
	return jetstream.WithExpectLastSequenceForSubject(expect, subject)
}

// failed ends a write with what is known about it.
func (w *sent) failed(kind outcome.Kind, detail string, cause error) error {
	acc := outcome.NotAccepted
	if w.open {
		acc = outcome.Unknown
	}
	return outcome.Wrap("guarded write", kind, acc, "subject "+w.msg.Subject, detail, cause)
}

// stopped ends a write that a guard's judgement refuses. When an earlier sending has no answer it may have been stored
// before the higher token was seen.
func (w *sent) stopped(refusal error) error {
	if !w.open {
		return refusal
	}
	return w.failed(outcome.Unavailable, "a sending before the refusal was not answered", refusal)
}

// last reads the last message of a subject, from any replica: it may be a little old, and a write that expects it is then
// refused. Nil means that there is none.
func (a *arrival) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		m, err := a.info.GetLastMsgForSubject(attempt, subject)
		cancel()
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return nil, nil
		case errors.Is(err, nats.ErrConnectionClosed):
			return nil, outcome.Wrap("guarded write", outcome.Unavailable, outcome.NotAccepted, "subject "+subject, "the guard's record cannot be read", err)
		}
		select {
		case <-ctx.Done():
			return nil, outcome.Wrap("guarded write", outcome.DeadlineExceeded, outcome.NotAccepted, "subject "+subject,
				"the guard's record could not be read in time", errors.Join(context.Cause(ctx), err))
		case <-time.After(againAfter):
		}
	}
}

// bounded returns ctx with DefaultWriteTimeout unless it has a deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultWriteTimeout)
}

// oneAtATime lets one write of a guard run after the other: the server refuses a second one that expects the same subject
// while the first is under way.
type oneAtATime chan struct{}

func newOneAtATime() oneAtATime { return make(oneAtATime, 1) }

func (o oneAtATime) enter(ctx context.Context, resource string) error {
	select {
	case o <- struct{}{}:
		return nil
	default:
	}
	select {
	case o <- struct{}{}:
		return nil
	case <-ctx.Done():
		return outcome.FromContext(ctx, "guarded write", outcome.NotAccepted, fmt.Sprintf("resource %q", resource), "another write held the guard")
	}
}

func (o oneAtATime) leave() { <-o }
