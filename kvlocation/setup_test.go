package kvlocation

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func wantText(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestInit(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc := connect(t, srv.URL())
	ctx := testContext(t)
	set := Setup{Mesh: "m"}

	r, err := Check(ctx, nc, set)
	if err != nil || r.OK() || len(r.Buckets) != 6 || !r.Buckets[0].Missing {
		t.Fatalf("check of nothing: %+v, %v", r, err)
	}
	_, err = Open(ctx, nc, Config{Mesh: "m"})
	wantText(t, err, "FABRIC_m_NODES", "does not exist", "init")

	// Any number at once make one and the same store.
	var wg sync.WaitGroup
	reports := make([]Report, 4)
	for i := range reports {
		wg.Go(func() {
			var err error
			if reports[i], err = Init(ctx, nc, set); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range reports {
		if !r.OK() || r.epoch("FABRIC_m_NODES") == 0 || r.epoch("FABRIC_m_NODES") != reports[0].epoch("FABRIC_m_NODES") {
			t.Fatalf("report %+v beside %+v", r, reports[0])
		}
	}
	if r, err = Init(ctx, nc, set); err != nil || !r.OK() || r.Buckets[0].Created {
		t.Fatalf("a second init: %+v, %v", r, err)
	}
	if r, err = Check(ctx, nc, set); err != nil || !r.OK() || r.Buckets[0].Epoch != reports[0].Buckets[0].Epoch {
		t.Fatalf("check: %+v, %v", r, err)
	}

	// Made again, the epoch is larger.
	js, _ := jetstream.New(nc)
	if err := js.DeleteStream(ctx, "KV_FABRIC_m_NODES"); err != nil {
		t.Fatal(err)
	}
	if r, err = Init(ctx, nc, set); err != nil || !r.Buckets[0].Created || r.Buckets[0].Epoch <= reports[0].Buckets[0].Epoch {
		t.Fatalf("made again: %+v, %v", r, err)
	}
}

// TestInitOfOlderMesh gives the streams that an older version did not make to a mesh whose nodes run.
func TestInitOfOlderMesh(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc, ctx := connect(t, srv.URL()), testContext(t)
	old, err := Init(ctx, nc, Setup{Mesh: "m", records: true})
	if err != nil || len(old.Buckets) != 2 {
		t.Fatalf("%+v, %v", old, err)
	}
	running := openStore(t, connect(t, srv.URL()), Config{Mesh: "m"}) // it asks for no more than the older version did
	lease, err := running.AcquireLease(ctx, LeaseConfig{RID: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer release(lease)
	_, err = Open(ctx, nc, Config{Mesh: "m", RID: "n2"})
	wantText(t, err, "FABRIC_m_SUPERVISE", "does not exist", "init")

	r, err := Init(ctx, nc, Setup{Mesh: "m"})
	if err != nil || !r.OK() || len(r.Buckets) != 6 {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, b := range r.Buckets {
		if b.Created != (i >= 2) || b.Epoch == 0 || i < 2 && b.Epoch != old.Buckets[i].Epoch {
			t.Errorf("%+v", b)
		}
	}
	if err := running.checkIdentity(ctx, lease.clock); err != nil {
		t.Errorf("the store looks like another one to a node that runs: %v", err)
	}
	if err := lease.Verify(ctx); err != nil {
		t.Error(err)
	}
	openStore(t, nc, Config{Mesh: "m", RID: "n2"})
}

func TestDrift(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc := connect(t, srv.URL())
	ctx := testContext(t)
	if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	js, _ := jetstream.New(nc)
	relay, err := js.Stream(ctx, "FABRIC_m_RELAY")
	if err != nil {
		t.Fatal(err)
	}
	good := relay.CachedInfo().Config
	bad := good
	bad.MaxMsgsPerSubject = 1
	if _, err := js.UpdateStream(ctx, bad); err != nil {
		t.Fatal(err)
	}
	_, err = Open(ctx, nc, Config{Mesh: "m", RID: "n1"})
	wantText(t, err, "stream FABRIC_m_RELAY: max_msgs_per_subject is 1, must be -1")
	openStore(t, nc, Config{Mesh: "m"})
	if _, err := js.UpdateStream(ctx, good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field     string
		change    func(*jetstream.StreamConfig)
		dangerous bool
	}{
		{"max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, true},
		{"allow_direct", func(c *jetstream.StreamConfig) { c.AllowDirect = false }, true},
		{"duplicate_window", func(c *jetstream.StreamConfig) { c.Duplicates = time.Minute }, true},
		{"republish", func(c *jetstream.StreamConfig) { c.RePublish = nil }, true},
		{"metadata fabric-epoch", func(c *jetstream.StreamConfig) { delete(c.Metadata, MetaEpoch) }, true},
		{"max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }, true},
	} {
		t.Run(c.field, func(t *testing.T) {
			st, err := js.Stream(ctx, "KV_FABRIC_m_NODES")
			if err != nil {
				t.Fatal(err)
			}
			good, bad := st.CachedInfo().Config, st.CachedInfo().Config
			bad.Metadata = withMeta(good.Metadata, "x", "y")
			c.change(&bad)
			if _, err := js.UpdateStream(ctx, bad); err != nil {
				t.Fatal(err)
			}
			if c.field == "metadata fabric-epoch" {
				// An epoch is written only while the stream is new.
				if _, err := nc.Request("$KV.FABRIC_m_NODES.x", nil, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			r, err := Init(ctx, nc, Setup{Mesh: "m"})
			if err != nil || r.OK() {
				t.Fatalf("init: %+v, %v", r, err)
			}
			i := slices.IndexFunc(r.Buckets[0].Drift, func(d Drift) bool { return d.Field == c.field })
			if i < 0 || r.Buckets[0].Drift[i].Dangerous != c.dangerous || r.Buckets[0].Drift[i].Got == r.Buckets[0].Drift[i].Want {
				t.Fatalf("drift %+v", r.Buckets[0].Drift)
			}
			if _, err := Open(ctx, nc, Config{Mesh: "m"}); c.dangerous {
				wantText(t, err, c.field, "FABRIC_m_NODES")
				if !errors.Is(err, outcome.NotConfigured) {
					t.Errorf("kind of %v", err)
				}
			}
			if _, err := js.UpdateStream(ctx, good); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSetupErrors(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc := connect(t, srv.URL())
	ctx := testContext(t)

	_, err := Init(ctx, nc, Setup{Mesh: "a b"})
	wantText(t, err, "mesh name", `"a b"`)
	_, err = Init(ctx, nc, Setup{Mesh: "m", Replicas: 2})
	wantText(t, err, "replicas 2", "1, 3 or 5")
	_, err = Init(ctx, nc, Setup{Mesh: "m", Replicas: 3})
	wantText(t, err, "replicas 3 need 3 servers", "one server", "replicas 1")
	_, err = Init(ctx, nc, Setup{Mesh: "m", Domain: "nowhere"})
	wantText(t, err, "domain does not exist")

	proxy := fabrictest.NewProxy(t, srv.URL())
	proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.INFO",
		Action: fabrictest.Respond(`{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"api":{"total":1,"errors":0}}`)})
	_, err = Init(ctx, connect(t, proxy.URL()), Setup{Mesh: "m"})
	wantText(t, err, "too old", MinServer, "found 0")
}

// A leader election is waited for: while it lasts nobody answers, or the answer says so.
func TestSetupDuringAnElection(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	proxy := fabrictest.NewProxy(t, srv.URL())
	nc := connect(t, proxy.URL())
	ctx := testContext(t)
	for _, subject := range []string{"$JS.API.STREAM.CREATE.KV_FABRIC_m_NODES", "$JS.API.STREAM.UPDATE.KV_FABRIC_m_NODES"} {
		proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Action: fabrictest.Drop})
	}
	proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.STREAM.CREATE.KV_FABRIC_m_LOCATION", Answer: true, Action: fabrictest.Drop})
	if r, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil || !r.OK() {
		t.Fatal(r, err)
	}
	noLeader := fabrictest.JetStreamError(503, codeNotAvailable, "JetStream system temporarily unavailable")
	for _, subject := range []string{"$JS.API.INFO", "$JS.API.STREAM.INFO.KV_FABRIC_m_NODES"} {
		proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Action: fabrictest.Drop})
		proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Times: 2, Action: noLeader})
	}
	s, err := Open(ctx, nc, Config{Mesh: "m"})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()

	proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.INFO", Times: -1, Action: noLeader})
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = Open(short, nc, Config{Mesh: "m"})
	wantText(t, err, "JetStream has no leader at the moment", "10008")
}

func TestSetupNoJetStream(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t, fabrictest.WithConfig(`
		accounts {
			A { users: [{user: a, password: a}] }
			B { jetstream: enabled, users: [{user: b, password: b, permissions: {publish: {deny: "$JS.API.STREAM.CREATE.>"}}}] }
		}`))
	ctx := testContext(t)
	_, err := Init(ctx, connect(t, "nats://a:a@"+strings.TrimPrefix(srv.URL(), "nats://")), Setup{Mesh: "m"})
	wantText(t, err, "JetStream is not enabled for this account")
	_, err = Init(ctx, connect(t, "nats://b:b@"+strings.TrimPrefix(srv.URL(), "nats://")), Setup{Mesh: "m"})
	wantText(t, err, "lacks a permission", "STREAM.CREATE")
	if strings.Contains(err.Error(), "b:b") {
		t.Errorf("a password stands in %q", err)
	}

	off, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	off.Start()
	t.Cleanup(func() { off.Shutdown(); off.WaitForShutdown() })
	if !off.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	_, err = Init(ctx, connect(t, off.ClientURL()), Setup{Mesh: "m"})
	wantText(t, err, "JetStream is not enabled on the server")
}

func TestInitReplicas(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3)
	nc := c.Connect(t)
	ctx := testContext(t)
	if _, err := Init(ctx, nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	r, err := Init(ctx, nc, Setup{Mesh: "m", Replicas: 3})
	if err != nil || r.OK() || r.Buckets[0].Replicas != 1 || r.Buckets[0].Drift[0].Field != "replicas" || r.Buckets[0].Drift[0].Dangerous {
		t.Fatalf("replicas changed without leave: %+v, %v", r, err)
	}
	r, err = Init(ctx, nc, Setup{Mesh: "m", Replicas: 3, SetReplicas: true})
	if err != nil || !r.OK() || !r.Buckets[0].Changed || r.Buckets[1].Replicas != 3 {
		t.Fatalf("replicas not changed: %+v, %v", r, err)
	}
	if _, err = Init(ctx, nc, Setup{Mesh: "five", Replicas: 5}); err == nil {
		t.Fatal("5 replicas on 3 servers")
	}
	wantText(t, err, "replicas 5 need 5 servers", "3")
}

// TestInitWhileServersAreMissing makes streams in a cluster that starts: its leader has not heard of a member yet, says that it is
// offline, and is asked again.
func TestInitWhileServersAreMissing(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3)
	for _, s := range c.Servers() {
		s.Kill()
	}
	for _, s := range c.Servers()[:2] {
		s.Restart(t)
	}
	ctx := testContext(t)
	proxy := fabrictest.NewProxy(t, c.Server(0).URL())
	const create = "$JS.API.STREAM.CREATE.KV_FABRIC_m_NODES"
	refused := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: create, Answer: true, Action: fabrictest.Signal})
	nc := connect(t, proxy.URL())
	done := make(chan error, 1)
	go func() {
		_, err := Init(ctx, nc, Setup{Mesh: "m", Replicas: 3})
		done <- err
	}()
	select {
	case <-refused.Reached():
	case err := <-done:
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := Init(short, nc, Setup{Mesh: "short", Replicas: 3})
	wantText(t, err, "replicas 3 need 3 servers", "no suitable peers")
	c.Server(2).Restart(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestMoveStream shows how what moves hand over is persisted: with one copy it is acknowledged before it is on disk, and a change of
// replicas makes the stream anew without setting its sequences back.
func TestMoveStream(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3)
	nc := c.Connect(t)
	ctx := testContext(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for _, replicas := range []int{1, 3, 1} {
		r, err := Init(ctx, nc, Setup{Mesh: "m", Replicas: replicas, SetReplicas: true})
		if err != nil || !r.OK() {
			t.Fatalf("%d replicas: %+v, %v", replicas, r, err)
		}
		if r, err := Init(ctx, nc, Setup{Mesh: "m", Replicas: replicas, SetReplicas: true}); err != nil || !r.OK() || r.Buckets[5].Changed {
			t.Errorf("%d replicas, once more: %+v, %v", replicas, r, err)
		}
		st, err := js.Stream(ctx, "FABRIC_m_MOVE")
		if err != nil {
			t.Fatal(err)
		}
		want := jetstream.DefaultPersistMode
		if replicas == 1 {
			want = jetstream.AsyncPersistMode
		}
		if cfg := st.CachedInfo().Config; cfg.PersistMode != want || cfg.Replicas != replicas || cfg.Storage != jetstream.FileStorage {
			t.Errorf("%d replicas: %+v", replicas, cfg)
		}
		ack, err := js.Publish(ctx, "fab.m.move.bulk.n1.op", nil)
		if err != nil {
			t.Fatal(err)
		}
		if ack.Sequence <= last {
			t.Errorf("%d replicas: sequence %d after %d", replicas, ack.Sequence, last)
		}
		last = ack.Sequence
	}
}

// TestPersistDrift has streams that persist in another way than they should: records that are acknowledged before they are on disk are
// refused, moves that are slower than they could be are not.
func TestPersistDrift(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	nc := connect(t, srv.URL())
	ctx := testContext(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range (Setup{Mesh: "m", Replicas: 1}).streams() {
		switch cfg.Name {
		case "KV_FABRIC_m_LOCATION":
			cfg.PersistMode, cfg.AllowAtomicPublish = jetstream.AsyncPersistMode, false
		case "FABRIC_m_MOVE":
			cfg.PersistMode = jetstream.DefaultPersistMode
		default:
			continue
		}
		if _, err := js.CreateStream(ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Init(ctx, nc, Setup{Mesh: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for i, dangerous := range map[int]bool{1: true, 5: false} {
		drift := r.Buckets[i].Drift
		at := slices.IndexFunc(drift, func(d Drift) bool { return d.Field == "persist_mode" })
		if at < 0 || drift[at].Dangerous != dangerous {
			t.Errorf("%s: %+v", r.Buckets[i].Stream, drift)
		}
	}
}
