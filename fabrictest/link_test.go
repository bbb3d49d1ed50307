package fabrictest_test

import (
	"context"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

func TestLinkPartitionsTheCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		faults []fabrictest.Fault
	}{
		{"cut", []fabrictest.Fault{fabrictest.Cut, fabrictest.RefuseReconnect}},
		{"hang", []fabrictest.Fault{fabrictest.Hang}},
		{"half-open", []fabrictest.Fault{fabrictest.HalfOpen}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testPartition(t, c.faults)
		})
	}
}

func testPartition(t *testing.T, faults []fabrictest.Fault) {
	c := fabrictest.StartCluster(t, 3, fabrictest.WithProxiedRoutes())
	bucket(t, c.Connect(t), 3)
	leader := c.StreamLeader(t, "KV_b")
	put := func(s *fabrictest.Server, within time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := jetStream(t, s.Connect(t)).Publish(ctx, "$KV.b.k", []byte("v"))
		return err
	}
	if err := put(leader, long); err != nil {
		t.Fatal(err)
	}

	var isolated int
	var other *fabrictest.Server
	for i, s := range c.Servers() {
		if s == leader {
			isolated = i
		} else {
			other = s
		}
	}
	c.Isolate(t, isolated, faults...)
	if err := put(leader, time.Second); err == nil {
		t.Fatal("an isolated leader acknowledges a write")
	}
	fabrictest.Eventually(t, long, "the majority takes a write", func() bool { return put(other, time.Second) == nil })
	if err := put(leader, time.Second); err == nil {
		t.Fatal("an isolated server acknowledges a write of the majority: there is a way around the proxies")
	}
	c.Heal()
	c.WaitReady(t)
	fabrictest.Eventually(t, long, "the server is back", func() bool { return put(leader, time.Second) == nil })
}

func TestLinkOneWay(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 2, fabrictest.WithProxiedRoutes())
	zero, one := c.Server(0), c.Server(1)
	at := sink(t, one)
	back := sink(t, zero)
	from, to := zero.Connect(t), one.Connect(t)
	fabrictest.Eventually(t, long, "each server to know of both subscriptions", func() bool {
		return zero.NATS().GlobalAccount().Interest("sink.a") == 2 && one.NATS().GlobalAccount().Interest("sink.a") == 2
	})
	publish(t, from, "sink.a", "1")
	expect(t, at, "1")
	expect(t, back, "1")

	c.Link(t, 0, 1).Apply(fabrictest.DropToServer)
	publish(t, from, "sink.a", "2")
	expect(t, back, "2")
	expectNothing(t, at)
	publish(t, to, "sink.a", "3")
	expect(t, at, "3")
	expect(t, back, "3")
}
