package supervise

import (
	"context"
	"strings"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
)

// scan is what one look at all workers found.
type scan struct {
	clock clock
	now   time.Time
	bound time.Duration

	fleet    Fleet
	verdicts map[Verdict]int
	// planned counts workers that a marker speaks for, incidents the open ones, waiting the workers that the fleet's
	// budget keeps from a restart.
	planned, incidents, waiting int
	mode                        ControlMode

	due    []*View  // for which something is to be done
	alerts []string // workers with alerts that are due

	fleetKeys   map[string]kvlocation.SharedEntry
	fleetAlerts map[string]*Fact[delivery]

	took time.Duration
	end  monotime.Time
}

func (s *scan) budget() *Budget {
	if f := factOf[Budget](s.fleetKeys[budgetKey]); f != nil {
		return &f.Value
	}
	return nil
}

// scan reads all workers. Most are well and have no key but their record, and cost the reading of that alone.
func (m *Monitor) scan(ctx context.Context) (scan, error) {
	s := scan{verdicts: map[Verdict]int{}, fleetKeys: map[string]kvlocation.SharedEntry{}, fleetAlerts: map[string]*Fact[delivery]{}}
	var err error
	if s.clock, err = readClock(ctx, m.keys, m.run.mono); err != nil {
		return s, err
	}
	odd := map[string]*View{} // workers with more than a record
	view := func(worker string) *View {
		if odd[worker] == nil {
			odd[worker] = &View{Worker: worker, Self: m.run.self, Expected: m.expected[worker]}
		}
		return odd[worker]
	}
	err = m.keys.List(ctx, incidentPrefix, func(e kvlocation.SharedEntry) bool {
		if worker, _, ok := splitKey(e.Key, incidentPrefix); ok {
			view(worker).take(e)
		}
		return true
	})
	if err != nil {
		return s, err
	}
	err = m.keys.List(ctx, markerPrefix, func(e kvlocation.SharedEntry) bool {
		if worker, rest, ok := splitKey(e.Key, markerPrefix); ok && rest == "" {
			view(worker).Marker = factOf[Marker](e)
		}
		return true
	})
	if err != nil {
		return s, err
	}
	err = m.keys.List(ctx, fleetPrefix, func(e kvlocation.SharedEntry) bool {
		if strings.HasPrefix(e.Key, fleetPrefix+"alert.") {
			s.fleetAlerts[e.Key] = factOf[delivery](e)
		} else {
			s.fleetKeys[e.Key] = e
		}
		return true
	})
	if err != nil {
		return s, err
	}
	for worker := range m.expected {
		view(worker)
	}
	s.now, s.bound = s.clock.at()
	if c := (&View{Now: s.now, Bound: s.bound, Control: factOf[Control](s.fleetKeys[controlKey])}).control(); c != nil {
		s.mode = c.Mode
	}
	err = m.keys.List(ctx, workerPrefix, func(e kvlocation.SharedEntry) bool {
		worker, rest, ok := splitKey(e.Key, workerPrefix)
		if !ok || rest != "" {
			return true
		}
		rec := factOf[Record](e)
		if v := odd[worker]; v != nil {
			v.Record = rec
			return true
		}
		f := m.cfg.Policy.Judge(rec, s.now, s.bound)
		if f.Verdict == Healthy {
			s.fleet.Workers++
			s.verdicts[Healthy]++
		} else {
			view(worker).Record = rec
		}
		return true
	})
	if err != nil {
		return s, err
	}
	for _, v := range odd {
		m.look(&s, v)
	}
	for _, v := range s.due {
		v.Fleet = s.fleet
	}
	return s, nil
}

// look judges a worker that has more than a healthy record.
func (m *Monitor) look(s *scan, v *View) {
	if v.Record == nil && v.Case == nil && !v.Expected {
		return // no worker of ours: a marker that came early, or keys that are about to expire
	}
	p := &m.cfg.Policy
	v.Now, v.Bound = s.now, s.bound
	v.Control, v.Budget = factOf[Control](s.fleetKeys[controlKey]), factOf[Budget](s.fleetKeys[budgetKey])
	v.Hands = m.target(v.Worker).Restarter != nil
	if v.Record != nil || v.Expected {
		f := p.Judge(v.Record, v.Now, v.Bound)
		s.fleet.Workers++
		s.verdicts[f.Verdict]++
		why, _ := v.planned()
		if why != "" {
			s.planned++
		} else if f.Verdict != Healthy && f.Verdict != Stalled {
			s.fleet.Broken++
		}
	}
	if v.Case != nil && v.Case.Value.State == CaseOpen {
		s.incidents++
	}
	// The fleet is not counted yet. It can only turn a step into a wait, which is found when the step is taken.
	switch step := p.Next(v); {
	case step.Do != Wait || m.run.holds(v.Worker):
		s.due = append(s.due, v)
	case step.Event != "":
		m.run.note(v, step)
		if step.Of == "budget" {
			s.waiting++
		}
	}
	if m.run.dueAny(v) {
		s.alerts = append(s.alerts, v.Worker)
	}
}
