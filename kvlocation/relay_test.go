package kvlocation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// inbox collects what comes through a consumer.
type inbox struct {
	*RelayInbox
	mu    sync.Mutex
	parts []RelayPart
}

func openInbox(t *testing.T, p party, rid string, lifecycle uint64) *inbox {
	t.Helper()
	in := &inbox{}
	var err error
	in.RelayInbox, err = p.OpenRelay(testContext(t), rid, lifecycle, func(part RelayPart) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.parts = append(in.parts, part)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// of returns the names of the parts of one move.
func (in *inbox) of(op string) []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	var names []string
	for _, p := range in.parts {
		if p.Op == op {
			names = append(names, p.Part)
		}
	}
	return names
}

func (in *inbox) wantParts(t *testing.T, op string, n int) []string {
	t.Helper()
	fabrictest.Eventually(t, time.Minute, fmt.Sprintf("%d parts of %s", n, op), func() bool { return len(in.of(op)) >= n })
	return in.of(op)
}

// relayAll hands over parts 1..n and waits until all are stored.
func relayAll(t *testing.T, p party, to Handover, n int, data []byte) (names []string) {
	t.Helper()
	var under []*Relaying
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		names = append(names, name)
		under = append(under, p.Relay(testContext(t), to, name, data, time.Minute))
	}
	for i, r := range under {
		if seq, err := r.Wait(testContext(t)); err != nil || seq == 0 {
			t.Fatalf("part %d: sequence %d, %v", i, seq, err)
		}
	}
	return names
}

func newMove(rid string, lifecycle uint64) Handover {
	return Handover{RID: rid, Lifecycle: lifecycle, Op: nuid.Next()}
}

