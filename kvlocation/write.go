package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// resolveLimit bounds the time, from the first sending, within which "not applied" may be concluded from what a key
// holds. It is below markerTTL by a margin for the server's clock and for the reading.
const resolveLimit = markerTTL - time.Minute

// write is one change of one key. Its zero fields mean: expect nothing there, no TTL, a value.
type write struct {
	bucket *bucket
	key    string
	// subject is where the key is published; "" when it is yet to be put together.
	subject string
	expect  uint64 // the revision that must be the key's last; 0 = no message at all
	blind   bool   // no expectation: only for keys that no decision is ever based on
	value   []byte
	opID    string        // also the message ID; the same for every sending
	ttl     time.Duration // whole seconds; 0 = for ever
	marker  bool          // a delete marker, which keeps value
	rollup  bool          // takes the place of every earlier message of the key
	// ops and count go into headers (shared keys): the key's last operation IDs, and the number of this write.
	ops   string
	count uint64
	part  string // goes into a header: which part of a move it is
	// applied judges what the key holds (nil: no message) after the revision has moved, when that is not the write
	// itself. Without one nobody can tell.
	applied judge
}

// judge tells what became of a write from what its key holds.
type judge interface {
	judge(*storedMsg) verdict
}

// verdict is what a stored value tells about a write.
type verdict uint8

const (
	cannotTell verdict = iota
	wasApplied
	wasLost
)

// writeResult says what is known about a write that was applied.
type writeResult struct {
	// revision is the write's own; 0 when it was recognised only in a later value.
	revision uint64
	// firstSent is the moment just before the first sending that may have been the applied one.
	firstSent monotime.Time
	// repeated is true when the write was sent more than once.
	repeated bool
	// current is what the key holds, when resolving the write took a read; else nil.
	current *storedMsg
}

// sending is a write on its way: what is known about what was sent so far. A write whose result is unknown can be
// taken up again with it.
type sending struct {
	write
	firstSent monotime.Time
	mark      uint64 // the highest sequence known at firstSent: the write is stored above it
	sent      int
	// open is true when some sending may have been, or may still be, applied.
	open bool
}

// write sends w until its result is known or ctx (Config.Timeout if it has no deadline) ends. It is the one path by
// which any key of the mesh is written. Errors are *outcome.Error:
//   - NotAccepted with ErrConflict in its chain: definitely not applied, the key had another revision;
//   - NotAccepted otherwise: definitely not applied (never sent, or refused by the server);
//   - Unavailable with Unknown: sent, and nobody can tell (yet).
func (s *Store) write(ctx context.Context, w write) (writeResult, error) {
	sd := sending{write: w}
	return s.resolve(ctx, &sd)
}

// resolve sends the same write, again if need be, until a definite answer comes (FO-7a).
func (s *Store) resolve(ctx context.Context, sd *sending) (writeResult, error) {
	if err := s.checkSize(sd); err != nil {
		return writeResult{}, err
	}
	c := s.mux.take(false)
	defer s.mux.put(c)
	sd.fill(c)
	return s.pursue(ctx, sd, c, false, nil)
}

