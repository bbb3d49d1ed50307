package kvlocation

import (
	"context"
	"fmt"
	"slices"
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
	sides := []casSide{
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

// casSide is one way to do a compare-and-set.
type casSide struct {
	name string
	do   func(key string, revision uint64) (uint64, error)
}

// run does n writes, each caller on a key of its own.
func (s casSide) run(b *testing.B, callers, n int) {
	b.Helper()
	var wg sync.WaitGroup
	name := nuid.Next()
	for c := range callers {
		wg.Go(func() {
			key, revision := fmt.Sprintf("bench.%s-%d", name, c), uint64(0)
			for i := c; i < n; i += callers {
				r, err := s.do(key, revision)
				if err != nil {
					b.Errorf("%s: %v", s.name, err)
					return
				}
				revision = r
			}
		})
	}
	wg.Wait()
}

// reportRatios runs the sides in turn, 15 rounds of 64 callers' worth of writes, and reports how many times as fast
// as each of the others the first one is: the median of the rounds, and their spread.
func reportRatios(b *testing.B, sides []casSide, callers int) {
	b.Helper()
	const rounds = 15
	n := 300 * (1 + callers/16)
	ratios, took := make([][]float64, len(sides)), make([]time.Duration, len(sides))
	for round := range rounds {
		for j := range sides {
			i := (round + j) % len(sides) // no side always comes first
			start := time.Now()
			sides[i].run(b, callers, n)
			took[i] = time.Since(start)
		}
		for i := range sides {
			ratios[i] = append(ratios[i], float64(took[i])/float64(took[0]))
		}
	}
	for i, s := range sides[1:] {
		r := ratios[i+1]
		slices.Sort(r)
		b.ReportMetric(r[rounds/2], "x-"+s.name)
		b.ReportMetric((r[rounds*3/4]-r[rounds/4])/r[rounds/2], "spread-"+s.name)
	}
}
