package fence

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
)

// BenchmarkArrival is one write to a KV key and one to a stream, with and without a guard. The unguarded side of the key is
// the library's compare-and-set, that of the stream a publish with a message ID: the same durability on the same server.
func BenchmarkArrival(b *testing.B) {
	js := jetStream(b, fabrictest.StartServer(b, fabrictest.AsProcess()).Connect(b))
	ctx := WithToken(testContext(b), at(33))
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "app"})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		b.Fatal(err)
	}
	var a arrivals
	key, st, value := a.kv(b, js, "guarded"), a.stream(b, js), make([]byte, 64)
	rev := uint64(0)
	n := 0
	for _, x := range []struct {
		name  string
		write func() error
	}{
		{"key/unguarded", func() (err error) { rev, err = kv.Update(ctx, "plain", value, rev); return err }},
		{"key/guarded", func() error { _, err := key.Put(ctx, value); return err }},
		{"stream/unguarded", func() error {
			n++
			_, err := js.PublishMsg(ctx, &nats.Msg{Subject: "orders.new", Data: value}, jetstream.WithMsgID(fmt.Sprint("plain-", n)))
			return err
		}},
		{"stream/guarded", func() error { _, err := st.Publish(ctx, &nats.Msg{Subject: "orders.new", Data: value}); return err }},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := x.write(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