// pursue is resolve for a write whose message is in c. begun says that it has been handed to the connection once, with
// the error of that.
func (s *Store) pursue(ctx context.Context, sd *sending, c *call, begun bool, err error) (writeResult, error) {
	var (
		now   = monotime.Now()
		limit = s.limit(ctx, now)
		why   error
	)
	for try := 0; ; try++ {
		if try > 0 {
			now = monotime.Now()
		}
		if err := s.refusal(); err != nil {
			if !sd.open {
				return writeResult{}, err
			}
			return writeResult{}, s.unresolved(ctx, sd, err) // a revision of the old store fences nothing in this one
		}
		if !sd.open {
			sd.firstSent = now // nothing sent before this can have been applied
			sd.mark = sd.bucket.life.mark.Load()
		}
		if !begun {
			if now > limit || s.ctx.Err() != nil || ctx.Err() != nil {
				return writeResult{}, s.unresolved(ctx, sd, why)
			}
			err = s.nc.PublishMsg(&c.msg)
		}
		begun = false
		if err != nil && neverSent(err) {
			if why = notSent(err); hopeless(err) {
				return writeResult{}, s.unresolved(ctx, sd, why)
			}
			c.pause(ctx, backoff(try))
			continue
		}
		sd.sent++
		if err != nil { // a failed socket write may have carried the bytes out
			sd.open, why = true, err
			c.pause(ctx, backoff(try))
			continue
		}
		msg, end := c.wait(ctx, min(s.attempt, limit.Sub(now)))
		if end != answered {
			sd.open, why = true, noAnswer(end)
			continue
		}
		ack := parseAck(msg)
		switch {
		case ack.err == nil:
			if err := s.acknowledged(sd.bucket, sd.mark, ack.seq); err != nil {
				return writeResult{}, err
			}
			return writeResult{revision: ack.seq, firstSent: sd.firstSent, repeated: sd.sent > 1}, nil
		case ack.code == codeWrongLastSequence && !sd.open && ack.seq > sd.expect:
			return writeResult{}, s.conflict(sd, ack.seq)
		case ack.code == codeWrongLastSequence:
			res, again, err := s.judge(ctx, sd, ack.seq)
			if !again {
				return res, err
			}
		case ack.refused:
			if !sd.open {
				return writeResult{}, outcome.Wrap("write", outcome.InternalFailure, outcome.NotAccepted, sd.name(), "the server refused it", ack.err)
			}
			return writeResult{}, s.unresolved(ctx, sd, ack.err)
		default:
			if err := s.missing(); err != nil && ack.nobody {
				return writeResult{}, s.unresolved(ctx, sd, err)
			}
			// Around a change of leaders two servers may answer one sending: one refuses what the other stores. Only
			// "nobody took it" speaks for all of them.
			sd.open = sd.open || !ack.nobody
		}
		why = ack.err
		c.pause(ctx, backoff(try))
	}
}

// judge decides a write whose expectation was found not to hold although some sending may have been applied: it reads
// the key no older than the revision that the server named. again is true when the key still has the expected
// revision: the answer came from a server that was behind, so the write is sent again.
func (s *Store) judge(ctx context.Context, sd *sending, named uint64) (res writeResult, again bool, err error) {
	only := !sd.open // nothing was sent but what was just refused
	sd.open = true   // then by a server that is behind, so another one may have stored it (see resolve)
	snap, err := s.snapshot(ctx, sd.bucket, max(named, sd.expect), sd.key)
	if err != nil {
		return res, false, s.unresolved(ctx, sd, err)
	}
	m := snap.get(sd.key)
	var current uint64
	if m != nil {
		current = m.revision
	}
	if current == sd.expect {
		return res, true, nil
	}
	res = writeResult{firstSent: sd.firstSent, repeated: sd.sent > 1, current: m}
	if m != nil && m.opID == sd.opID {
		res.revision = m.revision
		return res, false, nil
	}
	v := cannotTell
	if sd.applied != nil {
		v = sd.applied.judge(m)
	}
	if v == wasApplied {
		return res, false, nil
	}
	if only || v == wasLost && monotime.Since(sd.firstSent) < resolveLimit {
		return writeResult{}, false, s.conflict(sd, current)
	}
	return writeResult{}, false, s.unresolved(ctx, sd, fmt.Errorf("%s is at revision %d, and what it holds does not tell", sd.key, current))
}

func (sd *sending) name() string { return sd.bucket.name + " " + sd.key }

func (s *Store) conflict(sd *sending, current uint64) error {
	return outcome.Wrap("write", outcome.InvalidOperation, outcome.NotAccepted, sd.name(), "",
		&conflictError{key: sd.key, expected: sd.expect, current: current})
}

