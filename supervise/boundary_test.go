package supervise

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Each limit of a restart is on the safe side of the store's clock, whose error is known: what may still hold does (SV-9,
// SV-10, SV-15).
func TestBoundaries(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	const bound = time.Second
	look := func(attempts ...Attempt) step {
		v := ready(&p, now, budgetUse{Worker: "w", Attempt: "i-1", At: now})
		v.bound = bound
		v.incident.value.Attempts = attempts
		s := p.next(v)
		if s.do == doWrite && s.event == "" { // what is refused, or waits, first gives its lock back
			v.lock = nil
			s = p.next(v)
		}
		if s.do == doWrite && s.event == "" { // and forgets what was timed
			v.timer = nil
			s = p.next(v)
		}
		if s.do == doWrite && s.event == "" {
			v.sight = nil
			s = p.next(v)
		}
		return s
	}
	ended := func(o Outcome, at time.Time) Attempt {
		return Attempt{ID: "earlier", By: "another", Outcome: o, At: at, Finished: at.Add(time.Second)}
	}
	longAgo := func(n int, at time.Time) (out []Attempt) {
		for range n {
			out = append(out, ended(Done, at))
		}
		return out
	}
	atWindow := func(d time.Duration) time.Time { return now.Add(-p.BreakerWindow + d) }
	ran := func(begun, ended time.Duration) Attempt {
		return Attempt{ID: "earlier", By: "another", Outcome: Done, At: atWindow(begun), Finished: atWindow(ended)}
	}
	atCooldown := func(d time.Duration) time.Time { return now.Add(-p.Cooldown - time.Second + d) }
	for _, c := range []struct {
		name     string
		attempts []Attempt
		do       do
		event    EventKind
	}{
		{"no attempt yet", nil, doIntend, Intended},
		{"one below the breaker", longAgo(p.Breaker-1, now.Add(-2*time.Hour)), doIntend, Intended},
		{"at the breaker", longAgo(p.Breaker, now.Add(-2*time.Hour)), doWait, Refused},
		{"failed commands count", append(longAgo(p.Breaker-1, now.Add(-2*time.Hour)), ended(Broken, now.Add(-time.Hour))), doWait, Refused},
		{"cancelled ones don't", append(longAgo(p.Breaker-1, now.Add(-2*time.Hour)), ended(Cancelled, now.Add(-time.Hour))), doIntend, Intended},
		{"may be in the breaker's window", longAgo(p.Breaker, atWindow(-bound/2)), doWait, Refused},
		{"is out of the breaker's window", longAgo(p.Breaker, atWindow(-2*bound)), doIntend, Intended},
		{"ran in the breaker's window, intended before", []Attempt{ran(-30*time.Second, bound), ran(-20*time.Second, bound), ran(-10*time.Second, bound)}, doWait, Refused},
		{"ran before the breaker's window", []Attempt{ran(-30*time.Second, -bound), ran(-20*time.Second, -bound), ran(-10*time.Second, -bound)}, doIntend, Intended},
		{"may be in the cooldown", []Attempt{ended(Done, atCooldown(-bound/2))}, doWait, Skipped},
		{"of an unknown outcome, too", []Attempt{ended(Unknown, atCooldown(-bound/2))}, doWait, Skipped},
		{"is out of the cooldown, and begins anew", []Attempt{ended(Done, atCooldown(-2*bound))}, doWrite, ""},
		{"failed a check ago", []Attempt{ended(Broken, now.Add(-p.CheckInterval-2*bound-time.Second))}, doIntend, Intended},
		{"failed just now", []Attempt{ended(Broken, now.Add(-p.CheckInterval))}, doWait, ""},
	} {
		if s := look(c.attempts...); s.do != c.do || s.event != c.event {
			t.Errorf("%s: %v %q: %s", c.name, s.do, s.event, s.why)
		}
	}

	// An attempt of another monitor is left alone as long as its command may run, and has ended, for the cooldown, when it must have.
	running := func(ago time.Duration) Attempt {
		return Attempt{ID: "i-1", Incident: "i", By: "another", Verdict: Hung, Outcome: Running, At: now.Add(-ago)}
	}
	if s := look(running(p.until() + bound/2)); s.do != doWait || s.event != "" {
		t.Errorf("a command that may run: %v %q: %s", s.do, s.event, s.why)
	}
	v := ready(&p, now)
	v.bound, v.incident.value.Attempts = bound, []Attempt{running(p.until() + time.Hour)}
	s := p.next(v)
	if s.do != doWrite || s.event != UnknownRestart {
		t.Fatalf("a command that has ended: %v %q: %s", s.do, s.event, s.why)
	}
	var written Incident
	if err := json.Unmarshal(s.change.value, &written); err != nil {
		t.Fatal(err)
	}
	if a := written.last(); a.Outcome != Unknown || !a.Finished.Equal(a.At.Add(p.until())) {
		t.Errorf("it counts as ended at %v, begun at %v", a.Finished, a.At)
	}

	// The own one is cancelled once it is too late for its command.
	v = ready(&p, now)
	v.incident.value.Attempts = []Attempt{running(time.Second)}
	v.incident.value.Attempts[0].By, v.hand.attempt = "m", "i-1"
	if s := p.next(v); s.do != doRun {
		t.Errorf("in time: %v: %s", s.do, s.why)
	}
	v.hand.late = true
	if s := p.next(v); s.do != doWrite || s.event != CancelledRestart {
		t.Errorf("late: %v %q: %s", s.do, s.event, s.why)
	}
}

