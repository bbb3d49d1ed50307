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
		v.Case.Value.Attempts = attempts
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
	v.Bound, v.Case.Value.Attempts = bound, []Attempt{running(p.until() + time.Hour)}
	s := p.Next(v)
	if s.Do != Write || s.Event != UnknownRestart {
		t.Fatalf("a command that has ended: %v %q: %s", s.Do, s.Event, s.Why)
	}
	var written Case
	if err := json.Unmarshal(s.change.value, &written); err != nil {
		t.Fatal(err)
	}
	if a := written.last(); a.Outcome != Unknown || !a.Finished.Equal(a.At.Add(p.until())) {
		t.Errorf("it counts as ended at %v, begun at %v", a.Finished, a.At)
	}

	// The own one is cancelled once it is too late for its command.
	v = ready(&p, now)
	v.Case.Value.Attempts = []Attempt{running(time.Second)}
	v.Case.Value.Attempts[0].By, v.Hand.Attempt = "m", "i-1"
	if s := p.Next(v); s.Do != Run {
		t.Errorf("in time: %v: %s", s.Do, s.Why)
	}
	v.Hand.Late = true
	if s := p.Next(v); s.Do != Write || s.Event != CancelledRestart {
		t.Errorf("late: %v %q: %s", s.Do, s.Event, s.Why)
	}
}

// A place of the fleet's budget that was taken for a cancelled attempt is given back; that of another worker, or of an attempt
// whose outcome is not known, is not.
func TestCancelledAttemptGivesItsPlaceBack(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	p.FleetBudget = 1
	for o, want := range map[Outcome]Do{Cancelled: Write, Broken: Wait, Unknown: Wait} {
		v := ready(&p, now, BudgetUse{Worker: "w", Attempt: "i-1", At: now.Add(-20 * time.Minute)})
		v.Case.Value.Numbered = 1
		v.Case.Value.Attempts = []Attempt{{ID: "i-1", By: "m", Outcome: o, At: now.Add(-20 * time.Minute), Finished: now.Add(-19 * time.Minute)}}
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
