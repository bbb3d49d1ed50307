package channels_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// load calls a channel from several goroutines until stop is closed and returns how every operation ended.
func load(ch *channels.Channel, callers int, stop <-chan struct{}) <-chan []end {
	out := make(chan []end, 1)
	go func() {
		var mu sync.Mutex
		var all []end
		var wg sync.WaitGroup
		for g := range callers {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprintf("load-%d-%d", g, i)
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					_, err := ch.Request(ctx, []byte(id))
					cancel()
					mu.Lock()
					all = append(all, end{id, err})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		out <- all
	}()
	return out
}

// TestLeavingLosesNothing changes weights, serving state and membership under load, on one server and on three.
func TestLeavingLosesNothing(t *testing.T) {
	t.Parallel()
	for name, urls := range map[string]func(*testing.T) [3]string{
		"one server": func(t *testing.T) [3]string { u := server(t).URL(); return [3]string{u, u, u} },
		"three servers": func(t *testing.T) [3]string {
			c := fabrictest.StartCluster(t, 3)
			return [3]string{c.Server(0).URL(), c.Server(1).URL(), c.Server(2).URL()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := urls(t)
			var l ledger
			dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
			caller := startClient(t, url[0], dir)
			serve(t, startMember(t, url[1], dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
			m2 := startMember(t, url[2], dir, "m2", 1)
			s2 := serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2"), Weight: 2})
			stop := make(chan struct{})
			ends := load(caller.Channel("c"), 8, stop)
			for range 3 {
				for _, w := range []int{8, 1, 0, 3} {
					if err := s2.SetWeight(within(t, patience), w); err != nil {
						t.Error(err)
					}
				}
				if err := errors.Join(m2.SetServing(false), m2.SetServing(true)); err != nil {
					t.Error(err)
				}
			}
			if err := s2.Drain(within(t, patience)); err != nil {
				t.Error(err)
			}
			if err := s2.Drain(within(t, patience)); err != nil {
				t.Errorf("a second Drain: %v", err)
			}
			close(stop)
			all := receive(t, ends, "the end of the load")
			for _, e := range all {
				if e.err != nil {
					t.Fatalf("%s of %d: %v", e.id, len(all), e.err)
				}
			}
			if err := l.checkOnceAndTrue(all); err != nil {
				t.Error(err)
			}
			if err := checkServed(s2.Stats()); err != nil {
				t.Error(err)
			}
			// Served anew after it was drained.
			serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2")})
		})
	}
}

func TestDrainWaitsForWhatWasAccepted(t *testing.T) {
	t.Parallel()
	srv := server(t)
	var l ledger
	release := make(chan struct{})
	m, caller, s := pair(t, srv.URL(), channels.Spec{Workers: 1, Handler: block(&l, "m1", release)})
	for i := range 3 {
		if err := caller.Channel("c").Send(within(t, patience), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Drain(within(t, 100*time.Millisecond))
	if !errors.Is(err, outcome.DeadlineExceeded) {
		t.Fatalf("Drain with a handler that runs: %v", err)
	}
	if err := m.nc.Flush(); err != nil { // the end of Drain's time may have come before the server's answer
		t.Fatal(err)
	}
	if _, err := caller.nc.Request("$SRV.PING.c", nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("service discovery while it drains: %v", err)
	}
	_, err = caller.Channel("c").At("m1").Request(within(t, patience), []byte("while draining"))
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if _, err := m.Serve(within(t, patience), channels.Spec{Name: "c", Handler: echo}); !errors.Is(err, outcome.AlreadyExists) {
		t.Errorf("Serve while it drains: %v", err)
	}
	close(release)
	if err := s.Drain(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got.Ran != 3 || len(l.of("while draining")) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	t.Run("count", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		release := make(chan struct{})
		defer close(release)
		_, caller, s := pair(t, srv.URL(), channels.Spec{Queue: 3, Workers: 2, Handler: block(&ledger{}, "m1", release)})
		for i := range 20 {
			// Two run and three wait; whatever more arrives is refused.
			err := caller.Channel("c").At("m1").Send(within(t, patience), nil)
			if err != nil {
				wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
			}
			if st := s.Stats(); st.Queued > 3 || st.Running > 2 {
				t.Fatalf("after %d: %+v", i, st)
			}
		}
		fabrictest.Eventually(t, patience, "the queue is full", func() bool { st := s.Stats(); return st.Queued == 3 && st.Running == 2 })
		if st := s.Stats(); st.RefusedFull < 15 {
			t.Errorf("%+v", st)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		release := make(chan struct{})
		defer close(release)
		_, caller, s := pair(t, srv.URL(), channels.Spec{QueueBytes: 10_000, Workers: 1, Handler: block(&ledger{}, "m1", release)})
		if err := caller.Channel("c").At("m1").Send(within(t, patience), make([]byte, 4000)); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, patience, "the first runs", func() bool { return s.Stats().Queued == 0 })
		for range 2 {
			if err := caller.Channel("c").At("m1").Send(within(t, patience), make([]byte, 4000)); err != nil {
				t.Fatal(err)
			}
		}
		wantErr(t, caller.Channel("c").At("m1").Send(within(t, patience), make([]byte, 4000)), outcome.Unavailable, outcome.NotAccepted)
		if st := s.Stats(); st.QueuedBytes > 10_000 || st.Queued != 2 {
			t.Errorf("%+v", st)
		}
	})
}

func TestHandlersThatMisbehave(t *testing.T) {
	t.Parallel()
	srv := server(t)
	_, caller, s := pair(t, srv.URL(), channels.Spec{Workers: 2, Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		switch string(req.Data()) {
		case "panic":
			panic("boom")
		case "exit":
			runtime.Goexit()
		}
		return channels.Reply{}, nil
	}})
	ch := caller.Channel("c")
	for range 20 {
		for _, how := range []string{"panic", "exit"} {
			_, err := ch.Request(within(t, patience), []byte(how))
			wantErr(t, err, outcome.InternalFailure, outcome.Accepted)
		}
	}
	if _, err := ch.Request(within(t, patience), nil); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Panics != 40 {
		t.Errorf("%+v", st)
	}
}

type gate struct{ err atomic.Pointer[outcome.Error] }

func (g *gate) Admit() error {
	if err := g.err.Load(); err != nil {
		return err
	}
	return nil
}

func TestOwnershipLost(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var g gate
	m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Gate: &g})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("ownership lost")
	causes := make(chan error, 1)
	running := make(chan struct{}, 1)
	s := serve(t, m, channels.Spec{Name: "c", Handler: func(ctx context.Context, _ *channels.Request) (channels.Reply, error) {
		running <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return channels.Reply{}, ctx.Err()
	}})
	caller := startClient(t, srv.URL(), dir)
	ended := make(chan error, 1)
	go func() {
		_, err := caller.Channel("c").Request(within(t, patience), nil)
		ended <- err
	}()
	receive(t, running, "the handler's start")
	g.err.Store(outcome.New("admit", outcome.Unavailable, outcome.NotAccepted, "", "lease lapsed"))
	m.CancelHandlers(lost)
	if cause := receive(t, causes, "the end of the handler's context"); !errors.Is(cause, lost) {
		t.Errorf("cause %v", cause)
	}
	wantErr(t, receive(t, ended, "the end of the request"), outcome.InternalFailure, outcome.Accepted)
	_, err := caller.Channel("c").At("m1").Request(within(t, patience), nil)
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if s.Stats().RefusedLease != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

func TestCloseEndsHandlersThatStay(t *testing.T) {
	t.Parallel()
	srv := server(t)
	running, causes := make(chan struct{}, 1), make(chan error, 1)
	m, caller, _ := pair(t, srv.URL(), channels.Spec{Handler: func(ctx context.Context, _ *channels.Request) (channels.Reply, error) {
		running <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return channels.Reply{}, nil
	}})
	if err := caller.Channel("c").Send(within(t, patience), nil); err != nil {
		t.Fatal(err)
	}
	receive(t, running, "the handler's start")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := m.Close(within(t, 300*time.Millisecond)); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	if cause := receive(t, causes, "the end of the handler's context"); !errors.Is(cause, channels.ErrShutdown) {
		t.Errorf("cause %v", cause)
	}
	if _, err := m.Serve(within(t, patience), channels.Spec{Name: "d", Handler: echo}); !errors.Is(err, outcome.ShuttingDown) {
		t.Errorf("Serve after Close: %v", err)
	}
}

// TestSlowChannelTouchesNoOther is I9 inside one member: while the handlers of one channel hang and its queue is full,
// every request of another is taken at the first attempt and answered.
func TestSlowChannelTouchesNoOther(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "slow", "fast"))
	m := startMember(t, srv.URL(), dir, "m1", 1)
	release := make(chan struct{})
	defer close(release)
	serve(t, m, channels.Spec{Name: "slow", Queue: 4, Workers: 2, Handler: block(&ledger{}, "m1", release)})
	serve(t, m, channels.Spec{Name: "fast", Handler: echo})
	caller := startClient(t, srv.URL(), dir)
	var full atomic.Int64 // ends of slow requests that found the queue full
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := caller.Channel("slow").Request(within(t, 50*time.Millisecond), nil); errors.Is(err, outcome.Unavailable) {
					full.Add(1)
				}
			}
		})
	}
	defer func() { close(stop); wg.Wait() }()
	fabrictest.Eventually(t, patience, "the slow channel's queue is full", func() bool { return full.Load() > 0 })
	before, began := full.Load(), time.Now()
	for done := 0; done < 400 || full.Load() == before; done++ {
		var trace channels.Trace
		_, err := caller.Channel("fast").Request(within(t, patience), nil, channels.WithTrace(&trace))
		if err != nil && trace.Attempts == 0 && time.Since(began) < patience {
			done--
			continue // on a busy machine the member has not answered a probe in time, and is not asked until it does
		}
		if err != nil || trace.Attempts != 1 {
			t.Fatalf("request %d beside a channel that hangs: %v, %+v", done, err, trace)
		}
	}
}

