package supervise

import (
	"fmt"
	"slices"
	"time"

	"natsfabric/kvlocation"
)

// Do is what a monitor does next for a worker.
type Do uint8

// What a Step can be. Each is one thing: one write by compare-and-set, or one effect outside the store. After it everything
// is read again, so a monitor may die between any two, and another one goes on from the shared keys.
const (
	// Wait: nothing now. Look again at the next check.
	Wait Do = iota
	// Write: the step's write, and nothing else.
	Write
	// Confirm: read again, no older than now, and ask again.
	Confirm
	// Collect: collect the worker's logs (SV-13). Failure is noted and goes on.
	Collect
	// Intend: the step's write is the intent of a restart (SV-15). Only when it is acknowledged does the attempt belong to
	// this monitor.
	Intend
	// Run: run the restart command. It is the only step that touches the worker.
	Run
	// Drop: forget what was begun; somebody else has settled it.
	Drop
)

func (d Do) String() string {
	return [...]string{"wait", "write", "confirm", "collect", "intend", "run", "drop"}[d]
}

// change is one write of a shared key: over at, or, when at has no revision and absent is true, only if the key holds
// nothing. No value means to delete.
type change struct {
	at     kvlocation.SharedEntry
	absent bool
	value  []byte
	ttl    time.Duration
}

// Step is one decision, its reason, and what to write.
type Step struct {
	Do  Do
	Why string
	// Event is what the audit calls the decision; empty for what is no news.
	Event EventKind
	// Of tells events of one kind in one incident apart.
	Of string
	// Incident is the one that the step belongs to, empty before there is one.
	Incident string
	// Attempt is the one that Intend and Run are about.
	Attempt Attempt

	change change
}

// Next is the remediation pipeline as one function of the shared keys and the store's time: what is to be done next for
// a worker. It changes nothing and asks no clock.
//
// In order: an attempt under way is settled first. A fresh heartbeat ends the incident. Planned actions (SV-16) and the
// cooldown (SV-10) clear what was being timed. Then, for a verdict: sighted, confirmed by a second sighting (SV-2),
// incident opened, persistence timed (SV-5), breaker and fleet asked (SV-9), locked (SV-6), logs collected (SV-13), looked
// at again (SV-8), intent written, looked at again, run. What the command came to is written by the monitor that ran it
// (SV-12), or by another one once it must have ended.
func (p *Policy) Next(v *View) Step {
	f := p.Judge(v.Record, v.Now, v.Bound)
	s := p.next(v, f)
	if v.Incident != nil && s.Incident == "" && v.Incident.Value.State == IncidentOpen {
		s.Incident = v.Incident.Value.ID
	}
	if s.Do == Wait && v.Lock != nil && v.Lock.Value.By == v.Self {
		return Step{Do: Write, Why: "unlock: " + s.Why, Incident: s.Incident, change: change{at: v.Lock.at}}
	}
	return s
}

func (p *Policy) next(v *View, f Finding) Step {
	if s, ok := p.settle(v, f); ok {
		return s
	}
	if v.Record == nil && !v.Expected {
		if v.Incident != nil && v.Incident.Value.State == IncidentOpen {
			return p.end(v, IncidentGone, "its record has expired, and nobody expects it")
		}
		return p.clear(v, Step{Why: "it has no record, and nobody expects it"})
	}
	if v.Incident != nil && v.Incident.Value.State == IncidentOpen && (f.Fresh || v.stopped()) && f.Verdict != v.Incident.Value.Verdict && !v.stillFailed() {
		return p.end(v, IncidentRecovered, f.Why())
	}
	if f.Verdict == Healthy {
		return p.clear(v, Step{Why: f.Why()})
	}
	if why, of := v.planned(); why != "" {
		return p.clear(v, Step{Why: why, Event: Skipped, Of: of})
	}
	if s, ok := p.resting(v); ok {
		return s
	}
	return p.pursue(v, f)
}

