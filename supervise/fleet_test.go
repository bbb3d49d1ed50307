package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// Too many workers look broken at once: nothing is restarted, and a page says that the fault is likely elsewhere.
func TestFleetGuard(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.HungAfter = 500 * time.Millisecond
	p.FleetShare, p.FleetFloor = 0.1, 1 // any two
	j, a := &journal{}, &alerts{}
	for i := range 5 {
		b.say(t, Record{Worker: fmt.Sprintf("hung%d", i), State: Processing})
		b.say(t, Record{Worker: fmt.Sprintf("idle%d", i), State: Idle})
	}
	m := b.monitor(t, config(p, j, a))
	page := a.wait(t, AlertFleetGuard)
	if page.Severity != Page || !strings.Contains(page.Text, " of 10") {
		t.Errorf("the page: %+v", page)
	}
	b.waitEvent(t, "hung0", Refused, "fleet")
	fabrictest.Eventually(t, readyIn, "five incidents", func() bool { return m.Metrics().Incidents == 5 })
	b.outlast(t, p.Persistence)
	if got := j.list(); len(got) > 0 {
		t.Fatalf("restarted: %+v", got)
	}
	if got := m.Metrics(); got.Workers[Hung] != 5 || got.Workers[Healthy] != 5 || got.Incidents != 5 {
		t.Errorf("numbers: %+v", got)
	}
	// All but one come back: that one is a matter of its own again.
	for i := range 4 {
		b.say(t, Record{Worker: fmt.Sprintf("hung%d", i), State: Idle})
	}
	if got := j.wait(t, 1); got[0].Worker != "hung4" {
		t.Errorf("restarted: %+v", got)
	}
}

// The budget holds for all workers together, whichever monitors restart them.
func TestFleetBudget(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.FleetBudget, p.FleetShare = 3, 1
	j, a := &journal{}, &alerts{}
	for i := range 8 {
		b.say(t, Record{Worker: fmt.Sprintf("w%d", i), State: Processing})
	}
	for range 3 {
		b.monitor(t, config(p, j, a))
	}
	if page := a.wait(t, AlertFleetBudget); page.Severity != Page {
		t.Errorf("the page: %+v", page)
	}
	j.wait(t, 3) // a use of the budget comes before its restart, which may be cancelled and taken up again
	b.outlast(t, p.Persistence+p.Cooldown)
	if n := len(j.list()); n != 3 {
		t.Errorf("%d restarts, the budget is 3", n)
	}
	if n := len(a.of(AlertFleetBudget)); n != 1 {
		t.Errorf("%d pages about the budget", n)
	}
}

