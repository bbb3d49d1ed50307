package kvlocation

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

// Bounds of what one part of a scan reads.
const (
	// MaxScanPage is the most entries of one page.
	MaxScanPage = 1000
	// walkBatch and walkBytes bound one answer of the store.
	walkBatch = 500
	walkBytes = 1 << 20
	// pageMessages and pageBytes bound what is read for one page, whether it matches or not.
	pageMessages = 20_000
	pageBytes    = 8 << 20
)

// ScanFilter says which objects are meant: those that match every field that is set.
type ScanFilter struct {
	Kind  ObjectKind
	Class Class
	Type  string
	// RID and Lifecycle are those of the recorded owner; of an object that was given up for a move, those of the move's
	// target (Record.Holder).
	RID       string
	Lifecycle uint64
	// References lets Actors match that are located by reference, whatever RID and Lifecycle are: their records have no
	// owner, so whoever wants those of one node follows the references.
	References bool
	// Prefix is the beginning of the ID.
	Prefix string
}

func (f ScanFilter) check() error {
	if f.Kind != "" && f.Kind != KindActor && f.Kind != KindSpot {
		return fmt.Errorf("object kind %q is not allowed: it must be %s or %s, or empty for both", f.Kind, KindActor, KindSpot)
	}
	if f.Class != "" && f.Class.Key() == "" {
		return fmt.Errorf("class %q is not allowed: it must be %s, %s or %s, or empty for all", f.Class, ClassActor, ClassUserSpot, ClassInstanceSpot)
	}
	return nil
}

// key returns the object of a key in the bucket LOCATION, if it is one and the filter may match it.
func (f ScanFilter) key(name string) (ObjectKey, bool) {
	kind, token, _ := strings.Cut(name, ".")
	k := ObjectKind(kind)
	if k != KindActor && k != KindSpot || f.Kind != "" && f.Kind != k {
		return ObjectKey{}, false
	}
	id, err := wire.UnescapeID(token)
	if err != nil || !strings.HasPrefix(id, f.Prefix) {
		return ObjectKey{}, false // what no program of ours writes is no object
	}
	return ObjectKey{Kind: k, ID: id}, true
}

func (f ScanFilter) matches(e Entry) bool {
	r := &e.Record
	if r.Phase == PhaseMissing || f.Class != "" && f.Class != r.Kind || f.Type != "" && f.Type != r.Type {
		return false
	}
	holder := r.Holder()
	if (f.RID == "" || f.RID == holder.RID) && (f.Lifecycle == 0 || f.Lifecycle == holder.Lifecycle) {
		return true
	}
	_, referred := r.Reference()
	return f.References && referred
}

// Scan calls each with every object that matches the filter, in the order of their revisions, until each returns
// false. It makes no consumer and holds one answer of at most 1 MiB, or one record, at a time. Any replica may answer.
//
// Every object that exists during the whole call comes at least once, and every entry was true at some moment of the
// call or a few milliseconds before it. An object that is written meanwhile may come again, as it is then, and one that
// is closed may have come before: who acts on an entry does it by a compare-and-set. A record that this version cannot
// read is logged and left out.
//
// Errors are *outcome.Error: InvalidOperation for a filter that is not allowed, Unavailable when the store does not
// answer, or does not take the write by which the end of the scan is confirmed. When ctx has no deadline,
// Config.Timeout bounds each single step.
func (s *Store) Scan(ctx context.Context, f ScanFilter, each func(Entry) bool) error {
	if err := f.check(); err != nil {
		return refused("scan", s.location.name, err)
	}
	_, err := s.walk(ctx, s.location, 0, true, func(m *storedMsg) bool {
		e, ok := s.scanned(f, m)
		return !ok || each(e)
	})
	return err
}

