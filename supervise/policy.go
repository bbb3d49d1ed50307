package supervise

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Responder says who acts on a verdict.
type Responder string

// The responders.
const (
	// Restart: the worker is restarted, by the restarter of its target.
	Restart Responder = "restart"
	// Person: the worker is alerted about, and a person acts.
	Person Responder = "person"
)

// Policy is every number and choice that decisions depend on. All monitors of a mesh should have the same: what one of
// them decides is safe beside others with another policy, but then the strictest does not always win.
//
// Zero values are not filled in, and Validate refuses nearly all of them: begin with DefaultPolicy, which has what is called
// default here. Times must be 10 ms to 30 days, Retention 1 h to 10 years, Breaker 1 to 20, FleetBudget 1 to 100, FleetShare
// above 0 and at most 1.
type Policy struct {
	// Responsible names who acts on each verdict (SV-3). Hung and Erroneous are Restart's or a Person's, Unreachable and
	// Stalled only a Person's (SV-4). A verdict that is missing is an error at the start. DefaultPolicy says whom it
	// names.
	Responsible map[Verdict]Responder

	// CheckInterval is the time between two looks of one monitor, and the least time between the two sightings that
	// confirm a verdict. Default 30 s.
	CheckInterval time.Duration
	// HungAfter, ErrorAfter, UnreachableAfter and StalledAfter are the ages that make the verdicts. Defaults 120 s, 30 min,
	// 10 min, 30 min.
	HungAfter        time.Duration
	ErrorAfter       time.Duration
	UnreachableAfter time.Duration
	StalledAfter     time.Duration
	// Persistence is how long a confirmed verdict must last before a restart (SV-5). Default 3 min.
	Persistence time.Duration
	// Cooldown is how long after a restart nothing is timed anew (SV-10). Default 10 min.
	Cooldown time.Duration
	// EscalateAfter is how long after a restart a worker that still looks broken is paged about (SV-11). Default 10 min.
	EscalateAfter time.Duration
	// Breaker is how many restarts one worker may have within BreakerWindow, whoever restarts it (SV-9). Each counts from its
	// intent until the window has passed since its outcome was known. Defaults 3, 24 h.
	Breaker       int
	BreakerWindow time.Duration

	// LaunchWindow is how long after its intent was written a command may begin. Default 10 s.
	LaunchWindow time.Duration
	// CollectLimit, CommandLimit and NotifyLimit bound log collection, a restart and one notification. Defaults 30 s, 60 s,
	// 10 s.
	CollectLimit time.Duration
	CommandLimit time.Duration
	NotifyLimit  time.Duration
	// LockTTL is the life of the execution lock (SV-6). Default 2 min.
	LockTTL time.Duration

	// FleetBudget is how many restarts all workers together may have within FleetWindow. Each counts from when it was decided
	// on, and for as long after the window as its command may have begun later. Defaults 10, 1 h.
	FleetBudget int
	FleetWindow time.Duration
	// FleetShare is the share of the workers that may look broken at the same time; with more of them nothing is
	// restarted and a page goes out, for then the fault is likely elsewhere. It applies beyond FleetFloor workers.
	// Defaults 0.3, 2.
	FleetShare float64
	FleetFloor int

	// Remind is how often an alert about something that lasts is repeated. Default 1 h.
	Remind time.Duration
	// Retention is how long events and closed incidents are kept. Default 30 days.
	Retention time.Duration
}

// DefaultPolicy returns the defaults, with hung and erroneous workers restarted, and unreachable and stalled ones left to
// a person.
func DefaultPolicy() Policy {
	return Policy{
		Responsible:   map[Verdict]Responder{Hung: Restart, Erroneous: Restart, Unreachable: Person, Stalled: Person},
		CheckInterval: 30 * time.Second, HungAfter: 120 * time.Second, ErrorAfter: 30 * time.Minute, UnreachableAfter: 10 * time.Minute,
		StalledAfter: 30 * time.Minute, Persistence: 3 * time.Minute, Cooldown: 10 * time.Minute, EscalateAfter: 10 * time.Minute,
		Breaker: 3, BreakerWindow: 24 * time.Hour, LaunchWindow: 10 * time.Second, CollectLimit: 30 * time.Second,
		CommandLimit: time.Minute, NotifyLimit: 10 * time.Second, LockTTL: 2 * time.Minute, FleetBudget: 10, FleetWindow: time.Hour,
		FleetShare: 0.3, FleetFloor: 2, Remind: time.Hour, Retention: 30 * 24 * time.Hour,
	}
}

// Scale returns p with every time multiplied by f, for demonstrations and tests. The bounds of what a store and a
// command take on a real clock (LaunchWindow, CommandLimit, CollectLimit, NotifyLimit, LockTTL) shrink to no less than
// a second, and so does Retention to no less than an hour.
func (p Policy) Scale(f float64) Policy {
	scale := func(d *time.Duration, least time.Duration) {
		*d = max(least, time.Duration(float64(*d)*f)).Round(time.Millisecond)
	}
	for _, d := range []*time.Duration{
		&p.CheckInterval, &p.HungAfter, &p.ErrorAfter, &p.UnreachableAfter, &p.StalledAfter, &p.Persistence, &p.Cooldown,
		&p.EscalateAfter, &p.BreakerWindow, &p.FleetWindow, &p.Remind,
	} {
		scale(d, 10*time.Millisecond)
	}
	for _, d := range []*time.Duration{&p.LaunchWindow, &p.CollectLimit, &p.CommandLimit, &p.NotifyLimit} {
		scale(d, time.Second)
	}
	scale(&p.LockTTL, p.CollectLimit+2*p.LaunchWindow+p.CommandLimit)
	scale(&p.Retention, time.Hour)
	return p
}