func TestServiceDiscovery(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, AppVersion: "1.2.3"})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	s := serve(t, m, channels.Spec{Name: "c", Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		if len(req.Data()) > 0 {
			return channels.Reply{}, errors.New("bad")
		}
		return channels.Reply{}, nil
	}})
	nc := dial(t, srv.URL())
	for _, data := range []string{"", "", "x"} {
		if _, err := nc.Request(channelSubject("c"), []byte(data), patience); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(subject string, into any) {
		t.Helper()
		m, err := nc.Request(subject, nil, patience)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if err := json.Unmarshal(m.Data, into); err != nil {
			t.Fatal(err)
		}
	}
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	if ping.Name != "c" || ping.Version != "1.2.3" || ping.Type != micro.PingResponseType || ping.Metadata["fabric_rid"] != "m1" {
		t.Errorf("%+v", ping)
	}
	var info micro.Info
	ask("$SRV.INFO.c", &info)
	if len(info.Endpoints) != 1 || info.Endpoints[0].Subject != channelSubject("c") || info.Endpoints[0].QueueGroup != "fabric" {
		t.Errorf("%+v", info)
	}
	var st micro.Stats
	ask("$SRV.STATS.c."+ping.ID, &st)
	if e := st.Endpoints[0]; e.NumRequests != 3 || e.NumErrors != 1 || e.LastError == "" || e.ProcessingTime <= 0 || st.Started.IsZero() {
		t.Errorf("%+v", e)
	}
	if err := s.Drain(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if err := m.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$SRV.PING", nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("after Drain: %v", err)
	}
}

