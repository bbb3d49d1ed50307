package channels

import (
	"testing"
	"time"

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

// A handler that blocks leaves nothing waiting while another worker is free, also when both requests came before the
// first worker had begun.
func TestBlockedHandlerDelaysNobody(t *testing.T) {
	t.Parallel()
	for range 200 {
		running, release := make(chan struct{}, 3), make(chan struct{})
		var q queue
		q.init(&Spec{Queue: 8, QueueBytes: 1 << 10, Workers: 3}, func(*Request) { running <- struct{}{}; <-release })
		for range 3 {
			if because := q.offer(&Request{msg: &nats.Msg{}}); because != whyNot {
				t.Fatalf("refused: %d", because)
			}
		}
		for n := range 3 {
			select {
			case <-running:
			case <-time.After(long):
				t.Fatalf("%d of 3 run, with 3 workers", n)
			}
		}
		q.drain()
		q.stop()
		close(release)
		<-q.drained()
	}
}
