package supervise

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// SV-9. Three a day for each worker, whichever path restarts it; log collection that fails costs nothing of it.
func breaker(t *testing.T) {
	b, p := newBed(t), fast()
	p.Cooldown, p.EscalateAfter = 500*time.Millisecond, 500*time.Millisecond
	p.ErrorAfter = 500 * time.Millisecond
	j, a := &journal{}, &alerts{}
	cfg := config(p, j, a)
	collected := 0
	cfg.Targets[0].Collector = CollectFunc(func(context.Context, string) (string, error) {
		collected++
		return "", errors.New("no logs today")
	})
	cfg.Parallel = 1 // so that the collector needs no lock
	j.do = func(Order) Result {
		if len(j.list()) == 2 {
			b.say(t, Record{Worker: "w", State: Failed}) // another verdict, another path, the same breaker
		}
		return Result{Done, ""}
	}
	b.say(t, Record{Worker: "w", State: Processing})
	m := b.still(t, cfg)
	m.until(t, func() bool { return len(a.of(AlertBreaker)) > 0 })
	got := j.list()
	if len(got) != 3 {
		t.Fatalf("%d restarts, the breaker allows 3", len(got))
	}
	if got[0].Verdict != Hung || got[2].Verdict != Erroneous {
		t.Errorf("verdicts %s and %s", got[0].Verdict, got[2].Verdict)
	}
	if collected < 3 {
		t.Errorf("logs were collected %d times", collected)
	}
	if used := b.incidentOf(t, "w").used(time.Time{}); used != 3 {
		t.Errorf("the breaker has counted %d", used)
	}
	m.until(t, func() bool { return m.Metrics().Decisions[Refused] > 0 })
	b.waitEvent(t, "w", Refused, "breaker")
	for range 10 {
		m.look(t)
	}
	if n := len(j.list()); n != 3 {
		t.Errorf("%d restarts with an open breaker", n)
	}
}

