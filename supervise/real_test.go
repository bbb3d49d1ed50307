package supervise

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// child starts a real worker process, whose restarts are the returned deeds.
func (b *bed) child(t testing.TB, id string, p Policy) (*Child, *deeds) {
	t.Helper()
	c := NewChild(id, func() *exec.Cmd {
		cmd := roleCommand("worker", script{URL: b.url, Name: id, Policy: p})
		in, _ := cmd.StdinPipe() // the worker ends when this process does
		_ = in
		return cmd
	})
	d := b.serve(t, id, p, func(o Order) Result { return c.Restart(testContext(t), o) })
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, d
}

// workers returns what the workers look like now.
func (b *bed) workers(t testing.TB, p Policy) map[string]WorkerStatus {
	t.Helper()
	all, err := Workers(testContext(t), b.sh, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]WorkerStatus{}
	for _, w := range all {
		out[w.Worker] = w
	}
	return out
}

// TestRealProcesses is TestNoStorm with real processes on a real store: workers that are frozen, monitors that are killed and
// frozen. SUPERVISE_REAL is how long, 12 s by default; SUPERVISE_SEED repeats one choice of faults.
func TestRealProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes its time")
	}
	t.Parallel()
	length, seed := 12*time.Second, uint64(time.Now().UnixNano())
	if s := os.Getenv("SUPERVISE_REAL"); s != "" {
		length, _ = time.ParseDuration(s)
	}
	if s := os.Getenv("SUPERVISE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	b, p := newBed(t), mortal()
	p.FleetShare, p.FleetBudget, p.Breaker = 1, 100, 20
	const workers, monitors = 3, 3
	var kids [workers]*Child
	var done [workers]*deeds
	for i := range kids {
		kids[i], done[i] = b.child(t, fmt.Sprintf("w%d", i), p)
	}
	n := 0
	start := func() *process {
		n++
		return startRole(t, "monitor", script{URL: b.url, Name: fmt.Sprintf("mon%d", n), Policy: p})
	}
	var cast [monitors]*process
	for i := range cast {
		cast[i] = start()
	}
	frozen := map[int]time.Time{}
	end := time.Now().Add(length)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	freezes := 0
	for time.Now().Before(end) {
		<-tick.C
		switch i := rnd.IntN(monitors); {
		case rnd.IntN(8) == 0:
			if err := freezeWorker(kids[rnd.IntN(workers)]); err != nil {
				t.Fatal(err)
			}
			freezes++
		case rnd.IntN(8) == 0 && frozen[i].IsZero():
			cast[i].Kill()
			cast[i] = start()
		case rnd.IntN(8) == 0 && frozen[i].IsZero():
			cast[i].Freeze(t)
			frozen[i] = time.Now().Add(time.Duration(rnd.Int64N(int64(3 * p.Cooldown))))
		}
		for i, until := range frozen {
			if !until.IsZero() && time.Now().After(until) {
				cast[i].Thaw(t)
				frozen[i] = time.Time{}
			}
		}
	}
	for i, until := range frozen {
		if !until.IsZero() {
			cast[i].Thaw(t)
		}
	}
	restarts := func() (n int) {
		for _, d := range done {
			n += len(d.list())
		}
		return n
	}
	fabrictest.Eventually(t, 2*readyIn, "every worker to work again", func() bool {
		if freezes > 0 && restarts() == 0 {
			return false // the last freeze may not be seen yet
		}
		for _, w := range b.workers(t, p) {
			if w.Verdict != Healthy || w.Age > p.HungAfter/2 {
				return false
			}
		}
		return true
	})
	for _, d := range done {
		d.check(t, p)
	}
	t.Logf("workers frozen %d times, %d restarts", freezes, restarts())
}