// A pause stops restarts and no alerts, a maintenance both; what was timed is forgotten.
func TestPauseAndMaintenance(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	ctx := testContext(t)
	j, a := &journal{}, &alerts{}
	set := func(mode ControlMode, d time.Duration) {
		c := Control{Mode: mode, By: "test", Reason: "a trial"}
		if d > 0 {
			c.Until = b.now(t).Add(d)
		}
		if err := SetControl(ctx, b.sh, c); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []Control{{Mode: UnderMaintenance, By: "test", Reason: "without an end"}, {Mode: Paused, By: "test"}, {Mode: "other", By: "test", Reason: "x"}} {
		if err := SetControl(ctx, b.sh, c); err == nil {
			t.Errorf("%+v is allowed", c)
		}
	}
	set(UnderMaintenance, time.Hour)
	b.say(t, Record{Worker: "w", State: Processing})
	m := b.still(t, config(p, j, a))
	fabrictest.Eventually(t, readyIn, "the worker to look hung", func() bool { m.look(t); return b.workers(t, p)["w"].Verdict == Hung })
	b.outlast(t, p.HungAfter)
	m.look(t)
	if n := len(a.of(AlertConfirmed)); n > 0 || b.incidentOf(t, "w") != nil {
		t.Error("alerted under maintenance")
	}
	set(Paused, 0)
	m.until(t, func() bool { return len(a.of(AlertConfirmed)) > 0 })
	if x := a.of(AlertConfirmed)[0]; !strings.Contains(x.Text, "nothing restarts it, paused by test: a trial") {
		t.Errorf("whoever reads it takes the worker for looked after: %s", x.Text)
	}
	b.outlast(t, p.Persistence)
	for range 5 {
		m.look(t)
	}
	if n := len(j.list()); n > 0 || b.key(t, "w", "timer").Exists() {
		t.Errorf("%d restarts while paused, timer %v", n, b.key(t, "w", "timer"))
	}
	was, err := ClearControl(ctx, b.sh)
	if err != nil || was == nil || was.Mode != Paused {
		t.Fatalf("%+v, %v", was, err)
	}
	m.until(t, func() bool { return b.key(t, "w", "timer").Exists() })
	set(Paused, 0)
	m.until(t, func() bool { return !b.key(t, "w", "timer").Exists() })
	if _, err := ClearControl(ctx, b.sh); err != nil {
		t.Fatal(err)
	}
	resumed, before := b.now(t), len(j.list()) // none, unless the look that has set the timer lasted as long
	m.until(t, func() bool { return len(j.list()) > before })
	if after := b.incidentOf(t, "w").lastRestart().At.Sub(resumed); after < p.Persistence {
		t.Errorf("restarted %v after the resume: the pause was counted in", after)
	}
	if was, err := ClearControl(ctx, b.sh); err != nil || was != nil {
		t.Errorf("nothing to clear: %+v, %v", was, err)
	}
}

// A notifier that is down, and a collector that hangs, hold up no restart and double none; the alert comes once the notifier
// is back, and one that works gets it once.
func TestNotifierDownAndCollectorHangs(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.CollectLimit = 300 * time.Millisecond
	down, up := &alerts{fail: errors.New("nobody there")}, &named{name: "up"}
	j := &journal{do: func(Order) Result {
		b.beat(t, 100*time.Millisecond, Record{Worker: "w", State: Idle})
		return Result{Done, ""}
	}}
	cfg := config(p, j, down)
	cfg.Notifiers = append(cfg.Notifiers, up, panics{})
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	cfg.Targets[0].Collector = CollectFunc(func(context.Context, string) (string, error) { <-never; return "", nil })
	b.say(t, Record{Worker: "w", State: Processing})
	for range 2 {
		b.monitor(t, cfg)
	}
	j.wait(t, 1)
	x := up.wait(t, AlertRestarted)
	if x.LogsError == "" {
		t.Errorf("the alert does not say that there are no logs: %+v", x)
	}
	up.wait(t, AlertRecovered)
	down.mu.Lock()
	down.fail = nil
	down.mu.Unlock()
	down.wait(t, AlertRestarted)
	down.wait(t, AlertRecovered)
	for _, kind := range []string{AlertRestarted, AlertRecovered} {
		if n, m := len(up.of(kind)), len(down.of(kind)); n != 1 || m != 1 {
			t.Errorf("%s was told %d times to the one that worked, %d times to the other", kind, n, m)
		}
	}
	if n := len(j.list()); n != 1 {
		t.Errorf("%d restarts", n)
	}
}

type named struct {
	alerts
	name string
}

func (n *named) Name() string { return n.name }

type panics struct{}

func (panics) Name() string                        { return "panics" }
func (panics) Notify(context.Context, Alert) error { panic("no") }

// A worker that says error again after its restart has not recovered: the incident goes on, and a person hears of it.
func TestErrorOutlivesTheRestart(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.ErrorAfter, p.EscalateAfter, p.Breaker = 2*time.Second, time.Second, 1
	p.HungAfter = time.Hour // what it says once is fresh when a look comes to it
	a, j := &alerts{}, &journal{}
	j.do = func(Order) Result {
		b.say(t, Record{Worker: "w", State: Failed})
		return Result{Done, ""}
	}
	b.say(t, Record{Worker: "w", State: Failed})
	m := b.still(t, config(p, j, a))
	m.until(t, func() bool { return len(j.list()) == 1 })
	m.until(t, func() bool { return len(a.of(AlertUnrecovered)) > 0 })
	if c := b.incidentOf(t, "w"); c.State != IncidentOpen || len(a.of(AlertRecovered)) > 0 {
		t.Fatalf("the incident is %s: %s", c.State, c.How)
	}
	b.say(t, Record{Worker: "w", State: Idle})
	m.until(t, func() bool { return b.incidentOf(t, "w").State == IncidentRecovered })
}

// Who was told that a worker is being restarted is told that it was not; nobody else is.
func TestCancelledIsTold(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	v := &view{worker: "w", now: now, record: recordAt(Processing, time.Second, now), incident: &fact[Incident]{value: Incident{
		ID: "i", State: IncidentOpen, Verdict: Hung, Attempts: []Attempt{{ID: "i-1", Outcome: Cancelled, Finished: now, Detail: "it recovered"}},
	}}}
	if got := p.due(v); len(got) > 0 {
		t.Errorf("nobody was told of it, and now: %+v", got)
	}
	v.alerts = map[string]kvlocation.SharedEntry{AlertRestarting + "-i-1": {}}
	if got := p.due(v); len(got) != 1 || got[0].Kind != AlertCancelled || !strings.Contains(got[0].Text, "not restarted after all: it recovered") {
		t.Errorf("it was told, and now: %+v", got)
	}
}

// What has come of an attempt, and the end of an incident, are no news any more once Policy.Remind has passed.
func TestOldNewsIsNotTold(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	for ago, want := range map[time.Duration]string{time.Minute: "[restart-failed recovered]", p.Remind + time.Second: "[]"} {
		at := now.Add(-ago)
		v := &view{worker: "w", now: now, record: recordAt(Processing, time.Second, now), incident: &fact[Incident]{value: Incident{
			ID: "i", State: IncidentRecovered, Verdict: Hung, Opened: at, Ended: at, Attempts: []Attempt{{ID: "i-1", Outcome: Broken, Finished: at}},
		}}}
		kinds := []string{}
		for _, a := range p.due(v) {
			kinds = append(kinds, a.Kind)
		}
		if got := fmt.Sprint(kinds); got != want {
			t.Errorf("%v later %s are told, want %s", ago, got, want)
		}
	}
}

// The longest retention that is allowed is one that the store takes.
func TestLongestRetention(t *testing.T) {
	p := DefaultPolicy()
	p.Retention = kvlocation.MaxSharedTTL
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if s := p.writeIncident(&view{worker: "w"}, &Incident{}, ""); s.change.ttl > kvlocation.MaxSharedTTL {
		t.Errorf("a case is written for %v", s.change.ttl)
	}
}

// The time that a collection takes is not the command's loss: it has all of its limit, however long its logs were waited for.
func TestSlowCollectionShortensNoCommand(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.CommandLimit, p.LaunchWindow = 2*time.Second, 2*time.Second
	const rest = 500 * time.Millisecond // after the collection, of a context that began before it
	p.CollectLimit = p.until() + settleTime - rest
	p.LockTTL = p.CollectLimit + 2*p.LaunchWindow + p.CommandLimit
	var collected atomic.Int64 // when the last collection had ended, in Unix nanoseconds
	left := make(chan time.Duration, 10)
	cfg := config(p, RestartFunc(func(ctx context.Context, o Order) Result {
		end, _ := ctx.Deadline()
		left <- end.Sub(time.Unix(0, collected.Load()))
		return Result{Done, ""}
	}), &alerts{})
	cfg.Targets[0].Collector = CollectFunc(func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		collected.Store(time.Now().UnixNano())
		return "", ctx.Err()
	})
	b.say(t, Record{Worker: "w", State: Processing})
	m := b.still(t, cfg)
	fabrictest.Eventually(t, 2*readyIn, "a restart", func() bool {
		m.act(t) // and tells nobody: an alert would collect too
		return len(left) > 0
	})
	if d := <-left; d <= rest {
		t.Errorf("the command is given %v after its collection, its limit is %v", d, p.CommandLimit)
	}
}

