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

// View is everything that a decision about one worker may see: the shared keys, the store's time, and what this very
// monitor has begun itself.
type View struct {
	Worker string
	// Now is the store's time, known to within Bound.
	Now   time.Time
	Bound time.Duration
	// Self is the monitor.
	Self string
	// Confirmed: Record, Marker and Control are no older than the call that read them. Else any replica may have answered.
	Confirmed bool
	// Expected: the worker is one that should have a record.
	Expected bool

	Record   *Fact[Record]
	Marker   *Fact[Marker]
	Control  *Fact[Control]
	Sight    *Fact[Sighting]
	Timer    *Fact[Timer]
	Lock     *Fact[Lock]
	Incident *Fact[Incident]
	Budget   *Fact[Budget]

	// Hands: a restarter is configured for the worker.
	Hands bool
	Fleet Fleet
	Hand  Hand

	alerts map[string]kvlocation.SharedEntry // deliveries; most are never looked at
	began  monotime.Time                     // before the first key was read
	read   monotime.Time                     // when Now was taken, after the last
}

// Fleet counts the workers as the last scan found them.
type Fleet struct {
	// Workers has those with a record and those that are expected; Broken those among them that are hung, in state error or
	// unreachable without a marker that says why.
	Workers int
	Broken  int
}

// Hand is what a monitor has begun for a worker and not yet ended. It is the one thing that is not in shared storage, and
// it is of no weight: a monitor that dies takes with it only the knowledge whether its command ran.
type Hand struct {
	// Attempt is the attempt whose intent this monitor has written and had acknowledged.
	Attempt string
	// Late: the time in which its command may begin is over.
	Late bool
	// Result is the command's, once it was run.
	Result *Result
	// Collected: logs were collected, or it was tried.
	Collected bool
}

// since is the time from which on attempts matter to a rule.
func (p *Policy) since(v *View) time.Time {
	return v.Now.Add(-v.Bound - p.BreakerWindow - p.Cooldown - p.until())
}

// planned returns why the worker is left alone, because somebody means it to look like that, and what tells this reason
// from the next one. Both are empty when nobody does.
func (v *View) planned() (why, of string) {
	if m := v.Marker; m != nil && !v.Now.Add(-v.Bound).After(m.Value.Until) {
		return "planned: " + m.Value.Action + " by " + m.Value.By + " until " + stamp(m.Value.Until), fmt.Sprintf("marker-%d", m.Revision())
	}
	if c := v.control(); c != nil && c.Mode == UnderMaintenance {
		return "maintenance by " + c.By + ": " + c.Reason, fmt.Sprintf("maintenance-%d", v.Control.Revision())
	}
	return "", ""
}

// stillFailed reports whether the incident is about an error, and the worker says that it has one, be it since a moment ago: it
// was restarted, and is no better.
func (v *View) stillFailed() bool {
	return v.Incident.Value.Verdict == Erroneous && v.Record.Value.State == Failed
}

// stopped reports whether the worker has said that it ended in order, which it will not say again.
func (v *View) stopped() bool { return v.Record != nil && v.Record.Value.State == Stopped }

// control returns the control that holds now, or nil.
func (v *View) control() *Control {
	if v.Control == nil {
		return nil
	}
	if c := &v.Control.Value; c.Until.IsZero() || !v.Now.Add(-v.Bound).After(c.Until) {
		return c
	}
	return nil
}

// take puts an entry of the worker's incident keys, or of the budget, into the view; one that holds nothing takes it out.
func (v *View) take(e kvlocation.SharedEntry) {
	_, what, _ := splitKey(e.Key, incidentPrefix)
	switch {
	case e.Key == budgetKey:
		v.Budget = factOf[Budget](e)
	case what == "case":
		v.Incident = factOf[Incident](e)
	case what == "sight":
		v.Sight = factOf[Sighting](e)
	case what == "timer":
		v.Timer = factOf[Timer](e)
	case what == "lock":
		v.Lock = factOf[Lock](e)
	case strings.HasPrefix(what, "alert."):
		if v.alerts == nil {
			v.alerts = map[string]kvlocation.SharedEntry{}
		}
		v.alerts[strings.TrimPrefix(what, "alert.")] = e
	}
}

// readView reads a worker's keys. With confirm, what must not be missed right before a command (the worker's record, a
// marker, a pause) is read no older than the call (SV-8). own is what this monitor has written last, which a replica may
// not have yet.
func readView(ctx context.Context, k keys, c clock, worker, self string, confirm bool, own kvlocation.SharedEntry) (*View, error) {
	token, err := escape(worker)
	if err != nil {
		return nil, err
	}
	read := k.Get
	if confirm {
		read = k.Confirm
	}
	v := &View{Worker: worker, Self: self, Confirmed: confirm, began: c.mono()}
	if v.Record, err = fact[Record](ctx, read, workerPrefix+token); err != nil {
		return nil, err
	}
	if v.Marker, err = fact[Marker](ctx, read, markerPrefix+token); err != nil {
		return nil, err
	}
	if v.Control, err = fact[Control](ctx, read, controlKey); err != nil {
		return nil, err
	}
	if v.Budget, err = fact[Budget](ctx, k.Get, budgetKey); err != nil {
		return nil, err
	}
	var seen uint64
	if v.Budget != nil && own.Key == budgetKey {
		seen = v.Budget.Revision()
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
	v.read = c.mono()
	v.Now, v.Bound = c.at()
	return v, nil
}

// fact reads one key; nil is that it holds nothing.
func fact[T any](ctx context.Context, read func(context.Context, string) (kvlocation.SharedEntry, error), key string) (*Fact[T], error) {
	e, err := read(ctx, key)
	switch {
	case errors.Is(err, outcome.NotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return factOf[T](e), nil
}
