package fabrictest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
)

const short = 200 * time.Millisecond // how long nothing may happen
const long = 30 * time.Second        // how long something may take

// echo answers on "echo", connected straight to the server.
func echo(t testing.TB, s *fabrictest.Server) {
	t.Helper()
	nc := s.Connect(t)
	if _, err := nc.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func request(nc *nats.Conn, text string, within time.Duration) error {
	m, err := nc.Request("echo", []byte(text), within)
	if err == nil && string(m.Data) != text {
		return fmt.Errorf("answer %q to %q", m.Data, text)
	}
	return err
}

func mustRequest(t testing.TB, nc *nats.Conn, text string) {
	t.Helper()
	if err := request(nc, text, long); err != nil {
		t.Fatalf("request %q: %v", text, err)
	}
}

// proxied is a client that reaches a server with an echo through a proxy.
func proxied(t testing.TB, opts ...nats.Option) (*fabrictest.Server, *fabrictest.Proxy, *nats.Conn) {
	t.Helper()
	s := fabrictest.StartServer(t)
	echo(t, s)
	p := s.Proxy(t)
	opts = append([]nats.Option{
		nats.Name("client"), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.MaxReconnects(-1),
	}, opts...)
	nc := fabrictest.Connect(t, p.URL(), opts...)
	mustRequest(t, nc, "before")
	return s, p, nc
}

func TestProxyCutAndRefuse(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)

	p.Apply(fabrictest.Cut)
	fabrictest.Eventually(t, long, "a reconnect", func() bool { return nc.Stats().Reconnects == 1 })
	mustRequest(t, nc, "after a cut")

	disconnected := nc.StatusChanged(nats.RECONNECTING)
	p.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	<-disconnected
	if other, err := nats.Connect(p.URL(), nats.Timeout(long)); err == nil {
		other.Close()
		t.Fatal("connected although refused")
	}
	p.Heal()
	fabrictest.Eventually(t, long, "a reconnect after healing", func() bool { return nc.Stats().Reconnects == 2 })
	mustRequest(t, nc, "healed")
}

func TestProxyHalfOpenLosesMessagesAndHealsOnTheSameConnection(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)
	for _, f := range []fabrictest.Fault{fabrictest.HalfOpen, fabrictest.DropToServer, fabrictest.DropToClient} {
		p.Apply(f)
		if err := request(nc, "lost", short); !errors.Is(err, nats.ErrTimeout) {
			t.Fatalf("%v: %v", f, err)
		}
		if err := nc.FlushTimeout(short); !errors.Is(err, nats.ErrTimeout) {
			t.Fatalf("%v: flush: %v", f, err)
		}
		p.Heal()
		mustRequest(t, nc, "healed")
		if err := nc.FlushTimeout(long); err != nil {
			t.Fatalf("%v: flush when healed: %v", f, err)
		}
	}
	if n := nc.Stats().Reconnects; n != 0 {
		t.Fatalf("%d reconnects", n)
	}
}

func TestProxyHalfOpenHidesTheEnd(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	before := s.NATS().NumClients()
	p.Apply(fabrictest.HalfOpen)
	nc.Close()
	time.AfterFunc(short, p.Heal)
	// The server sees the client go only once the network is healed.
	start := time.Now()
	fabrictest.Eventually(t, long, "the server sees the client go", func() bool { return s.NATS().NumClients() < before })
	if since := time.Since(start); since < short/2 {
		t.Fatalf("the server saw it after %v", since)
	}
}

func TestProxyDropsOneDirection(t *testing.T) {
	t.Parallel()
	s, p, nc := proxied(t)
	got := sink(t, s)
	p.Apply(fabrictest.DropToClient)
	publish(t, nc, "sink.a", "1")
	expect(t, got, "1")
	p.Heal()
	p.Apply(fabrictest.DropToServer)
	publish(t, nc, "sink.a", "2")
	expectNothing(t, got)
}

// publish sends and makes sure that it is on its way.
func publish(t testing.TB, nc *nats.Conn, subject, data string) {
	t.Helper()
	if err := nc.Publish(subject, []byte(data)); err != nil {
		t.Fatal(err)
	}
	_ = nc.FlushTimeout(time.Millisecond) // the PONG may be lost
}

func TestProxyHangDeliversAfterHealing(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)
	p.Apply(fabrictest.Hang)
	done := make(chan error, 1)
	go func() { done <- request(nc, "late", long) }()
	select {
	case err := <-done:
		t.Fatalf("answered while hanging: %v", err)
	case <-time.After(short):
	}
	p.Heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)
	p.Apply(fabrictest.Delay(100 * time.Millisecond))
	start := time.Now()
	mustRequest(t, nc, "slow")
	if d := time.Since(start); d < 200*time.Millisecond {
		t.Fatalf("there and back in %v", d)
	}
	// A delay is not a limit: many at once take no longer than one.
	start = time.Now()
	done := make(chan error, 50)
	for range cap(done) {
		go func() { done <- request(nc, "x", long) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Fatalf("%d requests took %v", cap(done), d)
	}
}

func TestProxyFaultsOfOneClient(t *testing.T) {
	t.Parallel()
	_, p, nc := proxied(t)
	other := fabrictest.Connect(t, p.URL(), nats.Name("other"))
	p.ApplyTo("client", fabrictest.HalfOpen)
	mustRequest(t, other, "not struck")
	if err := request(nc, "lost", short); !errors.Is(err, nats.ErrTimeout) {
		t.Fatal(err)
	}
	p.Heal()
	p.ApplyTo("client", fabrictest.Cut, fabrictest.RefuseReconnect)
	fabrictest.Eventually(t, long, "client disconnected", func() bool { return !nc.IsConnected() })
	mustRequest(t, other, "not struck")
	p.Heal()
	mustRequest(t, other, "not struck")
	fabrictest.Eventually(t, long, "client back", nc.IsConnected)
}
