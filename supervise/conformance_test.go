package supervise

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// TestConformance names the rules that it shows. SV-15 is shown at length by TestNoStorm and TestMonitorsKilledAndFrozen.
func TestConformance(t *testing.T) {
	for id, f := range map[string]func(*testing.T){
		"SV-1": verdictFromTheRecordAlone, "SV-2": verdictsAndSightings, "SV-3": everyVerdictIsSomebodys, "SV-4": alertOnly, "SV-5": persistence,
		"SV-6": oneOfManyActs, "SV-7": alertsApartFromLock, "SV-8": lastLook, "SV-9": breaker, "SV-10": cooldown, "SV-11": escalation,
		"SV-12": commandFails, "SV-13": whatAlertsCarry, "SV-14": whatMayBeAutomated, "SV-15": unknownOutcome, "SV-16": markers,
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			f(t)
		})
	}
}

func recordAt(state State, age time.Duration, now time.Time) *fact[Record] {
	at := now.Add(-age)
	return &fact[Record]{time: at, at: kvlocation.SharedEntry{Revision: 7, Time: at}, value: Record{
		Worker: "w", State: state, StateSince: at, ProgressAt: at, Heartbeat: at,
	}}
}

// SV-1. What a worker's own clock said makes no difference, only when the store took the record; and two monitors, one of
// which has just started, come to one verdict from it.
func verdictFromTheRecordAlone(t *testing.T) {
	b, p := newBed(t), fast()
	far := time.Now().Add(5 * time.Hour)
	b.say(t, Record{Worker: "ahead", State: Processing, Heartbeat: far, StateSince: far, ProgressAt: far})
	b.say(t, Record{Worker: "behind", State: Processing, Heartbeat: far.Add(-10 * time.Hour)})
	look := func() map[string]Verdict {
		found := map[string]Verdict{}
		all, err := Workers(testContext(t), openStore(t, connect(t, b.url), "other").Shared(kvlocation.BucketSupervise), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range all {
			found[w.Worker] = w.Verdict
		}
		return found
	}
	p.HungAfter = time.Hour
	if got := look(); got["ahead"] != Healthy || got["behind"] != Healthy {
		t.Fatalf("fresh records are %v", got)
	}
	p = fast()
	fabrictest.Eventually(t, readyIn, "both to be hung", func() bool {
		got := look()
		return got["ahead"] == Hung && got["behind"] == Hung
	})
	now := time.Now()
	for _, local := range []time.Duration{-9 * time.Hour, 0, 9 * time.Hour} {
		r := recordAt(Processing, 3*time.Minute, now)
		r.value.Heartbeat = now.Add(local)
		d := DefaultPolicy()
		if f := d.judge(r, now, 0); f.verdict != Hung {
			t.Errorf("with a local clock off by %v: %s", local, f.verdict)
		}
	}
}

// SV-2 has two halves.
func verdictsAndSightings(t *testing.T) {
	t.Run("verdicts", verdictsOfRecords)
	t.Run("seen twice", seenTwice)
}

// SV-2. The verdicts at the edges of their ages.
func verdictsOfRecords(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	stuck := recordAt(Processing, time.Second, now)
	stuck.value.ProgressAt = now.Add(-31 * time.Minute)
	moving := recordAt(Processing, time.Second, now)
	moving.value.ProgressAt = now.Add(-29 * time.Minute)
	broken := recordAt(Failed, time.Second, now)
	broken.value.StateSince = now.Add(-31 * time.Minute)
	for _, c := range []struct {
		name  string
		rec   *fact[Record]
		bound time.Duration
		want  Verdict
	}{
		{"no record", nil, 0, Unreachable},
		{"processing, 119 s", recordAt(Processing, 119*time.Second, now), 0, Healthy},
		{"processing, 120 s", recordAt(Processing, 120*time.Second, now), 0, Hung},
		{"processing, 121 s, not certain", recordAt(Processing, 121*time.Second, now), 2 * time.Second, Healthy},
		{"idle, 121 s", recordAt(Idle, 121*time.Second, now), 0, Healthy},
		{"idle, 10 min", recordAt(Idle, 10*time.Minute, now), 0, Unreachable},
		{"starting, 10 min", recordAt(Starting, 10*time.Minute, now), 0, Unreachable},
		{"stopped, a day", recordAt(Stopped, 24*time.Hour, now), 0, Healthy},
		{"error, 29 min", recordAt(Failed, 29*time.Minute, now), 0, Healthy},
		{"error, 30 min", recordAt(Failed, 30*time.Minute, now), 0, Erroneous},
		{"error for 31 min, fresh heartbeat", broken, 0, Erroneous},
		{"stuck progress, fresh heartbeat", stuck, 0, Stalled},
		{"progress", moving, 0, Healthy},
		{"a state of its own", recordAt("polishing", 121*time.Second, now), 0, Healthy},
	} {
		if f := p.judge(c.rec, now, c.bound); f.verdict != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, f.verdict, f.why(), c.want)
		}
	}
}

