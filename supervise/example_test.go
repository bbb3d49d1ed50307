package supervise_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

// A worker reports from its loop and hangs; a monitor restarts it.
func Example() {
	fabrictest.Example(func(t testing.TB) {
		ctx := context.Background()
		nc := fabrictest.StartServer(t).Connect(t, nats.ReconnectBufSize(-1))
		if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: "m"}); err != nil {
			t.Fatal(err)
		}
		store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "m", RID: "example"})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()

		policy := supervise.DefaultPolicy().Scale(1.0 / 150) // a minute is 0.4 s
		agent, err := supervise.NewAgent(ctx, store.Shared(kvlocation.BucketSupervise), supervise.AgentConfig{
			Worker: "worker-1", Every: policy.HungAfter / 8,
		})
		if err != nil {
			t.Fatal(err)
		}
		agent.Loop().Tick(supervise.Processing, "job-1", "page 1 of 9") // and never again

		restarted := make(chan struct{})
		monitor, err := supervise.NewMonitor(ctx, store, supervise.Config{
			Policy:    policy,
			Notifiers: []supervise.Notifier{supervise.Log{Logger: zap.NewNop()}},
			Targets: []supervise.Target{{
				Match: "worker-*",
				Restarter: supervise.RestartFunc(func(_ context.Context, o supervise.Order) supervise.Result {
					fmt.Println("restart", o.Worker, "because it is", o.Verdict)
					close(restarted)
					return supervise.Result{Outcome: supervise.Done}
				}),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		<-restarted
		monitor.Close()
		if err := agent.Close(ctx); err != nil {
			t.Fatal(err)
		}
	})
	// Output: restart worker-1 because it is hung
}