func TestNotifiers(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	fails := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such channel", http.StatusNotFound) }))
	defer fails.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if err := (Webhook{URL: fails.URL, Client: client}).Notify(ctx, Alert{}); err == nil || !strings.Contains(err.Error(), "no such channel") {
		t.Errorf("a webhook that answers 404: %v", err)
	}
	for url, ok := range map[string]bool{"https://chat.example/hook": true, "chat.example": false, "ftp://x/": false, "": false} {
		if err := (Webhook{URL: url}).Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
	}
	if one, other := (Webhook{URL: "https://chat.example/a"}), (Webhook{URL: "https://chat.example/b"}); one.Name() == other.Name() || len(one.Name()) > 64 {
		t.Errorf("two channels of one host have the names %q and %q", one.Name(), other.Name())
	}
	nc := connect(t, fabrictest.StartServer(t).URL())
	sub, err := nc.SubscribeSync("alerts")
	if err != nil {
		t.Fatal(err)
	}
	if err := (Subject{Conn: nc, Subject: "alerts"}).Notify(ctx, Alert{Kind: AlertConfirmed, Worker: "w"}); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil || !strings.Contains(string(m.Data), `"worker":"w"`) {
		t.Errorf("%v, %v", m, err)
	}
	nc.Close()
	if err := (Subject{Conn: nc, Subject: "alerts"}).Notify(ctx, Alert{}); err == nil {
		t.Error("delivered on a closed connection")
	}
}

