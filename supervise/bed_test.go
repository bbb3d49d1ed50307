package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// readyIn bounds waits for what should happen soon, on a slow machine.
const readyIn = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*readyIn)
	t.Cleanup(cancel)
	return ctx
}

// bed is a mesh of a test: one server, or the cluster that it is given.
type bed struct {
	url   string
	store *kvlocation.Store
	sh    *kvlocation.Shared
	nc    *nats.Conn
}

func newBed(t testing.TB) *bed {
	t.Helper()
	return bedAt(t, fabrictest.StartServer(t).URL(), 1)
}

func bedAt(t testing.TB, url string, replicas int) *bed {
	t.Helper()
	b := &bed{url: url, nc: connect(t, url)}
	if _, err := kvlocation.Init(testContext(t), b.nc, kvlocation.Setup{Mesh: "m", Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	b.store = openStore(t, b.nc, "test")
	b.sh = b.store.Shared(kvlocation.BucketSupervise)
	return b
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	return fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
}

func openStore(t testing.TB, nc *nats.Conn, rid string) *kvlocation.Store {
	t.Helper()
	s, err := kvlocation.Open(testContext(t), nc, kvlocation.Config{Mesh: "m", RID: rid, AttemptTimeout: 500 * time.Millisecond, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// fast is the default policy a hundred and fifty times as fast: looks every 200 ms, 1.2 s of persistence, 4 s of cooldown. What a
// store, a command or a notifier may take is not cut short, and a heartbeat is fresh for 3 s, so that a look sees it while it is:
// the machine may be busy.
func fast() Policy {
	d := DefaultPolicy()
	p := d.Scale(1.0 / 150)
	p.LaunchWindow, p.CollectLimit, p.CommandLimit, p.NotifyLimit, p.LockTTL = d.LaunchWindow, d.CollectLimit, d.CommandLimit, d.NotifyLimit, d.LockTTL
	p.HungAfter, p.Remind = 3*time.Second, time.Hour
	p.BreakerWindow, p.FleetWindow = time.Hour, time.Hour
	p.UnreachableAfter = time.Hour // many tests let a worker say once that it is idle
	return p
}

// mortal is fast with limits that do not keep a test waiting for long when a monitor dies with its lock or its command.
func mortal() Policy {
	p := fast()
	p.LaunchWindow, p.CollectLimit, p.CommandLimit, p.NotifyLimit = 6*time.Second, 3*time.Second, 4*time.Second, 3*time.Second
	p.LockTTL = p.CollectLimit + 2*p.LaunchWindow + p.CommandLimit
	return p
}

// alerts is a notifier that keeps what it gets.
type alerts struct {
	mu   sync.Mutex
	got  []Alert
	fail error
}

func (*alerts) Name() string { return "test" }

func (a *alerts) Notify(_ context.Context, x Alert) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != nil {
		return a.fail
	}
	a.got = append(a.got, x)
	return nil
}

func (a *alerts) of(kind string) []Alert {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.got), func(x Alert) bool { return x.Kind != kind })
}

func (a *alerts) wait(t testing.TB, kind string) Alert {
	t.Helper()
	fabrictest.Eventually(t, readyIn, "an alert "+kind, func() bool { return len(a.of(kind)) > 0 })
	return a.of(kind)[0]
}

// ran is one restart command.
type ran struct {
	Order
	at time.Time
}

// journal is a restarter that keeps what it was told to do.
type journal struct {
	mu  sync.Mutex
	ran []ran
	do  func(Order) Result
}

func (j *journal) Restart(_ context.Context, o Order) Result {
	j.mu.Lock()
	j.ran = append(j.ran, ran{o, time.Now()})
	do := j.do
	j.mu.Unlock()
	if do == nil {
		return Result{Done, "restarted"}
	}
	return do(o)
}

func (j *journal) list() []ran {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ran)
}

func (j *journal) wait(t testing.TB, n int) []ran {
	t.Helper()
	fabrictest.Eventually(t, readyIn, fmt.Sprintf("%d restart commands", n), func() bool { return len(j.list()) >= n })
	return j.list()
}

// config is a monitor's with a journal and alerts.
func config(p Policy, j Restarter, a Notifier) Config {
	return Config{
		Policy: p, Notifiers: []Notifier{a},
		Targets: []Target{{Match: "*", Restarter: j, Collector: CollectFunc(func(_ context.Context, w string) (string, error) { return "last words of " + w, nil })}},
	}
}

// monitor starts a monitor on a connection of its own.
func (b *bed) monitor(t testing.TB, cfg Config) *Monitor {
	t.Helper()
	m, err := NewMonitor(testContext(t), openStore(t, connect(t, b.url), "mon-"+strings.ToLower(fmt.Sprintf("%p", t)[2:])), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// say writes a worker's record once, as an agent would.
func (b *bed) say(t testing.TB, r Record) {
	t.Helper()
	if err := b.report(testContext(t), r); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) report(ctx context.Context, r Record) error {
	now, _, err := b.sh.Now(ctx)
	if err != nil {
		return err
	}
	r.V = 1
	for _, at := range []*time.Time{&r.StateSince, &r.Heartbeat, &r.ProgressAt, &r.Booted} {
		if at.IsZero() {
			*at = now
		}
	}
	token, _ := escape(r.Worker)
	return put(ctx, b.sh, workerPrefix+token, encode(r), time.Hour)
}

// beat says it after a while, and then again and again until the test ends.
func (b *bed) beat(t testing.TB, after time.Duration, r Record) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for wait := after; ; wait = 100 * time.Millisecond {
			select {
			case <-time.After(wait):
				_ = b.report(ctx, r) // one that is lost is followed by the next
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
}

// worker is an agent whose loop a test can hang.
type worker struct {
	agent *Agent
	stop  func()
}

// work starts a worker that is at work until stop is called: from then on it hangs.
func (b *bed) work(t testing.TB, id string) *worker {
	t.Helper()
	a, err := NewAgent(testContext(t), b.sh, AgentConfig{Worker: id, Every: 100 * time.Millisecond, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		n := 0
		_ = a.Loop().Work(ctx, func(ctx context.Context) (State, string, string, error) {
			select {
			case <-ctx.Done():
				return "", "", "", ctx.Err()
			case <-tick.C:
			}
			n++
			return Processing, "job-1", fmt.Sprint(n), nil
		})
	}()
	w := &worker{agent: a, stop: func() { cancel(); <-done }}
	t.Cleanup(func() {
		w.stop()
		if err := a.Close(testContext(t)); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Logf("close of the agent: %v", err)
		}
	})
	return w
}

// incidentOf returns a worker's incident as the store holds it.
func (b *bed) incidentOf(t testing.TB, worker string) *Incident {
	t.Helper()
	all, err := Incidents(testContext(t), b.sh, worker)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// audit logs what has become of a worker, if the test has failed.
func (b *bed) audit(t testing.TB, worker string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	all, err := Events(testContext(t), b.sh, EventFilter{Worker: worker})
	t.Logf("%+v; %d events, %v", b.incidentOf(t, worker), len(all), err)
	for _, e := range all {
		t.Logf("%s %s-%s by %s: %s", stamp(e.Time), e.Kind, e.Of, e.By, e.Reason)
	}
}

// has waits for an event of a kind.
func (b *bed) waitEvent(t testing.TB, worker string, kind EventKind, of string) Event {
	t.Helper()
	var found Event
	fabrictest.Eventually(t, readyIn, fmt.Sprintf("event %s-%s of %s", kind, of, worker), func() bool {
		all, err := Events(testContext(t), b.sh, EventFilter{Worker: worker})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.Kind == kind && strings.HasPrefix(e.Of, of) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// still is a monitor that looks only when it is told to, on the test's goroutine.
type still struct {
	*Monitor
}

func (b *bed) still(t testing.TB, cfg Config) *still {
	t.Helper()
	m, err := newMonitor(b.sh, "m", cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.run.told = func(string) {}
	go m.events.write()
	t.Cleanup(func() { m.events.close(); m.cancel() })
	return &still{m}
}

// act is the part of a check that restarts workers.
func (m *still) act(t testing.TB) {
	t.Helper()
	ctx := testContext(t)
	s, err := m.scan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range s.due {
		if err := m.run.work(ctx, s.clock, v.worker, s.fleet, v.expected); err != nil && !lostRace(err) {
			t.Fatal(err)
		}
	}
}

// look is one check.
func (m *still) look(t testing.TB) {
	t.Helper()
	m.act(t)
	ctx := testContext(t)
	s, err := m.scan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.alerts {
		_ = m.run.tell(ctx, s.clock, w) // a notifier that fails on purpose
	}
}

// until looks until cond holds.
func (m *still) until(t testing.TB, cond func() bool) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, "what the monitor should come to", func() bool {
		m.look(t)
		return cond()
	})
}

// policy changes the monitor's policy.
func (m *still) policy(change func(*Policy)) { change(m.run.policy) }

// key reads one of a worker's incident keys as it is now.
func (b *bed) key(t testing.TB, worker, what string) kvlocation.SharedEntry {
	t.Helper()
	token, _ := escape(worker)
	e, err := b.sh.Confirm(testContext(t), incidentPrefix+token+"."+what)
	if err != nil && e.Key == "" {
		t.Fatal(err)
	}
	return e
}

// now is the store's time.
func (b *bed) now(t testing.TB) time.Time {
	t.Helper()
	now, _, err := b.sh.Now(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// outlast returns once the store's clock has gone on by d: what would happen by then has happened, or will not.
func (b *bed) outlast(t testing.TB, d time.Duration) {
	t.Helper()
	end := b.now(t).Add(d)
	fabrictest.Eventually(t, readyIn, "time to pass", func() bool { return b.now(t).After(end) })
}

// tick writes a worker's record again and again until stop is called.
func (b *bed) tick(t testing.TB, id string, r func() Record) (stop func()) {
	t.Helper()
	done, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			b.say(t, r())
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(quit); <-done }
}

// mention is the text that a webhook with a mention posts for an alert.
func mention(a Alert) string {
	got := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct{ Text string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		got = body.Text
	}))
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if err := (Webhook{URL: srv.URL, Mention: "<!channel>", Client: client}).Notify(context.Background(), a); err != nil {
		return err.Error()
	}
	return got
}
