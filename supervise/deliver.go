package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"natsfabric/internal/leash"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// tell sends the alerts that are due about a worker. It touches no key of the pipeline, and the pipeline none of its.
func (r *runner) tell(ctx context.Context, c clock, worker string) error {
	v, err := readView(ctx, r.keys, c, worker, r.self, false, kvlocation.SharedEntry{})
	if err != nil {
		return err
	}
	target := r.target(worker)
	v.hands = target.Restarter != nil
	token, _ := escape(worker)
	var errs []error
	for _, a := range r.policy.due(v) {
		d := factOf[delivery](v.alerts[a.key])
		if d != nil && d.value.waits(v.now) {
			continue
		}
		errs = append(errs, r.deliver(ctx, c, incidentPrefix+token+".alert."+a.key, d, a, func(a *Alert) { r.attach(ctx, v, a, target.Collector) }))
	}
	return errors.Join(errs...)
}

// dueAny reports whether an alert that is due needs to be looked at.
func (r *runner) dueAny(v *view) bool {
	for _, a := range r.policy.due(v) {
		if d := factOf[delivery](v.alerts[a.key]); d == nil || !d.value.waits(v.now) {
			return true
		}
	}
	return false
}

// deliver claims an alert, sends it, and writes down who took it. A claimant that dies is followed by another one once
// the claim is over: an alert may then come twice, but it never gets lost.
func (r *runner) deliver(ctx context.Context, c clock, key string, d *fact[delivery], a Alert, attach func(*Alert)) error {
	limit := r.policy.NotifyLimit
	next := delivery{V: schemaVersion, Kind: a.Kind}
	if d != nil {
		next = d.value
	}
	claim := 2*limit + r.policy.CollectLimit
	now, bound := c.at()
	next.By, next.Until, next.Tries = r.self, ceil(now.Add(bound+claim)), next.Tries+1
	var at kvlocation.SharedEntry
	var err error
	if d == nil {
		at, err = r.keys.Create(ctx, key, encode(next), a.ttl)
	} else {
		at, err = r.keys.Update(ctx, d.at, encode(next), a.ttl)
	}
	if err != nil {
		if lostRace(err) {
			return nil // somebody else tells
		}
		return err
	}
	if a.Kind == AlertUnrecovered && next.Tries == 1 {
		r.record(Event{Worker: a.Worker, Incident: a.Incident, Kind: Escalated, Of: tokenOf(a.Attempt), Reason: a.Text, By: r.self, Time: a.Time})
	}
	if attach != nil {
		attach(&a)
	}
	a.Mesh = r.mesh
	left := next.left(r.notify)
	failed := make([]error, len(left))
	var wg sync.WaitGroup
	for i, n := range left {
		wg.Go(func() { failed[i] = r.tellOne(ctx, n, a) })
	}
	wg.Wait()
	next.Done = true
	for i, n := range left {
		if failed[i] == nil {
			next.Told = append(next.Told, n.Name())
		} else {
			next.Done = false
		}
	}
	now, bound = c.at()
	next.Until = ceil(now.Add(bound + min(time.Duration(next.Tries)*r.policy.CheckInterval, r.policy.Remind)))
	next.Done = next.Done || next.Tries >= maxTellings
	_, err = r.keys.Update(ctx, at, encode(next), a.ttl)
	if lostRace(err) {
		err = nil
	}
	return errors.Join(append(failed, err)...)
}

// tellOne calls a notifier and comes back in time, whatever the notifier does.
func (r *runner) tellOne(ctx context.Context, n Notifier, a Alert) error {
	ctx, cancel := context.WithTimeout(ctx, r.policy.NotifyLimit)
	defer cancel()
	_, err := leash.Call(ctx, &r.leash, "notifier "+n.Name(), 0, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, n.Notify(ctx, a)
	})
	if err != nil {
		r.stats.notifyFailed.Add(1)
		return fmt.Errorf("notifier %s: %w", n.Name(), err)
	}
	r.stats.told.Add(1)
	return nil
}

// attach puts the incident's logs into an alert. The first alert of an incident collects them.
func (r *runner) attach(ctx context.Context, v *view, a *Alert, c Collector) {
	token, _ := escape(v.worker)
	var l Logs
	e, err := r.keys.Get(ctx, logsPrefix+token)
	if err == nil {
		_ = json.Unmarshal(e.Value, &l) // what can't be read counts as not there
	} else if !errors.Is(err, outcome.NotFound) {
		a.LogsError = clip(err.Error(), maxDetail)
		return
	}
	if l.Incident != a.Incident && a.collect {
		l = *r.collect(ctx, v, step{incident: a.Incident}, c)
	}
	if l.Incident == a.Incident {
		a.Logs, a.LogsError = l.Text, l.Error
	}
}