// SV-10. While the cooldown lasts nothing is timed, though the old record looks hung; after it everything begins at the
// first sighting.
func cooldown(t *testing.T) {
	b, p := newBed(t), fast()
	p.Persistence = 300 * time.Millisecond
	j := &journal{}
	b.say(t, Record{Worker: "w", State: Processing})
	b.monitor(t, config(p, j, &alerts{}))
	first := j.wait(t, 1)[0]
	fabrictest.Eventually(t, readyIn, "the timer to be cleared", func() bool {
		return !b.key(t, "w", "timer").Exists() && !b.key(t, "w", "sight").Exists()
	})
	for {
		timer, sight := b.key(t, "w", "timer"), b.key(t, "w", "sight")
		a := b.incidentOf(t, "w").lastRestart()
		now, bound, err := b.sh.Now(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if a.Outcome == Done && !now.Add(bound).Before(a.Finished.Add(p.Cooldown)) {
			break // they were read before, but perhaps only just
		}
		if timer.Exists() || sight.Exists() {
			t.Fatalf("within the cooldown: timer %s, sighting %s", timer.Value, sight.Value)
		}
	}
	second := j.wait(t, 2)[1]
	if gap := second.at.Sub(first.at); gap < p.Cooldown+p.Persistence+p.CheckInterval {
		t.Errorf("restarted again after %v; the cooldown alone is %v", gap, p.Cooldown)
	}
}

// SV-11. One page with a mention when the restart did not help.
func escalation(t *testing.T) {
	b, p := newBed(t), fast()
	a := &alerts{}
	b.say(t, Record{Worker: "w", State: Processing})
	p.Breaker = 1
	for range 2 {
		b.monitor(t, config(p, &journal{}, a))
	}
	page := a.wait(t, AlertUnrecovered)
	if page.Severity != Page || !strings.Contains(page.Text, "restart did not recover") {
		t.Errorf("the page: %+v", page)
	}
	c := b.incidentOf(t, "w")
	if after := page.Time.Sub(c.Attempts[0].Finished); after < p.EscalateAfter {
		t.Errorf("paged %v after the restart", after)
	}
	b.waitEvent(t, "w", Escalated, "")
	b.outlast(t, 10*p.CheckInterval)
	if n := len(a.of(AlertUnrecovered)); n != 1 {
		t.Errorf("%d pages for one restart", n)
	}
	if got := mention(page); !strings.HasPrefix(got, "<!channel> ") {
		t.Errorf("the webhook's text is %q", got)
	}
}

// SV-12. A command that fails is paged about at once, and the next cycle tries again.
func commandFails(t *testing.T) {
	b, p := newBed(t), fast()
	p.Cooldown = time.Hour // who waits for it would not try again in this test
	a := &alerts{}
	j := &journal{}
	n := 0
	j.do = func(Order) Result {
		if n++; n == 1 {
			return Result{Broken, "exit status 1: no such container"}
		}
		return Result{Done, ""}
	}
	b.say(t, Record{Worker: "w", State: Processing})
	b.monitor(t, config(p, j, a))
	page := a.wait(t, AlertFailed)
	if page.Severity != Page || !strings.Contains(page.Text, "no such container") {
		t.Errorf("the page: %+v", page)
	}
	j.wait(t, 2)
	a.wait(t, AlertRestarted)
	if used := b.incidentOf(t, "w").used(time.Time{}); used != 2 {
		t.Errorf("the breaker has counted %d", used)
	}
}

// SV-13. Alerts say which worker, what is wrong, what it was working on, and its last words.
func whatAlertsCarry(t *testing.T) {
	b, p := newBed(t), fast()
	a := &alerts{}
	b.say(t, Record{Worker: "gpu/1", State: Processing, Job: "job-42"})
	cfg := config(p, &journal{}, a)
	cfg.Targets[0].Match = "gpu/*"
	b.monitor(t, cfg)
	for _, kind := range []string{AlertConfirmed, AlertRestarting, AlertRestarted} {
		if kind == AlertRestarting { // it may be over before anybody looks
			continue
		}
		x := a.wait(t, kind)
		if x.Worker != "gpu/1" || x.Verdict != Hung || x.Job != "job-42" || x.Logs != "last words of gpu/1" || !strings.Contains(x.Text, "job-42") {
			t.Errorf("%s: %+v", kind, x)
		}
	}
}

// SV-14. Only what is nearly idempotent is automated: a configuration that wants more is refused, and a worker for which
// nobody said how it is restarted is left to a person.
func whatMayBeAutomated(t *testing.T) {
	b, p := newBed(t), fast()
	j, a := &journal{}, &alerts{}
	cfg := config(p, j, a)
	cfg.Targets[0].Match = "other-*"
	b.say(t, Record{Worker: "w", State: Processing})
	b.monitor(t, cfg)
	page := a.wait(t, AlertNoHands)
	if page.Severity != Page || page.Worker != "w" {
		t.Errorf("the page: %+v", page)
	}
	b.waitEvent(t, "w", Refused, "hands")
	b.outlast(t, p.Persistence+2*p.CheckInterval)
	if got := j.list(); len(got) > 0 {
		t.Errorf("restarted: %+v", got)
	}
}

// SV-15. Intent before command; an unknown outcome counts as run, begins the cooldown, and pages.
func unknownOutcome(t *testing.T) {
	b, p := newBed(t), mortal()
	j, a := &journal{}, &alerts{}
	j.do = func(o Order) Result {
		c := b.incidentOf(t, "w")
		if r := c.running(); r == nil || r.ID != o.Attempt {
			t.Errorf("the command runs, and the store has %+v", c.Attempts)
		}
		if used, n := c.used(time.Time{}), len(j.list()); used != n {
			t.Errorf("as command %d runs, the breaker has counted %d", n, used)
		}
		return Result{Unknown, "nobody knows"}
	}
	b.say(t, Record{Worker: "w", State: Processing})
	m := b.monitor(t, config(p, j, a))
	page := a.wait(t, AlertUnknown)
	if page.Severity != Page {
		t.Errorf("the page: %+v", page)
	}
	first := j.wait(t, 1)[0]
	second := j.wait(t, 2)[1]
	m.Close() // the command under way looks at the store
	if gap := second.at.Sub(first.at); gap < p.Cooldown {
		t.Errorf("restarted again %v after an attempt that may have worked", gap)
	}
	if second.Token.Compare(first.Token) <= 0 {
		t.Errorf("token %v after %v", second.Token, first.Token)
	}
}

// SV-16. A planned action is no incident while its marker holds, and one that is marked at the last moment stops the
// command.
func markers(t *testing.T) {
	b, p := newBed(t), fast()
	ctx := testContext(t)
	mark := func(w string, d time.Duration) {
		if err := PutMarker(ctx, b.sh, Marker{Worker: w, Action: ActionUpgrade, By: "test", Reason: "new version", Until: b.now(t).Add(d)}); err != nil {
			t.Fatal(err)
		}
	}
	mark("w", time.Hour)
	b.say(t, Record{Worker: "w", State: Processing})
	b.say(t, Record{Worker: "late", State: Processing})
	j, a := &journal{}, &alerts{}
	m := b.still(t, config(p, j, a))
	m.run.before = func(s step) {
		if s.do == doIntend {
			mark("late", time.Hour)
		}
	}
	m.until(t, func() bool {
		c := b.incidentOf(t, "late")
		return c != nil && len(c.Attempts) > 0 && c.Attempts[0].Outcome == Cancelled
	})
	for range 5 {
		m.look(t)
	}
	if got := j.list(); len(got) > 0 {
		t.Fatalf("restarted during a planned action: %+v", got)
	}
	if c := b.incidentOf(t, "w"); c != nil {
		t.Errorf("an incident: %+v", c)
	}
	if e := b.key(t, "late", "timer"); e.Exists() {
		t.Error("a marked worker is still timed")
	}
	if got, ok, err := MarkerOf(ctx, b.sh, "w"); err != nil || !ok || got.Action != ActionUpgrade || got.Since.IsZero() {
		t.Errorf("marker %+v, %v, %v", got, ok, err)
	}
	for _, x := range a.of(AlertConfirmed) {
		if x.Worker == "w" {
			t.Errorf("alerted during a planned action: %+v", x)
		}
	}
	m.run.before = func(step) {}
	if err := ClearMarker(ctx, b.sh, "w"); err != nil {
		t.Fatal(err)
	}
	mark("late", 3*time.Second)
	m.until(t, func() bool { return len(j.list()) >= 2 })
}
