package fabrictest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
)

// A write whose acknowledgement is lost: the writer sees a timeout, and the
// value is stored all the same. In a test, t is the test's own.
func Example() {
	fabrictest.Example(func(t testing.TB) {
		server := fabrictest.StartServer(t)
		proxy := server.Proxy(t)
		nc := fabrictest.Connect(t, proxy.URL())

		js, _ := jetstream.New(nc)
		kv, err := js.CreateKeyValue(context.Background(), jetstream.KeyValueConfig{Bucket: "accounts"})
		if err != nil {
			t.Fatal(err)
		}

		lost := proxy.Arm(fabrictest.Trigger{
			Dir:     fabrictest.ToServer,
			Subject: "$KV.accounts.alice",
			Answer:  true,
			Action:  fabrictest.Drop,
		})
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_, err = kv.PutString(ctx, "alice", "100")
		fmt.Println("timed out:", errors.Is(err, context.DeadlineExceeded))
		fmt.Println("answers lost:", lost.Count())

		entry, err := kv.Get(context.Background(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("stored:", string(entry.Value()))
	})
	// Output:
	// timed out: true
	// answers lost: 1
	// stored: 100
}

func ExampleProxy_Apply() {
	fabrictest.Example(func(t testing.TB) {
		server := fabrictest.StartServer(t)
		proxy := server.Proxy(t)
		nc := fabrictest.Connect(t, proxy.URL())

		proxy.Apply(fabrictest.HalfOpen)
		fmt.Println("connected:", nc.IsConnected())
		fmt.Println("round trip:", nc.FlushTimeout(100*time.Millisecond))

		proxy.Heal()
		fmt.Println("healed:", nc.FlushTimeout(10*time.Second))
	})
	// Output:
	// connected: true
	// round trip: nats: timeout
	// healed: <nil>
}

func ExampleStartCluster() {
	fabrictest.Example(func(t testing.TB) {
		cluster := fabrictest.StartCluster(t, 3)
		js, _ := jetstream.New(cluster.Connect(t, nats.Name("example")))
		_, err := js.CreateKeyValue(context.Background(), jetstream.KeyValueConfig{
			Bucket:   "b",
			Replicas: 3,
		})
		fmt.Println("bucket with three replicas:", err == nil)

		leader := cluster.StreamLeader(t, "KV_b")
		leader.Kill()
		leader.Restart(t)
		cluster.WaitReady(t)
		fmt.Println("all back")
	})
	// Output:
	// bucket with three replicas: true
	// all back
}