// TestWrongClocks has monitors whose wall clocks are hours off, each way, act together with a right one.
func TestWrongClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program with another clock")
	}
	t.Parallel()
	b, p := newBed(t), fast()
	p.Persistence = 3 * time.Second
	c, d := b.child(t, "w", p)
	bin := fabrictest.BuildWithClock(t, "./testdata/monitor")
	policy, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for i, ahead := range []time.Duration{0, 7 * time.Hour, -7 * time.Hour} {
		cmd := exec.Command(bin)
		cmd.Env = append(os.Environ(), fabrictest.ClockAhead(ahead), "MONITOR_URL="+b.url, "MONITOR_POLICY="+string(policy), fmt.Sprintf("MONITOR_RID=mon%d", i))
		fabrictest.StartProcess(t, cmd).WaitOutput(t, "watching")
	}
	fabrictest.Eventually(t, readyIn, "the worker to work", func() bool { return b.workers(t, p)["w"].Beats > 5 })
	b.outlast(t, p.HungAfter+p.Persistence+6*p.CheckInterval)
	d.check(t, p)
	before := len(d.list()) // none, unless the machine has kept the worker from its heartbeat
	if err := freezeWorker(c); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, readyIn, "the worker to be restarted and to recover", func() bool {
		x := b.incidentOf(t, "w")
		return len(d.list()) > before && x != nil && x.State == IncidentRecovered
	})
	b.outlast(t, p.Cooldown)
	d.check(t, p)
	x := b.incidentOf(t, "w")
	if now := b.now(t); x.Opened.After(now) || now.Sub(x.Opened) > time.Hour {
		t.Errorf("the incident was opened at %v by a wrong clock; the store's is %v", x.Opened, now)
	}
}

// TestLeaderChange kills the server that leads the store's stream while a verdict is being timed: nothing is decided until
// there is another leader, then it goes on, once.
func TestLeaderChange(t *testing.T) {
	if testing.Short() {
		t.Skip("an election takes its time")
	}
	t.Parallel()
	cluster := fabrictest.StartCluster(t, 3)
	b, p := bedAt(t, cluster.URL(), 3), fast()
	p.Breaker = 1 // the worker does not come back, and the test may be slow to see the first restart
	var ran atomic.Int32
	j := &journal{do: func(Order) Result { ran.Add(1); return Result{Done, ""} }}
	a := &alerts{}
	for range 2 {
		b.monitor(t, config(p, j, a))
	}
	b.say(t, Record{Worker: "w", State: Processing})
	a.wait(t, AlertConfirmed)
	leader := cluster.StreamLeader(t, "KV_FABRIC_m_SUPERVISE")
	leader.Kill()
	j.wait(t, 1)
	fabrictest.Eventually(t, readyIn, "the outcome in the store", func() bool {
		all, err := Incidents(testContext(t), b.sh, "w")
		return err == nil && len(all) == 1 && all[0].last() != nil && all[0].last().Outcome == Done
	})
	if n := ran.Load(); n != 1 {
		t.Errorf("%d restarts around a leader change", n)
	}
	if _, err := b.sh.Get(testContext(t), "worker.w"); err != nil {
		t.Error(err)
	}
	leader.Restart(t)
}

// TestStoreAway: while the store does not answer nothing is decided and nothing is restarted, however old the heartbeats are
// by then; afterwards it goes on.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	b, p := bedAt(t, srv.URL(), 1), fast()
	enough := p.Persistence
	p.Persistence = time.Hour // until the store is away
	proxy := srv.Proxy(t)
	j := &journal{}
	far := *b
	far.sh = openStore(t, connect(t, proxy.URL()), "far").Shared(kvlocation.BucketSupervise)
	m := far.still(t, config(p, j, &alerts{}))
	t.Cleanup(func() { m.work.wait(); m.tell.wait() })
	b.say(t, Record{Worker: "w", State: Processing})
	m.until(t, func() bool { return b.key(t, "w", "timer").Exists() })
	proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	m.policy(func(p *Policy) { p.Persistence = enough })
	b.outlast(t, enough)
	for range 2 {
		m.check(testContext(t))
	}
	if got := j.list(); len(got) > 0 || m.Metrics().ScansFailed != 2 {
		t.Fatalf("without the store %d looks failed, and there were restarted: %+v", m.Metrics().ScansFailed, got)
	}
	proxy.Heal()
	fabrictest.Eventually(t, readyIn, "a restart", func() bool {
		m.check(testContext(t))
		return len(j.list()) > 0
	})
}