// ScanPage is Scan in pages of at most limit entries (0 means 100, at most MaxScanPage): it begins behind the cursor
// after ("" for the first page) and returns the cursor of the next page, "" when there is none. A page has fewer
// entries, even none, when it took much reading to find them. Over all pages the promise is that of Scan for the time
// from the first call to the last one.
//
// Errors are those of Scan, and InvalidOperation for a limit or cursor that is not allowed.
func (s *Store) ScanPage(ctx context.Context, f ScanFilter, after string, limit int) (entries []Entry, next string, err error) {
	if err := f.check(); err != nil {
		return nil, "", refused("scan", s.location.name, err)
	}
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > MaxScanPage {
		return nil, "", refused("scan", s.location.name, fmt.Errorf("limit %d is not allowed: it must be 1 to %d", limit, MaxScanPage))
	}
	from, err := s.parseCursor(after)
	if err != nil {
		return nil, "", refused("scan", s.location.name, err)
	}
	messages, size := 0, 0
	from, err = s.walk(ctx, s.location, from, true, func(m *storedMsg) bool {
		messages, size = messages+1, size+len(m.value)
		if e, ok := s.scanned(f, m); ok {
			entries = append(entries, e)
		}
		return len(entries) < limit && messages < pageMessages && size < pageBytes
	})
	if err != nil {
		return nil, "", err
	}
	if from > 0 {
		next = fmt.Sprintf("%d-%d", s.Epoch(), from)
	}
	return entries, next, nil
}

// parseCursor returns the revision at which a page begins.
func (s *Store) parseCursor(cursor string) (uint64, error) {
	if cursor == "" {
		return 0, nil
	}
	e, r, _ := strings.Cut(cursor, "-")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	from, err2 := strconv.ParseUint(r, 10, 64)
	if err1 != nil || err2 != nil || from == 0 {
		return 0, fmt.Errorf("cursor %q is none that a page returned", cursor)
	}
	if epoch != s.Epoch() {
		return 0, fmt.Errorf("cursor %q is of another store (epoch %d, this one has %d): begin again", cursor, epoch, s.Epoch())
	}
	return from, nil
}

// scanned returns the entry in a message, if it matches.
func (s *Store) scanned(f ScanFilter, m *storedMsg) (Entry, bool) {
	key, ok := f.key(m.key)
	if !ok {
		return Entry{}, false
	}
	e, err := entryOf(key, m)
	if err != nil {
		s.log.Warn("record left out of a scan", zap.Error(err))
		return Entry{}, false
	}
	return e, f.matches(e)
}

// walk visits the messages of a bucket in the order of their revisions, from one revision on, until visit returns
// false: next is then where to go on. next is 0 at the end. Replicas that are behind answer too. With confirm the end
// therefore counts only where a write of an own key is seen that was sent after walk was called: whoever has that has
// everything before it, and what was moved behind the reader by a write comes later.
func (s *Store) walk(ctx context.Context, b *bucket, from uint64, confirm bool, visit func(*storedMsg) bool) (next uint64, err error) {
	from = max(from, 1)
	filter := b.subject + ">"
	var confirmed uint64 // the sequence of the latest own write
	for try := 0; ; {
		msgs, more, err := s.readBatch(ctx, b, filter, from, walkBytes)
		if err != nil {
			return 0, err
		}
		for _, m := range msgs {
			from = m.revision + 1
			if !visit(m) {
				return from, nil
			}
		}
		switch {
		case more:
			continue
		case !confirm || confirmed > 0 && from > confirmed:
			return 0, nil
		case confirmed > 0: // by a replica that is behind
			if err := s.sleep(ctx, backoff(try)); err != nil {
				return 0, unavailable("read", b.name, err)
			}
			try++
		}
		if confirmed, err = s.probe(ctx, b); err != nil {
			return 0, err
		}
	}
}

// readBatch reads the first messages of some subjects of a bucket from a revision on, so many bytes or one message, and whether the replica that answers has more.
func (s *Store) readBatch(ctx context.Context, b *bucket, subjects string, from uint64, bytes int) (msgs []*storedMsg, more bool, err error) {
	body, err := json.Marshal(map[string]any{
		"next_by_subj": subjects, "seq": from, "batch": walkBatch, "max_bytes": bytes,
	})
	if err != nil {
		return nil, false, refused("read", b.name, err)
	}
	c := s.mux.take(true)
	defer s.mux.put(c)
	c.msg.Subject, c.msg.Data = b.direct, body
	err = s.ask(ctx, c, "read", b.name, func(end *nats.Msg) (bool, error) {
		if statusOf(end) == "404" {
			return true, nil
		}
		var err error
		if msgs, err = b.parseParts(s.mux.parts(c), end); err != nil {
			return false, err
		}
		pending, err := strconv.ParseUint(first(end.Header, "Nats-Num-Pending"), 10, 64)
		if err != nil {
			return false, fmt.Errorf("cannot read the server's answer %v", end.Header)
		}
		more = pending > 0
		return true, nil
	})
	return msgs, more, err
}
