package fabrictest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
)

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func bucket(t testing.TB, nc *nats.Conn, replicas int) jetstream.KeyValue {
	t.Helper()
	kv, err := jetStream(t, nc).CreateKeyValue(testContext(t), jetstream.KeyValueConfig{Bucket: "b", Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestServerKeepsDataOverKillAndRestart(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t)
	kv := bucket(t, s.Connect(t), 1)
	if _, err := kv.PutString(testContext(t), "k", "v"); err != nil {
		t.Fatal(err)
	}

	s.Kill()
	if nc, err := nats.Connect(s.URL()); err == nil {
		nc.Close()
		t.Fatal("a killed server takes connections")
	}
	s.Restart(t)

	kv, err := jetStream(t, s.Connect(t)).KeyValue(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(testContext(t), "k"); err != nil || string(e.Value()) != "v" {
		t.Fatalf("after restart: %v, %v", e, err)
	}
}

func TestClusterReplicates(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3)
	kv := bucket(t, c.Connect(t), 3)
	if _, err := kv.PutString(testContext(t), "k", "v"); err != nil {
		t.Fatal(err)
	}

	leader := c.StreamLeader(t, "KV_b")
	leader.Kill()
	if leader.Running() {
		t.Fatal("a killed server runs")
	}
	nc := c.Connect(t)
	fabrictest.Eventually(t, 30*time.Second, "a write after the leader was killed", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		kv, err := jetStream(t, nc).KeyValue(ctx, "b")
		if err != nil {
			return false
		}
		_, err = kv.PutString(ctx, "k", "w")
		return err == nil
	})
	leader.Restart(t)
	c.WaitReady(t)
}

// TestClusterIsReadyToLoseServers stops all servers as soon as they are ready: those that did not lead elect a leader without the one
// that did. A server that was stopped between joining and the commit of that would stand for no election, and refuse the other its vote.
func TestClusterIsReadyToLoseServers(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3, fabrictest.WithProxiedRoutes(fabrictest.Delay(300*time.Millisecond)))
	var others []*fabrictest.Server
	for _, s := range c.Servers() {
		if !s.NATS().JetStreamIsLeader() {
			others = append(others, s)
		}
	}
	for _, s := range c.Servers() {
		meta := (*s.NATS().Raftz(&server.RaftzOptions{GroupFilter: "_meta_"}))["$SYS"]["_meta_"]
		if meta.Size != 3 || meta.Committed < meta.PIndex {
			t.Errorf("%v knows %d of 3 members, and %d of %d entries are committed", s, meta.Size, meta.Committed, meta.PIndex)
		}
	}
	for _, s := range c.Servers() {
		s.Kill()
	}
	c.Heal()
	for _, s := range others {
		s.Restart(t)
	}
	fabrictest.Eventually(t, 30*time.Second, "a leader among the two others", func() bool {
		return slices.ContainsFunc(others, func(s *fabrictest.Server) bool { return s.NATS().JetStreamIsLeader() })
	})
}
