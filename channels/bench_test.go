package channels_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
)

// BenchmarkRequest compares a channel request with nats.Conn.Request on a queue group. Both sides use the same server
// and each a connection of its own at both ends. For a fair ratio the sides are interleaved: run it with -count.
func BenchmarkRequest(b *testing.B) {
	srv := fabrictest.StartServer(b)
	dir := newDirectory(member("m1", 1, "bench"))
	m := startMember(b, srv.URL(), dir, "m1", 1)
	serve(b, m, channels.Spec{Name: "bench", Handler: echo})
	ch := startClient(b, srv.URL(), dir).Channel("bench")

	rawMember, rawCaller := dial(b, srv.URL()), dial(b, srv.URL())
	if _, err := rawMember.QueueSubscribe("raw", "q", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := rawMember.Flush(); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{16, 1024} {
		data := bytes.Repeat([]byte("x"), size)
		sides := []struct {
			name string
			do   func() error
		}{
			{"fabric", func() error { _, err := ch.Request(context.Background(), data); return err }},
			{"raw", func() error { _, err := rawCaller.Request("raw", data, 5*time.Second); return err }},
		}
		for _, callers := range []int{1, 64} {
			for _, side := range sides {
				b.Run(fmt.Sprintf("%dB/callers=%d/%s", size, callers, side.name), func(b *testing.B) {
					b.ReportAllocs()
					run(b, callers, side.do)
				})
			}
		}
	}
}

// run spreads b.N calls of do over callers goroutines.
func run(b *testing.B, callers int, do func() error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	errs := make(chan error, callers)
	b.ResetTimer()
	for range callers {
		go func() {
			for left.Add(-1) >= 0 {
				if err := do(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCallRun compares an operation at a service of a named process run with nats.Conn.Request. Caller and member are
// one process, so that the allocations are those of both.
func BenchmarkCallRun(b *testing.B) {
	srv := fabrictest.StartServer(b, fabrictest.AsProcess())
	dir := newDirectory(member("m1", 1))
	clock := newClock()
	m := start(b, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: clock})
	if err := m.SetServing(true); err != nil {
		b.Fatal(err)
	}
	listen(b, m, func(in *channels.Inbound) { in.Accept(); in.Reply(in.Data(), nil) })
	caller := start(b, srv.URL(), channels.Config{RID: "m2", Lifecycle: 2, Directory: dir, Clock: clock})
	subject := caller.RunSubject("m1", 1, "svc", "do.it")

	rawMember, rawCaller := dial(b, srv.URL()), dial(b, srv.URL())
	if _, err := rawMember.Subscribe("raw", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := rawMember.Flush(); err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), 16)
	sides := []struct {
		name string
		do   func() error
	}{
		{"fabric", func() error {
			_, err := caller.CallRun(context.Background(), &channels.RunCall{Op: "request", RID: "m1", Lifecycle: 1, Subject: subject, Data: data})
			return err
		}},
		{"raw", func() error { _, err := rawCaller.Request("raw", data, 5*time.Second); return err }},
	}
	for _, callers := range []int{1, 64} {
		for _, side := range sides {
			b.Run(fmt.Sprintf("16B/callers=%d/%s", callers, side.name), func(b *testing.B) {
				b.ReportAllocs()
				run(b, callers, side.do)
			})
		}
	}
}

// BenchmarkSendUnconfirmed compares it with nats.Conn.Publish. Both end with the server having read everything.
func BenchmarkSendUnconfirmed(b *testing.B) {
	srv := fabrictest.StartServer(b, fabrictest.AsProcess())
	caller := startClient(b, srv.URL(), newDirectory(member("m1", 1, "bench")))
	ch, raw := caller.Channel("bench"), dial(b, srv.URL())
	data := bytes.Repeat([]byte("x"), 16)
	subject := channelSubject("bench")
	sides := []struct {
		name string
		do   func() error
		nc   *nats.Conn
	}{
		{"fabric", func() error { return ch.SendUnconfirmed(context.Background(), data) }, caller.nc},
		{"raw", func() error { return raw.Publish(subject, data) }, raw},
	}
	for _, callers := range []int{1, 64} {
		for _, side := range sides {
			b.Run(fmt.Sprintf("16B/callers=%d/%s", callers, side.name), func(b *testing.B) {
				b.ReportAllocs()
				run(b, callers, side.do)
				if err := side.nc.Flush(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