// settle ends the attempt whose outcome is open.
func (p *Policy) settle(v *View, f Finding) (Step, bool) {
	var a *Attempt
	if v.Incident != nil {
		a = v.Incident.Value.running()
	}
	mine := a != nil && a.By == v.Self
	switch {
	case a == nil && v.Hand.Attempt == "":
		return Step{}, false
	case a == nil:
		return Step{Do: Drop, Why: "attempt " + v.Hand.Attempt + " was settled by another monitor"}, true
	case mine && a.ID == v.Hand.Attempt && v.Hand.Result != nil:
		return p.outcome(v, v.Hand.Result.Outcome, v.Hand.Result.Detail, EventKind(v.Hand.Result.Outcome)), true
	case mine && a.ID != v.Hand.Attempt:
		return p.outcome(v, Cancelled, "the store's answer to the intent was lost, so the command was not run", CancelledRestart), true
	case mine && !v.Confirmed:
		return Step{Do: Confirm, Why: "the last look before the command"}, true
	case mine && v.Hand.Late:
		return p.outcome(v, Cancelled, fmt.Sprintf("the command did not begin within %v of its intent", p.LaunchWindow), CancelledRestart), true
	case mine && f.Verdict != a.Verdict:
		return p.outcome(v, Cancelled, "it recovered at the last moment: "+f.Why(), CancelledRestart), true
	case mine:
		if why, _ := v.planned(); why != "" {
			return p.outcome(v, Cancelled, why, CancelledRestart), true
		}
		if c := v.control(); c != nil {
			return p.outcome(v, Cancelled, "paused by "+c.By+": "+c.Reason, CancelledRestart), true
		}
		return Step{Do: Run, Why: f.Why(), Attempt: *a}, true
	}
	if end := a.At.Add(p.until()); v.Now.Add(-v.Bound).Before(end) {
		return Step{Why: fmt.Sprintf("monitor %s restarts it", a.By)}, true
	}
	return p.outcome(v, Unknown, "monitor "+a.By+" has not said what became of its command", UnknownRestart), true
}

// outcome writes what became of the attempt under way.
func (p *Policy) outcome(v *View, o Outcome, detail string, event EventKind) Step {
	c := v.Incident.Value.clone(p.since(v))
	a := c.running()
	a.Outcome, a.Detail, a.Finished = o, clip(detail, maxDetail), ceil(v.Now.Add(v.Bound))
	if o == Unknown && a.By != v.Self {
		a.Finished = a.At.Add(p.until())
	}
	s := p.writeIncident(v, &c, fmt.Sprintf("attempt %s: %s: %s", a.ID, o, detail))
	s.Event, s.Of = event, fmt.Sprint(c.Numbered)
	return s
}

// maxDetail bounds what an attempt keeps of what its command said, in bytes.
const maxDetail = 300

// end ends the incident.
func (p *Policy) end(v *View, state IncidentState, how string) Step {
	c := v.Incident.Value.clone(p.since(v))
	c.State, c.Ended, c.How = state, ceil(v.Now), how
	s := p.writeIncident(v, &c, how)
	s.Event = EventKind(state)
	return s
}

// writeIncident is the write of the worker's incident.
func (p *Policy) writeIncident(v *View, c *Incident, why string) Step {
	s := Step{Do: Write, Why: why, Incident: c.ID}
	s.change = change{value: encode(c), ttl: min(seconds(p.BreakerWindow+p.Retention), kvlocation.MaxSharedTTL)}
	if v.Incident != nil {
		s.change.at = v.Incident.at
		return s
	}
	return s.over(v, "case")
}

// over makes the step's write one of a key of the worker that must hold nothing.
func (s Step) over(v *View, what string) Step {
	token, _ := escape(v.Worker)
	s.change.at, s.change.absent = kvlocation.SharedEntry{Key: incidentPrefix + token + "." + what}, true
	return s
}

// clear removes what was being timed, then is last.
func (p *Policy) clear(v *View, last Step) Step {
	switch {
	case v.Timer != nil:
		return Step{Do: Write, Why: "timer cleared: " + last.Why, change: change{at: v.Timer.at}}
	case v.Sight != nil:
		return Step{Do: Write, Why: "sighting cleared: " + last.Why, change: change{at: v.Sight.at}}
	}
	return last
}

// resting is the time after an attempt in which nothing is begun: the cooldown after a restart (SV-10), one check after an
// attempt that restarted nothing (SV-12: the next cycle may try).
func (p *Policy) resting(v *View) (Step, bool) {
	if v.Incident == nil {
		return Step{}, false
	}
	after := func(a *Attempt, d time.Duration) (time.Time, bool) {
		if a == nil {
			return time.Time{}, false
		}
		end := a.Finished.Add(d)
		return end, v.Now.Add(-v.Bound).Before(end)
	}
	if end, ok := after(v.Incident.Value.lastRestart(), p.Cooldown); ok {
		return p.clear(v, Step{Why: "cooldown until " + stamp(end), Event: Skipped, Of: fmt.Sprintf("cooldown-%d", v.Incident.Value.Numbered)}), true
	}
	if _, ok := after(v.Incident.Value.last(), p.CheckInterval); ok {
		return Step{Why: "the last attempt has only just ended"}, true
	}
	return Step{}, false
}