// What was timed before a cooldown had ended is forgotten after it too, in case that nobody looked while it lasted (SV-10).
func TestTimedBeforeTheCooldownEnded(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	end := now.Add(-p.Persistence - time.Hour)
	for name, c := range map[string]struct {
		sight, timer time.Duration // since the end
		why          string
	}{
		"both before it":    {-time.Second, -time.Second, "timer cleared"},
		"the timer before":  {0, -time.Second, "timer cleared"},
		"the sight before":  {-time.Second, 0, "timer cleared"},
		"both no earlier":   {0, 0, ""},
		"both some time on": {time.Second, time.Minute, ""},
	} {
		v := ready(&p, now, budgetUse{Worker: "w", Attempt: "i-1", At: now})
		v.incident.value.Attempts = []Attempt{{ID: "i-0", By: "another", Outcome: Done, At: end.Add(-p.Cooldown), Finished: end.Add(-p.Cooldown)}}
		v.sight.time, v.timer.time = end.Add(c.sight), end.Add(c.timer)
		s := p.next(v)
		if c.why == "" {
			if s.do != doIntend {
				t.Errorf("%s: %v: %s", name, s.do, s.why)
			}
			continue
		}
		if s.do != doWrite || !strings.HasPrefix(s.why, c.why) {
			t.Errorf("%s: %v: %s", name, s.do, s.why)
		}
		if v.timer = nil; c.sight >= 0 {
			continue
		}
		if s := p.next(v); s.do != doWrite || !strings.HasPrefix(s.why, "sighting cleared") {
			t.Errorf("%s, without the timer: %v: %s", name, s.do, s.why)
		}
	}
}

// The cooldown after a command of which nobody knows what became counts from when it may have begun: an order may be on its way
// until its launch window is over, however soon it was given up.
func TestUnknownMayBeginLate(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	for ago, want := range map[time.Duration]time.Duration{time.Second: p.LaunchWindow, p.LaunchWindow + time.Minute: p.LaunchWindow + time.Minute} {
		v := ready(&p, now)
		begun := ceil(now.Add(-ago))
		v.incident.value.Attempts = []Attempt{{ID: "i-1", Incident: "i", By: "m", Verdict: Hung, Outcome: Running, At: begun}}
		v.hand.attempt, v.hand.result = "i-1", &Result{Outcome: Unknown}
		s := p.next(v)
		var written Incident
		if err := json.Unmarshal(s.change.value, &written); err != nil {
			t.Fatal(err)
		}
		if got := written.last().Finished.Sub(begun).Round(10 * time.Millisecond); got != want {
			t.Errorf("given up %v after its intent, it counts as ended %v after it, want %v", ago, got, want)
		}
	}
}

// What may still hold holds, as long as the store's clock does not say for certain that it is over: nothing is restarted then.
func TestMayNotBeOver(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	const bound = time.Second
	for name, set := range map[string]func(v *view, over time.Duration){
		"second sighting": func(v *view, over time.Duration) { v.sight.time = now.Add(-p.CheckInterval - over) },
		"persistence":     func(v *view, over time.Duration) { v.timer.time = now.Add(-p.Persistence - over) },
		"marker":          func(v *view, over time.Duration) { v.marker = &fact[Marker]{value: Marker{Until: now.Add(-over)}} },
		"pause": func(v *view, over time.Duration) {
			v.control = &fact[Control]{value: Control{Mode: Paused, Until: now.Add(-over)}}
		},
		"maintenance": func(v *view, over time.Duration) {
			v.control = &fact[Control]{value: Control{Mode: UnderMaintenance, Until: now.Add(-over)}}
		},
	} {
		for over, restarts := range map[time.Duration]bool{-time.Hour: false, bound / 2: false, 2 * bound: true} {
			v := ready(&p, now, budgetUse{Worker: "w", Attempt: "i-1", At: now})
			v.bound = bound
			set(v, over)
			if s := p.next(v); (s.do == doIntend) != restarts {
				t.Errorf("%s, over for %v: %v: %s", name, over, s.do, s.why)
			}
		}
	}
	v := ready(&p, now, budgetUse{Worker: "w", Attempt: "i-1", At: now})
	v.confirmed = false
	if s := p.next(v); s.do != doConfirm {
		t.Errorf("before the intent nobody has looked: %v: %s", s.do, s.why)
	}
	v.confirmed = true
	v.timer.value.Episode = "r6"
	if s := p.next(v); s.event != Armed {
		t.Errorf("what is timed is another episode: %v %q: %s", s.do, s.event, s.why)
	}
	// A replica that is behind shows an older record than the one that was seen: nothing begins anew for that.
	v = ready(&p, now)
	v.sight.value.Record, v.sight.value.Episode, v.lock = 8, "r8", nil
	if s := p.next(v); s.do != doWait || s.event != "" {
		t.Errorf("an older record than the one that was seen: %v %q: %s", s.do, s.event, s.why)
	}
}