// A monitor that is closed while its command runs waits for it, and writes down what came of it.
func TestCloseWaitsForTheCommand(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	began, goOn := make(chan struct{}), make(chan struct{})
	j := &journal{do: func(Order) Result { close(began); <-goOn; return Result{Done, "slowly"} }}
	b.say(t, Record{Worker: "w", State: Processing})
	p.CommandLimit = time.Minute
	p.LockTTL = 2 * time.Minute
	m := b.monitor(t, config(p, j, &alerts{}))
	<-began
	closed := make(chan struct{})
	go func() { m.Close(); close(closed) }()
	close(goOn)
	<-closed
	if a := b.incidentOf(t, "w").last(); a.Outcome != Done || a.Detail != "slowly" {
		t.Errorf("attempt %+v", a)
	}
	m.Close()
}

// A worker whose record has expired and whom nobody expects is watched no more, and somebody hears of it.
func TestWorkerThatIsGone(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	a := &alerts{}
	b.say(t, Record{Worker: "w", State: Processing})
	m := b.still(t, config(p, &journal{}, a))
	m.until(t, func() bool { c := b.incidentOf(t, "w"); return c != nil })
	if err := remove(testContext(t), b.sh, workerPrefix+"w"); err != nil {
		t.Fatal(err)
	}
	m.until(t, func() bool { return len(a.of(AlertGone)) > 0 })
	if c := b.incidentOf(t, "w"); c.State != IncidentGone {
		t.Errorf("case %+v", c)
	}
}

// A worker that says in order that it has stopped ends its incident, however late that is seen.
func TestStoppedEndsTheIncident(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	v := &view{worker: "w", now: now, record: recordAt(Stopped, 3*p.HungAfter, now), incident: &fact[Incident]{value: Incident{ID: "i", State: IncidentOpen, Verdict: Hung}}}
	if s := p.next(v); s.do != doWrite || s.event != Recovered {
		t.Errorf("%v %s: %s", s.do, s.event, s.why)
	}
}

// ready is a hung worker for which all is done but the use of the fleet's budget.
func ready(p *Policy, now time.Time, used ...budgetUse) *view {
	seen := sighting{Verdict: Hung, Episode: "r7", Record: 7}
	v := &view{
		worker: "w", self: "m", now: now, record: recordAt(Processing, time.Hour, now), hands: true, confirmed: true, fleet: fleet{workers: 100, broken: 1},
		sight: &fact[sighting]{time: now.Add(-p.Persistence - 2*time.Minute), value: seen}, timer: &fact[timer]{time: now.Add(-p.Persistence - time.Minute), value: timer(seen)},
		lock: &fact[lock]{value: lock{By: "m"}}, incident: &fact[Incident]{value: Incident{ID: "i", State: IncidentOpen, Verdict: Hung}},
		budget: &fact[budget]{value: budget{Used: used}},
	}
	v.hand.collected = true
	return v
}

