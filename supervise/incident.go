package supervise

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"natsfabric/internal/jsonkeep"
)

// sighting is the first look at which a worker had a verdict. It is created if absent, so the first monitor that looks
// fixes it; its time is the entry's.
type sighting struct {
	V       int     `json:"v"`
	Worker  string  `json:"worker"`
	Verdict Verdict `json:"verdict"`
	Episode string  `json:"episode"`
	// Record is the revision of the record that was judged, 0 without one.
	Record uint64 `json:"record,omitempty"`
	By     string `json:"by"`
}

// timer fixes since when a confirmed verdict lasts (SV-5): created if absent, its time is the entry's.
type timer sighting

// lock is held by the monitor that acts on the worker (SV-6).
type lock struct {
	V      int    `json:"v"`
	Worker string `json:"worker"`
	By     string `json:"by"`
}

// IncidentState is what becomes of an incident.
type IncidentState string

const (
	// IncidentOpen: no fresh heartbeat has come since the verdict was confirmed, or none but of a worker in state error when that
	// is what it is about. It goes to IncidentRecovered or IncidentGone.
	IncidentOpen IncidentState = "open"
	// IncidentRecovered: a fresh heartbeat has come. The next incident makes it IncidentOpen.
	IncidentRecovered IncidentState = "recovered"
	// IncidentGone: the worker's record has expired and nobody expects the worker, so it is watched no more. The next incident
	// makes it IncidentOpen.
	IncidentGone IncidentState = "gone"
)

// Outcome is what became of one restart.
type Outcome string

const (
	// Running: the intent is written; the command is about to run, runs, or has run. It goes to each of the others.
	Running Outcome = "running"
	// Done: the command has ended and said that it worked. Terminal.
	Done Outcome = "done"
	// Broken: the command itself failed, so nothing was restarted (SV-12). Its text is "failed". Terminal.
	Broken Outcome = "failed"
	// Unknown: nobody knows whether the worker was restarted. It counts as if it was (SV-15). Terminal.
	Unknown Outcome = "unknown"
	// Cancelled: the command was not run and will not be. It counts for nothing. Terminal.
	Cancelled Outcome = "cancelled"
)

// Attempt is one restart, from the intent on.
type Attempt struct {
	// ID is the incident's with the attempt's number. It is no token: restarters tell a command that comes late by Order.Token,
	// which is made of the revision of the intent.
	ID       string  `json:"id"`
	Incident string  `json:"incident"`
	Verdict  Verdict `json:"verdict"`
	By       string  `json:"by"`
	// At is when the intent was written, Finished when the outcome was known; for one that is unknown no earlier than the end of
	// the launch window, and when nobody has said so, when the command had certainly ended. Both are on the store's clock,
	// rounded up by its error.
	At       time.Time `json:"at"`
	Finished time.Time `json:"finished,omitzero"`
	Outcome  Outcome   `json:"outcome"`
	Detail   string    `json:"detail,omitempty"`
}

// counts reports whether the circuit breaker counts the attempt.
func (a *Attempt) counts() bool { return a.Outcome != Cancelled }

// restarted reports whether the worker was, or may have been, restarted.
func (a *Attempt) restarted() bool {
	return a.Outcome == Running || a.Outcome == Done || a.Outcome == Unknown
}

// Incident is a worker's present or latest incident, and its restarts within the breaker's window whatever incident they
// belong to. Everything that keeps restarts apart (intent, cooldown, breaker) stands in this one record and changes by
// compare-and-set, so two monitors can't both decide to restart from the same reading.
type Incident struct {
	V       int           `json:"v"`
	Worker  string        `json:"worker"`
	ID      string        `json:"id"`
	State   IncidentState `json:"state"`
	Verdict Verdict       `json:"verdict"`
	Why     string        `json:"why"`
	Job     string        `json:"job,omitempty"`
	// Heartbeat is the last one before the incident, zero without a record. Seen is the first sighting, Opened when it was
	// confirmed, Ended when a fresh heartbeat was seen, and How says what that was.
	Heartbeat time.Time `json:"heartbeat,omitzero"`
	Seen      time.Time `json:"seen"`
	Opened    time.Time `json:"opened"`
	Ended     time.Time `json:"ended,omitzero"`
	How       string    `json:"how,omitempty"`
	// Numbered counts the attempts that were ever begun in this incident.
	Numbered int       `json:"numbered"`
	Attempts []Attempt `json:"attempts,omitempty"`

	unknown map[string]json.RawMessage // the fields that this version does not know
}

