package supervise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// view is everything that a decision about one worker may see: the shared keys, the store's time, and what this very
// monitor has begun itself.
type view struct {
	worker string
	// now is the store's time, known to within bound.
	now   time.Time
	bound time.Duration
	// self is the monitor.
	self string
	// confirmed: record, marker and control are no older than the call that read them. Else any replica may have answered.
	confirmed bool
	// expected: the worker is one that should have a record.
	expected bool

	record   *fact[Record]
	marker   *fact[Marker]
	control  *fact[Control]
	sight    *fact[sighting]
	timer    *fact[timer]
	lock     *fact[lock]
	incident *fact[Incident]
	budget   *fact[budget]

	// hands: a restarter is configured for the worker.
	hands bool
	fleet fleet
	hand  inHand

	alerts map[string]kvlocation.SharedEntry // deliveries; most are never looked at
	began  monotime.Time                     // before the record, the marker and the control were read
	read   monotime.Time                     // when now was taken, after the last
}

// fleet counts the workers as the last scan found them.
type fleet struct {
	// workers has those with a record and those that are expected; broken those among them that are hung, in state error or
	// unreachable without a marker that says why.
	workers int
	broken  int
}

// inHand is what a monitor has begun for a worker and not yet ended. It is the one thing that is not in shared storage, and
// it is of no weight: a monitor that dies takes with it only the knowledge whether its command ran.
type inHand struct {
	// attempt is the one whose intent this monitor has written and had acknowledged.
	attempt string
	// late: the time in which its command may begin is over.
	late bool
	// result is the command's, once it was run.
	result *Result
	// collected: logs were collected, or it was tried.
	collected bool
}

// since is the time from which on attempts matter to a rule.
func (p *Policy) since(v *view) time.Time {
	return v.now.Add(-v.bound - p.BreakerWindow - p.Cooldown - p.until())
}

// planned returns why the worker is left alone, because somebody means it to look like that, and what tells this reason
// from the next one. Both are empty when nobody does.
func (v *view) planned() (why, of string) {
	if m := v.marker; m != nil && !v.now.Add(-v.bound).After(m.value.Until) {
		return "planned: " + m.value.Action + " by " + m.value.By + " until " + stamp(m.value.Until), fmt.Sprintf("marker-%d", m.revision())
	}
	if c := v.inForce(); c != nil && c.Mode == UnderMaintenance {
		return "maintenance by " + c.By + ": " + c.Reason, fmt.Sprintf("maintenance-%d", v.control.revision())
	}
	return "", ""
}

// stillFailed reports whether the incident is about an error, and the worker says that it has one, be it since a moment ago: it
// was restarted, and is no better.
func (v *view) stillFailed() bool {
	return v.incident.value.Verdict == Erroneous && v.record.value.State == Failed
}

// stopped reports whether the worker has said that it ended in order, which it will not say again.
func (v *view) stopped() bool { return v.record != nil && v.record.value.State == Stopped }

// inForce returns the control that holds now, or nil.
func (v *view) inForce() *Control {
	if v.control == nil {
		return nil
	}
	if c := &v.control.value; c.Until.IsZero() || !v.now.Add(-v.bound).After(c.Until) {
		return c
	}
	return nil
}

// take puts an entry of the worker's incident keys, or of the budget, into the view; one that holds nothing takes it out.
func (v *view) take(e kvlocation.SharedEntry) {
	_, what, _ := splitKey(e.Key, incidentPrefix)
	switch {
	case e.Key == budgetKey:
		v.budget = factOf[budget](e)
	case what == "case":
		v.incident = factOf[Incident](e)
	case what == "sight":
		v.sight = factOf[sighting](e)
	case what == "timer":
		v.timer = factOf[timer](e)
	case what == "lock":
		v.lock = factOf[lock](e)
	case strings.HasPrefix(what, "alert."):
		if v.alerts == nil {
			v.alerts = map[string]kvlocation.SharedEntry{}
		}
		v.alerts[strings.TrimPrefix(what, "alert.")] = e
	}
}

// readView reads a worker's keys. With confirm, what must not be missed right before a command (the worker's record, a
// marker, a pause) is read no older than the call (SV-8), and last and at once, so that the command can follow soon, however
// long the store takes for the rest. own is what this monitor has written last, which a replica may not have yet.
func readView(ctx context.Context, k keys, c clock, worker, self string, confirm bool, own kvlocation.SharedEntry) (*view, error) {
	token, err := escape(worker)
	if err != nil {
		return nil, err
	}
	v := &view{worker: worker, self: self, confirmed: confirm}
	if v.budget, err = readFact[budget](ctx, k.Get, budgetKey); err != nil {
		return nil, err
	}
	var seen uint64
	if v.budget != nil && own.Key == budgetKey {
		seen = v.budget.revision()
	}
	err = k.List(ctx, incidentPrefix+token+".", func(e kvlocation.SharedEntry) bool {
		v.take(e)
		if e.Key == own.Key {
			seen = e.Revision
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if own.Key != "" && (seen < own.Revision || !own.Exists() && seen == own.Revision) {
		e, err := k.Confirm(ctx, own.Key)
		if err != nil && !errors.Is(err, outcome.NotFound) {
			return nil, err
		}
		v.take(e)
	}
	if newer := v.newer(); newer != "" {
		return nil, outcome.New("supervise", outcome.ProtocolError, outcome.NotAccepted, newer,
			fmt.Sprintf("its schema version is newer than %d, which this program knows: a newer monitor acts", schemaVersion))
	}
	v.began = c.mono()
	decisive := []string{workerPrefix + token, markerPrefix + token, controlKey}
	var now []kvlocation.SharedEntry
	if confirm {
		now, err = k.ConfirmAll(ctx, decisive...)
	} else {
		now, err = getAll(ctx, k, decisive)
	}
	if err != nil {
		return nil, err
	}
	v.record, v.marker, v.control = factOf[Record](now[0]), factOf[Marker](now[1]), factOf[Control](now[2])
	v.read = c.mono()
	v.now, v.bound = c.at()
	return v, nil
}

// newer names a key that a newer version has written, which would lose what this one does not know; empty when there is none.
func (v *view) newer() string {
	switch {
	case v.incident != nil && v.incident.value.V > schemaVersion:
		return v.incident.at.Key
	case v.budget != nil && v.budget.value.V > schemaVersion:
		return budgetKey
	}
	return ""
}

// getAll reads keys from any replica, one after the other.
func getAll(ctx context.Context, k keys, names []string) (all []kvlocation.SharedEntry, err error) {
	for _, name := range names {
		e, err := k.Get(ctx, name)
		if err != nil && !errors.Is(err, outcome.NotFound) {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// readFact reads one key; nil is that it holds nothing.
func readFact[T any](ctx context.Context, read func(context.Context, string) (kvlocation.SharedEntry, error), key string) (*fact[T], error) {
	e, err := read(ctx, key)
	switch {
	case errors.Is(err, outcome.NotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return factOf[T](e), nil
}
