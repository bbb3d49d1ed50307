package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/outcome"
)

// Stream is a JetStream stream of the application's to which holders publish through guards (FE-3).
//
// Concurrency: any number of goroutines may use a Stream.
type Stream struct {
	arrival *arrival
	ages    bool
}

// OpenStream finds the stream. NotConfigured says that there is none; Unavailable that it could not be read; InvalidOperation
// that it would forget the highest token: retention other than limits, a limit that discards the oldest, a maximum age without message TTLs, or storage in the memory of
// one server.
// ctx without a deadline is bounded by DefaultWriteTimeout.
func OpenStream(ctx context.Context, js jetstream.JetStream, name string) (*Stream, error) {
	a, c, err := openArrival(ctx, js, name, true)
	if err != nil {
		return nil, err
	}
	return &Stream{arrival: a, ages: c.MaxAge > 0}, nil
}

// Guard returns the guard that keeps its record at subject, one of the stream's own to which nothing else publishes. It
// takes tokens of the given source only; with "" the first token that the record sees binds it. It talks to no server.
func (s *Stream) Guard(subject, source string) *StreamGuard {
	return &StreamGuard{gate: NewGate(s.arrival.name+" "+subject, source), arrival: s.arrival, ages: s.ages, subject: subject, turn: newOneAtATime()}
}

// StreamGuard publishes to a stream what only the newest holder may publish. The highest token stands as a message at the
// guard's own subject, and every publish expects that message to be the last one there: once a newer holder has put its own
// there, the server refuses the older one's messages as they arrive, whatever the older one believes.
//
// Concurrency: any number of goroutines, processes and machines may use guards of the same subject. One guard publishes
// one message after the other: a cluster refuses a second one that is compared with the same record meanwhile.
type StreamGuard struct {
	gate    *Gate
	arrival *arrival
	ages    bool
	subject string
	turn    oneAtATime

	held Token  // guarded by turn; the token that stands in the record, as far as known
	at   uint64 // guarded by turn; the record's sequence; 0 when not known
}

// Publish stores a message under the token of ctx. It is sent with a message ID, its own or one that is made, until the
// server says what became of it, and no longer than the stream's duplicate window keeps it from being stored twice. Refusals, with which nothing is stored: *StaleError, *SourceError, InvalidOperation
// without a token or with an expected sequence of its own. DeadlineExceeded and Unavailable say by their acceptance
// whether the message may have been stored. ctx without a deadline is bounded by DefaultWriteTimeout. m is not changed.
func (g *StreamGuard) Publish(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	for _, h := range []string{jetstream.ExpectedLastSubjSeqHeader, jetstream.ExpectedLastSubjSeqSubjHeader} {
		if m.Header.Get(h) != "" {
			return nil, refused(g.gate.resource, outcome.InvalidOperation, "the message has header "+h+", which the guard needs", nil)
		}
	}
	if m.Subject == g.subject {
		return nil, refused(g.gate.resource, outcome.InvalidOperation, "the subject is the guard's own", nil)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := g.turn.enter(ctx, g.gate.resource); err != nil {
		return nil, err
	}
	defer g.turn.leave()
	own := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{}}
	for k, v := range m.Header {
		own.Header[k] = v
	}
	w := newSent(own)
	for {
		t, err := g.gate.Token(ctx)
		if err == nil && (g.at == 0 || g.held != t) {
			err = g.raise(ctx, t)
		}
		if err != nil {
			return nil, w.stopped(err)
		}
		ack, err := g.arrival.send(ctx, w, g.at, g.subject)
		switch {
		case err == nil:
			g.gate.Pass()
			return ack, nil
		case !errors.Is(err, errMoved):
			return nil, err
		}
		g.at = 0
	}
}

// Raise makes the token of ctx the highest that the stream has seen, so that from its return on nothing of an older
// holder's is stored (FE-11). It refuses as Publish does.
func (g *StreamGuard) Raise(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := g.turn.enter(ctx, g.gate.resource); err != nil {
		return err
	}
	defer g.turn.leave()
	t, err := g.gate.Token(ctx)
	if err != nil {
		return err
	}
	return g.raise(ctx, t)
}

// Stats returns what this guard has decided; other processes' are not in it.
func (g *StreamGuard) Stats() Stats { return g.gate.Stats() }

// raise makes t the token of the record, or learns that it is.
func (g *StreamGuard) raise(ctx context.Context, t Token) error {
	record := &nats.Msg{Subject: g.subject, Data: []byte(t.String()), Header: nats.Header{}}
	if g.ages {
		record.Header.Set(jetstream.MsgTTLHeader, "never")
	}
	w := newSent(record)
	for {
		var (
			seen Token
			at   uint64
		)
		m, err := g.arrival.last(ctx, g.subject)
		if err != nil {
			return err
		}
		if m != nil {
			at = m.Sequence
			if seen, err = storedToken(string(m.Data)); err != nil {
				return outcome.Wrap("guarded write", outcome.ProtocolError, outcome.NotAccepted, fmt.Sprintf("resource %q", g.gate.resource), "the guard's record cannot be read", err)
			}
		}
		if err := g.gate.Judge(t, seen); err != nil {
			return err
		}
		if seen == t {
			g.held, g.at = t, at
			return nil
		}
		ack, err := g.arrival.send(ctx, w, at, g.subject)
		if err == nil {
			g.held, g.at = t, ack.Sequence
			return nil
		}
		if !errors.Is(err, errMoved) {
			return err
		}
	}
}
