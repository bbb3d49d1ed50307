package kvlocation

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
)

// BenchmarkWriteCAS compares a compare-and-set through the write path with the same by hand (a request with the
// expectation in a header, its answer parsed without reflection) and with jetstream.KeyValue.Update: same server,
// same bucket settings, same 64 bytes, one connection each. The write path sends a message ID too and can tell what
// became of a write whose answer is lost; the others can't.
func BenchmarkWriteCAS(b *testing.B) {
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
	value := []byte(strings.Repeat("x", 64))
	bounded, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	sides := []struct {
		name string
		do   func(key string, revision uint64) (uint64, error)
	}{
		{"fabric", func(key string, revision uint64) (uint64, error) {
			r, err := s.write(bounded, write{bucket: s.location, key: key, expect: revision, value: value, opID: nuid.Next()})
			return r.revision, err
		}},
		{"raw", func(key string, revision uint64) (uint64, error) {
			m := &nats.Msg{Subject: "$KV.FABRIC_m_LOCATION." + key, Data: value, Header: nats.Header{
				nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(revision, 10)},
			}}
			r, err := nc.RequestMsg(m, 2*time.Second)
			if err != nil {
				return 0, err
			}
			seq, ok := parseStored(r.Data)
			if !ok {
				b.Fatalf("%s", r.Data)
			}
			return seq, nil
		}},
		{"kv.Update", func(key string, revision uint64) (uint64, error) { return kv.Update(ctx, key, value, revision) }},
	}
	for _, callers := range []int{1, 64} {
		for _, side := range sides {
			b.Run("callers="+strconv.Itoa(callers)+"/"+side.name, func(b *testing.B) {
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				run := nuid.Next()
				for c := range callers {
					wg.Go(func() {
						key := "bench." + run + strconv.Itoa(c)
						var revision uint64
						for i := c; i < b.N; i += callers {
							r, err := side.do(key, revision)
							if err != nil {
								b.Errorf("%v", err)
								return
							}
							revision = r
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
