package supervise

import (
	"strings"
	"testing"
	"time"
)

// An incident keeps the attempts that a rule still asks for, the one under way, and the latest few that were cancelled.
func TestWhatAnIncidentKeeps(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Hour)
	old, young := since.Add(-time.Minute), since.Add(time.Minute)
	in := Incident{Attempts: []Attempt{{ID: "old", Outcome: Done, At: old}}}
	for _, id := range []string{"c1", "c2", "c3", "c4", "c5", "c6"} {
		in.Attempts = append(in.Attempts, Attempt{ID: id, Outcome: Cancelled, At: old})
	}
	in.Attempts = append(in.Attempts, Attempt{ID: "young", Outcome: Unknown, At: young}, Attempt{ID: "running", Outcome: Running, At: old})
	var ids []string
	for _, a := range in.clone(since).Attempts {
		ids = append(ids, a.ID)
	}
	if got := strings.Join(ids, " "); got != "c3 c4 c5 c6 young running" {
		t.Errorf("it keeps %s", got)
	}
	if len(in.Attempts) != 9 {
		t.Errorf("the original was changed: %+v", in.Attempts)
	}
}

// What a record says of the time before it was written is believed, and nothing of a time after it.
func TestRecordSaysNothingOfTheFuture(t *testing.T) {
	p, now := DefaultPolicy(), time.Now()
	for name, c := range map[string]struct {
		since time.Time
		want  Verdict
	}{
		"after it was written": {now.Add(time.Hour), Healthy}, "nothing": {time.Time{}, Healthy}, "long before": {now.Add(-time.Hour), Erroneous},
	} {
		r := recordAt(Failed, time.Minute, now)
		r.value.StateSince = c.since
		if f := p.judge(r, now, 0); f.verdict != c.want {
			t.Errorf("in state error since %s: %s, want %s", name, f.verdict, c.want)
		}
		r = recordAt(Failed, p.ErrorAfter, now) // and nobody has written it since
		r.value.StateSince = c.since
		if f := p.judge(r, now, 0); f.verdict != Erroneous {
			t.Errorf("a record of long ago, in state error since %s: %s", name, f.verdict)
		}
	}
}

// Times that clash are no policy.
func TestPolicyClashes(t *testing.T) {
	for field, change := range map[string]func(p *Policy){
		"LockTTL":          func(p *Policy) { p.LockTTL = p.CollectLimit + 2*p.LaunchWindow + p.CommandLimit - 1 },
		"UnreachableAfter": func(p *Policy) { p.UnreachableAfter = p.HungAfter - 1 },
		"BreakerWindow":    func(p *Policy) { p.BreakerWindow = p.Cooldown - 1 },
		"Retention":        func(p *Policy) { p.Retention, p.BreakerWindow = 2*time.Hour, 3*time.Hour },
		"Breaker ":         func(p *Policy) { p.Breaker = 0 },
		"FleetBudget":      func(p *Policy) { p.FleetBudget = 0 },
		"FleetShare":       func(p *Policy) { p.FleetShare = 0 },
		"CheckInterval":    func(p *Policy) { p.CheckInterval = time.Millisecond },
	} {
		p := DefaultPolicy()
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a wrong %s got %v", field, err)
		}
	}
}