// blocked is a gate that holds the subscription's own goroutine, which nothing else can.
type blocked struct{ release chan struct{} }

func (b blocked) Admit() error { <-b.release; return nil }

func TestSlowConsumerIsSeen(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	g := blocked{make(chan struct{})}
	hooked := make(chan int, 1)
	m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Gate: g, OnSlowConsumer: func(subject string, dropped int) {
		if subject == channelSubject("c") {
			select {
			case hooked <- dropped:
			default:
			}
		}
	}})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	serve(t, m, channels.Spec{Name: "c", Handler: echo})
	defer close(g.release)
	nc := dial(t, srv.URL())
	for range 70_000 {
		if err := nc.Publish(channelSubject("c"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if dropped := receive(t, hooked, "the hook's call"); dropped == 0 {
		t.Error("nothing dropped")
	}
	if m.Metrics().SlowConsumers == 0 {
		t.Error("not counted")
	}
}

// TestBounded is I10: repetitions leave nothing behind.
func TestBounded(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var n atomic.Int64
	m, caller, s := pair(t, srv.URL(), channels.Spec{Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		if n.Add(1)%3 == 0 {
			return channels.Reply{}, errors.New("bad")
		}
		return channels.Reply{Data: req.Data()}, nil
	}})
	_ = dir
	round := func(times int) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range times / 20 {
					_, _ = caller.Channel("c").Request(within(t, patience), []byte("x"))
					_ = caller.Channel("c").Send(within(t, patience), []byte("x"))
					_, _ = caller.Channel("c").Request(within(t, time.Millisecond), []byte("x"))
				}
			})
		}
		wg.Wait()
		fabrictest.Eventually(t, patience, "the member is idle", func() bool { st := s.Stats(); return st.Queued == 0 && st.Running == 0 })
	}
	round(1000)
	before, subsBefore := caller.nc.NumSubscriptions()+m.nc.NumSubscriptions(), caller.Metrics().Epoch
	round(10_000)
	if after := caller.nc.NumSubscriptions() + m.nc.NumSubscriptions(); after != before {
		t.Errorf("subscriptions: %d before, %d after", before, after)
	}
	if caller.Metrics().Epoch != subsBefore || caller.Metrics().Waiting != 0 {
		t.Errorf("%+v", caller.Metrics())
	}
	if err := checkAccount(caller.Metrics().Calls["c"]); err != nil {
		t.Error(err)
	}
	if err := checkServed(s.Stats()); err != nil {
		t.Error(err)
	}
	// Reconnects leave one earlier reply subscription at most.
	for range 10 {
		caller.Disconnected()
		if err := caller.Reconnected(); err != nil {
			t.Fatal(err)
		}
	}
	if after := caller.nc.NumSubscriptions() + m.nc.NumSubscriptions(); after > before+1 {
		t.Errorf("subscriptions after ten reconnects: %d, before %d", after, before)
	}
	if _, err := caller.Channel("c").Request(within(t, patience), []byte("x")); err != nil && !errors.Is(err, outcome.InternalFailure) {
		t.Error(err)
	}
}
