package bed

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// journalPath is the journal that all members of the bed share.
func (b *Bed) journalPath() string { return filepath.Join(b.dir, "journal") }

// Journal reads what the bed's objects did.
func (b *Bed) Journal(t testing.TB) []journal.Event {
	t.Helper()
	events, err := b.journal.Events()
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Noted returns the events of one object and kind.
func (b *Bed) Noted(t testing.TB, object string, what journal.What) (events []journal.Event) {
	t.Helper()
	for _, e := range b.Journal(t) {
		if e.Object == object && e.What == what {
			events = append(events, e)
		}
	}
	return events
}

// AwaitNoted waits until an object noted n events of a kind, and returns them.
func (b *Bed) AwaitNoted(t testing.TB, object string, what journal.What, n int) (events []journal.Event) {
	t.Helper()
	fabrictest.Eventually(t, Long, object+": "+string(what), func() bool {
		events = b.Noted(t, object, what)
		return len(events) >= n
	})
	return events
}

// Gate closes a gate before an object's factory, activation callback or turn; the test opens it, at its end at the
// latest.
func (b *Bed) Gate(t testing.TB, object string, what journal.What) (open func()) {
	t.Helper()
	return b.close(t, job.GateAt(b.dir, object, what))
}

// close closes a gate until open is called, at the end of the test at the latest.
func (b *Bed) close(t testing.TB, g job.Gate) (open func()) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	open = func() {
		if err := g.Open(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(open)
	return open
}

// WatchRecords notes every write of an object's record from now on, as the store publishes it, for the evidence.
func (b *Bed) WatchRecords(t testing.TB) {
	t.Helper()
	nc := b.Plain(t)
	prefix := wire.Mesh(Mesh).ChangePrefix() + ".location."
	_, err := nc.Subscribe(prefix+">", func(m *nats.Msg) {
		key := strings.TrimPrefix(m.Subject, prefix)
		kind, token, _ := strings.Cut(key, ".")
		if kind == "probe" {
			return
		}
		id, err := wire.UnescapeID(token)
		if err != nil {
			t.Errorf("record %s: %v", key, err)
			return
		}
		w := history.Write{Object: job.Object(kind, id)}
		if w.Revision, err = strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			t.Errorf("record %s: %v", key, err)
			return
		}
		if err := json.Unmarshal(m.Data, &w.Record); err != nil {
			t.Errorf("record %s: %v", key, err)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.writes = append(b.writes, w)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// CatchUp waits until the last write of each object to which an operation went is noted, too: the store's notices may be
// behind the answers of operations.
func (b *Bed) CatchUp(t testing.TB, ops []history.Op) {
	t.Helper()
	js, err := jetstream.New(b.Plain(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	stream, err := js.Stream(ctx, "KV_"+wire.Mesh(Mesh).LocationBucket())
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]uint64{}
	for _, op := range ops {
		if _, known := last[op.Object]; known || op.Object == "" {
			continue
		}
		m, err := stream.GetLastMsgForSubject(ctx, RecordSubject(op.Object))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Fatal(err)
		}
		if last[op.Object] = 0; m != nil {
			last[op.Object] = m.Sequence
		}
	}
	fabrictest.Eventually(t, Long, "every write of a record is noted", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		noted := map[string]uint64{}
		for _, w := range b.writes {
			noted[w.Object] = max(noted[w.Object], w.Revision)
		}
		for object, revision := range last {
			if noted[object] < revision {
				return false
			}
		}
		return true
	})
}

// Records returns what was noted of an object's record so far.
func (b *Bed) Records(object string) (ws []history.Write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.writes {
		if w.Object == object {
			ws = append(ws, w)
		}
	}
	return ws
}

// Record reads an object's record now, no older than this call.
func (b *Bed) Record(t testing.TB, store *kvlocation.Store, object string) kvlocation.Entry {
	t.Helper()
	kind, id, err := job.SplitObject(object)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	e, err := store.Read(ctx, kvlocation.ObjectKey{Kind: kvlocation.ObjectKind(kind), ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Hosts waits until a caller knows that these members serve and host objects. A member that died stands in its list, too.
func Hosts(t testing.TB, caller interface{ Members() *kvlocation.Members }, rids ...string) {
	t.Helper()
	fabrictest.Eventually(t, Long, "the caller sees that "+strings.Join(rids, ", ")+" host objects", func() bool {
		serving := map[string]bool{}
		for _, m := range caller.Members().Type(kvlocation.ClassActor, job.Book) {
			serving[m.RID] = m.State == kvlocation.StateServing
		}
		return !slices.ContainsFunc(rids, func(rid string) bool { return !serving[rid] })
	})
}

// RecordSubject is the subject on which an object's record is written.
func RecordSubject(object string) string {
	kind, id, err := job.SplitObject(object)
	if err != nil {
		panic(err)
	}
	token, err := wire.EscapeID(id)
	if err != nil {
		panic(err)
	}
	return "$KV." + wire.Mesh(Mesh).LocationBucket() + "." + kind + "." + token
}
