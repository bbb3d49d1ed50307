package fabrictest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
)

// sink collects what reaches the server on "sink.>".
func sink(t testing.TB, s *fabrictest.Server) *nats.Subscription {
	t.Helper()
	nc := s.Connect(t)
	sub, err := nc.SubscribeSync("sink.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return sub
}

func expect(t testing.TB, sub *nats.Subscription, want ...string) {
	t.Helper()
	for _, w := range want {
		m, err := sub.NextMsg(long)
		if err != nil {
			t.Fatalf("waiting for %q: %v", w, err)
		}
		if string(m.Data) != w {
			t.Fatalf("got %q, want %q", m.Data, w)
		}
	}
}

func expectNothing(t testing.TB, sub *nats.Subscription) {
	t.Helper()
	if m, err := sub.NextMsg(short); err == nil {
		t.Fatalf("got %q", m.Data)
	}
}

func TestTriggerSignalAndSelection(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	third := p.Arm(fabrictest.Trigger{Subject: "sink.*", Nth: 3, Action: fabrictest.Signal})
	other := p.Arm(fabrictest.Trigger{Subject: "sink.>", Client: "somebody else", Action: fabrictest.Drop})
	matched := p.Arm(fabrictest.Trigger{
		Match:  func(m fabrictest.Message) bool { return m.Headers().Get("Pick") == "me" },
		Action: fabrictest.Drop,
	})
	ping := p.Arm(fabrictest.Trigger{Verb: "PING", Action: fabrictest.Signal})

	for _, data := range []string{"1", "2", "3", "4"} {
		publish(t, nc, "sink.a", data)
	}
	if err := nc.PublishMsg(&nats.Msg{Subject: "sink.a", Header: nats.Header{"Pick": {"me"}}, Data: []byte("5")}); err != nil {
		t.Fatal(err)
	}
	publish(t, nc, "sink.a", "6")
	expect(t, got, "1", "2", "3", "4", "6")
	if m := third.Wait(t); m.Verb != "PUB" || string(m.Payload) != "3" {
		t.Fatalf("the third is %+v", m)
	}
	if n := other.Count(); n != 0 {
		t.Fatalf("acted on %d messages of another client", n)
	}
	if m := matched.Wait(t); m.Verb != "HPUB" || string(m.Payload) != "5" {
		t.Fatalf("matched %+v", m)
	}
	ping.Wait(t)
}

func TestTriggerDropTimes(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	lost := p.Arm(fabrictest.Trigger{Subject: "sink.>", Nth: 2, Times: 2, Action: fabrictest.Drop})
	always := p.Arm(fabrictest.Trigger{Subject: "sink.never", Times: -1, Action: fabrictest.Drop})
	for _, data := range []string{"1", "2", "3", "4"} {
		publish(t, nc, "sink.never", data)
		publish(t, nc, "sink.a", data)
	}
	// sink.never counts for the first trigger armed.
	expect(t, got, "2", "3", "4")
	if lost.Count() != 2 || always.Count() != 3 {
		t.Fatalf("dropped %d and %d", lost.Count(), always.Count())
	}
	always.Disarm()
	publish(t, nc, "sink.never", "5")
	expect(t, got, "5")
}

func TestTriggerHoldKeepsOrder(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	held := p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.Hold})
	publish(t, nc, "sink.a", "1")
	publish(t, nc, "sink.b", "2")
	held.Wait(t)
	expectNothing(t, got)
	held.Release()
	held.Release()
	expect(t, got, "1", "2")
}

func TestTriggerHoldOutlivesTheClient(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	held := p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.Hold})
	publish(t, nc, "sink.a", "1")
	held.Wait(t)
	nc.Close()
	expectNothing(t, got)
	held.Release()
	expect(t, got, "1")
	fabrictest.Eventually(t, long, "the connection ends", func() bool { return p.Connections() == 0 })
}

func TestTriggerHoldThenFault(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	held := p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.Hold})
	publish(t, nc, "sink.a", "1")
	held.Wait(t)
	p.Apply(fabrictest.HalfOpen)
	held.Release()
	expectNothing(t, got)
}

func TestTriggerHoldAloneIsOvertaken(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	held := p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.HoldAlone})
	publish(t, nc, "sink.a", "late")
	publish(t, nc, "sink.b", "1")
	expect(t, got, "1")
	nc.Close()
	expectNothing(t, got)
	held.Release()
	expect(t, got, "late")
}

func TestTriggerDelayAlone(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.DelayAlone(short)})
	start := time.Now()
	publish(t, nc, "sink.a", "late")
	publish(t, nc, "sink.b", "1")
	expect(t, got, "1", "late")
	if d := time.Since(start); d < short {
		t.Fatalf("after %v", d)
	}
}