// pursue takes a verdict on its way to a restart, or to a person.
func (p *Policy) pursue(v *View, f Finding) Step {
	if s, ok := p.confirm(v, f); ok {
		return s
	}
	c := &v.Incident.Value
	if p.Responsible[f.Verdict] != Restart {
		return Step{Why: "alert only: a person acts"}
	}
	if !v.Hands {
		return Step{Why: "no restarter is configured for this worker: a person acts", Event: Refused, Of: "hands"}
	}
	if ctl := v.control(); ctl != nil {
		return p.clearTimer(v, Step{Why: "paused by " + ctl.By + ": " + ctl.Reason, Event: Skipped, Of: "paused"})
	}
	if s, ok := p.persist(v, f); ok {
		return s
	}
	if used := c.used(v.Now.Add(-v.Bound - p.BreakerWindow)); used >= p.Breaker {
		return Step{Why: fmt.Sprintf("circuit breaker: %d restarts within %v", used, p.BreakerWindow), Event: Refused, Of: "breaker"}
	}
	if p.tooMany(v.Fleet) {
		return Step{Why: fmt.Sprintf("fleet guard: %d of %d workers look broken", v.Fleet.Broken, v.Fleet.Workers), Event: Refused, Of: "fleet"}
	}
	attempt := fmt.Sprintf("%s-%d", c.ID, c.Numbered+1)
	var budget Budget
	if v.Budget != nil {
		budget = v.Budget.Value
	}
	// An own use that was taken for an attempt which was cancelled counts for nothing, and one that is not of now, for this
	// attempt, is taken anew: the restart would come later than the budget believes.
	reserved := false
	used := slices.DeleteFunc(p.usedBudget(&budget, v.Now, v.Bound), func(u BudgetUse) bool {
		own := u.Worker == v.Worker
		now := own && u.Attempt == attempt && u.At.After(v.Now.Add(-v.Bound-p.LaunchWindow))
		reserved = reserved || now
		return own && !now && (u.Attempt == attempt || c.cancelled(u.Attempt))
	})
	if !reserved && len(used) >= p.FleetBudget {
		return Step{Why: fmt.Sprintf("fleet budget: %d restarts within %v", len(used), p.FleetWindow), Event: Refused, Of: "budget"}
	}
	switch {
	case v.Lock == nil:
		s := Step{Do: Write, Why: "locked", Event: Locked, Of: fmt.Sprint(c.Numbered + 1)}
		s.change = change{value: encode(Lock{V: schemaVersion, Worker: v.Worker, By: v.Self}), ttl: seconds(p.LockTTL)}
		return s.over(v, "lock")
	case v.Lock.Value.By != v.Self:
		return Step{Why: "monitor " + v.Lock.Value.By + " holds the lock", Event: Skipped, Of: fmt.Sprintf("locked-%d-%s", c.Numbered+1, v.Self)}
	case !v.Hand.Collected:
		return Step{Do: Collect, Why: f.Why()}
	case !v.Confirmed:
		return Step{Do: Confirm, Why: "the last look before the intent"}
	case !reserved:
		return p.reserve(v, used, attempt)
	}
	return p.intend(v, f, attempt)
}

