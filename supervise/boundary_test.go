package supervise

import (
	"encoding/json"
	"testing"
	"time"
)

// Each limit of a restart is on the safe side of the store's clock, whose error is known: what may still hold does (SV-9,
// SV-10, SV-15).
func TestBoundaries(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	const bound = time.Second
	look := func(attempts ...Attempt) Step {
		v := ready(&p, now, BudgetUse{Worker: "w", Attempt: "i-1", At: now})
		v.Bound = bound
		v.Incident.Value.Attempts = attempts
		s := p.Next(v)
		if s.Do == Write && s.Event == "" { // what is refused, or waits, first gives its lock back
			v.Lock = nil
			s = p.Next(v)
		}
		if s.Do == Write && s.Event == "" { // and forgets what was timed
			v.Timer = nil
			s = p.Next(v)
		}
		if s.Do == Write && s.Event == "" {
			v.Sight = nil
			s = p.Next(v)
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
	atCooldown := func(d time.Duration) time.Time { return now.Add(-p.Cooldown - time.Second + d) }
	for _, c := range []struct {
		name     string
		attempts []Attempt
		do       Do
		event    EventKind
	}{
		{"no attempt yet", nil, Intend, Intended},
		{"one below the breaker", longAgo(p.Breaker-1, now.Add(-2*time.Hour)), Intend, Intended},
		{"at the breaker", longAgo(p.Breaker, now.Add(-2*time.Hour)), Wait, Refused},
		{"failed commands count", append(longAgo(p.Breaker-1, now.Add(-2*time.Hour)), ended(Broken, now.Add(-time.Hour))), Wait, Refused},
		{"cancelled ones don't", append(longAgo(p.Breaker-1, now.Add(-2*time.Hour)), ended(Cancelled, now.Add(-time.Hour))), Intend, Intended},
		{"may be in the breaker's window", longAgo(p.Breaker, atWindow(-bound/2)), Wait, Refused},
		{"is out of the breaker's window", longAgo(p.Breaker, atWindow(-2*bound)), Intend, Intended},
		{"may be in the cooldown", []Attempt{ended(Done, atCooldown(-bound/2))}, Wait, Skipped},
		{"of an unknown outcome, too", []Attempt{ended(Unknown, atCooldown(-bound/2))}, Wait, Skipped},
		{"is out of the cooldown", []Attempt{ended(Done, atCooldown(-2*bound))}, Intend, Intended},
		{"failed a check ago", []Attempt{ended(Broken, now.Add(-p.CheckInterval-2*bound-time.Second))}, Intend, Intended},
		{"failed just now", []Attempt{ended(Broken, now.Add(-p.CheckInterval))}, Wait, ""},
	} {
		if s := look(c.attempts...); s.Do != c.do || s.Event != c.event {
			t.Errorf("%s: %v %q: %s", c.name, s.Do, s.Event, s.Why)
		}
	}

	// An attempt of another monitor is left alone as long as its command may run, and has ended, for the cooldown, when it must have.
	running := func(ago time.Duration) Attempt {
		return Attempt{ID: "i-1", Incident: "i", By: "another", Verdict: Hung, Outcome: Running, At: now.Add(-ago)}
	}
	if s := look(running(p.until() + bound/2)); s.Do != Wait || s.Event != "" {
		t.Errorf("a command that may run: %v %q: %s", s.Do, s.Event, s.Why)
	}
	v := ready(&p, now)
	v.Bound, v.Incident.Value.Attempts = bound, []Attempt{running(p.until() + time.Hour)}
	s := p.Next(v)
	if s.Do != Write || s.Event != UnknownRestart {
		t.Fatalf("a command that has ended: %v %q: %s", s.Do, s.Event, s.Why)
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
	v.Incident.Value.Attempts = []Attempt{running(time.Second)}
	v.Incident.Value.Attempts[0].By, v.Hand.Attempt = "m", "i-1"
	if s := p.Next(v); s.Do != Run {
		t.Errorf("in time: %v: %s", s.Do, s.Why)
	}
	v.Hand.Late = true
	if s := p.Next(v); s.Do != Write || s.Event != CancelledRestart {
		t.Errorf("late: %v %q: %s", s.Do, s.Event, s.Why)
	}
}

// What may still hold holds, as long as the store's clock does not say for certain that it is over: nothing is restarted then.
func TestMayNotBeOver(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	const bound = time.Second
	for name, set := range map[string]func(v *View, over time.Duration){
		"second sighting": func(v *View, over time.Duration) { v.Sight.Time = now.Add(-p.CheckInterval - over) },
		"persistence":     func(v *View, over time.Duration) { v.Timer.Time = now.Add(-p.Persistence - over) },
		"marker":          func(v *View, over time.Duration) { v.Marker = &Fact[Marker]{Value: Marker{Until: now.Add(-over)}} },
		"pause": func(v *View, over time.Duration) {
			v.Control = &Fact[Control]{Value: Control{Mode: Paused, Until: now.Add(-over)}}
		},
		"maintenance": func(v *View, over time.Duration) {
			v.Control = &Fact[Control]{Value: Control{Mode: UnderMaintenance, Until: now.Add(-over)}}
		},
	} {
		for over, restarts := range map[time.Duration]bool{-time.Hour: false, bound / 2: false, 2 * bound: true} {
			v := ready(&p, now, BudgetUse{Worker: "w", Attempt: "i-1", At: now})
			v.Bound = bound
			set(v, over)
			if s := p.Next(v); (s.Do == Intend) != restarts {
				t.Errorf("%s, over for %v: %v: %s", name, over, s.Do, s.Why)
			}
		}
	}
	v := ready(&p, now, BudgetUse{Worker: "w", Attempt: "i-1", At: now})
	v.Timer.Value.Episode = "r6"
	if s := p.Next(v); s.Event != Armed {
		t.Errorf("what is timed is another episode: %v %q: %s", s.Do, s.Event, s.Why)
	}
	// A replica that is behind shows an older record than the one that was seen: nothing begins anew for that.
	v = ready(&p, now)
	v.Sight.Value.Record, v.Sight.Value.Episode, v.Lock = 8, "r8", nil
	if s := p.Next(v); s.Do != Wait || s.Event != "" {
		t.Errorf("an older record than the one that was seen: %v %q: %s", s.Do, s.Event, s.Why)
	}
}

// Whatever the last look before the command shows, beside what was intended, cancels it.
func TestLastLookCancels(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	for name, change := range map[string]func(v *View){
		"":        func(*View) {},
		"a pause": func(v *View) { v.Control = &Fact[Control]{Value: Control{Mode: Paused}} },
		"maintenance": func(v *View) {
			v.Control = &Fact[Control]{Value: Control{Mode: UnderMaintenance, Until: now.Add(time.Hour)}}
		},
		"a marker":                 func(v *View) { v.Marker = &Fact[Marker]{Value: Marker{Until: now.Add(time.Hour)}} },
		"a heartbeat":              func(v *View) { v.Record = recordAt(Processing, time.Second, now) },
		"another verdict":          func(v *View) { v.Record = recordAt(Failed, time.Hour, now) },
		"no record":                func(v *View) { v.Record = nil },
		"the time is over":         func(v *View) { v.Hand.Late = true },
		"the intent was not heard": func(v *View) { v.Hand.Attempt = "" },
	} {
		v := ready(&p, now)
		v.Incident.Value.Attempts = []Attempt{{ID: "i-1", Incident: "i", By: "m", Verdict: Hung, Outcome: Running, At: now.Add(-time.Second)}}
		v.Incident.Value.Numbered, v.Hand.Attempt = 1, "i-1"
		change(v)
		s := p.Next(v)
		if name == "" {
			if s.Do != Run {
				t.Errorf("nothing: %v: %s", s.Do, s.Why)
			}
			v.Confirmed = false
			if s := p.Next(v); s.Do != Confirm {
				t.Errorf("not looked yet: %v: %s", s.Do, s.Why)
			}
			continue
		}
		if s.Do != Write || s.Event != CancelledRestart {
			t.Errorf("%s: %v %q: %s", name, s.Do, s.Event, s.Why)
		}
	}
}

// A place of the fleet's budget that was taken for a cancelled attempt is given back; that of another worker, or of an attempt
// whose outcome is not known, is not.
func TestCancelledAttemptGivesItsPlaceBack(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	p.FleetBudget = 1
	for o, want := range map[Outcome]Do{Cancelled: Write, Broken: Wait, Unknown: Wait} {
		v := ready(&p, now, BudgetUse{Worker: "w", Attempt: "i-1", At: now.Add(-20 * time.Minute)})
		v.Incident.Value.Numbered = 1
		v.Incident.Value.Attempts = []Attempt{{ID: "i-1", By: "m", Outcome: o, At: now.Add(-20 * time.Minute), Finished: now.Add(-19 * time.Minute)}}
		s := p.Next(v)
		if s.Do == Write && s.change.value == nil { // the lock, given back
			v.Lock = nil
			s = p.Next(v)
		}
		if s.Do != want || want == Wait && s.Of != "budget" {
			t.Errorf("%s: %v %q: %s", o, s.Do, s.Of, s.Why)
		}
	}
}