// TestConformanceRelay has what moves hand over, under faults in the paths of both sides.
func TestConformanceRelay(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		src, tgt := b.member(t, 0, "src", time.Second), b.member(t, len(b.servers)-1, "tgt", time.Second)
		in := openInbox(t, tgt, "tgt", 7)

		t.Run("CA-5", func(t *testing.T) {
			info := relayConsumer(t, tgt, in.Consumer())
			if info.Config.Durable != "" || info.Config.FilterSubject != "fab.m.move.to.tgt.7.>" && !slices.Equal(info.Config.FilterSubjects, []string{"fab.m.move.to.tgt.7.>"}) {
				t.Errorf("the consumer is %+v", info.Config)
			}
			to := newMove("tgt", 7)
			names := relayAll(t, src, to, 40, []byte("x"))
			if got := in.wantParts(t, to.Op, len(names)); !slices.Equal(got, names) {
				t.Errorf("got %v", got)
			}
			in.mu.Lock()
			p := in.parts[len(in.parts)-1]
			in.mu.Unlock()
			if p.From != "src" || p.Op != to.Op || p.Sequence == 0 || string(p.Data) != "x" {
				t.Errorf("a part is %+v", p)
			}
		})

		t.Run("another process run hears nothing", func(t *testing.T) {
			later := openInbox(t, tgt, "tgt", 8)
			to, toLater := newMove("tgt", 7), newMove("tgt", 8)
			relayAll(t, src, to, 1, nil)
			relayAll(t, src, toLater, 1, nil)
			in.wantParts(t, to.Op, 1)
			later.wantParts(t, toLater.Op, 1)
			if len(later.of(to.Op)) != 0 || len(in.of(toLater.Op)) != 0 {
				t.Error("a part came to another process run")
			}
		})

		t.Run("a lost answer stores no part twice", func(t *testing.T) {
			to := newMove("tgt", 7)
			to.From = "src"
			lost := src.proxy.Arm(fabrictest.Trigger{Subject: src.moves.publish + to.key(), Answer: true, Action: fabrictest.Drop, Times: 3})
			names := relayAll(t, src, to, 10, []byte("y"))
			if got := in.wantParts(t, to.Op, 10); !slices.Equal(got, names) || lost.Count() != 3 {
				t.Errorf("got %v, %d answers lost", got, lost.Count())
			}
			if n := moveMessages(t, src, to.key()); n != 10 {
				t.Errorf("%d messages are stored", n)
			}
		})

		t.Run("a lost sending is sent again", func(t *testing.T) {
			to := newMove("tgt", 7)
			to.From = "src"
			src.proxy.Arm(fabrictest.Trigger{Subject: src.moves.publish + to.key(), Action: fabrictest.Drop, Times: 2})
			names := relayAll(t, src, to, 6, nil)
			got := in.wantParts(t, to.Op, 6)
			slices.Sort(got)
			if !slices.Equal(got, names) {
				t.Errorf("got %v", got)
			}
		})

		t.Run("the source's connection is cut", func(t *testing.T) {
			to := newMove("tgt", 7)
			to.From = "src"
			src.proxy.Arm(fabrictest.Trigger{Subject: src.moves.publish + to.key(), Action: fabrictest.CutAfter, Nth: 5})
			names := relayAll(t, src, to, 10, nil)
			got := in.wantParts(t, to.Op, 10)
			slices.SortFunc(got, func(a, b string) int { return strings.Compare(a, b) })
			if !slices.Equal(got, names) {
				t.Errorf("got %v", got)
			}
		})

		t.Run("the target's connection is cut", func(t *testing.T) {
			to := newMove("tgt", 7)
			names := relayAll(t, src, to, 5, nil)
			tgt.proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
			for i := range 5 {
				name := fmt.Sprintf("q%d", i)
				names = append(names, name)
				if _, err := src.Relay(testContext(t), to, name, nil, time.Minute).Wait(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			tgt.proxy.Heal()
			if got := in.wantParts(t, to.Op, 10); !slices.Equal(got, names) {
				t.Errorf("got %v", got)
			}
		})

		t.Run("the server loses the consumer", func(t *testing.T) {
			to := newMove("tgt", 7)
			relayAll(t, src, to, 3, nil)
			in.wantParts(t, to.Op, 3)
			name := in.Consumer()
			js, _ := jetstream.New(src.nc)
			if err := js.DeleteConsumer(testContext(t), "FABRIC_m_MOVE", name); err != nil {
				t.Fatal(err)
			}
			if _, err := src.Relay(testContext(t), to, "after", nil, time.Minute).Wait(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if got := in.wantParts(t, to.Op, 4); len(got) != 4 || got[3] != "after" {
				t.Errorf("got %v", got)
			}
			if in.Consumer() == name {
				t.Error("the consumer is the one that was removed")
			}
		})

		t.Run("cleared", func(t *testing.T) {
			to := newMove("tgt", 7)
			to.From = "src"
			relayAll(t, src, to, 4, nil)
			if err := src.RelayBulk(testContext(t), to, []byte("state"), time.Minute, atOnce); err != nil {
				t.Fatal(err)
			}
			in.wantParts(t, to.Op, 4)
			if err := src.ClearRelay(testContext(t), to, true, true); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{to.key(), to.bulkKey()} {
				fabrictest.Eventually(t, time.Minute, "the marker to go", func() bool { return moveMessages(t, src, key) == 0 })
			}
			_, err := tgt.FetchBulk(briefly(t), to, src.BulkOf(len("state")), atOnce)
			if k := outcome.KindOf(err); k != outcome.DataLost && k != outcome.Unavailable {
				t.Errorf("fetch of what was cleared: %v", err)
			}
			if got := in.of(to.Op); len(got) != 4 {
				t.Errorf("the marker came as a part: %v", got)
			}
		})

		t.Run("what nobody clears goes by itself", func(t *testing.T) {
			to := newMove("tgt", 7)
			to.From = "src"
			if _, err := src.Relay(testContext(t), to, "p", nil, 10*time.Second).Wait(testContext(t)); err != nil { // it is sent again for as long
				t.Fatal(err)
			}
			fabrictest.Eventually(t, time.Minute, "the part to go", func() bool { return moveMessages(t, src, to.key()) == 0 })
		})

		t.Run("bulk", func(t *testing.T) {
			r := rand.NewChaCha8([32]byte{1})
			for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3<<20 + 17} {
				to := newMove("tgt", 7)
				data := make([]byte, size)
				_, _ = r.Read(data)
				to.From = "src"
				if size > chunkSize { // and now and then an answer is lost
					src.proxy.Arm(fabrictest.Trigger{Subject: src.moves.publish + to.bulkKey(), Answer: true, Action: fabrictest.Drop})
				}
				travelled, err := json.Marshal(src.BulkOf(size))
				if err != nil {
					t.Fatal(err)
				}
				var there BulkRef
				if err := json.Unmarshal(travelled, &there); err != nil {
					t.Fatal(err)
				}
				written := make(chan error, 1) // it is fetched while it is being written
				go func() { written <- src.RelayBulk(testContext(t), to, data, time.Minute, atOnce) }()
				got, err := tgt.FetchBulk(testContext(t), to, there, atOnce)
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%d bytes: %d came, %v", size, len(got), err)
				}
				if err := <-written; err != nil {
					t.Fatal(err)
				}
			}
			if n := len(in.of("")); n != 0 {
				t.Errorf("%d parts of no move", n)
			}
		})
	})
}

