package channels_test

import (
	"context"
	"testing"

	"natsfabric/fabrictest"
)

// TestRequestAllocations counts what the caller alone allocates: server and member are other processes. nats.go itself
// allocates three times for the reply that it reads; a raw request costs six in all.
func TestRequestAllocations(t *testing.T) {
	srv := fabrictest.StartServer(t, fabrictest.AsProcess())
	startProcess(t, srv.URL(), "m1")
	caller := startClient(t, srv.URL(), newDirectory(member("m1", processLifecycle, "work")))
	ch := caller.Channel("work")
	ctx := context.Background()
	data := []byte("x")
	if got := testing.AllocsPerRun(2000, func() {
		if _, err := ch.Request(ctx, data); err != nil {
			t.Fatal(err)
		}
	}); got > 5 {
		t.Errorf("a request allocates %v times", got)
	}
}
