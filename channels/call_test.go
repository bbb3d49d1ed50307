package channels_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// pair starts one member that serves "c" and a client, both with the store's clock.
func pair(t *testing.T, url string, spec channels.Spec) (m, caller *node, s *channels.Server) {
	t.Helper()
	dir := newDirectory(member("m1", 1, "c"))
	m = start(t, url, channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: newClock()})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	spec.Name = "c"
	s = serve(t, m, spec)
	return m, start(t, url, channels.Config{Directory: dir, Clock: newClock()}), s
}

func TestPayloads(t *testing.T) {
	t.Parallel()
	srv := server(t, fabrictest.WithConfig("max_payload: 4096"))
	reply := make([]byte, 5000)
	_, caller, s := pair(t, srv.URL(), channels.Spec{Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		if string(req.Data()) == "large" {
			return channels.Reply{Data: reply}, nil
		}
		return channels.Reply{Data: req.Data()}, nil
	}})
	ch := caller.Channel("c")
	for _, data := range [][]byte{nil, {}, {0, 255, '\r', '\n'}, bytes.Repeat([]byte("x"), 4096)} {
		got, err := ch.Request(within(t, patience), data)
		if err != nil || !bytes.Equal(got.Data, data) {
			t.Errorf("%d bytes: %d bytes, %v", len(data), len(got.Data), err)
		}
	}
	_, err := ch.Request(within(t, patience), make([]byte, 4097))
	e := wantErr(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	if !strings.Contains(e.Error(), "4097") || !strings.Contains(e.Error(), "4096") {
		t.Errorf("it names neither size nor limit: %v", e)
	}
	_, err = ch.Request(within(t, patience), make([]byte, 4090), channels.WithHeader(nats.Header{"X": {"y"}}))
	wantErr(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	wantErr(t, ch.Send(within(t, patience), make([]byte, 4097)), outcome.CapacityExceeded, outcome.NotAccepted)
	wantErr(t, ch.SendUnconfirmed(within(t, patience), make([]byte, 4097)), outcome.CapacityExceeded, outcome.NotAccepted)

	_, err = ch.Request(within(t, patience), []byte("large"))
	e = wantErr(t, err, outcome.CapacityExceeded, outcome.Accepted)
	if !strings.Contains(e.Error(), "5000") || !strings.Contains(e.Error(), "4096") {
		t.Errorf("it names neither size nor limit: %v", e)
	}
	if s.Stats().Oversized != 1 {
		t.Errorf("stats %+v", s.Stats())
	}
}

// TestHeaders: what says how an operation ended can be said by the fabric alone, or an answer could be taken for "no
// responders" and the request run twice.
func TestHeaders(t *testing.T) {
	t.Parallel()
	srv := server(t)
	var ran atomic.Int32
	_, caller, _ := pair(t, srv.URL(), channels.Spec{Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		ran.Add(1)
		h := nats.Header{}
		if name := string(req.Data()); name != "" {
			h[name] = []string{"503"}
		}
		h["Traceparent"] = req.Header()["Traceparent"]
		return channels.Reply{Header: h}, nil
	}})
	ch := caller.Channel("c")
	got, err := ch.Request(within(t, patience), nil, channels.WithHeader(nats.Header{"Traceparent": {"00-1-2-01"}}))
	if err != nil || got.Header.Get("Traceparent") != "00-1-2-01" {
		t.Errorf("headers %v, error %v", got.Header, err)
	}
	for _, name := range []string{"Status", "status", "Fabric-Kind", "Fabric-Acceptance", "Fabric-Refused", "Fabric-From"} {
		_, err := ch.Request(within(t, patience), nil, channels.WithHeader(nats.Header{name: {"x"}}))
		wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		ran.Store(0)
		_, err = ch.Request(within(t, patience), []byte(name))
		wantErr(t, err, outcome.InternalFailure, outcome.Accepted)
		if n := ran.Load(); n != 1 {
			t.Errorf("with header %s in the reply the request ran %d times", name, n)
		}
	}
}

