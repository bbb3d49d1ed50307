package kvlocation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// TestConformanceNodes runs the rules about leases and descriptors under their faults, on one server and on three.
func TestConformanceNodes(t *testing.T) {
	t.Parallel()
	servers := map[string]func(testing.TB) []string{
		"one": func(t testing.TB) []string { return []string{fabrictest.StartServer(t).URL()} },
		"three": func(t testing.TB) (urls []string) {
			for _, s := range fabrictest.StartCluster(t, 3).Servers() {
				urls = append(urls, s.URL())
			}
			return urls
		},
	}
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urls, cells := start(t), 0
			cell := func(name string, f func(*testing.T, *mesh)) {
				cells++
				n := fmt.Sprintf("m%d", cells)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					f(t, makeMesh(t, n, len(urls), urls...))
				})
			}
			cell("FO-7b", testGrace)
			cell("FO-7b/partial", testNobodyJoinsWhileStale)
			cell("FO-7c", testFrozenOwner)
			cell("FO-7c/repeat", testRepeatedRenewal)
			cell("FO-7c/lost answers", testLostRenewalAnswers)
			cell("FO-7c/erased", testErasedRenewal)
			cell("FO-7d", testStoreBack)
			cell("FO-7c/two processes", testTwoProcesses)
			cell("FO-10.16", testUnknownRenewal)
		})
	}
}

// FO-7b, FO-7c: the store is gone for longer than the grace. The list stays; the lease ends by its own deadline; after
// the grace the directory says so.
func testGrace(t *testing.T, m *mesh) {
	a, b := m.program("a"), m.program("b")
	la, lb := a.acquire(t, shortLease("a")), b.acquire(t, steadyLease("b"))
	b.publish(t, lb, StateServing, "work")
	d := a.directory(t, DirectoryConfig{Lease: la, Grace: 6 * time.Second})
	wantMembers(t, d, "b")
	list, lctx := d.Members(), la.Context()
	a.proxy.Apply(fabrictest.HalfOpen)

	wantEvent(t, la, LeaseLapsed) // after at most 3.3 s
	wantLapsed(t, la, lctx)
	fabrictest.Eventually(t, readyIn, "within the grace the directory is stale", func() bool { return d.State() == DirectoryStale })
	fabrictest.Eventually(t, readyIn, "the grace is over", func() bool { return d.State() == DirectoryExpired })
	if got, want := d.Members().All(), list.All(); len(got) != 1 || len(want) != 1 || got[0].Revision != want[0].Revision {
		t.Errorf("the list changed while the store was away: %+v", got)
	}
	if err := la.Admit(); err == nil {
		t.Error("the grace extended the lease")
	}
}

// FO-7b: notices still come, but the store cannot be read. Nobody joins the list from notices alone.
func testNobodyJoinsWhileStale(t *testing.T, m *mesh) {
	a, b := m.program("a"), m.program("b")
	lb := b.acquire(t, steadyLease("b"))
	d := a.directory(t, DirectoryConfig{Interval: 200 * time.Millisecond})
	unread := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.reads(), Times: -1, Action: fabrictest.Drop})
	fabrictest.Eventually(t, readyIn, "stale", func() bool { return d.State() == DirectoryStale })
	heard := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: m.notice("desc.b"), Action: fabrictest.Signal})
	b.publish(t, lb, StateServing)
	heard.Wait(t)
	// The follower has it when the connection has answered, has taken it when none waits, and has dealt with it when
	// it answers what comes after it.
	if err := a.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, readyIn, "the notice is taken", func() bool { return len(d.notices) == 0 })
	if err := d.Resync(testContext(t)); !errors.Is(err, outcome.Unavailable) {
		t.Fatalf("a full read without an answer: %v", err)
	}
	if d.Members().Len() != 0 {
		t.Fatalf("members %+v joined while the list could not be read", d.Members().All())
	}
	unread.Disarm()
	wantMembers(t, d, "b")
}