var incidentFields = jsonkeep.Names(reflect.TypeFor[Incident]())

func (in *Incident) decode(data []byte) (err error) {
	in.unknown, err = jsonkeep.Decode(data, in, incidentFields)
	return err
}

func (in *Incident) encode() []byte {
	b, err := jsonkeep.Encode(*in, in.unknown)
	if err != nil {
		panic(fmt.Sprintf("supervise: an incident has no JSON: %v", err))
	}
	return b
}

// maxCancelled bounds how many cancelled attempts an incident keeps: the latest.
const maxCancelled = 4

// running returns the attempt whose outcome is open, or nil. It is always the last one.
func (in *Incident) running() *Attempt {
	if n := len(in.Attempts); n > 0 && in.Attempts[n-1].Outcome == Running {
		return &in.Attempts[n-1]
	}
	return nil
}

// last returns the latest attempt, or nil.
func (in *Incident) last() *Attempt {
	if n := len(in.Attempts); n > 0 {
		return &in.Attempts[n-1]
	}
	return nil
}

// lastRestart returns the latest attempt that did, or may have, restarted the worker, or nil.
func (in *Incident) lastRestart() *Attempt {
	for i := len(in.Attempts) - 1; i >= 0; i-- {
		if in.Attempts[i].restarted() {
			return &in.Attempts[i]
		}
	}
	return nil
}

// cancelled reports whether the attempt is known to have been cancelled.
func (in *Incident) cancelled(id string) bool {
	return slices.ContainsFunc(in.Attempts, func(a Attempt) bool { return a.ID == id && a.Outcome == Cancelled })
}

// used counts the attempts since then that the breaker counts. A command is run some time after its intent: it may have been since
// then if its outcome was not known before.
func (in *Incident) used(since time.Time) (n int) {
	for i := range in.Attempts {
		if a := &in.Attempts[i]; a.counts() && (a.Outcome == Running || a.Finished.After(since)) {
			n++
		}
	}
	return n
}

// clone returns a copy whose attempts can be changed, without those that no rule asks for any more.
func (in *Incident) clone(since time.Time) Incident {
	out := *in
	cancelled := 0
	for i := range in.Attempts {
		if !in.Attempts[i].counts() {
			cancelled++
		}
	}
	out.Attempts = slices.DeleteFunc(slices.Clone(in.Attempts), func(a Attempt) bool {
		if !a.counts() {
			cancelled--
			return cancelled >= maxCancelled
		}
		return !a.At.After(since) && a.Outcome != Running
	})
	return out
}

// ControlMode is what a Control does.
type ControlMode string

const (
	// Paused: nothing is restarted; alerts go out as ever.
	Paused ControlMode = "paused"
	// UnderMaintenance: nothing is restarted, and nobody is alerted.
	UnderMaintenance ControlMode = "maintenance"
)

// Control stops the automation for all workers.
type Control struct {
	V      int         `json:"v"`
	Mode   ControlMode `json:"mode"`
	By     string      `json:"by"`
	Reason string      `json:"reason"`
	// Since and Until are on the store's clock. A zero Until holds until it is resumed.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
}

// budget is what all workers together have used of Policy.FleetBudget.
type budget struct {
	V    int         `json:"v"`
	Used []budgetUse `json:"used"`
}

// budgetUse is one restart that was, or may have been, run.
type budgetUse struct {
	Worker  string    `json:"worker"`
	Attempt string    `json:"attempt"`
	At      time.Time `json:"at"`
}

// usedBudget returns the uses whose restarts may have come within the fleet's window. A restart comes after its use was taken: by
// a launch window at most until its intent is written, and then by what a command may take.
func (p *Policy) usedBudget(b *budget, now time.Time, bound time.Duration) []budgetUse {
	since := now.Add(-bound - p.FleetWindow - p.LaunchWindow - p.until())
	return slices.DeleteFunc(slices.Clone(b.Used), func(u budgetUse) bool { return !u.At.After(since) })
}
