package supervise

import (
	"fmt"
	"slices"
	"time"

	"natsfabric/kvlocation"
)

// do is what a monitor does next for a worker.
type do uint8

// What a step can be. Each is one thing: one write by compare-and-set, or one effect outside the store. After it everything
// is read again, so a monitor may die between any two, and another one goes on from the shared keys.
const (
	// doWait: nothing now. Look again at the next check.
	doWait do = iota
	// doWrite: the step's write, and nothing else.
	doWrite
	// doConfirm: read again, no older than now, and ask again.
	doConfirm
	// doCollect: collect the worker's logs (SV-13). Failure is noted and goes on.
	doCollect
	// doIntend: the step's write is the intent of a restart (SV-15). Only when it is acknowledged does the attempt belong to
	// this monitor.
	doIntend
	// doRun: run the restart command. It is the only step that touches the worker.
	doRun
	// doDrop: forget what was begun; somebody else has settled it.
	doDrop
)

func (d do) String() string {
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

// step is one decision, its reason, and what to write.
type step struct {
	do  do
	why string
	// event is what the audit calls the decision; empty for what is no news.
	event EventKind
	// of tells events of one kind in one incident apart.
	of string
	// incident is the one that the step belongs to, empty before there is one.
	incident string
	// attempt is the one that doIntend and doRun are about.
	attempt Attempt

	change change
}

// next is the remediation pipeline as one function of the shared keys and the store's time: what is to be done next for
// a worker. It changes nothing and asks no clock.
//
// In order: an attempt under way is settled first. A fresh heartbeat ends the incident. Planned actions (SV-16) and the
// cooldown (SV-10), be it over, clear what was being timed. Then, for a verdict: sighted, confirmed by a second sighting (SV-2),
// incident opened, persistence timed (SV-5), breaker and fleet asked (SV-9), locked (SV-6), logs collected (SV-13), looked
// at again (SV-8), intent written, looked at again, run. What the command came to is written by the monitor that ran it
// (SV-12), or by another one once it must have ended.
func (p *Policy) next(v *view) step {
	f := p.judge(v.record, v.now, v.bound)
	s := p.choose(v, f)
	if v.incident != nil && s.incident == "" && v.incident.value.State == IncidentOpen {
		s.incident = v.incident.value.ID
	}
	if s.do == doWait && v.lock != nil && v.lock.value.By == v.self {
		return step{do: doWrite, why: "unlock: " + s.why, incident: s.incident, change: change{at: v.lock.at}}
	}
	return s
}

func (p *Policy) choose(v *view, f finding) step {
	if s, ok := p.settle(v, f); ok {
		return s
	}
	if v.record == nil && !v.expected {
		if v.incident != nil && v.incident.value.State == IncidentOpen {
			return p.end(v, IncidentGone, "its record has expired, and nobody expects it")
		}
		return p.clear(v, step{why: "it has no record, and nobody expects it"})
	}
	if v.incident != nil && v.incident.value.State == IncidentOpen && (f.fresh || v.stopped()) && f.verdict != v.incident.value.Verdict && !v.stillFailed() {
		return p.end(v, IncidentRecovered, f.why())
	}
	if f.verdict == Healthy {
		return p.clear(v, step{why: f.why()})
	}
	if why, of := v.planned(); why != "" {
		return p.clear(v, step{why: why, event: Skipped, of: of})
	}
	if s, ok := p.resting(v); ok {
		return s
	}
	if s, ok := p.outdated(v); ok {
		return s
	}
	return p.pursue(v, f)
}

// settle ends the attempt whose outcome is open.
func (p *Policy) settle(v *view, f finding) (step, bool) {
	var a *Attempt
	if v.incident != nil {
		a = v.incident.value.running()
	}
	mine := a != nil && a.By == v.self
	switch {
	case a == nil && v.hand.attempt == "":
		return step{}, false
	case a == nil:
		return step{do: doDrop, why: "attempt " + v.hand.attempt + " was settled by another monitor"}, true
	case mine && a.ID == v.hand.attempt && v.hand.result != nil:
		return p.outcome(v, v.hand.result.Outcome, v.hand.result.Detail, EventKind(v.hand.result.Outcome)), true
	case mine && a.ID != v.hand.attempt:
		return p.outcome(v, Cancelled, "the store's answer to the intent was lost, so the command was not run", CancelledRestart), true
	case mine && !v.confirmed:
		return step{do: doConfirm, why: "the last look before the command"}, true
	case mine && v.hand.late:
		return p.outcome(v, Cancelled, fmt.Sprintf("the command did not begin within %v of its intent", p.LaunchWindow), CancelledRestart), true
	case mine && f.verdict != a.Verdict:
		return p.outcome(v, Cancelled, "it recovered at the last moment: "+f.why(), CancelledRestart), true
	case mine:
		if why, _ := v.planned(); why != "" {
			return p.outcome(v, Cancelled, why, CancelledRestart), true
		}
		if c := v.inForce(); c != nil {
			return p.outcome(v, Cancelled, "paused by "+c.By+": "+c.Reason, CancelledRestart), true
		}
		return step{do: doRun, why: f.why(), attempt: *a}, true
	}
	if end := a.At.Add(p.until()); v.now.Add(-v.bound).Before(end) {
		return step{why: fmt.Sprintf("monitor %s restarts it", a.By)}, true
	}
	return p.outcome(v, Unknown, "monitor "+a.By+" has not said what became of its command", UnknownRestart), true
}

// outcome writes what became of the attempt under way.
func (p *Policy) outcome(v *view, o Outcome, detail string, event EventKind) step {
	c := v.incident.value.clone(p.since(v))
	a := c.running()
	a.Outcome, a.Detail, a.Finished = o, clip(detail, maxDetail), ceil(v.now.Add(v.bound))
	switch {
	case o != Unknown:
	case a.By != v.self:
		a.Finished = a.At.Add(p.until())
	case a.Finished.Before(a.At.Add(p.LaunchWindow)): // an order that is still on its way may begin until then
		a.Finished = a.At.Add(p.LaunchWindow)
	}
	s := p.writeIncident(v, &c, fmt.Sprintf("attempt %s: %s: %s", a.ID, o, detail))
	s.event, s.of = event, fmt.Sprint(c.Numbered)
	return s
}

// maxDetail bounds what an attempt keeps of what its command said, in bytes.
const maxDetail = 300

// end ends the incident.
func (p *Policy) end(v *view, state IncidentState, how string) step {
	c := v.incident.value.clone(p.since(v))
	c.State, c.Ended, c.How = state, ceil(v.now), how
	s := p.writeIncident(v, &c, how)
	s.event = EventKind(state)
	return s
}

// writeIncident is the write of the worker's incident.
func (p *Policy) writeIncident(v *view, c *Incident, why string) step {
	s := step{do: doWrite, why: why, incident: c.ID}
	c.V = schemaVersion
	s.change = change{value: c.encode(), ttl: min(seconds(p.BreakerWindow+p.Retention), kvlocation.MaxSharedTTL)}
	if v.incident != nil {
		s.change.at = v.incident.at
		return s
	}
	return s.over(v, "case")
}

// over makes the step's write one of a key of the worker that must hold nothing.
func (s step) over(v *view, what string) step {
	token, _ := escape(v.worker)
	s.change.at, s.change.absent = kvlocation.SharedEntry{Key: incidentPrefix + token + "." + what}, true
	return s
}

// clear removes what was being timed, then is last.
func (p *Policy) clear(v *view, last step) step {
	switch {
	case v.timer != nil:
		return step{do: doWrite, why: "timer cleared: " + last.why, change: change{at: v.timer.at}}
	case v.sight != nil:
		return step{do: doWrite, why: "sighting cleared: " + last.why, change: change{at: v.sight.at}}
	}
	return last
}

// resting is the time after an attempt in which nothing is begun: the cooldown after a restart (SV-10), one check after an
// attempt that restarted nothing (SV-12: the next cycle may try).
func (p *Policy) resting(v *view) (step, bool) {
	if v.incident == nil {
		return step{}, false
	}
	after := func(a *Attempt, d time.Duration) (time.Time, bool) {
		if a == nil {
			return time.Time{}, false
		}
		end := a.Finished.Add(d)
		return end, v.now.Add(-v.bound).Before(end)
	}
	if end, ok := after(v.incident.value.lastRestart(), p.Cooldown); ok {
		return p.clear(v, step{why: "cooldown until " + stamp(end), event: Skipped, of: fmt.Sprintf("cooldown-%d", v.incident.value.Numbered)}), true
	}
	if _, ok := after(v.incident.value.last(), p.CheckInterval); ok {
		return step{why: "the last attempt has only just ended"}, true
	}
	return step{}, false
}

// outdated forgets what was timed before the cooldown had ended, which is there when nobody has looked meanwhile (SV-10): it is
// about the worker as it was before its restart.
func (p *Policy) outdated(v *view) (step, bool) {
	if v.incident == nil || v.incident.value.lastRestart() == nil {
		return step{}, false
	}
	end := v.incident.value.lastRestart().Finished.Add(p.Cooldown)
	if v.sight != nil && v.sight.time.Before(end) || v.timer != nil && v.timer.time.Before(end) {
		return p.clear(v, step{why: "it was timed before the cooldown had ended"}), true
	}
	return step{}, false
}

// pursue takes a verdict on its way to a restart, or to a person.
func (p *Policy) pursue(v *view, f finding) step {
	if s, ok := p.confirm(v, f); ok {
		return s
	}
	c := &v.incident.value
	if p.Responsible[f.verdict] != Restart {
		return step{why: "alert only: a person acts"}
	}
	if !v.hands {
		return step{why: "no restarter is configured for this worker: a person acts", event: Refused, of: "hands"}
	}
	if ctl := v.inForce(); ctl != nil {
		return p.clearTimer(v, step{why: "paused by " + ctl.By + ": " + ctl.Reason, event: Skipped, of: "paused"})
	}
	if s, ok := p.persist(v, f); ok {
		return s
	}
	if used := c.used(v.now.Add(-v.bound - p.BreakerWindow)); used >= p.Breaker {
		return step{why: fmt.Sprintf("circuit breaker: %d restarts within %v", used, p.BreakerWindow), event: Refused, of: "breaker"}
	}
	if p.tooMany(v.fleet) {
		return step{why: fmt.Sprintf("fleet guard: %d of %d workers look broken", v.fleet.broken, v.fleet.workers), event: Refused, of: "fleet"}
	}
	attempt := fmt.Sprintf("%s-%d", c.ID, c.Numbered+1)
	var b budget
	if v.budget != nil {
		b = v.budget.value
	}
	// An own use that was taken for an attempt which was cancelled counts for nothing, and one that is not of now, for this
	// attempt, is taken anew: the restart would come later than the budget believes.
	reserved := false
	used := slices.DeleteFunc(p.usedBudget(&b, v.now, v.bound), func(u budgetUse) bool {
		own := u.Worker == v.worker
		now := own && u.Attempt == attempt && u.At.After(v.now.Add(-v.bound-p.LaunchWindow))
		reserved = reserved || now
		return own && !now && (u.Attempt == attempt || c.cancelled(u.Attempt))
	})
	if !reserved && len(used) >= p.FleetBudget {
		return step{why: fmt.Sprintf("fleet budget: %d restarts within %v", len(used), p.FleetWindow), event: Refused, of: "budget"}
	}
	switch {
	case v.lock == nil:
		s := step{do: doWrite, why: "locked", event: Locked, of: fmt.Sprint(c.Numbered + 1)}
		s.change = change{value: encode(lock{V: schemaVersion, Worker: v.worker, By: v.self}), ttl: seconds(p.LockTTL)}
		return s.over(v, "lock")
	case v.lock.value.By != v.self:
		return step{why: "monitor " + v.lock.value.By + " holds the lock", event: Skipped, of: fmt.Sprintf("locked-%d-%s", c.Numbered+1, v.self)}
	case !v.hand.collected:
		return step{do: doCollect, why: f.why()}
	case !v.confirmed:
		return step{do: doConfirm, why: "the last look before the intent"}
	case !reserved:
		return p.reserve(v, used, attempt)
	}
	return p.intend(v, f, attempt)
}

// confirm takes a verdict from its first sighting to an open incident.
func (p *Policy) confirm(v *view, f finding) (step, bool) {
	var revision uint64
	if v.record != nil {
		revision = v.record.revision()
	}
	seen := sighting{V: schemaVersion, Worker: v.worker, Verdict: f.verdict, Episode: f.episode, Record: revision, By: v.self}
	s := step{do: doWrite, why: "first sighting: " + f.why(), change: change{value: encode(seen), ttl: seconds(p.Persistence + 10*p.CheckInterval + time.Hour)}}
	switch at := v.sight; {
	case at == nil:
		return s.over(v, "sight"), true
	case at.value.Record > revision && revision > 0:
		return step{why: "the replica that answered is behind"}, true
	case at.value.Episode != f.episode || at.value.Verdict != f.verdict:
		s.change.at = at.at
		return s, true
	case v.now.Add(-v.bound).Sub(at.time) < p.CheckInterval:
		return step{why: "seen once"}, true
	}
	var c Incident
	if v.incident != nil {
		c = v.incident.value.clone(p.since(v))
		if c.State == IncidentOpen && c.Verdict == f.verdict {
			return step{}, false
		}
	}
	if c.State != IncidentOpen {
		now := ceil(v.now)
		c = Incident{
			V: schemaVersion, Worker: v.worker, State: IncidentOpen, Attempts: c.Attempts, Seen: v.sight.time, Opened: now,
			ID: fmt.Sprintf("%s-%d", now.UTC().Format("20060102T150405Z"), v.sight.revision()),
		}
	}
	c.Verdict, c.Why = f.verdict, f.why()
	if v.record != nil {
		c.Job, c.Heartbeat = v.record.value.Job, v.record.time
	}
	s = p.writeIncident(v, &c, "confirmed: "+f.why())
	s.event, s.of = Confirmed, string(f.verdict)
	return s, true
}

// persist times how long the confirmed verdict lasts.
func (p *Policy) persist(v *view, f finding) (step, bool) {
	t := timer(v.sight.value)
	t.By = v.self
	s := step{do: doWrite, why: "timer armed", event: Armed, of: fmt.Sprint(v.incident.value.Numbered + 1)}
	s.change = change{value: encode(t), ttl: seconds(p.Persistence + 24*time.Hour)}
	switch at := v.timer; {
	case at == nil:
		return s.over(v, "timer"), true
	case at.value.Episode != f.episode || at.value.Verdict != f.verdict:
		s.change.at = at.at
		return s, true
	case v.now.Add(-v.bound).Sub(at.time) < p.Persistence:
		return step{why: "until it has lasted " + p.Persistence.String()}, true
	}
	return step{}, false
}

// clearTimer removes the persistence timer alone, then is last.
func (p *Policy) clearTimer(v *view, last step) step {
	if v.timer == nil {
		return last
	}
	return step{do: doWrite, why: "timer cleared: " + last.why, change: change{at: v.timer.at}}
}

// tooMany reports whether so many workers look broken that the fault is likely elsewhere.
func (p *Policy) tooMany(f fleet) bool {
	return f.broken > p.FleetFloor && float64(f.broken) > p.FleetShare*float64(f.workers)
}

// reserve takes one restart from the fleet's budget, and gives back what attempts of this worker took that were cancelled.
func (p *Policy) reserve(v *view, used []budgetUse, attempt string) step {
	b := budget{V: schemaVersion, Used: append(used, budgetUse{Worker: v.worker, Attempt: attempt, At: ceil(v.now.Add(v.bound))})}
	s := step{do: doWrite, why: fmt.Sprintf("restart %d of the fleet's %d", len(b.Used), p.FleetBudget)}
	s.change = change{at: kvlocation.SharedEntry{Key: budgetKey}, absent: true, value: encode(b), ttl: seconds(2 * p.FleetWindow)}
	if v.budget != nil {
		s.change.at, s.change.absent = v.budget.at, false
	}
	return s
}

// intend writes the intent. It counts for the breaker and begins the cooldown, whatever comes of it.
func (p *Policy) intend(v *view, f finding, attempt string) step {
	c := v.incident.value.clone(p.since(v))
	c.Numbered++
	c.Attempts = append(c.Attempts, Attempt{
		ID: attempt, Incident: c.ID, Verdict: f.verdict, By: v.self, At: ceil(v.now.Add(v.bound)), Outcome: Running,
	})
	s := p.writeIncident(v, &c, f.why())
	s.do, s.event, s.of, s.attempt = doIntend, Intended, fmt.Sprint(c.Numbered), c.Attempts[len(c.Attempts)-1]
	return s
}

// ceil rounds a time up to the milliseconds that a record keeps.
func ceil(t time.Time) time.Time {
	if r := t.UTC().Truncate(time.Millisecond); r.Before(t) {
		return r.Add(time.Millisecond)
	}
	return t.UTC()
}