// confirm takes a verdict from its first sighting to an open incident.
func (p *Policy) confirm(v *View, f Finding) (Step, bool) {
	var revision uint64
	if v.Record != nil {
		revision = v.Record.Revision()
	}
	seen := Sighting{V: schemaVersion, Worker: v.Worker, Verdict: f.Verdict, Episode: f.Episode, Record: revision, By: v.Self}
	s := Step{Do: Write, Why: "first sighting: " + f.Why(), change: change{value: encode(seen), ttl: seconds(p.Persistence + 10*p.CheckInterval + time.Hour)}}
	switch at := v.Sight; {
	case at == nil:
		return s.over(v, "sight"), true
	case at.Value.Record > revision && revision > 0:
		return Step{Why: "the replica that answered is behind"}, true
	case at.Value.Episode != f.Episode || at.Value.Verdict != f.Verdict:
		s.change.at = at.at
		return s, true
	case v.Now.Add(-v.Bound).Sub(at.Time) < p.CheckInterval:
		return Step{Why: "seen once"}, true
	}
	var c Incident
	if v.Incident != nil {
		c = v.Incident.Value.clone(p.since(v))
		if c.State == IncidentOpen && c.Verdict == f.Verdict {
			return Step{}, false
		}
	}
	if c.State != IncidentOpen {
		now := ceil(v.Now)
		c = Incident{
			V: schemaVersion, Worker: v.Worker, State: IncidentOpen, Attempts: c.Attempts, Seen: v.Sight.Time, Opened: now,
			ID: fmt.Sprintf("%s-%d", now.UTC().Format("20060102T150405Z"), v.Sight.Revision()),
		}
	}
	c.Verdict, c.Why = f.Verdict, f.Why()
	if v.Record != nil {
		c.Job, c.Heartbeat = v.Record.Value.Job, v.Record.Time
	}
	s = p.writeIncident(v, &c, "confirmed: "+f.Why())
	s.Event, s.Of = Confirmed, string(f.Verdict)
	return s, true
}

// persist times how long the confirmed verdict lasts.
func (p *Policy) persist(v *View, f Finding) (Step, bool) {
	t := Timer(v.Sight.Value)
	t.By = v.Self
	s := Step{Do: Write, Why: "timer armed", Event: Armed, Of: fmt.Sprint(v.Incident.Value.Numbered + 1)}
	s.change = change{value: encode(t), ttl: seconds(p.Persistence + 24*time.Hour)}
	switch at := v.Timer; {
	case at == nil:
		return s.over(v, "timer"), true
	case at.Value.Episode != f.Episode || at.Value.Verdict != f.Verdict:
		s.change.at = at.at
		return s, true
	case v.Now.Add(-v.Bound).Sub(at.Time) < p.Persistence:
		return Step{Why: "until it has lasted " + p.Persistence.String()}, true
	}
	return Step{}, false
}

// clearTimer removes the persistence timer alone, then is last.
func (p *Policy) clearTimer(v *View, last Step) Step {
	if v.Timer == nil {
		return last
	}
	return Step{Do: Write, Why: "timer cleared: " + last.Why, change: change{at: v.Timer.at}}
}

// tooMany reports whether so many workers look broken that the fault is likely elsewhere.
func (p *Policy) tooMany(f Fleet) bool {
	return f.Broken > p.FleetFloor && float64(f.Broken) > p.FleetShare*float64(f.Workers)
}

// reserve takes one restart from the fleet's budget, and gives back what attempts of this worker took that were cancelled.
func (p *Policy) reserve(v *View, used []BudgetUse, attempt string) Step {
	b := Budget{V: schemaVersion, Used: append(used, BudgetUse{Worker: v.Worker, Attempt: attempt, At: ceil(v.Now.Add(v.Bound))})}
	s := Step{Do: Write, Why: fmt.Sprintf("restart %d of the fleet's %d", len(b.Used), p.FleetBudget)}
	s.change = change{at: kvlocation.SharedEntry{Key: budgetKey}, absent: true, value: encode(b), ttl: seconds(2 * p.FleetWindow)}
	if v.Budget != nil {
		s.change.at, s.change.absent = v.Budget.at, false
	}
	return s
}

// intend writes the intent. It counts for the breaker and begins the cooldown, whatever comes of it.
func (p *Policy) intend(v *View, f Finding, attempt string) Step {
	c := v.Incident.Value.clone(p.since(v))
	c.Numbered++
	c.Attempts = append(c.Attempts, Attempt{
		ID: attempt, Incident: c.ID, Verdict: f.Verdict, By: v.Self, At: ceil(v.Now.Add(v.Bound)), Outcome: Running,
	})
	s := p.writeIncident(v, &c, f.Why())
	s.Do, s.Event, s.Of, s.Attempt = Intend, Intended, fmt.Sprint(c.Numbered), c.Attempts[len(c.Attempts)-1]
	return s
}

// ceil rounds a time up to the milliseconds that a record keeps.
func ceil(t time.Time) time.Time {
	if r := t.UTC().Truncate(time.Millisecond); r.Before(t) {
		return r.Add(time.Millisecond)
	}
	return t.UTC()
}