// SV-2, seen twice. One look confirms nothing, whoever looks, and however often within one check interval; a second one an
// interval later does, another monitor's too.
func seenTwice(t *testing.T) {
	b, p := newBed(t), fast()
	p.CheckInterval = time.Hour // only the looks of this test count
	b.say(t, Record{Worker: "w", State: Processing})
	fabrictest.Eventually(t, readyIn, "a heartbeat that is old", func() bool {
		all, err := Workers(testContext(t), b.sh, p, nil)
		return err == nil && all[0].Verdict == Hung
	})
	first, second := b.still(t, config(p, &journal{}, &alerts{})), b.still(t, config(p, &journal{}, &alerts{}))
	for range 3 {
		first.look(t)
		second.look(t)
	}
	if c := b.incidentOf(t, "w"); c != nil {
		t.Fatalf("confirmed within one check interval: %+v", c)
	}
	sight := b.key(t, "w", "sight")
	second.policy(func(p *Policy) { p.CheckInterval = 50 * time.Millisecond })
	fabrictest.Eventually(t, readyIn, "the other monitor's second look to confirm", func() bool {
		second.look(t)
		return b.incidentOf(t, "w") != nil
	})
	if again := b.key(t, "w", "sight"); again.Revision != sight.Revision {
		t.Errorf("the first sighting was written again: revision %d, then %d", sight.Revision, again.Revision)
	}
}

// SV-3. A verdict without anybody is no configuration, a restart without hands neither; the table can be printed.
func everyVerdictIsSomebodys(t *testing.T) {
	ok := config(DefaultPolicy(), &journal{}, &alerts{})
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, v := range verdicts {
		c := config(DefaultPolicy(), &journal{}, &alerts{})
		delete(c.Policy.Responsible, v)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("nobody for verdict %q", v)) {
			t.Errorf("nobody for %s: %v", v, err)
		}
		c.Policy.Responsible[v] = Person
		if err := c.Validate(); err != nil {
			t.Errorf("a person, said explicitly, for %s: %v", v, err)
		}
	}
	c := config(DefaultPolicy(), nil, &alerts{})
	c.Targets[0].Restarter = nil
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "no target has a restarter") {
		t.Errorf("eyes without hands: %v", err)
	}
	c = config(DefaultPolicy(), &journal{}, &alerts{})
	c.Notifiers = nil
	if err := c.Validate(); err == nil {
		t.Error("alerts that nobody gets are allowed")
	}
	b := newBed(t)
	if _, err := NewMonitor(testContext(t), b.store, c); err == nil {
		t.Error("a monitor starts with a configuration that is not allowed")
	}
	var table bytes.Buffer
	p := DefaultPolicy()
	if err := p.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, v := range verdicts {
		if !strings.Contains(table.String(), string(v)) {
			t.Errorf("the table does not name %s:\n%s", v, table.String())
		}
	}
}

// SV-4. Who can't be reached and who is slow are alerted about, and never restarted.
func alertOnly(t *testing.T) {
	b, p := newBed(t), fast()
	for _, v := range []Verdict{Unreachable, Stalled} {
		c := config(fast(), &journal{}, &alerts{})
		c.Policy.Responsible[v] = Restart
		if err := c.Validate(); err == nil {
			t.Errorf("%s may be restarted", v)
		}
	}
	j, a := &journal{}, &alerts{}
	p.StalledAfter = 300 * time.Millisecond
	p.HungAfter = 30 * time.Second // the slow one beats, as often as the machine lets it
	cfg := config(p, j, a)
	cfg.Expected = []string{"absent"}
	b.monitor(t, cfg)
	stuck := b.now(t)
	stop := b.tick(t, "slow", func() Record { return Record{Worker: "slow", State: Processing, ProgressAt: stuck} })
	defer stop()
	fabrictest.Eventually(t, readyIn, "both alerts", func() bool {
		seen := map[string]Verdict{}
		for _, x := range a.of(AlertConfirmed) {
			seen[x.Worker] = x.Verdict
		}
		return seen["absent"] == Unreachable && seen["slow"] == Stalled
	})
	for _, x := range a.of(AlertConfirmed) {
		if x.Severity != Page {
			t.Errorf("a person is to act on %s, and the alert is a %s", x.Verdict, x.Severity)
		}
	}
	b.outlast(t, p.Persistence+4*p.CheckInterval)
	if got := j.list(); len(got) > 0 {
		t.Errorf("restarted: %+v", got)
	}
}

