package supervise

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// Too many workers look broken at once: nothing is restarted, and a page says that the fault is likely elsewhere.
func TestFleetGuard(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.HungAfter, p.UnreachableAfter = 500*time.Millisecond, time.Hour
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
	// Most of them come back: the rest is a matter of its own again.
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
	if n := len(a.of(AlertConfirmed)); n > 0 || b.caseOf(t, "w") != nil {
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
	resumed := b.now(t)
	m.until(t, func() bool { return len(j.list()) == 1 })
	if after := b.caseOf(t, "w").Attempts[0].At.Sub(resumed); after < p.Persistence {
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
		time.AfterFunc(100*time.Millisecond, func() { b.say(t, Record{Worker: "w", State: Idle}) })
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
	a, j := &alerts{}, &journal{}
	j.do = func(Order) Result {
		b.say(t, Record{Worker: "w", State: Failed})
		return Result{Done, ""}
	}
	b.say(t, Record{Worker: "w", State: Failed})
	m := b.still(t, config(p, j, a))
	m.until(t, func() bool { return len(j.list()) == 1 })
	m.until(t, func() bool { return len(a.of(AlertUnrecovered)) > 0 })
	if c := b.caseOf(t, "w"); c.State != CaseOpen || len(a.of(AlertRecovered)) > 0 {
		t.Fatalf("the incident is %s: %s", c.State, c.How)
	}
	b.say(t, Record{Worker: "w", State: Idle})
	m.until(t, func() bool { return b.caseOf(t, "w").State == CaseRecovered })
}

// Who was told that a worker is being restarted is told that it was not; nobody else is.
func TestCancelledIsTold(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	v := &View{Worker: "w", Now: now, Record: recordAt(Processing, time.Second, now), Case: &Fact[Case]{Value: Case{
		ID: "i", State: CaseOpen, Verdict: Hung, Attempts: []Attempt{{ID: "i-1", Outcome: Cancelled, Finished: now, Detail: "it recovered"}},
	}}}
	if got := p.Due(v); len(got) > 0 {
		t.Errorf("nobody was told of it, and now: %+v", got)
	}
	v.alerts = map[string]kvlocation.SharedEntry{AlertRestarting + "-i-1": {}}
	if got := p.Due(v); len(got) != 1 || got[0].Kind != AlertCancelled || !strings.Contains(got[0].Text, "not restarted after all: it recovered") {
		t.Errorf("it was told, and now: %+v", got)
	}
}

// The longest retention that is allowed is one that the store takes.
func TestLongestRetention(t *testing.T) {
	p := DefaultPolicy()
	p.Retention = kvlocation.MaxSharedTTL
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if s := p.writeCase(&View{Worker: "w"}, &Case{}, ""); s.change.ttl > kvlocation.MaxSharedTTL {
		t.Errorf("a case is written for %v", s.change.ttl)
	}
}

// The time that a collection takes is not the command's loss: it has all of its limit, however long its logs were waited for.
func TestSlowCollectionShortensNoCommand(t *testing.T) {
	t.Parallel()
	b, p := newBed(t), fast()
	p.CommandLimit, p.LaunchWindow = time.Second, 2*time.Second
	p.CollectLimit = p.until() + settleTime - 500*time.Millisecond
	p.LockTTL = p.CollectLimit + 2*p.LaunchWindow + p.CommandLimit
	left := make(chan time.Duration, 10)
	cfg := config(p, RestartFunc(func(ctx context.Context, o Order) Result {
		end, _ := ctx.Deadline()
		left <- time.Until(end)
		return Result{Done, ""}
	}), &alerts{})
	cfg.Targets[0].Collector = CollectFunc(func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	b.say(t, Record{Worker: "w", State: Processing})
	b.monitor(t, cfg)
	select {
	case d := <-left:
		if d < p.CommandLimit*7/10 {
			t.Errorf("the command is given %v, its limit is %v", d, p.CommandLimit)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("no restart")
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
	if c := b.caseOf(t, "w"); c.Attempts[0].Outcome != Done || c.Attempts[0].Detail != "slowly" {
		t.Errorf("attempt %+v", c.Attempts[0])
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
	m.until(t, func() bool { c := b.caseOf(t, "w"); return c != nil })
	if err := remove(testContext(t), b.sh, workerPrefix+"w"); err != nil {
		t.Fatal(err)
	}
	m.until(t, func() bool { return len(a.of(AlertGone)) > 0 })
	if c := b.caseOf(t, "w"); c.State != CaseGone {
		t.Errorf("case %+v", c)
	}
}