// FO-7d: the store is back. The lease and every descriptor are read again, no older than an own write, before anything
// changes; and only what differs changes.
func testStoreBack(t *testing.T, m *mesh) {
	a, b, c := m.program("a"), m.program("b"), m.program("c")
	la, lb, lc := a.acquire(t, shortLease("a")), b.acquire(t, steadyLease("b")), c.acquire(t, steadyLease("c"))
	b.publish(t, lb, StateServing)
	c.publish(t, lc, StateServing)
	d := a.directory(t, DirectoryConfig{Lease: la})
	wantMembers(t, d, "b", "c")
	list := d.Members()

	// Nothing has changed: nothing is changed.
	a.proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	fabrictest.Eventually(t, readyIn, "stale", func() bool { return d.State() == DirectoryStale })
	reads := d.Stats().Resyncs
	a.proxy.Heal()
	fabrictest.Eventually(t, readyIn, "fresh", d.Healthy)
	if d.Members() != list || d.Stats().Resyncs <= reads {
		t.Fatalf("%d reads after %d; the list is another one: %v", d.Stats().Resyncs, reads, d.Members() != list)
	}

	// While the store is away b drains, c is forgotten, and this node's lease lapses.
	a.proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	fabrictest.Eventually(t, readyIn, "the lease lapses", func() bool { return !la.Held() })
	// On a busy machine it may have lapsed, and been regained, in the first outage too.
	for last := LeaseRegained; last != LeaseLapsed || len(la.Events()) > 0; {
		last = (<-la.Events()).Kind
	}
	old := la.Generation()
	b.publish(t, lb, StateDraining)
	if err := lc.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.ForgetNode(testContext(t), "c"); err != nil {
		t.Fatal(err)
	}
	if d.Members() != list {
		t.Fatal("the list changed while the store was away")
	}
	order := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.key("lease.a"), Action: fabrictest.Signal,
		Match: func(msg fabrictest.Message) bool { return la.Generation() == old }})
	a.proxy.Heal()
	fabrictest.Eventually(t, readyIn, "the list is checked", func() bool {
		mb, _ := d.Members().Get("b")
		return d.Healthy() && d.Members().Len() == 1 && mb.State == StateDraining
	})
	order.Wait(t)
	if e := wantEvent(t, la, LeaseRegained); e.Generation <= old {
		t.Errorf("generation %d after %d", e.Generation, old)
	}
}

// FO-7c: the acknowledgement of a renewal is lost and the same renewal sent again is acknowledged. The deadline counts
// from the first sending, not from the repeat, which comes an attempt (1 s) later.
func testRepeatedRenewal(t *testing.T, m *mesh) {
	p := m.program("n1")
	l := p.acquire(t, shortLease("n1"))
	key := m.key("lease.n1")
	lost := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: key, Answer: true, Action: fabrictest.Drop})
	lost.Wait(t)
	sent := monotime.Now() // it was sent before
	// The repeat passes; what comes after it does not, so that the deadline stays as the repeat leaves it.
	rest := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: key, Nth: 2, Times: -1, Action: fabrictest.Drop})
	before := l.acked.Load().revision
	fabrictest.Eventually(t, readyIn, "the repeat is acknowledged", func() bool { return l.acked.Load().revision > before })
	rest.Wait(t)
	cfg := shortLease("n1")
	if got := monotime.Time(l.deadline.Load()).Sub(sent); got > cfg.TTL-cfg.Margin {
		t.Fatalf("the deadline is %v after the first sending, at most %v is allowed", got, cfg.TTL-cfg.Margin)
	}
	wantEvent(t, l, LeaseLapsed)
}

// FO-7c: a renewal's answers are lost twice, which is less than the TTL: no admission is refused.
func testLostRenewalAnswers(t *testing.T, m *mesh) {
	p := m.program("n1")
	l := p.acquire(t, steadyLease("n1"))
	before := l.acked.Load().revision
	lost := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "_INBOX.>", Times: 2, Action: fabrictest.Drop,
		Match: isAck})
	fabrictest.Eventually(t, readyIn, "two answers are lost and the renewal is acknowledged", func() bool {
		if err := l.Admit(); err != nil {
			t.Fatal(err)
		}
		return lost.Count() == 2 && l.acked.Load().revision > before
	})
	select {
	case e := <-l.Events():
		t.Fatalf("event %v (%v)", e.Kind, e.Err)
	default:
	}
}

// FO-7c: an acknowledged renewal is erased, as by an expiry at the same instant (here by a marker of another writer).
// The lease is closed as soon as that is found, and comes back under a new generation.
func testErasedRenewal(t *testing.T, m *mesh) {
	p, admin := m.program("n1"), m.program("admin")
	l := p.acquire(t, steadyLease("n1"))
	old, lctx := l.Generation(), l.Context()
	deadline := monotime.Time(l.deadline.Load())
	if _, err := admin.write(testContext(t), write{bucket: admin.nodes, key: leaseKey("n1"), blind: true, marker: true, ttl: markerTTL, opID: nuid.Next()}); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, l, LeaseLapsed)
	if monotime.Now() > deadline {
		t.Error("the lease was closed by its deadline only")
	}
	if err := context.Cause(lctx); !errors.Is(err, ErrOwnershipLost) {
		t.Fatalf("cause %v", err)
	}
	if e := wantEvent(t, l, LeaseRegained); e.Generation <= old {
		t.Fatalf("generation %d after %d", e.Generation, old)
	}
}

