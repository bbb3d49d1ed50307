package conformance

import (
	"context"
	"encoding/json"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// repetitions is how many operations of each kind TestBounded makes: 10,000 in all.
const repetitions = 2500

// TestBounded (I10): ten thousand operations of every kind, many of which fail, and then reconnects and clients that come
// and go, leave nothing behind in the caller, the member, or the server. It runs alone, so that goroutines can be counted.
func TestBounded(t *testing.T) {
	b := bed.New(t, bed.Options{})
	m := b.Member(t, "a", "-queue=64", "-workers=16")
	ps, url := b.Proxies(t)
	node := b.Node(t, "host", url)
	bed.Sees(t, node, bed.Channel, "a")
	c := bed.NewCaller(t, "op", node)
	plain := b.Plain(t)

	round := func(n int) {
		ways := []bed.Do{
			{Timeout: bed.Long},
			{Early: true, Timeout: bed.Long},
			{Send: true, Timeout: bed.Long},
			{RID: "a", Timeout: 3 * time.Millisecond, Job: job.Job{Do: job.Sleep, Millis: 4}}, // mostly too late
		}
		stop := make(chan struct{})
		todo := make(chan bed.Do)
		for range 32 {
			go func() {
				for d := range todo {
					c.Call(t, d)
				}
				stop <- struct{}{}
			}()
		}
		for i := range n * len(ways) {
			todo <- ways[i%len(ways)]
		}
		close(todo)
		for range 32 {
			<-stop
		}
	}
	round(100) // whatever is made once is there
	before := quiet(t, b, node)
	round(repetitions)
	for range 10 {
		becomes(t, node, func() { ps.Apply(fabrictest.Cut) }, kvlocation.StatePreparing, kvlocation.StateServing)
		m.After(t, func() { m.Proxy().Apply(fabrictest.Cut) }, "Preparing", "Serving")
		client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: bed.Mesh, Connect: fabric.Connect{URL: b.URL()}})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	fabrictest.Eventually(t, bed.Long, "the member answers", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	e := &history.Evidence{Before: before, Allowed: map[string]int{
		// One subscription of the epoch before the last stays, to count what still arrives there.
		"caller's goroutines": 10, "member's goroutines": 10 + 16, "member's files": 4, "member's heap, MiB": 16,
		"server's subscriptions": 8, "server's connections": 0, "consumers": 0,
		// Each client that came leaves the key with which it confirmed its reading, for a minute.
		"records": 2 + 10,
	}}
	// What is on its way back to rest gets the time it needs; what leaks does not come back.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		if e.After = quiet(t, b, node); len(history.Judge(e, history.Bounded)) == 0 {
			break
		}
	}
	t.Logf("before %v, after %v", before, e.After)
	ev := judge(t, b, c)
	ev.Before, ev.After, ev.Allowed = e.Before, e.After, e.Allowed
	bed.Judge(t, ev, history.Bounded)
	if !plain.IsConnected() {
		t.Error("the plain client lost its connection")
	}
}

// quiet counts everything that must stay bounded.
func quiet(t *testing.T, b *bed.Bed, node *fabric.Node) map[string]int {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "nothing waits", func() bool { return node.Metrics().Waiting == 0 })
	reply, err := node.Channel(bed.Channel).At("a").Request(t.Context(), job.Job{Do: job.Count}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	var counts job.Counts
	if err := json.Unmarshal(reply.Data, &counts); err != nil {
		t.Fatal(err)
	}
	ns := b.Server.NATS()
	js, err := ns.Jsz(&server.JSzOptions{Streams: true, Consumer: true, Accounts: true})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int{
		"caller's goroutines":    runtime.NumGoroutine(),
		"member's goroutines":    counts.Goroutines,
		"member's files":         counts.Files,
		"member's heap, MiB":     int(counts.HeapBytes >> 20),
		"server's subscriptions": int(ns.NumSubscriptions()),
		"server's connections":   ns.NumClients(),
		"consumers":              js.Consumers,
		"records":                records(t, b),
	}
}

// records counts the keys of the mesh's buckets, delete markers included.
func records(t *testing.T, b *bed.Bed) (n int) {
	t.Helper()
	nc := fabrictest.Connect(t, b.URL())
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{"NODES", "LOCATION"} {
		ctx, cancel := context.WithTimeout(t.Context(), bed.Long)
		defer cancel()
		s, err := js.Stream(ctx, "KV_FABRIC_"+bed.Mesh+"_"+bucket)
		if err != nil {
			t.Fatal(err)
		}
		n += int(s.CachedInfo().State.Msgs)
	}
	return n
}