func TestTriggerDuplicate(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	twice := p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: fabrictest.Duplicate})
	publish(t, nc, "sink.a", "1")
	publish(t, nc, "sink.a", "2")
	expect(t, got, "1", "2")
	twice.Release()
	expect(t, got, "1")
}

func TestTriggerCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		action  fabrictest.Action
		arrives bool
	}{
		{"before", fabrictest.CutBefore, false},
		{"after", fabrictest.CutAfter, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p, nc := proxied(t, nats.NoReconnect())
			got := sink(t, s)
			p.Arm(fabrictest.Trigger{Subject: "sink.a", Action: c.action})
			publish(t, nc, "sink.a", "1")
			fabrictest.Eventually(t, long, "the client is cut off", nc.IsClosed)
			if c.arrives {
				expect(t, got, "1")
			} else {
				expectNothing(t, got)
			}
			fabrictest.Eventually(t, long, "the connection ends", func() bool { return p.Connections() == 0 })
		})
	}
}

// Exactly between a write and its acknowledgement: the write is stored, the
// writer does not know.
func TestTriggerAnswer(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	direct := bucket(t, s.Connect(t), 1)
	kv, err := jetStream(t, nc).KeyValue(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	answer := p.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToServer, Subject: "$KV.b.>", Nth: 2, Answer: true, Action: fabrictest.Hold,
	})
	if _, err := kv.PutString(testContext(t), "k", "1"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := kv.PutString(context.Background(), "k", "2")
		done <- err
	}()
	if m := answer.Wait(t); m.Verb != "MSG" {
		t.Fatalf("the answer is %+v", m)
	}
	if e, err := direct.Get(testContext(t), "k"); err != nil || string(e.Value()) != "2" {
		t.Fatalf("not stored when the answer is on its way: %v, %v", e, err)
	}
	select {
	case err := <-done:
		t.Fatalf("the writer knows: %v", err)
	default:
	}
	answer.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestTriggerLostAnswer(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	direct := bucket(t, s.Connect(t), 1)
	kv, err := jetStream(t, nc).KeyValue(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	p.Arm(fabrictest.Trigger{Subject: "$KV.b.k", Answer: true, Action: fabrictest.Drop})
	ctx, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel()
	if _, err := kv.PutString(ctx, "k", "1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("put without an answer: %v", err)
	}
	if _, err := direct.Get(testContext(t), "k"); err != nil {
		t.Fatalf("not stored: %v", err)
	}
}

func TestTriggerRespond(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	direct := bucket(t, s.Connect(t), 1)
	kv, err := jetStream(t, nc).KeyValue(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	p.Arm(fabrictest.Trigger{Subject: "$KV.b.k", Action: fabrictest.JetStreamError(400, 10164, "wrong last sequence")})
	_, err = kv.PutString(testContext(t), "k", "1")
	var apiErr *jetstream.APIError
	if !errors.As(err, &apiErr) || apiErr.ErrorCode != 10164 {
		t.Fatalf("put: %v", err)
	}
	if _, err := direct.Get(testContext(t), "k"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Fatalf("the server saw the put: %v", err)
	}

	p.Arm(fabrictest.Trigger{Subject: "echo", Action: fabrictest.NoResponders})
	if err := request(nc, "x", long); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("request: %v", err)
	}
	p.Arm(fabrictest.Trigger{Subject: "echo", Action: fabrictest.Respond("forged")})
	if m, err := nc.Request("echo", nil, long); err != nil || string(m.Data) != "forged" {
		t.Fatalf("request: %v, %v", m, err)
	}
	mustRequest(t, nc, "untouched")
}

func TestTriggerReplace(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)
	p.Arm(fabrictest.Trigger{Subject: "echo", Answer: true, Action: fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
		m.Payload = []byte("rewritten")
		return m
	})})
	if m, err := nc.Request("echo", []byte("x"), long); err != nil || string(m.Data) != "rewritten" {
		t.Fatalf("%v, %v", m, err)
	}
	mustRequest(t, nc, "untouched")
}

func TestTriggerToClient(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	sub, err := nc.SubscribeSync("news.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "news.*", Action: fabrictest.Drop})
	from := s.Connect(t)
	publish(t, from, "news.a", "1")
	publish(t, from, "news.a", "2")
	expect(t, sub, "2")
}

func TestProxyPassesLargeAndMany(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t, fabrictest.WithConfig("max_payload: 8MB"))
	echo(t, s)
	p := s.Proxy(t)
	nc := fabrictest.Connect(t, p.URL())
	mustRequest(t, nc, string(make([]byte, 7<<20)))
	got := sink(t, s)
	for range 20_000 {
		if err := nc.Publish("sink.a", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for range 20_000 {
		if _, err := got.NextMsg(long); err != nil {
			t.Fatal(err)
		}
	}
}