// FO-10.16: the result of a renewal is unknown until the deadline. Admission stays closed until the key was read again,
// no older than an own write, although the renewal had been applied.
func testUnknownRenewal(t *testing.T, m *mesh) {
	p, admin := m.program("n1"), m.program("admin")
	l := p.acquire(t, shortLease("n1"))
	old, lctx := l.Generation(), l.Context()
	acks := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.key("lease.n1"), Times: -1, Answer: true, Action: fabrictest.Drop})
	wantEvent(t, l, LeaseLapsed)
	wantLapsed(t, l, lctx)
	if st, err := admin.LeaseOf(testContext(t), "n1"); err != nil || !st.Live {
		t.Fatalf("the renewal was not applied: %+v, %v", st, err)
	}
	own := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.key("probe.n1"), Times: -1, Action: fabrictest.Drop})
	acks.Disarm()
	own.Wait(t) // the renewal is acknowledged now, the own write before the reading is not
	if err := l.Admit(); !errors.Is(err, outcome.Unavailable) {
		t.Fatalf("admission before the read: %v", err)
	}
	own.Disarm()
	if e := wantEvent(t, l, LeaseRegained); e.Generation <= old {
		t.Fatalf("generation %d after %d", e.Generation, old)
	}
}

// isAck reports whether a message is the server's acknowledgement of a write.
func isAck(m fabrictest.Message) bool { return bytes.HasPrefix(m.Payload, []byte(`{"stream":`)) }

// TestDefaultLeaseRidesThroughElections is the one cell with the default times: the leader of the leases' stream is
// frozen and then the next one killed, under load, while the servers' clocks are apart, and no admission is refused.
func TestDefaultLeaseRidesThroughElections(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3, fabrictest.AsProcess(), fabrictest.WithClocks(0, 1500*time.Millisecond, -1500*time.Millisecond))
	makeMesh(t, "m", 3, c.URL())
	const stream = "KV_FABRIC_m_NODES"
	leader := c.StreamLeader(t, stream)
	// A client of a frozen server notices by its own pings alone, which are not the matter here: the node is a client
	// of another one, and knows the rest.
	urls := []string{leader.URL()}
	for _, s := range c.Servers() {
		if s != leader {
			urls = append([]string{s.URL()}, urls...)
		}
	}
	nc := fabrictest.Connect(t, strings.Join(urls, ","), nats.DontRandomize(), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	p := program{Store: openStore(t, nc, Config{Mesh: "m", RID: "n1"}), nc: nc}
	l := p.acquire(t, LeaseConfig{RID: "n1"})

	ctx := testContext(t)
	done := make(chan struct{})
	loaded := make(chan struct{})
	go func() { // the load
		defer close(loaded)
		for {
			select {
			case <-done:
				return
			default:
				_, _ = p.write(ctx, write{bucket: p.nodes, key: "desc.load", blind: true, value: make([]byte, 1000), opID: nuid.Next()})
			}
		}
	}()
	defer func() { close(done); <-loaded }()

	renewed := func(what string) {
		t.Helper()
		defer func(start time.Time) { t.Logf("%s: %v", what, time.Since(start)) }(time.Now())
		before, since := l.acked.Load().revision, monotime.Now()
		fabrictest.Eventually(t, time.Minute, what, func() bool {
			if err := l.Admit(); err != nil {
				t.Fatalf("%s: refused: %v", what, err)
			}
			a := l.acked.Load()
			return a.revision > before && a.at.Sub(since) > 4*time.Second // not one that was under way
		})
	}
	leader.Freeze(t)
	renewed("a renewal after the freeze of the leader")
	// The next leader's clock differs by more than the measurements' bounds.
	fabrictest.Eventually(t, readyIn, "the other clock is noticed", func() bool { return l.Clock().Jumps() > 0 })
	if now, bound, _ := l.Clock().Now(); l.Clock().Past(now.Add(bound + 500*time.Millisecond)) {
		t.Error("a deadline that is not past by the present clock is judged past")
	}
	leader.Thaw(t)
	c.WaitReady(t)
	c.StreamLeader(t, stream).Kill()
	renewed("a renewal after the kill of the leader")
	select {
	case e := <-l.Events():
		t.Errorf("event %v (%v)", e.Kind, e.Err)
	default:
	}
}
