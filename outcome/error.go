package outcome

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Error is the one error type of the public operations (FO-8).
//
// Concurrency: an Error is not changed after it was returned.
type Error struct {
	// Op is the operation that ended, in words: "request", "send", "create".
	Op string
	// Kind is what went wrong.
	Kind Kind
	// Acceptance is what is known about acceptance.
	Acceptance Acceptance
	// Target is what the operation concerned: `channel "work"`, `node "n1"`, a record's key.
	Target string
	// Detail says what happened, in one sentence without a final full stop.
	Detail string
	// Remote is true when a peer said so, false when it was concluded in this process.
	Remote bool
	// Cause is the underlying error, or nil.
	Cause error
}

// New returns an error made in this process. Target and detail may be empty.
func New(op string, kind Kind, acc Acceptance, target, detail string) *Error {
	return &Error{Op: op, Kind: kind, Acceptance: acc, Target: target, Detail: detail}
}

// Wrap is New with a cause.
func Wrap(op string, kind Kind, acc Acceptance, target, detail string, cause error) *Error {
	return &Error{Op: op, Kind: kind, Acceptance: acc, Target: target, Detail: detail, Cause: cause}
}

// Error returns one line: operation, target, kind, acceptance, detail, cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Target != "" {
		b.WriteByte(' ')
		b.WriteString(e.Target)
	}
	b.WriteString(": ")
	b.WriteString(e.Kind.String())
	b.WriteString(" (")
	b.WriteString(e.Acceptance.String())
	if e.Remote {
		b.WriteString(", said by the peer")
	}
	b.WriteByte(')')
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	if e.Cause != nil {
		b.WriteString(": ")
		b.WriteString(e.Cause.Error())
	}
	return b.String()
}

// Is matches a Kind or an Acceptance.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Kind:
		return e.Kind == t
	case Acceptance:
		return e.Acceptance == t
	}
	return false
}

// Unwrap returns the cause for errors.Is and errors.As, without what it says of kind and acceptance: a cause may be
// the error of another operation, whose NotAccepted must not make this one look so. The field Cause has it whole.
func (e *Error) Unwrap() error {
	if e.Cause == nil {
		return nil
	}
	return muted{e.Cause}
}

// muted is a cause that no longer matches kinds and acceptances.
type muted struct{ cause error }

func (m muted) Error() string { return m.cause.Error() }

func (m muted) Is(target error) bool {
	switch target.(type) {
	case Kind, Acceptance:
		return false
	}
	return errors.Is(m.cause, target)
}

func (m muted) As(target any) bool {
	switch target.(type) {
	case *Kind, *Acceptance:
		return false
	}
	return errors.As(m.cause, target)
}

// KindOf returns the kind of err: that of the outermost *Error in its chain, DeadlineExceeded for a context's
// error, InternalFailure for any other. For nil it returns 0.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	default:
		return InternalFailure
	}
}

// AcceptanceOf returns what err says about acceptance; Unknown when it says nothing, Accepted for nil.
func AcceptanceOf(err error) Acceptance {
	var e *Error
	switch {
	case err == nil:
		return Accepted
	case errors.As(err, &e):
		return e.Acceptance
	default:
		return Unknown
	}
}

// FromContext returns the terminal result of an operation whose context ended: DeadlineExceeded with the
// context's error as cause, so that errors.Is(err, context.Canceled) holds after a cancellation.
func FromContext(ctx context.Context, op string, acc Acceptance, target, detail string) *Error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause != nil && !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause) // a cause of the application's own must not hide which end it was
	}
	return Wrap(op, DeadlineExceeded, acc, target, detail, err)
}

// The headers of an error reply. The first two are those of NATS micro services, so any client understands them.
const (
	HeaderServiceError     = "Nats-Service-Error"
	HeaderServiceErrorCode = "Nats-Service-Error-Code"
	HeaderKind             = "Fabric-Kind"
	HeaderAcceptance       = "Fabric-Acceptance"
)

// maxWireDetail bounds the text that crosses the wire, in bytes.
const maxWireDetail = 512

// Headers returns the headers of an error reply that carries e, with the acceptance acc as the answering peer
// knows it. The text is one line of at most 512 bytes.
func (e *Error) Headers(acc Acceptance) map[string][]string {
	text := e.Detail
	if e.Cause != nil {
		if text != "" {
			text += ": "
		}
		text += e.Cause.Error()
	}
	if text == "" {
		text = e.Kind.String()
	}
	return map[string][]string{
		HeaderServiceError:     {oneLine(text)},
		HeaderServiceErrorCode: {strconv.Itoa(e.Kind.Code())},
		HeaderKind:             {e.Kind.String()},
		HeaderAcceptance:       {acc.String()},
	}
}

// oneLine makes text fit for a header and for a log: valid UTF-8 without control characters, maxWireDetail bytes at
// most.
func oneLine(text string) string {
	if len(text) > maxWireDetail {
		text = text[:maxWireDetail]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// FromHeaders reads an error reply's headers. It returns nil when h is not an error reply. An error reply of a
// plain NATS micro service, which knows no kinds, becomes InternalFailure with acceptance Accepted: the service
// ran and said so. An unknown kind becomes ProtocolError, an unknown acceptance Unknown. The text is cut to one line of
// at most 512 bytes, whatever the peer sent.
func FromHeaders(h map[string][]string, op, target string) *Error {
	text, isErr := first(h, HeaderServiceError)
	kindText, hasKind := first(h, HeaderKind)
	if _, hasCode := first(h, HeaderServiceErrorCode); !isErr && !hasCode && !hasKind {
		return nil
	}
	e := &Error{Op: op, Target: target, Detail: oneLine(text), Remote: true, Kind: InternalFailure, Acceptance: Accepted}
	if hasKind {
		k, ok := ParseKind(kindText)
		if !ok {
			k, e.Detail = ProtocolError, oneLine("unknown kind "+strconv.Quote(kindText)+" in an error reply: "+text)
		}
		e.Kind = k
	}
	if accText, ok := first(h, HeaderAcceptance); ok {
		// What cannot be read claims nothing.
		e.Acceptance, _ = ParseAcceptance(accText)
	}
	return e
}

func first(h map[string][]string, key string) (string, bool) {
	if v := h[key]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}
