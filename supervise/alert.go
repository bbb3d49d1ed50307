package supervise

import (
	"fmt"
	"slices"
	"time"
)

// Severity says how loudly an alert speaks.
type Severity string

// The severities.
const (
	// Info: good to know.
	Info Severity = "info"
	// Warning: something is wrong, and is being handled or has been looked at.
	Warning Severity = "warning"
	// Page: a person is needed now. Notifiers mention one.
	Page Severity = "page"
)

// Alert is what notifiers get (SV-13).
type Alert struct {
	V        int      `json:"v"`
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	// Text is the whole alert in one line.
	Text     string  `json:"text"`
	Mesh     string  `json:"mesh,omitempty"`
	Worker   string  `json:"worker,omitempty"`
	Verdict  Verdict `json:"verdict,omitempty"`
	Job      string  `json:"job,omitempty"`
	Incident string  `json:"incident,omitempty"`
	Attempt  string  `json:"attempt,omitempty"`
	// Logs is what was collected for the incident; LogsError why there is nothing.
	Logs      string `json:"logs,omitempty"`
	LogsError string `json:"logs_error,omitempty"`
	By        string `json:"by"`
	// Time is on the store's clock.
	Time time.Time `json:"time"`

	key     string        // of its delivery, below the worker's or the fleet's
	ttl     time.Duration // for which it is not sent again
	collect bool          // logs are collected for it, if none were for this incident
}

// The kinds of alerts.
const (
	AlertConfirmed   = "confirmed"
	AlertRestarting  = "restarting"
	AlertRestarted   = "restarted"
	AlertFailed      = "restart-failed"
	AlertUnknown     = "restart-unknown"
	AlertCancelled   = "restart-cancelled"
	AlertUnrecovered = "restart-did-not-recover"
	AlertBreaker     = "breaker-open"
	AlertNoHands     = "no-restarter"
	AlertRecovered   = "recovered"
	AlertGone        = "gone"
	AlertFleetGuard  = "fleet-guard"
	AlertFleetBudget = "fleet-budget"
	AlertBlind       = "monitor-blind"
	AlertSees        = "monitor-sees"
)