func relayConsumer(t *testing.T, p party, name string) *jetstream.ConsumerInfo {
	t.Helper()
	js, err := jetstream.New(p.nc)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(testContext(t), "FABRIC_m_MOVE", name)
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

// TestRelayCloseWhileMadeAgain closes an inbox while the client library makes its consumer anew and nobody answers: Close returns, and nothing
// is taken after it.
func TestRelayCloseWhileMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	src, tgt := b.member(t, 0, "src", time.Second), b.member(t, 0, "tgt", time.Second)
	in := openInbox(t, tgt, "tgt", 7)
	to := newMove("tgt", 7)
	relayAll(t, src, to, 1, nil)
	in.wantParts(t, to.Op, 1)
	asked := tgt.proxy.Arm(fabrictest.Trigger{Subject: "$JS.API.CONSUMER.CREATE.>", Action: fabrictest.Drop, Times: -1})
	js, err := jetstream.New(src.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(testContext(t), "FABRIC_m_MOVE", in.Consumer()); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, time.Minute, "the consumer to be made anew", func() bool { return asked.Count() > 0 })
	closed := make(chan struct{})
	go func() { in.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(5 * time.Second): // the library's own request takes 10 s
		t.Error("Close waits for the consumer")
	}
	tgt.proxy.Heal()
	relayAll(t, src, to, 2, nil)
	if got := in.of(to.Op); len(got) != 1 {
		t.Errorf("parts came after the end: %v", got)
	}
}