func TestMiddleware(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	m := startMember(t, srv.URL(), dir, "m1", 1)
	mark := func(s string) channels.Middleware {
		return func(next channels.Handler) channels.Handler {
			return func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
				r, err := next(ctx, req)
				r.Data = append(r.Data, s...)
				return r, err
			}
		}
	}
	serve(t, m, channels.Spec{Name: "c", Handler: echo, Middleware: []channels.Middleware{mark(" outer"), mark(" inner")}})
	var seen []string
	see := func(s string) channels.CallMiddleware {
		return func(next channels.Invoker) channels.Invoker {
			return func(ctx context.Context, call *channels.Call) (channels.Reply, error) {
				seen = append(seen, s+" "+call.Op+" "+call.Channel+" "+call.RID)
				call.Data = append(call.Data, s...)
				return next(ctx, call)
			}
		}
	}
	caller := start(t, srv.URL(), channels.Config{Directory: dir, CallMiddleware: []channels.CallMiddleware{see("1"), see("2")}})
	got, err := caller.Channel("c").At("m1").Request(within(t, patience), []byte("x"))
	if err != nil || string(got.Data) != "x12 inner outer" {
		t.Errorf("reply %q, error %v", got.Data, err)
	}
	if fmt.Sprint(seen) != "[1 request c m1 2 request c m1]" {
		t.Errorf("call middleware saw %q", seen)
	}
	if s := caller.Metrics().Calls["c"]; s.Started != 1 || s.Succeeded != 1 {
		t.Errorf("%+v", s)
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	t.Run("travels to the handler", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		left := make(chan time.Duration, 1)
		_, caller, _ := pair(t, srv.URL(), channels.Spec{Handler: func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
			d, ok := ctx.Deadline()
			if _, has := req.Deadline(); !ok || !has {
				d = time.Time{}
			}
			left <- time.Until(d)
			return channels.Reply{}, nil
		}})
		if _, err := caller.Channel("c").Request(within(t, patience), nil); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, left, "the handler's call"); got < patience/2 || got > patience+time.Second {
			t.Errorf("the handler had %v left, the caller %v", got, patience)
		}
	})
	t.Run("ends the handler's context", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		ended := make(chan error, 1)
		_, caller, _ := pair(t, srv.URL(), channels.Spec{Handler: func(ctx context.Context, _ *channels.Request) (channels.Reply, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return channels.Reply{}, ctx.Err()
		}})
		_, err := caller.Channel("c").Request(within(t, 2*time.Second), nil)
		if !errors.Is(err, outcome.DeadlineExceeded) && !errors.Is(err, outcome.InternalFailure) {
			t.Error(err)
		}
		if err := receive(t, ended, "the end of the handler's context"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("refused when it arrives late", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		proxy := srv.Proxy(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		owners, callers := newClock(), newClock()
		m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: owners})
		if err := m.SetServing(true); err != nil {
			t.Fatal(err)
		}
		s := serve(t, m, channels.Spec{Name: "c", Handler: l.handler("m1")})
		caller := start(t, proxy.URL(), channels.Config{Directory: dir, Clock: callers})
		held := proxy.Arm(fabrictest.Trigger{Subject: channelSubject("c"), Action: fabrictest.HoldAlone})
		_, err := caller.Channel("c").Request(within(t, time.Second), []byte("x"))
		wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
		// The errors of both clocks are in the caller's favour.
		now, bound, _ := callers.Now()
		fabrictest.Eventually(t, patience, "the deadline is past", func() bool { return owners.Past(now.Add(bound)) })
		held.Release()
		fabrictest.Eventually(t, patience, "it is refused", func() bool { return s.Stats().RefusedPast == 1 })
		if ran := l.of("x"); len(ran) != 0 {
			t.Errorf("it ran at %v", ran)
		}
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		dir := newDirectory(member("m1", 1, "c"))
		release := make(chan struct{})
		defer close(release)
		serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: block(&ledger{}, "m1", release)})
		caller := start(t, srv.URL(), channels.Config{Directory: dir, DefaultTimeout: 50 * time.Millisecond})
		_, err := caller.Channel("c").Request(context.Background(), nil)
		wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("a Send's ends with its notice", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		release := make(chan struct{})
		_, caller, s := pair(t, srv.URL(), channels.Spec{Workers: 1, Handler: block(&l, "m1", release)})
		ch := caller.Channel("c")
		for i := range 3 {
			if err := ch.Send(within(t, patience), fmt.Append(nil, "long-", i)); err != nil {
				t.Fatal(err)
			}
			if err := ch.Send(within(t, 5*time.Second), fmt.Append(nil, "short-", i)); err != nil {
				t.Fatal(err)
			}
		}
		sent := time.Now()
		fabrictest.Eventually(t, patience, "the short deadlines are past", func() bool { return time.Since(sent) > 5500*time.Millisecond })
		close(release)
		fabrictest.Eventually(t, patience, "all have run", func() bool { return s.Stats().Ran == 6 && s.Stats().Running == 0 })
		if s.Stats().Expired != 0 {
			t.Errorf("%d accepted sends expired", s.Stats().Expired)
		}
	})
}