// due returns the alerts that should have gone out by now about a worker. They follow from the shared keys alone, apart
// from the pipeline: neither waits for the other, and whatever monitor looks sends what is due (SV-7). Each alert's key is
// claimed before it is sent, so it goes out once, and again after Policy.Remind while its cause lasts.
func (p *Policy) due(v *view) []Alert {
	if v.incident == nil {
		return nil
	}
	f := p.judge(v.record, v.now, v.bound)
	c := &v.incident.value
	var out []Alert
	add := func(kind string, severity Severity, key string, ttl time.Duration, format string, args ...any) {
		out = append(out, Alert{
			V: schemaVersion, Kind: kind, Severity: severity, Text: fmt.Sprintf(format, args...), Worker: v.worker, Verdict: c.Verdict,
			Job: c.Job, Incident: c.ID, By: v.self, Time: ceil(v.now), key: tokenOf(kind + "-" + key), ttl: seconds(ttl),
		})
	}
	job := ""
	if c.Job != "" {
		job = fmt.Sprintf(", job %s", c.Job)
	}
	old := func(t time.Time) bool { return v.now.Sub(t) > p.horizon() }
	once := 2 * p.horizon()
	for i := range c.Attempts {
		a := &c.Attempts[i]
		if a.Outcome != Running && old(a.Finished) {
			continue
		}
		n := len(out)
		switch a.Outcome {
		case Running:
			add(AlertRestarting, Warning, a.ID, once, "%s is restarted by monitor %s: %s%s", v.worker, a.By, c.Why, job)
		case Done:
			add(AlertRestarted, Warning, a.ID, once, "%s was restarted: %s%s", v.worker, a.Verdict, job)
		case Broken:
			add(AlertFailed, Page, a.ID, once, "%s could not be restarted, the command failed: %s%s", v.worker, a.Detail, job)
		case Unknown:
			add(AlertUnknown, Page, a.ID, once, "%s may have been restarted or not: %s; it counts as restarted%s", v.worker, a.Detail, job)
		case Cancelled:
			if _, announced := v.alerts[tokenOf(AlertRestarting+"-"+a.ID)]; announced {
				add(AlertCancelled, Info, a.ID, once, "%s was not restarted after all: %s%s", v.worker, a.Detail, job)
			}
		}
		for ; n < len(out); n++ {
			out[n].Attempt, out[n].Incident, out[n].Verdict = a.ID, a.Incident, a.Verdict
		}
	}
	if c.State != IncidentOpen {
		took := c.Ended.Sub(c.Opened).Round(time.Second)
		switch {
		case old(c.Ended):
		case c.State == IncidentRecovered:
			add(AlertRecovered, Info, c.ID, once, "%s has recovered after %v: %s", v.worker, took, c.How)
		case c.State == IncidentGone:
			add(AlertGone, Warning, c.ID, once, "%s was %s for %v and is watched no more: %s", v.worker, c.Verdict, took, c.How)
		}
		return out
	}
	why, _ := v.planned()
	if why != "" || f.verdict != c.Verdict {
		return out
	}
	paused := ""
	if ctl := v.inForce(); ctl != nil && p.Responsible[c.Verdict] == Restart {
		paused = fmt.Sprintf("; nothing restarts it, %s by %s: %s", ctl.Mode, ctl.By, ctl.Reason)
	}
	severity := Warning
	if p.Responsible[c.Verdict] != Restart {
		severity = Page // nobody else acts
	}
	add(AlertConfirmed, severity, string(c.Verdict)+"-"+c.ID, p.Remind, "%s is %s: %s%s%s", v.worker, c.Verdict, f.why(), job, paused)
	out[len(out)-1].collect = true
	if p.Responsible[c.Verdict] != Restart {
		return out
	}
	if !v.hands {
		add(AlertNoHands, Page, c.ID, p.Remind, "%s is %s, and no restarter is configured for it%s", v.worker, c.Verdict, job)
		return out
	}
	if a := c.lastRestart(); a != nil && a.Incident == c.ID && a.Outcome != Running && !v.now.Add(-v.bound).Before(a.Finished.Add(p.EscalateAfter)) {
		add(AlertUnrecovered, Page, a.ID, p.BreakerWindow+p.Remind, "restart did not recover %s: %v after it the worker is still %s%s",
			v.worker, v.now.Sub(a.Finished).Round(time.Second), c.Verdict, job)
		out[len(out)-1].Attempt = a.ID
	}
	_, resting := p.resting(v)
	if used := c.used(v.now.Add(-v.bound - p.BreakerWindow)); used >= p.Breaker && c.running() == nil && !resting {
		add(AlertBreaker, Page, c.ID, p.Remind, "%s is %s and had %d restarts within %v: the circuit breaker is open, nothing restarts it any more%s",
			v.worker, c.Verdict, used, p.BreakerWindow, job)
	}
	return out
}

// dueFleet returns the alerts about the fleet as a whole.
func (p *Policy) dueFleet(f fleet, b *budget, now time.Time, bound time.Duration, self string, waiting int) []Alert {
	var out []Alert
	add := func(kind, text string) {
		out = append(out, Alert{
			V: schemaVersion, Kind: kind, Severity: Page, Text: text, By: self, Time: ceil(now), key: kind, ttl: seconds(p.Remind),
		})
	}
	if p.tooMany(f) {
		add(AlertFleetGuard, fmt.Sprintf("%d of %d workers look broken: nothing is restarted, the fault is likely elsewhere", f.broken, f.workers))
	}
	if b != nil && waiting > 0 {
		if used := len(p.usedBudget(b, now, bound)); used >= p.FleetBudget {
			add(AlertFleetBudget, fmt.Sprintf("%d restarts within %v: the fleet's budget is used up, and %d workers wait for a restart", used, p.FleetWindow, waiting))
		}
	}
	return out
}

// fleetKey is the key of the alert's delivery, if it is about the fleet.
func (a *Alert) fleetKey() string { return fleetPrefix + "alert." + a.key }

// delivery is who was told of an alert. Its key is the alert's de-duplication, apart from the lock (SV-7).
type delivery struct {
	V    int    `json:"v"`
	Kind string `json:"kind"`
	By   string `json:"by"`
	// Until is when another monitor may go on with what was not delivered by then.
	Until time.Time `json:"until"`
	Tries int       `json:"tries"`
	// Told names the notifiers that have taken the alert; Done: nothing is left to do.
	Told []string `json:"told,omitempty"`
	Done bool     `json:"done"`
}

// maxTellings bounds how often one alert is tried.
const maxTellings = 20

// waits reports whether the alert need not be looked at now.
func (d *delivery) waits(now time.Time) bool { return d.Done || now.Before(d.Until) }

// left returns the notifiers that have not taken the alert.
func (d *delivery) left(all []Notifier) []Notifier {
	return slices.DeleteFunc(slices.Clone(all), func(n Notifier) bool { return slices.Contains(d.Told, n.Name()) })
}