// TestRelayLeaderStepsDown changes the leader of the stream while parts come.
func TestRelayLeaderStepsDown(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	src, tgt := b.member(t, 0, "src", time.Second), b.member(t, 1, "tgt", time.Second)
	in := openInbox(t, tgt, "tgt", 7)
	to := newMove("tgt", 7)
	var (
		under []*Relaying
		want  []string
	)
	for i := range 60 {
		if i == 20 || i == 40 {
			if _, err := under[i-1].Wait(testContext(t)); err != nil { // there is a leader
				t.Fatal(err)
			}
			if _, err := src.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.FABRIC_m_MOVE", nil, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, fmt.Sprintf("p%02d", i))
		under = append(under, src.Relay(testContext(t), to, want[i], []byte("x"), time.Minute))
	}
	for i, r := range under {
		if _, err := r.Wait(testContext(t)); err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	got := in.wantParts(t, to.Op, 60)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestRelayConsumersServerDies kills the server that has the target's consumer, while the target is connected to another.
func TestRelayConsumersServerDies(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	src, tgt := b.member(t, 0, "src", time.Second), b.member(t, 0, "tgt", time.Second)
	var (
		in   *inbox
		at   string
		to   Handover
		kill = -1
	)
	for lifecycle := uint64(1); kill < 0 && lifecycle < 40; lifecycle++ {
		in, to = openInbox(t, tgt, "tgt", lifecycle), newMove("tgt", lifecycle)
		at = relayConsumer(t, tgt, in.Consumer()).Cluster.Leader
		for i, s := range b.servers {
			if s.Name() == at && i != 0 {
				kill = i
			}
		}
	}
	if kill < 0 {
		t.Fatal("no consumer came to be on another server")
	}
	names := relayAll(t, src, to, 5, nil)
	in.wantParts(t, to.Op, 5)
	b.servers[kill].Kill()
	for i := range 5 {
		names = append(names, fmt.Sprintf("q%d", i))
		if _, err := src.Relay(testContext(t), to, names[5+i], nil, time.Minute).Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if got := in.wantParts(t, to.Op, 10); !slices.Equal(got, names) {
		t.Errorf("got %v", got)
	}
}

// TestRelayWindow shows that what is under way is bounded, and that a caller waits no longer than its context.
func TestRelayWindow(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	src := b.member(t, 0, "src", time.Minute)
	to := newMove("tgt", 7)
	to.From = "src"
	held := src.proxy.Arm(fabrictest.Trigger{Subject: src.moves.publish + to.key(), Answer: true, Action: fabrictest.Drop, Times: -1})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var under []*Relaying
	for i := range relaySlots {
		under = append(under, src.Relay(ctx, to, fmt.Sprintf("p%d", i), nil, time.Minute))
	}
	r := src.Relay(briefly(t), to, "one-too-many", nil, time.Minute)
	_, err := r.Wait(testContext(t))
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	fabrictest.Eventually(t, time.Minute, "all to be sent", func() bool { return held.Count() == relaySlots })
	cancel()
	for _, r := range under {
		_, err := r.Wait(testContext(t))
		wantError(t, err, outcome.Unavailable, outcome.Unknown)
	}
	held.Release()
	if _, err := src.Relay(testContext(t), to, "room-again", nil, time.Minute).Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if free := cap(src.parts.slots) - len(src.parts.slots); free != relaySlots {
		t.Errorf("%d of %d slots are free", free, relaySlots)
	}
}

func TestRelayRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.member(t, 0, "src", time.Second)
	ctx := testContext(t)
	good := newMove("tgt", 7)
	for _, c := range []struct {
		name string
		to   Handover
		part string
		ttl  time.Duration
	}{
		{"no target", Handover{Lifecycle: 1, Op: "x"}, "p", time.Minute},
		{"no lifecycle", Handover{RID: "tgt", Op: "x"}, "p", time.Minute},
		{"no operation", Handover{RID: "tgt", Lifecycle: 1}, "p", time.Minute},
		{"a dot", Handover{RID: "tgt", Lifecycle: 1, Op: "a.b"}, "p", time.Minute},
		{"no part", good, "", time.Minute},
		{"no TTL", good, "p", 0},
		{"half a second", good, "p", 500 * time.Millisecond},
		{"too long", good, "p", MaxRelayTTL + time.Second},
	} {
		_, err := p.Relay(ctx, c.to, c.part, nil, c.ttl).Wait(ctx)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		if c.part != "" {
			wantError(t, p.RelayBulk(ctx, c.to, nil, c.ttl, atOnce), outcome.InvalidOperation, outcome.NotAccepted)
		}
	}
	_, err := p.Relay(ctx, good, "p", make([]byte, p.MaxSpill()+1), time.Minute).Wait(ctx)
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	for _, ref := range []BulkRef{{}, {Chunks: 2, Chunk: 10, Size: 5}, {Chunks: 1, Chunk: 1 << 40, Size: MaxBulk + 1}} {
		_, err := p.FetchBulk(ctx, Handover{From: "src", RID: "tgt", Lifecycle: 7, Op: "x"}, ref, atOnce)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	_, err = p.OpenRelay(ctx, "a.b", 1, func(RelayPart) {})
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
}

// TestRelayRights has source and target with no more rights than their names give them: neither receives what is for
// another, nor publishes in another's name, nor purges.
func TestRelayRights(t *testing.T) {
	t.Parallel()
	user := func(rid string) string {
		return fmt.Sprintf(`{user: %[1]q, password: "p", permissions: {
			publish: {allow: [
				"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.FABRIC_m_MOVE", "$JS.API.DIRECT.GET.FABRIC_m_MOVE.>",
				"$JS.API.CONSUMER.CREATE.FABRIC_m_MOVE.*.fab.m.move.to.%[1]s.>", "$JS.API.CONSUMER.MSG.NEXT.FABRIC_m_MOVE.>",
				"$JS.API.CONSUMER.DELETE.FABRIC_m_MOVE.>", "fab.m.move.to.*.*.%[1]s.*", "fab.m.move.bulk.%[1]s.*"
			]}, subscribe: {allow: ["_INBOX_%[1]s.>"]}}}`, rid)
	}
	srv := fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { users = [ {user: "op", password: "p"}, `+user("src")+", "+user("tgt")+` ] }`))
	dial := func(name string, opts ...nats.Option) *nats.Conn {
		nc, err := nats.Connect(srv.URL(), append(opts, nats.UserInfo(name, "p"), nats.ReconnectBufSize(-1), nats.Timeout(readyIn))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	if _, err := Init(testContext(t), dial("op"), Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	var (
		mu     sync.Mutex
		denied []string
	)
	node := func(name string) party {
		nc := dial(name, nats.CustomInboxPrefix("_INBOX_"+name), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			mu.Lock()
			defer mu.Unlock()
			denied = append(denied, err.Error())
		}))
		return party{Store: openStore(t, nc, Config{Mesh: "m", RID: name, AttemptTimeout: time.Second})}
	}
	src, tgt := node("src"), node("tgt")
	in := openInbox(t, tgt, "tgt", 7)
	to := newMove("tgt", 7)
	to.From = "src"
	relayAll(t, src, to, 3, nil)
	in.wantParts(t, to.Op, 3)
	if err := src.RelayBulk(testContext(t), to, bytes.Repeat([]byte("s"), chunkSize+1), time.Minute, atOnce); err != nil {
		t.Fatal(err)
	}
	if _, err := tgt.FetchBulk(testContext(t), to, src.BulkOf(chunkSize+1), atOnce); err != nil {
		t.Fatal(err)
	}
	if err := src.ClearRelay(testContext(t), to, true, true); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if len(denied) != 0 {
		t.Errorf("denied: %v", denied)
	}
	mu.Unlock()

	refused := func(what string, f func(context.Context)) {
		t.Helper()
		mu.Lock()
		denied = nil
		mu.Unlock()
		f(briefly(t))
		fabrictest.Eventually(t, 10*time.Second, what+" to be refused", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(denied) > 0
		})
	}
	refused("a consumer of another's moves", func(ctx context.Context) {
		if in, err := src.OpenRelay(ctx, "tgt", 7, func(RelayPart) {}); err == nil {
			in.Close()
			t.Error("a node receives what is for another")
		}
	})
	refused("a part in another's name", func(context.Context) {
		_ = src.nc.Publish("fab.m.move.to.tgt.7.tgt."+to.Op, nil)
	})
	refused("a purge", func(context.Context) { _ = src.nc.Publish("$JS.API.STREAM.PURGE.FABRIC_m_MOVE", nil) })
}

// atOnce has bulk state wait for nothing.
func atOnce(context.Context) {}
