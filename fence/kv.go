package fence

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/outcome"
)

// Bucket is a JetStream KV bucket of the application's whose keys are written through guards (FE-3).
//
// Concurrency: any number of goroutines may use a Bucket.
type Bucket struct {
	arrival *arrival
	name    string
}

// OpenBucket finds the bucket. NotConfigured says that there is none; Unavailable that it could not be read; InvalidOperation
// that it would forget the highest token: a TTL, a limit that discards the oldest, or storage in the memory of one server. ctx without a deadline is bounded by DefaultWriteTimeout.
func OpenBucket(ctx context.Context, js jetstream.JetStream, name string) (*Bucket, error) {
	a, _, err := openArrival(ctx, js, "KV_"+name, false)
	if err != nil {
		return nil, err
	}
	return &Bucket{arrival: a, name: name}, nil
}

var keyForm = regexp.MustCompile(`^[-/_=.a-zA-Z0-9]+$`)

// Guard returns the guard of a key. It takes tokens of the given source only; with "" the first token that the key sees
// binds it. It talks to no server. The error is InvalidOperation for a key that KV does not allow.
func (b *Bucket) Guard(key, source string) (*KVGuard, error) {
	if !keyForm.MatchString(key) || key[0] == '.' || key[len(key)-1] == '.' {
		return nil, outcome.New("guard", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("key %q of bucket %q", key, b.name),
			"it must be of A-Z, a-z, 0-9, -, /, _, = and ., and neither begin nor end with a dot")
	}
	return &KVGuard{
		gate: NewGate(b.name+" "+key, source), arrival: b.arrival, subject: "$KV." + b.name + "." + key, turn: newOneAtATime(),
	}, nil
}

// KVGuard writes one key of a bucket with the holder's token beside the value, in the header HeaderToken, and only by
// compare-and-set on the revision whose token was judged: a write whose revision was overtaken on its way is refused by
// the server when it arrives, and judged again. Every write of the key must go through a guard: one that does not leaves no token
// behind.
//
// What is deleted leaves a marker that keeps the token.
//
// Concurrency: any number of goroutines, processes and machines may use guards of the same key. One guard writes one
// value after the other.
type KVGuard struct {
	gate    *Gate
	arrival *arrival
	subject string
	turn    oneAtATime

	known *KVEntry // guarded by turn; what the key held last, nil when not known
}

// KVEntry is what a guarded key holds.
type KVEntry struct {
	// Value is what was put; nil when the key holds nothing.
	Value []byte
	// Revision is the key's, a marker's included; 0 when there is nothing at all.
	Revision uint64
	// Token is the highest that the key has seen, zero when none.
	Token Token
	// Deleted is true for a key that holds nothing.
	Deleted bool

	id string // of the write
}

// Put writes the value under the token of ctx and returns its revision. Refusals, with which nothing is written:
// *StaleError, *SourceError, InvalidOperation without a token. DeadlineExceeded and Unavailable say by their acceptance
// whether the value may have been written. ctx without a deadline is bounded by DefaultWriteTimeout.
func (g *KVGuard) Put(ctx context.Context, value []byte) (uint64, error) {
	return g.write(ctx, func(KVEntry) ([]byte, bool) { return value, false }, true)
}

// Delete removes the value; the token stays behind. It refuses as Put does.
func (g *KVGuard) Delete(ctx context.Context) error {
	_, err := g.write(ctx, func(KVEntry) ([]byte, bool) { return nil, true }, true)
	return err
}

// Raise makes the token of ctx the highest that the key has seen and keeps its value, so that from its return on no
// older holder writes the key (FE-11). It refuses as Put does.
func (g *KVGuard) Raise(ctx context.Context) error {
	_, err := g.write(ctx, func(e KVEntry) ([]byte, bool) { return e.Value, e.Deleted }, false)
	return err
}

// Get returns what the key holds, from any replica: a value may be a little old, but not older than what this guard has
// written, so that after Raise it shows all that older holders have written.
func (g *KVGuard) Get(ctx context.Context) (KVEntry, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := g.turn.enter(ctx, g.gate.resource); err != nil {
		return KVEntry{}, err
	}
	defer g.turn.leave()
	e, err := g.read(ctx)
	if err == nil && g.known != nil && e.Revision < g.known.Revision {
		return *g.known, nil
	}
	return e, err
}

