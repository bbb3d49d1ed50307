package supervise

import (
	"cmp"
	"context"
	"slices"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// WorkerStatus is what is known of a worker.
type WorkerStatus struct {
	Record
	// Age is the heartbeat's, on the store's clock.
	Age time.Duration `json:"age_ns"`
	// Verdict is that of the policy that was given, and Why what it rests on.
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
	// Incident is the open one's ID, Restarts the attempts that the circuit breaker counts now.
	Incident string `json:"incident,omitempty"`
	Restarts int    `json:"restarts"`
	// Marker is there while a planned action speaks for the worker.
	Marker *Marker `json:"marker,omitempty"`
}

// Workers returns all workers that have a record, and those of expected that have none, by ID, as they look now under a
// policy. Errors are *outcome.Error: Unavailable when the store does not answer.
func Workers(ctx context.Context, sh *kvlocation.Shared, p Policy, expected []string) ([]WorkerStatus, error) {
	c, err := readClock(ctx, sh, monotime.Now)
	if err != nil {
		return nil, err
	}
	found := map[string]*view{}
	of := func(worker string) *view {
		if found[worker] == nil {
			found[worker] = &view{worker: worker}
		}
		return found[worker]
	}
	for _, w := range expected {
		of(w).expected = true
	}
	for _, prefix := range []string{workerPrefix, markerPrefix, incidentPrefix} {
		err := sh.List(ctx, prefix, func(e kvlocation.SharedEntry) bool {
			worker, _, ok := splitKey(e.Key, prefix)
			switch {
			case !ok:
			case prefix == workerPrefix:
				of(worker).record = factOf[Record](e)
			case prefix == markerPrefix:
				of(worker).marker = factOf[Marker](e)
			default:
				of(worker).take(e)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	var out []WorkerStatus
	for _, v := range found {
		if v.record == nil && !v.expected {
			continue
		}
		v.now, v.bound = c.at()
		f := p.judge(v.record, v.now, v.bound)
		st := WorkerStatus{Record: Record{Worker: v.worker}, Age: f.age, Verdict: f.verdict, Why: f.why()}
		if v.record != nil {
			st.Record = v.record.value
			st.Worker = v.worker // the key tells it, also when the value can't be read
		}
		if v.incident != nil {
			st.Restarts = v.incident.value.used(v.now.Add(-p.BreakerWindow))
			if v.incident.value.State == IncidentOpen {
				st.Incident = v.incident.value.ID
			}
		}
		if why, _ := v.planned(); why != "" {
			st.Marker = &v.marker.value
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b WorkerStatus) int { return cmp.Compare(a.Worker, b.Worker) })
	return out, nil
}

// Incidents returns the present or latest incident of each worker, of one worker when worker is not empty, the oldest
// first. Errors are *outcome.Error: InvalidOperation for an ID that is not allowed, Unavailable when the store does not
// answer.
func Incidents(ctx context.Context, sh *kvlocation.Shared, worker string) ([]Incident, error) {
	prefix := incidentPrefix
	if worker != "" {
		token, err := escape(worker)
		if err != nil {
			return nil, noWorker("incidents", err)
		}
		prefix += token + "."
	}
	var out []Incident
	err := sh.List(ctx, prefix, func(e kvlocation.SharedEntry) bool {
		v := view{}
		if v.take(e); v.incident != nil {
			out = append(out, v.incident.value)
		}
		return true
	})
	slices.SortFunc(out, func(a, b Incident) int { return a.Opened.Compare(b.Opened) })
	return out, err
}

// LogsOf returns what was collected last from a worker; ok is false when nothing is kept. Errors are those of Incidents.
func LogsOf(ctx context.Context, sh *kvlocation.Shared, worker string) (l Logs, ok bool, err error) {
	token, err := escape(worker)
	if err != nil {
		return l, false, noWorker("logs", err)
	}
	f, err := readFact[Logs](ctx, sh.Get, logsPrefix+token)
	if err != nil || f == nil {
		return l, false, err
	}
	return f.value, true, nil
}

// noWorker is the error for an ID that is not allowed.
func noWorker(op string, err error) error {
	return outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, "worker", "", err)
}