// SV-5. What began to be timed by one monitor is carried on by the next, and a slower one does not begin anew.
func persistence(t *testing.T) {
	b, p := newBed(t), fast()
	p.Persistence = 3 * time.Second
	timed := make(chan kvlocation.SharedEntry, 10) // by each command
	j := &journal{do: func(o Order) Result { timed <- b.key(t, o.Worker, "timer"); return Result{Done, ""} }}
	b.say(t, Record{Worker: "w", State: Processing})
	first := b.monitor(t, config(p, j, &alerts{}))
	b.waitEvent(t, "w", Armed, "1")
	armed := b.key(t, "w", "timer")
	first.Close()
	b.monitor(t, config(p, j, &alerts{}))
	b.monitor(t, config(p, j, &alerts{}))
	b.waitEvent(t, "w", DoneRestart, "")
	c := b.incidentOf(t, "w")
	if lasted := c.Attempts[0].At.Sub(armed.Time); lasted < p.Persistence {
		t.Errorf("restarted after %v, before it had lasted %v", lasted, p.Persistence)
	}
	if timer := <-timed; timer.Revision != armed.Revision {
		t.Errorf("the timer began anew: revision %d, then %d", armed.Revision, timer.Revision)
	}
	if n := len(j.list()); n != 1 {
		t.Errorf("%d restarts", n)
	}
	// And with nobody's end in between.
	b.say(t, Record{Worker: "x", State: Processing})
	since := b.waitEvent(t, "x", Armed, "1").Time
	b.waitEvent(t, "x", DoneRestart, "")
	if lasted := b.incidentOf(t, "x").Attempts[0].At.Sub(since); lasted < p.Persistence {
		t.Errorf("restarted after %v, before it had lasted %v", lasted, p.Persistence)
	}
}

// SV-6. Five monitors, one command.
func oneOfManyActs(t *testing.T) {
	b, p := newBed(t), fast()
	p.Breaker = 1 // however long the machine takes to look at what one of them has done
	j := &journal{}
	var cast []*Monitor
	for range 5 {
		cast = append(cast, b.monitor(t, config(p, j, &alerts{})))
	}
	b.say(t, Record{Worker: "w", State: Processing})
	j.wait(t, 1)
	b.waitEvent(t, "w", Skipped, "cooldown")
	b.outlast(t, 5*p.CheckInterval)
	if got := j.list(); len(got) != 1 {
		t.Errorf("%d restarts by five monitors", len(got))
	}
	fabrictest.Eventually(t, readyIn, "the lock to have been taken once for each attempt", func() bool {
		all, err := Events(testContext(t), b.sh, EventFilter{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		attempts, locks := uint64(0), uint64(0) // one, unless the machine was so slow that one was cancelled
		for _, e := range all {
			if e.Kind == Locked {
				attempts++
			}
		}
		for _, m := range cast {
			locks += m.Metrics().Decisions[Locked]
		}
		return attempts > 0 && locks == attempts
	})
}

// SV-7. An alert goes out once for each incident whoever acts, also while another monitor holds the lock, and having gone
// out keeps no restart from being run.
func alertsApartFromLock(t *testing.T) {
	b, p := newBed(t), fast()
	token, _ := escape("w")
	key := incidentPrefix + token + ".lock"
	if _, err := b.sh.Create(testContext(t), key, encode(lock{V: 1, Worker: "w", By: "somebody"}), time.Hour); err != nil {
		t.Fatal(err)
	}
	b.say(t, Record{Worker: "w", State: Processing})
	j, a := &journal{}, &alerts{}
	for range 3 {
		b.monitor(t, config(p, j, a))
	}
	a.wait(t, AlertConfirmed)
	b.waitEvent(t, "w", Skipped, "locked")
	if got := j.list(); len(got) > 0 {
		t.Fatalf("restarted while another monitor held the lock: %+v", got)
	}
	if err := remove(testContext(t), b.sh, key); err != nil {
		t.Fatal(err)
	}
	j.wait(t, 1)
	a.wait(t, AlertRestarted)
	if n := len(a.of(AlertConfirmed)); n != 1 {
		t.Errorf("the incident was alerted %d times", n)
	}
}

// SV-8. A worker that comes back between the decision and the command is not restarted, and what was begun is cleaned up.
func lastLook(t *testing.T) {
	for _, at := range []do{doCollect, doIntend, doRun} {
		t.Run("recovers before "+at.String(), func(t *testing.T) {
			t.Parallel()
			b, p := newBed(t), fast()
			b.say(t, Record{Worker: "w", State: Processing})
			j := &journal{}
			m := b.still(t, config(p, j, &alerts{}))
			back := false
			m.run.before = func(s step) {
				// The look that this step rests on is already over; it is the next one that has to notice.
				if s.do == at && !back && at != doRun || at == doRun && s.do == doIntend && !back {
					back = true
					b.say(t, Record{Worker: "w", State: Idle}) // which is not hung, however long the machine takes for a look
					b.beat(t, 0, Record{Worker: "w", State: Idle})
				}
			}
			fabrictest.Eventually(t, readyIn, "the worker to recover", func() bool {
				m.look(t)
				c := b.incidentOf(t, "w")
				return back && c != nil && c.State == IncidentRecovered
			})
			if got := j.list(); len(got) > 0 {
				t.Fatalf("restarted: %+v", got)
			}
			m.look(t)
			for _, key := range []string{"lock", "timer", "sight"} {
				if e := b.key(t, "w", key); e.Exists() {
					t.Errorf("key %s was left behind: %s", key, e.Value)
				}
			}
			for _, a := range b.incidentOf(t, "w").Attempts {
				if a.Outcome != Cancelled {
					t.Errorf("attempt %+v", a)
				}
			}
		})
	}
}