// unresolved is the end of a write without a definite answer; why is what went wrong last.
func (s *Store) unresolved(ctx context.Context, sd *sending, why error) error {
	acc, detail := outcome.NotAccepted, "not applied"
	if sd.open {
		acc, detail = outcome.Unknown, fmt.Sprintf("sent %d times without a definite answer", sd.sent)
	}
	if s.ctx.Err() != nil {
		why = errors.Join(errStoreClosed, why)
	}
	if err := ctx.Err(); err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
			err = cause // that of those who waited for a probe
		}
		why = errors.Join(err, why)
	}
	return outcome.Wrap("write", outcome.Unavailable, acc, sd.name(), detail, why)
}

var errStoreClosed = errors.New("the store was closed")

// fill puts the message into c. Every sending is byte for byte the same.
func (sd *sending) fill(c *call) {
	if c.msg.Subject = sd.subject; c.msg.Subject == "" {
		c.msg.Subject = sd.bucket.publish + sd.key
	}
	c.msg.Data = sd.value
	c.set(nats.MsgIdHdr, sd.opID)
	if !sd.blind {
		c.set(nats.ExpectedLastSubjSeqHdr, strconv.FormatUint(sd.expect, 10))
	}
	if sd.marker {
		c.set("KV-Operation", "PURGE")
	}
	if sd.marker || sd.rollup {
		c.set("Nats-Rollup", "sub")
	}
	if sd.ops != "" {
		c.set(wire.HeaderOps, sd.ops)
		c.set(wire.HeaderWrite, strconv.FormatUint(sd.count, 10))
	}
	if sd.part != "" {
		c.set(wire.HeaderPart, sd.part)
	}
	if sd.ttl > 0 {
		c.set("Nats-TTL", strconv.FormatInt(int64(sd.ttl/time.Second), 10))
	}
}

// maxHeader bounds the headers of a write: the fixed names, one key, numbers and nine operation IDs.
const maxHeader = 768

func (s *Store) checkSize(sd *sending) error {
	if most := s.nc.MaxPayload() - maxHeader; most > 0 && int64(len(sd.value)) > most {
		return outcome.New("write", outcome.CapacityExceeded, outcome.NotAccepted, sd.name(),
			fmt.Sprintf("the value has %d bytes, the server takes %d", len(sd.value), most))
	}
	return nil
}

// limit is the latest end of an operation: that of the context decides, but none is pursued beyond the time in which
// its result could still be concluded.
func (s *Store) limit(ctx context.Context, now monotime.Time) monotime.Time {
	if _, ok := ctx.Deadline(); ok {
		return now.Add(resolveLimit)
	}
	return now.Add(s.timeout)
}

// backoff is the pause before the next attempt: 1 ms, doubled each time up to 256 ms, of which up to half is random.
func backoff(try int) time.Duration {
	d := time.Millisecond << min(try, 8)
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

// neverSent reports errors of Publish that say for certain that nothing left the process.
func neverSent(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionReconnecting) || hopeless(err)
}

// notSent says what an error of Publish means: a connection that is down and keeps no buffer reports a full one.
func notSent(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return errNotConnected
	}
	return err
}

// hopeless reports the ones among them that no repetition cures.
func hopeless(err error) bool {
	for _, e := range []error{
		nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrInvalidConnection, nats.ErrMaxPayload,
		nats.ErrBadSubject, nats.ErrHeadersNotSupported, nats.ErrBadHeaderMsg, nats.ErrInvalidMsg,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

var (
	errNotConnected = errors.New("not connected to NATS")
	errConnLost     = errors.New("the connection was lost before an answer came")
	errNoAnswer     = errors.New("no answer within the attempt's time")
)

func noAnswer(end waitEnd) error {
	switch end {
	case connLost:
		return errConnLost
	case attemptOver:
		return errNoAnswer
	}
	return nil // the context's own error says it
}
