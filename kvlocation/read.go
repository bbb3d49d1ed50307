package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// maxSnapshotKeys is how many keys one consistent read may name or match: the server's bound.
const maxSnapshotKeys = 1024

// storedMsg is one message of a bucket: the last one of its key.
type storedMsg struct {
	key      string
	revision uint64
	value    []byte
	time     time.Time // the server's
	header   nats.Header
	opID     string // the operation ID of the write that made it
}

// deleted reports whether the message is a marker: made by a delete or by an expiry.
func (m *storedMsg) deleted() bool {
	if op := first(m.header, "KV-Operation"); op == "PURGE" || op == "DEL" {
		return true
	}
	return m.expired()
}

// expired reports whether the message is the server's marker of an expiry.
func (m *storedMsg) expired() bool { return first(m.header, "Nats-Marker-Reason") != "" }

func first(h nats.Header, key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// snapshot is one consistent state of several keys at one replica.
type snapshot struct {
	upTo uint64 // the replica's last sequence
	msgs []*storedMsg
}

// get returns the message of a key, or nil.
func (s *snapshot) get(key string) *storedMsg {
	for _, m := range s.msgs {
		if m.key == key {
			return m
		}
	}
	return nil
}

// get reads the last message of a key from any replica, so it may be stale; nil means that there is none.
func (s *Store) get(ctx context.Context, b *bucket, key string) (*storedMsg, error) {
	c := s.mux.take(false)
	defer s.mux.put(c)
	c.msg.Subject = b.direct + "." + b.subject + key

	var found *storedMsg
	err := s.ask(ctx, c, "read", b.name+" "+key, func(m *nats.Msg) (bool, error) {
		if statusOf(m) == "404" {
			return true, nil
		}
		var err error
		found, err = b.parse(m)
		return err == nil, err
	})
	return found, err
}

// snapshot reads the last messages of keys (wildcards allowed) in one consistent state that is no older than floor.
// Since the server does not say how far it is when none of them exists, the store's own probe key is read along,
// and written when it is missing too.
func (s *Store) snapshot(ctx context.Context, b *bucket, floor uint64, keys ...string) (*snapshot, error) {
	probe := s.probeKey()
	names := make([]string, 0, len(keys)+1)
	for _, k := range keys {
		names = append(names, b.subject+k)
	}
	names = append(names, b.subject+probe)
	body, err := json.Marshal(map[string]any{"multi_last": names})
	if err != nil {
		return nil, refused("read", b.name, err)
	}
	limit := s.limit(ctx, monotime.Now())
	for try := 0; ; try++ {
		snap, err := s.readSeveral(ctx, b, body)
		if err != nil {
			return nil, err
		}
		if snap.upTo == 0 {
			seq, err := s.probe(ctx, b)
			if err != nil {
				return nil, err
			}
			floor = max(floor, seq)
			continue
		}
		if snap.upTo >= floor {
			return snap, nil
		}
		err = s.sleep(ctx, backoff(try))
		if err == nil && monotime.Now() > limit {
			err = errNoAnswer
		}
		if err != nil {
			return nil, unavailable("read", b.name, errors.Join(err,
				fmt.Errorf("the replica that answered is at sequence %d, behind %d", snap.upTo, floor)))
		}
	}
}

// readSeveral makes one consistent read. A result with upTo 0 means that none of the keys exists.
func (s *Store) readSeveral(ctx context.Context, b *bucket, body []byte) (*snapshot, error) {
	c := s.mux.take(true)
	defer func() { s.mux.put(c) }()
	c.msg.Subject, c.msg.Data = b.direct, body

	var snap *snapshot
	err := s.ask(ctx, c, "read", b.name, func(m *nats.Msg) (bool, error) {
		switch statusOf(m) {
		case "204":
		case "404":
			snap = &snapshot{}
			return true, nil
		default:
			return false, fmt.Errorf("unexpected answer %v to a read of several keys", m.Header)
		}
		var err error
		snap, err = b.parseSeveral(s.mux.parts(c), m)
		return err == nil, err
	})
	return snap, err
}

// maxPatience is by how much an attempt's time grows (a power of two) when nothing comes. It must grow: what a slow
// server answers to attempts that were given up stands before what it answers to the present one.
const maxPatience = 4

// ask sends c's message until accept says that the answer will do. A read is harmless, so each attempt is simply
// sent again, and an answer to an earlier one is as good; but the parts of two answers must not mix.
func (s *Store) ask(ctx context.Context, c *call, op, target string, accept func(*nats.Msg) (bool, error)) error {
	limit := s.limit(ctx, monotime.Now())
	var why error
	silent := 0
	for try := 0; ; try++ {
		if monotime.Now() > limit || s.ctx.Err() != nil || ctx.Err() != nil {
			if s.ctx.Err() != nil {
				why = errors.Join(errStoreClosed, why)
			}
			return unavailable(op, target, errors.Join(ctx.Err(), why))
		}
		err := s.nc.PublishMsg(&c.msg)
		if err == nil {
			m, end := c.wait(ctx, s.attempt/4<<min(silent, maxPatience))
			if end != answered {
				silent++
				why = noAnswer(end)
			} else if st := statusOf(m); st == "503" {
				if err := s.missing(); err != nil {
					return unavailable(op, target, err)
				}
				why = errors.New("no replica answers reads (503)")
			} else if st == "413" || st == "408" || st == "400" {
				return outcome.New(op, outcome.InternalFailure, outcome.NotAccepted, target, "the server refused the read: "+first(m.Header, "Description"))
			} else if ok, err := accept(m); ok {
				return nil
			} else {
				why = err
			}
		} else if why = notSent(err); hopeless(err) {
			return unavailable(op, target, err)
		}
		if c.several {
			s.mux.renew(c)
		}
		c.pause(ctx, backoff(try))
	}
}

// parse reads the answer to a direct get.
func (b *bucket) parse(m *nats.Msg) (*storedMsg, error) {
	subject := first(m.Header, "Nats-Subject")
	seq, err := strconv.ParseUint(first(m.Header, "Nats-Sequence"), 10, 64)
	if err != nil || len(subject) <= len(b.subject) || subject[:len(b.subject)] != b.subject {
		return nil, fmt.Errorf("cannot read the server's answer %v", m.Header)
	}
	at, err := time.Parse(time.RFC3339Nano, first(m.Header, "Nats-Time-Stamp"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the server's time stamp: %w", err)
	}
	return &storedMsg{
		key: subject[len(b.subject):], revision: seq, value: m.Data, time: at,
		header: m.Header, opID: first(m.Header, nats.MsgIdHdr),
	}, nil
}

// parseSeveral reads the answer to a read of several keys: all of its parts, then the end.
func (b *bucket) parseSeveral(parts []*nats.Msg, end *nats.Msg) (*snapshot, error) {
	msgs, err := b.parseParts(parts, end)
	if err != nil {
		return nil, err
	}
	if first(end.Header, "Nats-Num-Pending") != "0" {
		return nil, errPartMissing
	}
	upTo, err := strconv.ParseUint(first(end.Header, "Nats-UpTo-Sequence"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read the server's answer %v", end.Header)
	}
	return &snapshot{msgs: msgs, upTo: upTo}, nil
}

var errPartMissing = errors.New("a part of the server's answer is missing")

// parseParts reads the parts of an answer. Each names its predecessor, and the end the last one, so a lost one is
// noticed.
func (b *bucket) parseParts(parts []*nats.Msg, end *nats.Msg) ([]*storedMsg, error) {
	msgs := make([]*storedMsg, 0, len(parts))
	last := "0"
	for _, p := range parts {
		if first(p.Header, "Nats-Last-Sequence") != last {
			return nil, errPartMissing
		}
		last = first(p.Header, "Nats-Sequence")
		m, err := b.parse(p)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	if first(end.Header, "Nats-Last-Sequence") != last {
		return nil, errPartMissing
	}
	return msgs, nil
}

// sleep waits for d; its error says why it ended early.
func (s *Store) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errStoreClosed
	}
}
