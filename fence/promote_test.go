package fence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/fence/fencetest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// readyIn bounds waits for what should happen soon, on a slow machine.
const readyIn = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyIn)
	t.Cleanup(cancel)
	return ctx
}

// startMesh starts one server, or three, with a mesh's streams.
func startMesh(t *testing.T, replicas int) ([]*fabrictest.Server, *fabrictest.Cluster) {
	t.Helper()
	var cluster *fabrictest.Cluster
	servers := []*fabrictest.Server(nil)
	if replicas == 1 {
		servers = append(servers, fabrictest.StartServer(t))
	} else {
		cluster = fabrictest.StartCluster(t, replicas, fabrictest.WithProxiedRoutes())
		cluster.WaitReady(t)
		servers = cluster.Servers()
	}
	if _, err := kvlocation.Init(testContext(t), servers[0].Connect(t, nats.ReconnectBufSize(-1)), kvlocation.Setup{Mesh: "m", Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	return servers, cluster
}

func openStore(t *testing.T, url, rid string) *kvlocation.Store {
	t.Helper()
	nc := fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	s, err := kvlocation.Open(testContext(t), nc, kvlocation.Config{Mesh: "m", RID: rid, AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// fenced is a candidate that fences, with a short term, on a store of one server.
func fenced(node string, levels ...fence.Level) fence.ElectionConfig {
	return fence.ElectionConfig{
		Name: "db", Node: node, TTL: 2 * time.Second, Renew: 300 * time.Millisecond, Margin: 400 * time.Millisecond, Poll: 50 * time.Millisecond,
		Backoff: 100 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, AllowUnreplicated: true,
		Fencing: &fence.Plan{Resources: []string{"sql", "nats"}, Levels: levels},
	}
}

func cut(d fence.Device, resources ...string) fence.Cut {
	return fence.Cut{Device: d, Resources: resources, Timeout: 2 * time.Second}
}

func candidate(t *testing.T, url string, cfg fence.ElectionConfig) *fence.Election {
	t.Helper()
	e, err := fence.NewElection(openStore(t, url, cfg.Node), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		e.Close(ctx) //nolint:errcheck // the store may be gone; what matters is that nothing is left running
	})
	return e
}

func campaign(t *testing.T, e *fence.Election) *fence.Term {
	t.Helper()
	term, err := e.Campaign(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// standby campaigns beside the test, until the test ends.
func standby(t *testing.T, e *fence.Election) <-chan *fence.Term {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got, done := make(chan *fence.Term, 1), make(chan struct{})
	go func() {
		defer close(done)
		term, err := e.Campaign(ctx)
		switch {
		case err == nil:
			got <- term
		case ctx.Err() == nil:
			t.Errorf("the campaign has ended: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return got
}

func promoted(t *testing.T, got <-chan *fence.Term) *fence.Term {
	t.Helper()
	select {
	case term := <-got:
		return term
	case <-time.After(readyIn):
		t.Fatal("nobody was promoted")
		return nil
	}
}

func notPromoted(t *testing.T, got <-chan *fence.Term, why string) {
	t.Helper()
	select {
	case term := <-got:
		t.Fatalf("promoted with %s, although %s", term.Token(), why)
	default:
	}
}

// silent makes a the leader and then takes its path to the store away, while it stays alive.
func silent(t *testing.T, server *fabrictest.Server, cfg fence.ElectionConfig) *fence.Term {
	t.Helper()
	proxy := server.Proxy(t)
	term := campaign(t, candidate(t, proxy.URL(), cfg))
	proxy.Apply(fabrictest.HalfOpen)
	return term
}

func TestConformance(t *testing.T) {
	// FE-4: the lease ends by the holder's own clock, and its end alone is no fence.
	t.Run("FE-4", func(t *testing.T) {
		t.Parallel()
		servers, _ := startMesh(t, 1)
		dead := fencetest.New("power", nil)
		dead.Set(fencetest.Fails)
		old := silent(t, servers[0], fenced("a", fence.Level{cut(dead)}))
		b := candidate(t, servers[0].URL(), fenced("b", fence.Level{cut(dead)}))
		got := standby(t, b)
		fabrictest.Eventually(t, readyIn, "the old leader's lease to be over, and fencing to fail", func() bool { return b.Snapshot().FenceFailures >= 2 })
		if _, err := old.FenceToken(); !errors.Is(err, fence.ErrTermLost) {
			t.Fatalf("the old leader's term: %v", err)
		}
		notPromoted(t, got, "the lease has expired and nothing is fenced")
		// One without fencing cannot get by it either.
		plain := fenced("c")
		plain.Fencing = nil
		notYet, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		if _, err := candidate(t, servers[0].URL(), plain).Campaign(notYet); !errors.Is(err, outcome.DeadlineExceeded) {
			t.Fatalf("a candidate without devices: %v", err)
		}
	})

	// FE-5: fenced first, then promoted; while it is not confirmed nobody leads, and it is tried again.
	t.Run("FE-5", func(t *testing.T) {
		t.Parallel()
		servers, _ := startMesh(t, 1)
		var gone sync.Map
		dev := fencetest.New("power", func(target fence.Target) { gone.Store(target.Node, true) })
		dev.Set(fencetest.Fails)
		old := silent(t, servers[0], fenced("a", fence.Level{cut(dev)}))
		b := candidate(t, servers[0].URL(), fenced("b", fence.Level{cut(dev)}))
		got := standby(t, b)
		for _, mode := range []fencetest.Mode{fencetest.Fails, fencetest.Mute, fencetest.Lies, fencetest.Hangs} {
			dev.Set(mode)
			before := b.Snapshot().FenceFailures
			fabrictest.Eventually(t, readyIn, "two failed attempts, and to hear of them", func() bool {
				s := b.Snapshot()
				return s.FenceFailures >= before+2 && strings.Contains(s.Problem, "nobody is promoted")
			})
			notPromoted(t, got, "the device did nothing")
			if s := b.Snapshot(); s.Status.Phase != fence.PhaseFencing || s.Status.Holder.Node != "a" || s.Leading {
				t.Fatalf("while fencing fails the snapshot is %+v", s)
			}
		}
		if b.Snapshot().DeviceLied == 0 {
			t.Error("a device that lied is not counted")
		}
		dev.Set(fencetest.Works)
		term := promoted(t, got)
		if _, ok := gone.Load("a"); !ok {
			t.Fatal("promoted before the old leader was cut off")
		}
		if term.Token().Compare(old.Token()) <= 0 {
			t.Fatalf("the new token %s is not above %s", term.Token(), old.Token())
		}
		if c := dev.Calls(); c[0].Token != old.Token() {
			t.Errorf("the device was told token %s, not %s", c[0].Token, old.Token())
		}
		// An attempt that the store has kept from its end has neither failed nor succeeded.
		if s := b.Snapshot(); s.FenceAttempts <= s.FenceFailures || s.Fenced > 1 {
			t.Errorf("counted %+v", s)
		}
	})

	// FE-6, FE-7: every resource is cut, or the fencing has not completed.
	t.Run("FE-7", func(t *testing.T) {
		t.Parallel()
		servers, _ := startMesh(t, 1)
		sql, kick := fencetest.New("revoke", nil), fencetest.New("kick", nil)
		kick.Set(fencetest.Fails)
		level := fence.Level{cut(sql, "sql"), cut(kick, "nats")}
		silent(t, servers[0], fenced("a", level))
		b := candidate(t, servers[0].URL(), fenced("b", level))
		got := standby(t, b)
		fabrictest.Eventually(t, readyIn, "the level to fail", func() bool { return b.Snapshot().FenceFailures >= 2 })
		notPromoted(t, got, "the second resource is open")
		if len(sql.Calls()) == 0 || len(kick.Calls()) == 0 {
			t.Fatal("a device was not used")
		}
		kick.Set(fencetest.Secret) // it says that it cannot tell, and the check sees that it is done
		promoted(t, got)
		if _, err := fence.NewElection(openStore(t, servers[0].URL(), "x"), fenced("x", fence.Level{cut(sql, "sql")})); err == nil || !strings.Contains(err.Error(), `"nats"`) {
			t.Fatalf("a plan that leaves a resource open: %v", err)
		}
	})

	// FE-8: one level fails, the next is tried; all fail, and that is said.
	t.Run("FE-8", func(t *testing.T) {
		t.Parallel()
		servers, _ := startMesh(t, 1)
		power, board := fencetest.New("power", nil), fencetest.New("board", nil)
		power.Set(fencetest.Mute)
		board.Set(fencetest.Fails)
		levels := []fence.Level{{cut(power)}, {cut(board)}}
		silent(t, servers[0], fenced("a", levels...))
		b := candidate(t, servers[0].URL(), fenced("b", levels...))
		got := standby(t, b)
		fabrictest.Eventually(t, readyIn, "all levels to fail", func() bool { return b.Snapshot().FenceFailures >= 1 })
		notPromoted(t, got, "all devices failed")
		st, err := fence.Leaderships(testContext(t), openStore(t, servers[0].URL(), "tool"), 0)
		if err != nil || len(st) != 1 || st[0].Phase != fence.PhaseFencing {
			t.Fatalf("%+v, %v", st, err)
		}
		var said []string // of attempts that came to their second level: the record keeps the last tries only
		for i, try := range st[0].Tries {
			if i > 0 && try.Level == 1 {
				before := st[0].Tries[i-1]
				said = append(said, fmt.Sprint(try.Attempt-before.Attempt, " ", before.Level, before.Device, before.Answer, ", ", try.Device, try.Answer))
			}
		}
		if slices.ContainsFunc(said, func(s string) bool { return s != "0 0powerunknown, boardnot fenced" }) || len(said) == 0 {
			t.Fatalf("the record says %q", said)
		}
		board.Set(fencetest.Works)
		promoted(t, got)
	})

	// FE-9: a candidate that begins while the store does not answer goes on until it does.
	t.Run("FE-9, begun in silence", func(t *testing.T) {
		t.Parallel()
		servers, _ := startMesh(t, 3)
		proxy := fabrictest.NewProxy(t, servers[0].URL())
		cfg := fenced("a", fence.Level{cut(fencetest.New("power", nil))})
		cfg.AllowUnreplicated = false
		a := candidate(t, proxy.URL(), cfg)
		asked := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.STREAM.INFO.KV_FABRIC_m_FENCE", Times: -1, Action: fabrictest.Drop})
		got := standby(t, a)
		fabrictest.Eventually(t, readyIn, "the candidate has not been answered", func() bool { return a.Snapshot().Problem != "" })
		asked.Disarm()
		promoted(t, got)

		// And is refused then, if a majority has nothing to say.
		single, _ := startMesh(t, 1)
		proxy = fabrictest.NewProxy(t, single[0].URL())
		alone := candidate(t, proxy.URL(), cfg)
		asked = proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.STREAM.INFO.KV_FABRIC_m_FENCE", Times: -1, Action: fabrictest.Drop})
		refused := make(chan error, 1)
		go func() { _, err := alone.Campaign(testContext(t)); refused <- err }()
		fabrictest.Eventually(t, readyIn, "the candidate has not been answered", func() bool { return alone.Snapshot().Problem != "" })
		asked.Disarm()
		if err := <-refused; !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("on a store without replicas, once it answers: %v", err)
		}
	})

	// FE-9: two workers and a third voting server; the side with the majority fences, the other one never does.
	t.Run("FE-9", func(t *testing.T) {
		t.Parallel()
		servers, cluster := startMesh(t, 3)
		byA, byB := fencetest.New("power", nil), fencetest.New("power", nil)
		cfg := func(node string, d fence.Device) fence.ElectionConfig {
			c := fenced(node, fence.Level{cut(d)})
			c.AllowUnreplicated = false
			return c
		}
		a := candidate(t, servers[0].URL(), cfg("a", byA))
		old := campaign(t, a)
		b := candidate(t, servers[1].URL(), cfg("b", byB))
		got := standby(t, b)
		defer func() {
			if t.Failed() {
				st, err := fence.Leaderships(testContext(t), openStore(t, servers[2].URL(), "tool"), 0)
				t.Logf("b: %+v; the record: %+v, %v", b.Snapshot(), st, err)
			}
		}()
		cluster.Isolate(t, 0, fabrictest.HalfOpen)
		// The cut off worker wants the leadership back as soon as it has lost it.
		select {
		case <-old.Context().Done():
		case <-time.After(readyIn):
			t.Fatal("the isolated leader's term does not end")
		}
		again := standby(t, a)
		promoted(t, got)
		if n := len(byA.Calls()); n > 0 {
			t.Fatalf("the side without a majority has fenced: %+v", byA.Calls())
		}
		if c := byB.Calls(); len(c) == 0 || slices.ContainsFunc(c, func(t fence.Target) bool { return t.Node != "a" }) {
			t.Fatalf("the side with the majority has fenced %+v", c)
		}
		notPromoted(t, again, "it has no majority")
		cluster.Heal()

		// Without a majority nothing is fenced, unless that is said.
		single, _ := startMesh(t, 1)
		alone := candidate(t, single[0].URL(), cfg("a", byA))
		if _, err := alone.Campaign(testContext(t)); !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), "AllowUnreplicated") {
			t.Fatalf("on a store without replicas: %v", err)
		}
	})
}

// deaf is a device that ignores its context: its calls return when released is closed.
type deaf struct{ released chan struct{} }

func (deaf) Name() string { return "deaf" }

func (d deaf) Fence(context.Context, fence.Target) fence.Report {
	<-d.released
	return fence.Report{Answer: fence.Fenced}
}

func (d deaf) Check(ctx context.Context, t fence.Target) fence.Report { return d.Fence(ctx, t) }

// FE-8. A device that does not return when its time is over, and one that panics, are devices that fail: the next level is
// tried, and what they say later confirms nothing.
func TestDeviceThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	stuck, board := deaf{make(chan struct{})}, fencetest.New("board", nil)
	t.Cleanup(func() { close(stuck.released) })
	board.Set(fencetest.Fails)
	levels := []fence.Level{{{Device: stuck, Timeout: 100 * time.Millisecond}}, {cut(bomb{board})}, {cut(board)}}
	silent(t, servers[0], fenced("a", levels...))
	b := candidate(t, servers[0].URL(), fenced("b", levels...))
	got := standby(t, b)
	fabrictest.Eventually(t, readyIn, "all levels to fail", func() bool { return b.Snapshot().FenceFailures >= 1 })
	notPromoted(t, got, "no device has answered")
	board.Set(fencetest.Works)
	promoted(t, got)
}

// watching is a device that looks at the record while it is told to act, and takes its time.
type watching struct {
	*fencetest.Device
	took  time.Duration
	store *kvlocation.Store

	mu   sync.Mutex
	seen []fence.Leadership
}

func (w *watching) Fence(ctx context.Context, t fence.Target) fence.Report {
	all, err := fence.Leaderships(ctx, w.store, 0)
	if err != nil || len(all) != 1 {
		return fence.Report{Detail: fmt.Sprint(all, err)}
	}
	w.mu.Lock()
	w.seen = append(w.seen, all[0].Leadership)
	w.mu.Unlock()
	select {
	case <-time.After(w.took):
	case <-ctx.Done():
		return fence.Report{Detail: "no time"}
	}
	return w.Device.Fence(ctx, t)
}

// FE-5, FE-9. What a device is about to do stands in the record before it does it, and the right to fence lasts for a device
// that takes longer than a term: nobody takes it over meanwhile, and the first attempt succeeds.
func TestRightLastsForTheDevice(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	dev := &watching{Device: fencetest.New("power", nil), took: 7 * time.Second, store: openStore(t, servers[0].URL(), "tool")}
	level := fence.Level{{Device: dev, Timeout: 30 * time.Second}}
	silent(t, servers[0], fenced("a", level))
	patient := func(node string) fence.ElectionConfig { // with its writes, on a machine that is busy
		c := fenced(node, level)
		c.TTL = 5 * time.Second
		return c
	}
	b, c := candidate(t, servers[0].URL(), patient("b")), candidate(t, servers[0].URL(), patient("c"))
	gotB, gotC := standby(t, b), standby(t, c)
	select {
	case <-gotB:
	case <-gotC:
	case <-time.After(readyIn):
		t.Fatal("nobody was promoted")
	}
	fabrictest.Eventually(t, readyIn, "the fence to be counted", func() bool { return b.Snapshot().Fenced+c.Snapshot().Fenced > 0 })
	if b, c := b.Snapshot(), c.Snapshot(); b.FenceFailures+c.FenceFailures > 0 || b.Fenced+c.Fenced != 1 {
		t.Errorf("fenced %d times, failed %d times", b.Fenced+c.Fenced, b.FenceFailures+c.FenceFailures)
	}
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if len(dev.seen) != 1 {
		t.Fatalf("the device was told %d times", len(dev.seen))
	}
	if l := dev.seen[0]; l.Phase != fence.PhaseFencing || l.Claim.Device != "power" || l.Claim.Attempt != 1 {
		t.Errorf("while the device acts the record says %+v, claim %+v", l, l.Claim)
	}
}

// bomb is a device that panics.
type bomb struct{ *fencetest.Device }

func (bomb) Name() string { return "bomb" }

func (bomb) Fence(context.Context, fence.Target) fence.Report { panic("boom") }

func (bomb) Check(context.Context, fence.Target) fence.Report { panic("boom") }

// A person confirms the fence while the devices fail; it is recorded, and the promotion goes on from it.
func TestConfirmedByAPerson(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	dev := fencetest.New("power", nil)
	dev.Set(fencetest.Fails)
	proxy := servers[0].Proxy(t)
	cfg := fenced("a", fence.Level{cut(dev)})
	cfg.TTL = 8 * time.Second // so that it renews meanwhile, on a machine that is busy
	campaign(t, candidate(t, proxy.URL(), cfg))
	cfg = fenced("b", fence.Level{cut(dev)})
	cfg.Backoff, cfg.MaxBackoff = time.Hour, time.Hour // a person's word is heard in the pause
	b := candidate(t, servers[0].URL(), cfg)
	tool := openStore(t, servers[0].URL(), "tool")
	if _, err := fence.ConfirmFenced(testContext(t), tool, "db", "a", "jo", "pulled the plug"); !errors.Is(err, outcome.InvalidOperation) {
		t.Fatalf("a confirmation while it leads: %v", err)
	}
	proxy.Apply(fabrictest.HalfOpen)
	got := standby(t, b)
	fabrictest.Eventually(t, readyIn, "fencing to fail", func() bool { return b.Snapshot().FenceFailures >= 1 })
	for _, c := range [][3]string{{"b", "jo", "wrong node"}, {"a", "", "no name"}, {"a", "jo", " "}} {
		if _, err := fence.ConfirmFenced(testContext(t), tool, "db", c[0], c[1], c[2]); !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("%q: %v", c, err)
		}
	}
	notPromoted(t, got, "nobody has confirmed")
	st, err := fence.ConfirmFenced(testContext(t), tool, "db", "a", "jo", "pulled the plug")
	if err != nil || st.Phase != fence.PhaseFenced || st.Confirmed.By != "jo" || st.Confirmed.Reason != "pulled the plug" || st.Confirmed.How != fence.ByPerson {
		t.Fatalf("%+v, %v", st, err)
	}
	promoted(t, got)
}

// The leader's process has crashed and was started again, and nobody else is there: it does not fence itself, and a person
// vouches for the run that has ended.
func TestOnlyTheRestartedIsLeft(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	dev := fencetest.New("power", nil)
	cfg := fenced("a", fence.Level{cut(dev)})
	old := silent(t, servers[0], cfg)
	again := candidate(t, servers[0].URL(), cfg)
	got := standby(t, again)
	fabrictest.Eventually(t, readyIn, "the candidate to say what keeps it", func() bool {
		return strings.Contains(again.Snapshot().Problem, "does not fence itself")
	})
	notPromoted(t, got, "nothing is confirmed")
	st, err := fence.ConfirmFenced(testContext(t), openStore(t, servers[0].URL(), "tool"), "db", "a", "jo", "it crashed")
	if err != nil || st.Phase != fence.PhaseFenced || st.Confirmed.How != fence.ByPerson {
		t.Fatalf("%+v, %v", st, err)
	}
	if term := promoted(t, got); term.Token().Compare(old.Token()) <= 0 {
		t.Fatalf("%s follows %s", term.Token(), old.Token())
	}
	if c := dev.Calls(); len(c) > 0 {
		t.Fatalf("the node has fenced itself: %+v", c)
	}
}

// A grant whose answer never came leaves a term that nobody leads. The candidate gives it back itself, and leads: nobody has to
// fence it, for which it would wait in vain.
func TestGrantThatWasNotHeard(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	dev := fencetest.New("power", nil)
	proxy := servers[0].Proxy(t)
	a := candidate(t, proxy.URL(), fenced("a", fence.Level{cut(dev)}))
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Times: -1, Answer: true, Action: fabrictest.Drop})
	got := standby(t, a)
	fabrictest.Eventually(t, readyIn, "the candidate to give the grant up", func() bool { return a.Snapshot().Problem != "" })
	lost.Disarm()
	promoted(t, got)
	if c := dev.Calls(); len(c) > 0 {
		t.Errorf("fenced: %+v", c)
	}
}

// A holder that is taken for silent but lives, and whose work has ended, says so: it need not be fenced.
func TestSuspectResigns(t *testing.T) {
	t.Parallel()
	servers, _ := startMesh(t, 1)
	dev := fencetest.New("power", nil)
	dev.Set(fencetest.Fails)
	proxy := servers[0].Proxy(t)
	a := candidate(t, proxy.URL(), fenced("a", fence.Level{cut(dev)}))
	term := campaign(t, a)
	proxy.Apply(fabrictest.HalfOpen)
	b := candidate(t, servers[0].URL(), fenced("b", fence.Level{cut(dev)}))
	got := standby(t, b)
	fabrictest.Eventually(t, readyIn, "fencing to fail", func() bool { return b.Snapshot().FenceFailures >= 1 })
	notPromoted(t, got, "nothing is fenced")
	proxy.Heal()
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	promoted(t, got)
}
