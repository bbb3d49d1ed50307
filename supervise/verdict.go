package supervise

import (
	"fmt"
	"time"
)

// Verdict is what a worker's record says about the worker at one moment.
type Verdict string

// The verdicts. Each but Healthy has to be somebody's in Policy.Responsible.
const (
	// Healthy: nothing to do. A worker that has stopped in order is healthy too.
	Healthy Verdict = "healthy"
	// Hung: it says that it processes, and its heartbeat is older than Policy.HungAfter.
	Hung Verdict = "hung"
	// Erroneous: it has said for Policy.ErrorAfter that it can't go on. Its text is "error".
	Erroneous Verdict = "error"
	// Unreachable: it has no record, or one of a worker without work that has not been written for
	// Policy.UnreachableAfter. It may be off, rebooting, or cut from the network.
	Unreachable Verdict = "unreachable"
	// Stalled: it processes and its heartbeat is fresh, and the progress marker has stood still for
	// Policy.StalledAfter. A long job may look like that.
	Stalled Verdict = "stalled"
)

// verdicts are those that somebody has to be responsible for, in the order in which they are printed.
var verdicts = []Verdict{Hung, Erroneous, Unreachable, Stalled}

// finding is a verdict and what it rests on.
type finding struct {
	verdict Verdict
	// age is the heartbeat's, on the store's clock; 0 without a record.
	age time.Duration
	// fresh: there is a record, and its heartbeat is not older than Policy.HungAfter.
	fresh bool
	// episode tells one case of the verdict from the next: it changes when the worker was well in between.
	episode string

	rec *fact[Record]
}

// why says for people what the verdict rests on.
func (f finding) why() string {
	if f.rec == nil {
		return "it has no record"
	}
	r, age := &f.rec.value, f.age.Round(time.Millisecond)
	switch {
	case f.verdict == Hung:
		return fmt.Sprintf("it says that it processes, and its heartbeat is %v old", age)
	case f.verdict == Stalled:
		return fmt.Sprintf("its heartbeat is fresh, and its progress marker %q has stood still since %s", clip(r.Progress, 40), stamp(r.ProgressAt))
	case f.verdict == Unreachable:
		return fmt.Sprintf("it had no work, and its heartbeat is %v old", age)
	case r.State == Failed:
		return "it has reported state error since " + stamp(r.StateSince)
	case r.State == Stopped:
		return "it stopped in order"
	}
	return fmt.Sprintf("state %s, heartbeat %v old", clip(string(r.State), 40), age)
}

// judge is the verdict on a record (nil: there is none) at a time of the store's clock that is known to within bound
// (SV-1, SV-2). It depends on nothing else, so every monitor comes to the same.
//
// An age counts as reached only when it is certain, so bound delays a verdict and never brings one early.
func (p *Policy) judge(rec *fact[Record], now time.Time, bound time.Duration) finding {
	if rec == nil {
		return finding{verdict: Unreachable, episode: "none"}
	}
	r := &rec.value
	reached := func(since time.Time, d time.Duration) bool { return now.Add(-bound).Sub(since) >= d }
	f := finding{verdict: Healthy, age: now.Sub(rec.time), fresh: !reached(rec.time, p.HungAfter), rec: rec}
	switch {
	case r.State == Stopped:
	case r.State == Failed:
		if reached(earlier(r.StateSince, rec.time), p.ErrorAfter) {
			f.verdict, f.episode = Erroneous, stamp(r.StateSince)
		}
	case r.State == Processing && !f.fresh:
		f.verdict, f.episode = Hung, fmt.Sprintf("r%d", rec.revision())
	case r.State == Processing && reached(earlier(r.ProgressAt, rec.time), p.StalledAfter):
		f.verdict, f.episode = Stalled, stamp(r.ProgressAt)
	case r.State != Processing && reached(rec.time, p.UnreachableAfter):
		f.verdict, f.episode = Unreachable, fmt.Sprintf("r%d", rec.revision())
	}
	return f
}

// earlier keeps what a record says about a time from being later than the record itself.
func earlier(said, written time.Time) time.Time {
	if said.IsZero() || said.After(written) {
		return written
	}
	return said
}

// stamp is the text form of times, in milliseconds.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
