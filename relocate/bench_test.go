package relocate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
)

// BenchmarkMove compares the blackout of one Actor with 1 KiB of state, which a sender keeps busy, with what stands inside it at least: two record writes and
// four round trips, made one after the other on the same connections. The rows alternate, so that both see the same machine.
func BenchmarkMove(b *testing.B) {
	for _, servers := range []int{1, 3} {
		b.Run(fmt.Sprintf("servers=%d", servers), func(b *testing.B) {
			bed := newBed(b, servers)
			n1, n2, n3 := bed.node("n1"), bed.node("n2"), bed.node("n3")
			id := n1.make().ID
			if _, err := n1.objects.Actors().Request(bed.ctx(), id, message{Sender: "pad:1024", Seq: 0}.encode()); err != nil {
				b.Fatal(err)
			}
			raw := newRaw(b, n1, n2)
			s := n3.send(id, "s", 5*time.Millisecond, 10*time.Second)
			var blackouts, raws []time.Duration
			at, to := n1, n2
			b.ResetTimer()
			for range b.N {
				raws = append(raws, raw.once(b))
				m := at.move(id, to.rid)
				blackouts = append(blackouts, m.Phases.Blackout)
				at, to = to, at
			}
			b.StopTimer()
			s.end()
			bed.ledger.judge(b, id, s)
			if n := len(s.failures()); n > 0 {
				b.Errorf("%d of %d requests failed: %v", n, s.sent(), s.failures()[0])
			}
			slices.Sort(blackouts)
			slices.Sort(raws)
			p50, floor := blackouts[len(blackouts)/2], raws[len(raws)/2]
			b.ReportMetric(float64(p50.Microseconds()), "blackout-p50-us")
			b.ReportMetric(float64(blackouts[len(blackouts)*99/100].Microseconds()), "blackout-p99-us")
			b.ReportMetric(float64(floor.Microseconds()), "raw-p50-us")
			b.ReportMetric(float64(p50)/float64(floor), "ratio")
			b.ReportMetric(float64(s.gap.Microseconds()), "longest-gap-us")
		})
	}
}

// raw is two record writes and four round trips between two nodes' connections.
type raw struct {
	n1, n2  *node
	key     kvlocation.ObjectKey
	subject string
}

func newRaw(tb testing.TB, n1, n2 *node) *raw {
	r := &raw{n1: n1, n2: n2, key: actorKey("raw"), subject: nats.NewInbox()}
	sub, err := n2.nc.Subscribe(r.subject, func(m *nats.Msg) { _ = m.Respond(m.Data) })
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sub.Unsubscribe() })
	return r
}

func (r *raw) once(tb testing.TB) time.Duration {
	owner := kvlocation.Owner{RID: "n1", Lifecycle: r.n1.lease.Lifecycle(), Lease: r.n1.lease.Generation()}
	ctx := r.n1.b.ctx()
	begun := time.Now()
	ch, err := r.n1.store.Create(ctx, kvlocation.NewObject{Key: r.key, Class: kvlocation.ClassActor, Type: "raw", Owner: owner, AssumeMissing: true})
	if err == nil {
		ch, err = r.n1.store.Ready(ctx, ch.Entry, owner)
	}
	for range 4 {
		if err == nil {
			_, err = r.n1.nc.Request(r.subject, make([]byte, 1024), time.Second)
		}
	}
	took := time.Since(begun)
	if err == nil {
		_, err = r.n1.store.CloseObject(ctx, ch.Entry, owner)
	}
	if err != nil {
		tb.Fatal(err)
	}
	r.key.ID += "x"
	if len(r.key.ID) > 200 {
		r.key.ID = fmt.Sprintf("raw%d", time.Now().UnixNano())
	}
	return took
}

// BenchmarkHost drains a node of idle Actors and counts the record writes per move: four, two of them by the source, two by the target.
func BenchmarkHost(b *testing.B) {
	const count = 1500
	for range b.N {
		b.StopTimer()
		bed := newBed(b, 1)
		recreate := bed.ledger.actor("counter")
		recreate.Move = objects.MoveRecreate
		n1 := bed.node("n1", types(recreate))
		ids := n1.makeMany(count)
		bed.node("n2", types(recreate))
		bed.node("n3", types(recreate))
		b.StartTimer()
		begun := time.Now()
		res, err := n1.moves.Host(bed.ctx(), relocate.Mode{Kind: relocate.Maintenance})
		if err != nil || res.Outcome != relocate.Relocated || res.Moved != len(ids) {
			b.Fatalf("%+v, %v", res, err)
		}
		b.ReportMetric(float64(len(ids))/time.Since(begun).Seconds(), "moves/s")
	}
}

// BenchmarkBulk compares the blackout of large states with the stream's raw throughput: the same bytes published to the relay stream in chunks by
// the client library, and read from it through a consumer.
func BenchmarkBulk(b *testing.B) {
	for _, size := range []int{1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("size=%dMiB", size>>20), func(b *testing.B) {
			bed := newBed(b, 1)
			n1, n2 := bed.node("n1"), bed.node("n2")
			id := n1.make().ID
			if _, err := n1.objects.Actors().Request(bed.ctx(), id, message{Sender: fmt.Sprintf("pad:%d", size), Seq: 0}.encode()); err != nil {
				b.Fatal(err)
			}
			var blackouts, raws []time.Duration
			at, to := n1, n2
			b.ResetTimer()
			for i := range b.N {
				raws = append(raws, rawBulk(b, n1, n2, size, i))
				m := at.move(id, to.rid)
				blackouts = append(blackouts, m.Phases.Blackout)
				at, to = to, at
			}
			b.StopTimer()
			slices.Sort(blackouts)
			slices.Sort(raws)
			p50, floor := blackouts[len(blackouts)/2], raws[len(raws)/2]
			b.ReportMetric(float64(p50.Microseconds()), "blackout-p50-us")
			b.ReportMetric(float64(floor.Microseconds()), "raw-p50-us")
			b.ReportMetric(float64(p50)/float64(floor), "ratio")
		})
	}
}

// rawBulk publishes and reads so many bytes through the relay stream, over the connections of two nodes.
func rawBulk(b *testing.B, n1, n2 *node, size, round int) time.Duration {
	const chunk = 256 << 10
	ctx := n1.b.ctx()
	js, err := jetstream.New(n1.nc)
	if err != nil {
		b.Fatal(err)
	}
	js2, err := jetstream.New(n2.nc)
	if err != nil {
		b.Fatal(err)
	}
	subject := fmt.Sprintf("fab.m.move.raw.%d", round)
	data := make([]byte, chunk)
	begun := time.Now()
	for range size / chunk {
		if _, err := js.PublishAsync(subject, data); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	cons, err := js2.OrderedConsumer(ctx, "FABRIC_m_MOVE", jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		b.Fatal(err)
	}
	done, got := make(chan struct{}), 0
	cc, err := cons.Consume(func(m jetstream.Msg) {
		if got += len(m.Data()); got == size {
			close(done)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	<-done
	took := time.Since(begun)
	cc.Stop()
	<-cc.Closed()
	return took
}
