package supervise

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// EventKind is what the audit calls a decision.
type EventKind string

// The kinds of events.
const (
	// Confirmed: a verdict was seen twice; the incident is open, or has become one of this verdict.
	Confirmed EventKind = "confirmed"
	// Armed: the persistence timer runs.
	Armed EventKind = "armed"
	// Locked: a monitor has taken the worker's lock to act.
	Locked EventKind = "locked"
	// Collected: logs were collected, or could not be.
	Collected EventKind = "collected"
	// Intended: the intent of a restart is written. What it came to is one of the next four.
	Intended         EventKind = "intended"
	DoneRestart      EventKind = EventKind(Done)
	FailedRestart    EventKind = EventKind(Broken)
	UnknownRestart   EventKind = EventKind(Unknown)
	CancelledRestart EventKind = EventKind(Cancelled)
	// Skipped: nothing was done, because of a planned action, a pause, the cooldown or another monitor's lock.
	Skipped EventKind = "skipped"
	// Refused: no restart, because of the circuit breaker, the fleet guard, the fleet's budget, or because there is no restarter.
	Refused EventKind = "refused"
	// Escalated: a page went out because a restart did not recover the worker.
	Escalated EventKind = "escalated"
	// Recovered: a fresh heartbeat has ended the incident.
	Recovered EventKind = EventKind(IncidentRecovered)
	// Gone: the worker's record has expired, and the incident with it.
	Gone EventKind = EventKind(IncidentGone)
)

// Event is one decision about a worker and its reason: the audit. It is written once, whichever monitors come to it, and
// goes away when Policy.Retention is over.
type Event struct {
	V      int    `json:"v"`
	Worker string `json:"worker"`
	// Incident is empty for a decision outside one.
	Incident string    `json:"incident,omitempty"`
	Kind     EventKind `json:"kind"`
	// Of tells events of one kind in one incident apart: the number of the attempt, or what was refused.
	Of     string `json:"of,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by"`
	// Time is on the store's clock, as the monitor knew it.
	Time time.Time `json:"time"`
}

// key is the same for the same decision, whoever takes it.
func (e *Event) key() string {
	token, _ := escape(e.Worker)
	incident := e.Incident
	if incident == "" {
		incident = "none"
	}
	key := eventPrefix + token + "." + incident + "." + string(e.Kind)
	if e.Of != "" {
		key += "-" + tokenOf(e.Of)
	}
	return key
}

// tokenOf makes a key token of a text of this package's own.
func tokenOf(text string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, clip(text, 100))
}

// writeEvent writes the event unless it is there already.
func writeEvent(ctx context.Context, k keys, e Event, retention time.Duration) error {
	e.V, e.Reason = schemaVersion, clip(e.Reason, maxReason)
	_, err := k.Create(ctx, e.key(), encode(e), seconds(retention))
	if errors.Is(err, outcome.AlreadyExists) {
		return nil
	}
	return err
}

// EventFilter says which events are meant: those that match every field that is set.
type EventFilter struct {
	Worker   string
	Incident string
	// Limit is the most events to return, the newest ones. 0 means 1000, at most 100,000.
	Limit int
}

// Events returns the events that match, the oldest first. Errors are *outcome.Error: InvalidOperation for a filter that is
// not allowed, Unavailable when the store does not answer.
func Events(ctx context.Context, sh *kvlocation.Shared, f EventFilter) ([]Event, error) {
	return events(ctx, sh, f)
}

func events(ctx context.Context, k keys, f EventFilter) ([]Event, error) {
	if f.Limit == 0 {
		f.Limit = 1000
	}
	if f.Limit < 1 || f.Limit > 100_000 {
		return nil, outcome.New("events", outcome.InvalidOperation, outcome.NotAccepted, "", "Limit must be 1 to 100000")
	}
	prefix := eventPrefix
	if f.Worker != "" {
		token, err := escape(f.Worker)
		if err != nil {
			return nil, noWorker("events", err)
		}
		prefix += token + "."
	}
	var out []Event
	err := k.List(ctx, prefix, func(e kvlocation.SharedEntry) bool {
		ev := factOf[Event](e).value
		if ev.Worker == "" || f.Incident != "" && ev.Incident != f.Incident {
			return true
		}
		if len(out) == 2*f.Limit {
			out = slices.Delete(out, 0, f.Limit)
		}
		out = append(out, ev)
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out[max(0, len(out)-f.Limit):], nil
}
