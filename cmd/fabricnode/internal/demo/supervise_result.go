package demo

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"natsfabric/supervise"
)

// SuperviseResult is what the demo of supervision found. As JSON it is the last line of `fabricnode demo --supervise --json`.
type SuperviseResult struct {
	// OK: every proof holds.
	OK    bool    `json:"ok"`
	Scale float64 `json:"scale"`
	// Steps are the time line of the incident.
	Steps []SuperviseStep `json:"steps"`
	// Commands counts the restart commands by monitor, Starts how often the process was started.
	Commands map[string]int      `json:"commands"`
	Starts   int                 `json:"starts"`
	Proof    []Proof             `json:"proof"`
	Incident *supervise.Incident `json:"incident"`
	Events   []supervise.Event   `json:"events"`
}

// SuperviseStep is one step of the time line.
type SuperviseStep struct {
	Name string `json:"name"`
	// Measured is the time since the last heartbeat, in seconds, and AtDefaults what it is with the default policy: the
	// earliest and the latest, the time that the worker takes to boot as it was measured.
	Measured   float64    `json:"measured_s"`
	AtDefaults [2]float64 `json:"at_defaults_s"`
}

// result judges what happened.
func (s *superviseStage) result(frozen time.Time, c *supervise.Incident, events []supervise.Event) SuperviseResult {
	r := SuperviseResult{Scale: s.o.Scale, Commands: map[string]int{}, Starts: s.child.Starts(), Incident: c, Events: events}
	total := 0
	for _, m := range s.monitors {
		n := 0
		for _, count := range m.Metrics().Commands {
			n += int(count)
		}
		r.Commands[m.ID()] = n
		total += n
	}
	last := c.Heartbeat
	since := func(t time.Time) float64 { return t.Sub(last).Seconds() }
	boot := c.Ended.Sub(c.Attempts[0].At).Seconds()
	p := supervise.DefaultPolicy()
	hung, check, persist := p.HungAfter.Seconds(), p.CheckInterval.Seconds(), p.Persistence.Seconds()
	r.Steps = []SuperviseStep{
		{"frozen", since(frozen), [2]float64{0, 10}},
		{"stale, first sighting", since(c.Seen), [2]float64{hung, hung + check}},
		{"confirmed, alert", since(c.Opened), [2]float64{hung + check, hung + 3*check}},
		{"persisted, restart", since(c.Attempts[0].At), [2]float64{hung + check + persist, hung + 4*check + persist}},
		{"recovered", since(c.Ended), [2]float64{hung + check + persist + boot, hung + 5*check + persist + boot}},
	}
	prove := func(claim string, holds bool, against string) {
		p := Proof{Claim: claim, Holds: holds}
		if !holds {
			p.Against = against
		}
		r.Proof = append(r.Proof, p)
	}
	prove("two monitors ran exactly one restart command", total == 1, fmt.Sprintf("they ran %d", total))
	prove("the process was started twice: at the beginning, and by the restart", r.Starts == 2, fmt.Sprintf("it was started %d times", r.Starts))
	prove("the intent stood in the store before the command, and says done", len(c.Attempts) == 1 && c.Attempts[0].Outcome == supervise.Done, fmt.Sprintf("attempts %+v", c.Attempts))
	prove("nothing was restarted before it had lasted", since(c.Attempts[0].At) >= (s.policy.HungAfter+s.policy.CheckInterval+s.policy.Persistence).Seconds(), "it was restarted too early")
	prove("a fresh heartbeat ended the incident", c.State == supervise.IncidentRecovered, "it is "+string(c.State))
	r.OK = !slices.ContainsFunc(r.Proof, func(p Proof) bool { return !p.Holds })
	return r
}

// WriteTable writes the result for a person.
func (r SuperviseResult) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nSINCE THE LAST HEARTBEAT\tMEASURED, TIMES SCALED BY %.4g\tWITH THE DEFAULT TIMES\n", r.Scale)
	for _, s := range r.Steps {
		fmt.Fprintf(t, "%s\t%.2f s\t%s to %s\n", s.Name, s.Measured, span(s.AtDefaults[0]), span(s.AtDefaults[1]))
	}
	fmt.Fprintf(t, "\nTIME\tSTEP\tREASON\n")
	for _, e := range r.Events {
		fmt.Fprintf(t, "%s\t%s\t%s\n", e.Time.UTC().Format("15:04:05.000"), e.Kind, e.Reason)
	}
	fmt.Fprintf(t, "\nPROOF\n")
	for _, p := range r.Proof {
		verdict := "holds"
		if !p.Holds {
			verdict = "DOES NOT HOLD: " + p.Against
		}
		fmt.Fprintf(t, "%s\t%s\n", p.Claim, verdict)
	}
	return t.Flush()
}

// span is a number of seconds for people.
func span(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}
