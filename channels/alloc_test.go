package channels_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
)

// allocations is how often do allocates, in the whole process.
func allocations(t *testing.T, do func() error) float64 {
	t.Helper()
	return testing.AllocsPerRun(2000, func() {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRequestAllocations counts what the caller alone allocates: server and member are other processes. nats.go itself
// allocates three times for the reply that it reads; a raw request costs six in all.
func TestRequestAllocations(t *testing.T) {
	srv := fabrictest.StartServer(t, fabrictest.AsProcess())
	startProcess(t, srv.URL(), "m1")
	caller := startClient(t, srv.URL(), newDirectory(member("m1", processLifecycle, "work")))
	ch := caller.Channel("work")
	ctx := context.Background()
	data := []byte("x")
	if got := allocations(t, func() error { _, err := ch.Request(ctx, data); return err }); got > 5 {
		t.Errorf("a request allocates %v times", got)
	}
	c := &channels.RunCall{
		Op: "request", RID: "m1", Lifecycle: processLifecycle, Data: data,
		Subject: caller.RunSubject("m1", processLifecycle, "svc", "do.it"),
	}
	if got := allocations(t, func() error { _, err := caller.CallRun(ctx, c); return err }); got > 5 {
		t.Errorf("an operation at a process run allocates %v times", got)
	}
}

// TestServiceAllocations counts both ends, beside a raw request.
func TestServiceAllocations(t *testing.T) {
	srv := fabrictest.StartServer(t, fabrictest.AsProcess())
	dir := newDirectory(member("m1", 1))
	m := startMember(t, srv.URL(), dir, "m1", 1)
	listen(t, m, func(in *channels.Inbound) { in.Accept(); in.Reply(in.Data(), nil) })
	caller := startClient(t, srv.URL(), dir)
	rawMember, rawCaller := dial(t, srv.URL()), dial(t, srv.URL())
	if _, err := rawMember.Subscribe("raw", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := rawMember.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	c := runOf(caller, "m1", "x")
	fabric := allocations(t, func() error { _, err := caller.CallRun(ctx, c); return err })
	raw := allocations(t, func() error { _, err := rawCaller.Request("raw", c.Data, patience); return err })
	if fabric > raw {
		t.Errorf("an operation at a service allocates %v times at both ends, a raw request %v times", fabric, raw)
	}
}