// The fleet's budget bounds the restarts within its window as they are run, not as their uses were taken: a use that was taken
// long before its restart is taken anew, and one counts until its restart is out of the window, however late that came.
func TestBudgetCountsWhatRuns(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	p.FleetBudget = 2
	other := func(ago time.Duration) budgetUse { return budgetUse{Worker: "x", Attempt: "x-1", At: now.Add(-ago)} }
	own := func(ago time.Duration) budgetUse { return budgetUse{Worker: "w", Attempt: "i-1", At: now.Add(-ago)} }
	for _, c := range []struct {
		name string
		used []budgetUse
		do   do
		of   string // of the event
		kept int    // uses that a write leaves
	}{
		{"nothing used", nil, doWrite, "", 1},
		{"taken just now", []budgetUse{own(time.Second)}, doIntend, "1", 0},
		{"taken long ago", []budgetUse{own(40 * time.Minute)}, doWrite, "", 1},
		{"taken before the window", []budgetUse{own(3 * time.Hour)}, doWrite, "", 1},
		{"taken long ago, and one more", []budgetUse{other(time.Minute), own(40 * time.Minute)}, doWrite, "", 2},
		{"used up", []budgetUse{other(time.Minute), other(2 * time.Minute)}, doWait, "budget", 0},
		{"used up, and the own one is old", []budgetUse{other(time.Minute), other(2 * time.Minute), own(40 * time.Minute)}, doWait, "budget", 0},
		{"the window is over, but not for a command that came late", []budgetUse{other(time.Minute), other(p.FleetWindow + p.LaunchWindow)}, doWait, "budget", 0},
		{"the window is over", []budgetUse{other(time.Minute), other(p.FleetWindow + 5*time.Minute)}, doWrite, "", 2},
	} {
		v := ready(&p, now, c.used...)
		s := p.next(v)
		for s.do == doWrite && s.incident == "i" && strings.HasPrefix(s.why, "unlock") { // what is refused gives its lock back
			v.lock = nil
			s = p.next(v)
		}
		if s.do != c.do || c.of != "" && s.of != c.of {
			t.Errorf("%s: %v %q: %s", c.name, s.do, s.of, s.why)
			continue
		}
		if c.do == doWrite {
			var b budget
			if err := json.Unmarshal(s.change.value, &b); err != nil || len(b.Used) != c.kept || !b.Used[len(b.Used)-1].At.After(now.Add(-time.Second)) {
				t.Errorf("%s: writes %s, %v", c.name, s.change.value, err)
			}
		}
	}
}

// A monitor that sees nothing for as long as a worker may be silent pages by itself, and says when it sees again.
func TestBlindMonitorPages(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	_, p := bedAt(t, srv.URL(), 1), fast()
	proxy := srv.Proxy(t)
	a, late := &alerts{}, &named{name: "late"}
	late.fail = errors.New("nobody there")
	cfg := config(p, &journal{}, a)
	cfg.Notifiers = append(cfg.Notifiers, late)
	m, err := NewMonitor(testContext(t), openStore(t, connect(t, proxy.URL()), "far"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	fabrictest.Eventually(t, readyIn, "a first look", func() bool { return m.Metrics().Scans > 0 })
	proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	if x := a.wait(t, AlertBlind); x.Severity != Page || !strings.Contains(x.Text, m.ID()) || x.Time.IsZero() {
		t.Errorf("the page: %+v", x)
	}
	late.mu.Lock()
	late.fail = nil
	late.mu.Unlock()
	late.wait(t, AlertBlind)
	proxy.Heal()
	a.wait(t, AlertSees)
	late.wait(t, AlertSees)
	told := map[string]int{}
	for _, x := range append(a.of(AlertBlind), a.of(AlertSees)...) {
		if told[x.Kind+x.Incident]++; told[x.Kind+x.Incident] > 1 {
			t.Errorf("%s of %s came again", x.Kind, x.Incident)
		}
	}
}

// What never returns is given up once for each notifier, and for each worker's collector and restarter; it is counted, and
// nothing piles up.
func TestNothingPilesUpBehindWhatHangs(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.CollectLimit, p.NotifyLimit = 100*time.Millisecond, 100*time.Millisecond
	release, up := make(chan struct{}), &named{name: "up"}
	hangs := &stuck{release: release}
	cfg := config(p, &journal{}, hangs)
	cfg.Notifiers = append(cfg.Notifiers, up)
	var collects atomic.Int32
	cfg.Targets[0].Collector = CollectFunc(func(context.Context, string) (string, error) { collects.Add(1); <-release; return "", nil })
	m := b.still(t, cfg)
	t.Cleanup(func() { close(release) })
	b.say(t, Record{Worker: "w", State: Processing})
	m.until(t, func() bool {
		got := m.Metrics() // out are the calls of a notifier and a collector, and for a moment perhaps one that is only slow
		return len(up.of(AlertRestarted)) > 0 && got.NotifyFailed > 3 && got.Out == 2
	})
	if n, k := hangs.calls.Load(), collects.Load(); n != 1 || k != 1 {
		t.Errorf("the notifier was called %d times, the collector %d times", n, k)
	}
}

type stuck struct {
	release chan struct{}
	calls   atomic.Int32
}

func (*stuck) Name() string { return "stuck" }
func (s *stuck) Notify(context.Context, Alert) error {
	s.calls.Add(1)
	<-s.release
	return nil
}
