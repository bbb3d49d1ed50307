package kvlocation

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
)

// benchRecord is a Ready record of its final size: eight operation IDs, and what it belongs to.
func benchRecord() Record {
	r := Record{
		V: 1, Phase: PhaseReady, Kind: ClassActor, Type: "ledger", Owner: Owner{RID: "n1", Lifecycle: 1234567, Lease: 1234567},
		Generation: 2345678, OwnerGeneration: 1, Write: 99, With: json.RawMessage(`"` + strings.Repeat("x", 64) + `"`),
		Created: now(), Updated: now(),
	}
	for i := range maxOps {
		r.Ops = append(r.Ops, fmt.Sprintf("cC763FVWDzhqrKUeukud%02d", i))
	}
	return r
}

// BenchmarkRecord is the client's own work for one change of a record.
func BenchmarkRecord(b *testing.B) {
	r := benchRecord()
	at := Entry{Key: ObjectKey{Kind: KindActor, ID: "alice"}, Revision: 3456789, Record: r, read: true}
	value, err := r.MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	a := at.action(VerbAdopt, Owner{RID: "n1", Lifecycle: 1234567, Lease: 2345678})
	a.OpID, a.Now = "cC763FVWDzhqrKUeukud99", now()
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.MarshalJSON(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		m := &storedMsg{revision: 7, value: value}
		for b.Loop() {
			if _, err := entryOf(at.Key, m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("transition", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Transition(at, a); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRecordCAS compares an adoption, which is one compare-and-set of a record, with a compare-and-set of a value
// of the same size by hand and with KeyValue.Update.
func BenchmarkRecordCAS(b *testing.B) {
	srv := fabrictest.StartServer(b, fabrictest.AsProcess())
	nc := connect(b, srv.URL())
	ctx := context.Background()
	if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
		b.Fatal(err)
	}
	s := openStore(b, connect(b, srv.URL()), Config{Mesh: "m"})
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	kv, err := js.KeyValue(ctx, "FABRIC_m_LOCATION")
	if err != nil {
		b.Fatal(err)
	}
	r := benchRecord()
	value, err := r.MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	sides := []casSide{
		{"fabric", s.adoptions()},
		{"raw", func(key string, revision uint64) (uint64, error) {
			m := &nats.Msg{Subject: "$KV.FABRIC_m_LOCATION." + key, Data: value, Header: nats.Header{
				nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(revision, 10)},
			}}
			ack, err := nc.RequestMsg(m, 2*time.Second)
			if err != nil {
				return 0, err
			}
			seq, ok := parseStored(ack.Data)
			if !ok {
				b.Fatalf("%s", ack.Data)
			}
			return seq, nil
		}},
		{"kv.Update", func(key string, revision uint64) (uint64, error) { return kv.Update(ctx, key, value, revision) }},
	}
	for _, callers := range []int{1, 64} {
		for _, side := range sides {
			b.Run(fmt.Sprintf("callers=%d/%s", callers, side.name), func(b *testing.B) {
				b.ReportAllocs()
				side.run(b, callers, b.N)
			})
		}
		b.Run(fmt.Sprintf("callers=%d/ratio", callers), func(b *testing.B) {
			for b.Loop() {
				reportRatios(b, sides, callers)
			}
		})
	}
}

// adoptions is a side that adopts the object of a key again and again. The first one makes it.
func (s *Store) adoptions() func(key string, revision uint64) (uint64, error) {
	var known sync.Map // by key: *Entry
	return func(key string, revision uint64) (uint64, error) {
		ctx := context.Background()
		var at *Entry
		if revision > 0 {
			e, _ := known.Load(key)
			at = e.(*Entry)
		} else {
			o := room(ObjectKey{Kind: KindActor, ID: key}, n1, nil)
			o.With = benchRecord().With
			ch, err := s.Create(ctx, o)
			if err == nil {
				ch, err = s.Ready(ctx, ch.Entry, n1)
			}
			if err != nil {
				return 0, err
			}
			at = &ch.Entry
			known.Store(key, at)
		}
		owner := at.Record.Owner
		owner.Lease++
		ch, err := s.Adopt(ctx, *at, owner)
		if err != nil {
			return 0, err
		}
		*at = ch.Entry
		return ch.Entry.Revision, nil
	}
}