func TestSenderStandsInTheSubject(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	type who struct {
		channels.Sender
		ok, direct, oneWay bool
	}
	senders := make(chan who, 1)
	m := startMember(t, srv.URL(), dir, "m1", 1)
	serve(t, m, channels.Spec{Name: "c", Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		s, ok := req.Sender()
		senders <- who{s, ok, req.Direct(), req.OneWay()}
		return channels.Reply{}, nil
	}})
	caller := startMember(t, srv.URL(), dir, "n2", 42)
	client := start(t, srv.URL(), channels.Config{Directory: dir, ClientName: "gateway"})
	plain := dial(t, srv.URL())
	for _, c := range []struct {
		what string
		call func() error
		want who
	}{
		{"a node, direct", func() error { _, err := caller.Channel("c").At("m1").Request(within(t, patience), nil); return err }, who{channels.Sender{RID: "n2", Lifecycle: 42}, true, true, false}},
		{"a client, one way", func() error { return client.Channel("c").Send(within(t, patience), nil) }, who{channels.Sender{Client: "gateway"}, true, false, true}},
		{"a plain client", func() error { _, err := plain.Request(channelSubject("c"), nil, patience); return err }, who{}},
		{"unconfirmed", func() error { return client.Channel("c").SendUnconfirmed(within(t, patience), nil) }, who{oneWay: true}},
	} {
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := receive(t, senders, "the handler's call"); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

func TestInFlightIsBounded(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var l ledger
	release := make(chan struct{})
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: block(&l, "m1", release)})
	caller := start(t, srv.URL(), channels.Config{Directory: dir, MaxInFlight: 2})
	done := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := caller.Channel("c").Request(within(t, patience), fmt.Append(nil, i))
			done <- err
		}()
	}
	fabrictest.Eventually(t, patience, "two wait", func() bool { return caller.Metrics().Waiting == 2 })
	_, err := caller.Channel("c").Request(within(t, patience), []byte("third"))
	wantErr(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	close(release)
	for range 2 {
		if err := receive(t, done, "the end of a request"); err != nil {
			t.Error(err)
		}
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	srv := server(t)
	caller := startClient(t, srv.URL(), newDirectory())
	for _, name := range []string{"", "a.b", "a b", "*", ">", "ä", strings.Repeat("x", 65)} {
		_, err := caller.Channel(name).Request(within(t, patience), nil)
		wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	for range 2000 { // more names than counters are kept for
		_ = caller.Channel(fmt.Sprint("c", caller.Metrics().Waiting, time.Now().UnixNano()))
	}
	if got := len(caller.Metrics().Calls); got > 1024 {
		t.Errorf("counters of %d channels are kept", got)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	srv := server(t)
	nc := dial(t, srv.URL())
	buffered := srv.Connect(t)
	dir := newDirectory()
	good := channels.Config{Mesh: mesh, Conn: nc, RID: "m1", Lifecycle: 1, Directory: dir}
	for field, change := range map[string]func(*channels.Config){
		"Mesh":             func(c *channels.Config) { c.Mesh = wire.Mesh("a.b") },
		"Conn":             func(c *channels.Config) { c.Conn = nil },
		"ReconnectBufSize": func(c *channels.Config) { c.Conn = buffered },
		"RID":              func(c *channels.Config) { c.RID = "a b" },
		"Lifecycle":        func(c *channels.Config) { c.Lifecycle = 0 },
		"ClientName":       func(c *channels.Config) { c.RID, c.Lifecycle, c.ClientName = "", 0, "a.b" },
		"Directory":        func(c *channels.Config) { c.Directory = nil },
		"DefaultTimeout":   func(c *channels.Config) { c.DefaultTimeout = time.Hour },
		"MaxInFlight":      func(c *channels.Config) { c.MaxInFlight = 1 << 21 },
	} {
		cfg := good
		change(&cfg)
		if r, err := channels.New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v", field, err)
			if r != nil {
				_ = r.Close(within(t, patience))
			}
		}
	}
	n := startMember(t, srv.URL(), dir, "m1", 1)
	for field, spec := range map[string]channels.Spec{
		"Name":       {Name: "a.b", Handler: echo},
		"Handler":    {Name: "c"},
		"Kind":       {Name: "c", Handler: echo, Kind: "x"},
		"Weight":     {Name: "c", Handler: echo, Weight: 257},
		"Queue":      {Name: "c", Handler: echo, Queue: -1},
		"QueueBytes": {Name: "c", Handler: echo, QueueBytes: 2 << 30},
		"Workers":    {Name: "c", Handler: echo, Workers: 1 << 17},
	} {
		if _, err := n.Serve(within(t, patience), spec); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v", field, err)
		}
	}
}