// The fleet's limits: a few broken workers of a small fleet are no sign of a fault elsewhere; a use of the budget counts as long as
// its window may not be over.
func TestFleetBoundaries(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	for f, want := range map[fleet]bool{
		{workers: 2, broken: 2}: false, {workers: 3, broken: 3}: true, {workers: 10, broken: 3}: false, {workers: 9, broken: 3}: true,
	} {
		if got := p.tooMany(f); got != want {
			t.Errorf("%d of %d are too many: %t", f.broken, f.workers, got)
		}
	}
	p.FleetBudget = 1
	const bound = time.Second
	for over, want := range map[time.Duration]do{bound / 2: doWait, 2 * bound: doWrite} {
		v := ready(&p, now, budgetUse{Worker: "x", Attempt: "x-1", At: now.Add(-p.FleetWindow - p.LaunchWindow - p.until() - over)})
		v.bound, v.lock = bound, nil
		if s := p.next(v); s.do != want || want == doWait && s.of != "budget" {
			t.Errorf("the window is over for %v: %v %q: %s", over, s.do, s.of, s.why)
		}
	}
}

// Whatever the last look before the command shows, beside what was intended, cancels it.
func TestLastLookCancels(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	for name, change := range map[string]func(v *view){
		"":        func(*view) {},
		"a pause": func(v *view) { v.control = &fact[Control]{value: Control{Mode: Paused}} },
		"maintenance": func(v *view) {
			v.control = &fact[Control]{value: Control{Mode: UnderMaintenance, Until: now.Add(time.Hour)}}
		},
		"a marker":                 func(v *view) { v.marker = &fact[Marker]{value: Marker{Until: now.Add(time.Hour)}} },
		"a heartbeat":              func(v *view) { v.record = recordAt(Processing, time.Second, now) },
		"another verdict":          func(v *view) { v.record = recordAt(Failed, time.Hour, now) },
		"no record":                func(v *view) { v.record = nil },
		"the time is over":         func(v *view) { v.hand.late = true },
		"the intent was not heard": func(v *view) { v.hand.attempt = "" },
	} {
		v := ready(&p, now)
		v.incident.value.Attempts = []Attempt{{ID: "i-1", Incident: "i", By: "m", Verdict: Hung, Outcome: Running, At: now.Add(-time.Second)}}
		v.incident.value.Numbered, v.hand.attempt = 1, "i-1"
		change(v)
		s := p.next(v)
		if name == "" {
			if s.do != doRun {
				t.Errorf("nothing: %v: %s", s.do, s.why)
			}
			v.confirmed = false
			if s := p.next(v); s.do != doConfirm {
				t.Errorf("not looked yet: %v: %s", s.do, s.why)
			}
			continue
		}
		if s.do != doWrite || s.event != CancelledRestart {
			t.Errorf("%s: %v %q: %s", name, s.do, s.event, s.why)
		}
	}
}

// A place of the fleet's budget that was taken for a cancelled attempt is given back; that of another worker, or of an attempt
// whose outcome is not known, is not.
func TestCancelledAttemptGivesItsPlaceBack(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	p.FleetBudget = 1
	for o, want := range map[Outcome]do{Cancelled: doWrite, Broken: doWait, Unknown: doWait} {
		v := ready(&p, now, budgetUse{Worker: "w", Attempt: "i-1", At: now.Add(-20 * time.Minute)})
		v.incident.value.Numbered = 1
		v.incident.value.Attempts = []Attempt{{ID: "i-1", By: "m", Outcome: o, At: now.Add(-20 * time.Minute), Finished: now.Add(-19 * time.Minute)}}
		s := p.next(v)
		if s.do == doWrite && s.change.value == nil { // the lock, given back
			v.lock = nil
			s = p.next(v)
		}
		if s.do != want || want == doWait && s.of != "budget" {
			t.Errorf("%s: %v %q: %s", o, s.do, s.of, s.why)
		}
	}
}
