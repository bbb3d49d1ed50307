package channels

import (
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
)

// A queue that is stopped while a handler runs, as when Serve fails after it has opened the channel, keeps no worker.
func TestStoppedQueueKeepsNoWorker(t *testing.T) {
	t.Parallel()
	running, end := make(chan struct{}), make(chan struct{})
	var q queue
	q.init(&Spec{Queue: 8, QueueBytes: 1 << 10, Workers: 4}, func(*Request) { running <- struct{}{}; <-end })
	for range 2 {
		if because := q.offer(&Request{msg: &nats.Msg{}}); because != whyNot {
			t.Fatalf("refused: %d", because)
		}
		<-running
	}
	end <- struct{}{}
	fabrictest.Eventually(t, long, "one is idle", func() bool { _, _, busy := q.depth(); return busy == 1 })
	q.drain()
	q.stop()
	end <- struct{}{}
	fabrictest.Eventually(t, long, "no worker is left", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.workers == 0
	})
}