// Stats returns what this guard has decided; other processes' are not in it.
func (g *KVGuard) Stats() Stats { return g.gate.Stats() }

// write stores what content says over what the key holds, unless its token is higher. A raise (pass false) has nothing to
// store over the same token.
func (g *KVGuard) write(ctx context.Context, content func(KVEntry) (value []byte, deleted bool), pass bool) (uint64, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := g.turn.enter(ctx, g.gate.resource); err != nil {
		return 0, err
	}
	defer g.turn.leave()
	w := newSent(&nats.Msg{Subject: g.subject})
	for {
		t, err := g.gate.Token(ctx) // asked each time: ownership may be lost while the server does not answer
		if err != nil {
			return 0, w.stopped(err)
		}
		if g.known == nil {
			e, err := g.read(ctx)
			if err != nil {
				return 0, err
			}
			g.known = &e
		}
		at := *g.known
		if w.open && at.id == w.msg.Header.Get(nats.MsgIdHdr) {
			return g.passed(pass, at.Revision)
		}
		if err := g.gate.Judge(t, at.Token); err != nil {
			return 0, w.stopped(err)
		}
		next := KVEntry{Token: t, id: w.msg.Header.Get(nats.MsgIdHdr)}
		next.Value, next.Deleted = content(at)
		w.msg.Data = next.Value
		w.msg.Header.Set(HeaderToken, t.String())
		w.msg.Header.Del("KV-Operation")
		if next.Deleted {
			w.msg.Header.Set("KV-Operation", "DEL")
		}
		ack, err := g.arrival.send(ctx, w, at.Revision, g.subject)
		switch {
		case err == nil:
			next.Revision = ack.Sequence
			g.known = &next // or what has overwritten it since: then the server refuses what expects it
			return g.passed(pass, ack.Sequence)
		case !errors.Is(err, errMoved):
			return 0, err
		}
		if g.known, err = g.newer(ctx, at.Revision, w); err != nil {
			return 0, err
		}
		if !w.open {
			w = newSent(&nats.Msg{Subject: g.subject}) // refused for ever; what follows is another write
		}
	}
}

func (g *KVGuard) passed(pass bool, revision uint64) (uint64, error) {
	if pass {
		g.gate.Pass()
	}
	return revision, nil
}

// newer reads the key until a replica shows another revision than the one that the server has just refused.
func (g *KVGuard) newer(ctx context.Context, refused uint64, w *sent) (*KVEntry, error) {
	for {
		e, err := g.read(ctx)
		switch {
		case err != nil:
			return nil, err
		case e.Revision != refused:
			return &e, nil
		}
		select {
		case <-ctx.Done():
			return nil, w.failed(outcome.DeadlineExceeded, "no replica shows what the server compared with", context.Cause(ctx))
		case <-time.After(againAfter):
		}
	}
}

func (g *KVGuard) read(ctx context.Context) (KVEntry, error) {
	m, err := g.arrival.last(ctx, g.subject)
	if err != nil {
		return KVEntry{}, err
	}
	if m == nil {
		return KVEntry{Deleted: true}, nil
	}
	e := KVEntry{Value: m.Data, Revision: m.Sequence, id: m.Header.Get(nats.MsgIdHdr)}
	if op := m.Header.Get("KV-Operation"); op == "DEL" || op == "PURGE" || m.Header.Get("Nats-Marker-Reason") != "" {
		e.Value, e.Deleted = nil, true
	} else if e.Value == nil {
		e.Value = []byte{}
	}
	e.Token, err = storedToken(m.Header.Get(HeaderToken))
	if err != nil {
		return KVEntry{}, outcome.Wrap("guarded write", outcome.ProtocolError, outcome.NotAccepted, fmt.Sprintf("resource %q", g.gate.resource), "the token beside the value cannot be read", err)
	}
	return e, nil
}

// storedToken reads a token that stands in the store; "" is none.
func storedToken(text string) (Token, error) {
	if text == "" {
		return Token{}, nil
	}
	return ParseToken(text)
}