// Validate returns an error that names every field that is not allowed, with its value and what would be.
func (p *Policy) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, v := range verdicts {
		switch a := p.Responsible[v]; {
		case a == "":
			wrong("Responsible has nobody for verdict %q: it must be %q or, explicitly, %q", v, Restart, Person)
		case a != Restart && a != Person:
			wrong("Responsible %q for verdict %q is not allowed: it must be %q or %q", a, v, Restart, Person)
		case a == Restart && (v == Unreachable || v == Stalled):
			wrong("Responsible %q for verdict %q is not allowed: it must be %q, a restart may hit a worker that is alive or can't be reached", a, v, Person)
		}
	}
	for v := range p.Responsible {
		if v != Hung && v != Erroneous && v != Unreachable && v != Stalled {
			wrong("Responsible names verdict %q, which does not exist: it must be one of %v", v, verdicts)
		}
	}
	const least, most = 10 * time.Millisecond, 30 * 24 * time.Hour
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"CheckInterval", p.CheckInterval}, {"HungAfter", p.HungAfter}, {"ErrorAfter", p.ErrorAfter}, {"UnreachableAfter", p.UnreachableAfter},
		{"StalledAfter", p.StalledAfter}, {"Persistence", p.Persistence}, {"Cooldown", p.Cooldown}, {"EscalateAfter", p.EscalateAfter},
		{"BreakerWindow", p.BreakerWindow}, {"LaunchWindow", p.LaunchWindow}, {"CollectLimit", p.CollectLimit}, {"CommandLimit", p.CommandLimit},
		{"NotifyLimit", p.NotifyLimit}, {"LockTTL", p.LockTTL}, {"FleetWindow", p.FleetWindow}, {"Remind", p.Remind},
	} {
		if d.d < least || d.d > most {
			wrong("%s %v is not allowed: it must be %v to %v", d.name, d.d, least, most)
		}
	}
	if p.Retention < time.Hour || p.Retention > 10*365*24*time.Hour {
		wrong("Retention %v is not allowed: it must be 1h to 10 years", p.Retention)
	}
	if p.Breaker < 1 || p.Breaker > 20 {
		wrong("Breaker %d is not allowed: it must be 1 to 20", p.Breaker)
	}
	if p.FleetBudget < 1 || p.FleetBudget > 100 {
		wrong("FleetBudget %d is not allowed: it must be 1 to 100", p.FleetBudget)
	}
	if !(p.FleetShare > 0 && p.FleetShare <= 1) {
		wrong("FleetShare %v is not allowed: it must be above 0, and at most 1", p.FleetShare)
	}
	if p.FleetFloor < 0 {
		wrong("FleetFloor %d is not allowed: it must be at least 0", p.FleetFloor)
	}
	if need := p.CollectLimit + 2*p.LaunchWindow + p.CommandLimit; p.LockTTL < need {
		wrong("LockTTL %v clashes with CollectLimit, LaunchWindow and CommandLimit: it must be at least %v, what they need together", p.LockTTL, need)
	}
	if p.UnreachableAfter < p.HungAfter {
		wrong("UnreachableAfter %v clashes with HungAfter: it must be at least %v", p.UnreachableAfter, p.HungAfter)
	}
	if p.BreakerWindow < p.Cooldown {
		wrong("BreakerWindow %v clashes with Cooldown: it must be at least %v", p.BreakerWindow, p.Cooldown)
	}
	if p.Retention < p.BreakerWindow {
		wrong("Retention %v clashes with BreakerWindow: it must be at least %v", p.Retention, p.BreakerWindow)
	}
	return errors.Join(errs...)
}

// until is the longest time from an intent to the end of its command.
func (p *Policy) until() time.Duration { return p.LaunchWindow + p.CommandLimit + p.grace() }

// grace is what a command may take beyond its limit: the time to be killed and waited for.
func (p *Policy) grace() time.Duration { return min(5*time.Second, p.CommandLimit) }

// horizon is how long an alert about something that has happened once is still worth sending.
func (p *Policy) horizon() time.Duration { return p.Remind }

// WriteTable prints who acts on which verdict, and when.
func (p *Policy) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "VERDICT\tWHEN\tWHO ACTS\tHOW")
	when := map[Verdict]string{
		Hung:        fmt.Sprintf("state processing, heartbeat older than %v, seen twice %v apart", p.HungAfter, p.CheckInterval),
		Erroneous:   fmt.Sprintf("state error for %v", p.ErrorAfter),
		Unreachable: fmt.Sprintf("no record, or no work and a heartbeat older than %v", p.UnreachableAfter),
		Stalled:     fmt.Sprintf("heartbeat fresh, progress marker stuck for %v", p.StalledAfter),
	}
	for _, v := range verdicts {
		how := fmt.Sprintf("page, repeated every %v", p.Remind)
		if p.Responsible[v] == Restart {
			how = fmt.Sprintf("alert; restart once it has lasted %v, then %v cooldown, at most %d in %v; page after %v without recovery",
				p.Persistence, p.Cooldown, p.Breaker, p.BreakerWindow, p.EscalateAfter)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", v, when[v], p.Responsible[v], how)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "all workers together: at most %d restarts in %v, and none while more than %d and more than %.0f%% of them look broken\n",
		p.FleetBudget, p.FleetWindow, p.FleetFloor, 100*p.FleetShare)
	return err
}
