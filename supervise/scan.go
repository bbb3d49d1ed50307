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

	fleet    fleet
	verdicts map[Verdict]int
	// planned counts workers that a marker or a maintenance speaks for, incidents the open ones, waiting the workers that the fleet's
	// budget keeps from a restart.
	planned, incidents, waiting int
	mode                        ControlMode

	due    []*view  // for which something is to be done
	alerts []string // workers with alerts that are due

	fleetKeys   map[string]kvlocation.SharedEntry
	fleetAlerts map[string]*fact[delivery]

	took time.Duration
	end  monotime.Time
}

func (s *scan) budget() *budget {
	if f := factOf[budget](s.fleetKeys[budgetKey]); f != nil {
		return &f.value
	}
	return nil
}

// census is what the last look at all records has found. Until the next one a monitor reads only the records that are old.
type census struct {
	left    int // looks until then
	workers int
	have    map[string]bool // of the expected workers, those with a record
}

// censusEvery is how many looks there are from one that reads all records to the next. What can be seen in a fresh one alone, an error or progress that
// stands still, is found by that much later: a sixth of the time for which it must last.
func (p *Policy) censusEvery() int {
	return max(1, int(min(p.ErrorAfter, p.StalledAfter)/6/p.CheckInterval))
}

// maxSingle is how many records a look reads one by one. One that would read more reads all of them.
const maxSingle = 200

// oddities are the workers about which there is more than a healthy record, in the order in which a look comes upon them: what
// follows is done in that order too.
type oddities struct {
	of  map[string]*view
	all []*view
}

// scan looks at all workers. Nearly all are well: their heartbeat is fresh and they have no key but their record. A record's
// age is the store's, so the records come in the order of their age, the oldest first, and most looks end at the first that
// is fresh. Every [Policy.censusEvery]-th reads them all. Workers about which something is open are looked at each time.
func (m *Monitor) scan(ctx context.Context) (scan, error) {
	s := scan{verdicts: map[Verdict]int{}, fleetKeys: map[string]kvlocation.SharedEntry{}, fleetAlerts: map[string]*fact[delivery]{}}
	var err error
	if s.clock, err = readClock(ctx, m.keys, m.run.mono); err != nil {
		return s, err
	}
	odd, err := m.oddities(ctx, &s)
	if err != nil {
		return s, err
	}
	s.now, s.bound = s.clock.at()
	if c := (&view{now: s.now, bound: s.bound, control: factOf[Control](s.fleetKeys[controlKey])}).inForce(); c != nil {
		s.mode = c.Mode
	}
	single := 0
	for _, v := range odd.all {
		if m.wants(v) {
			single++
		}
	}
	all := m.census.left <= 0 || single > maxSingle
	if err := m.records(ctx, &s, odd, all); err != nil {
		return s, err
	}
	for _, v := range odd.all {
		if v.record == nil && !all && m.wants(v) {
			token, _ := escape(v.worker)
			if v.record, err = readFact[Record](ctx, m.keys.Get, workerPrefix+token); err != nil {
				return s, err
			}
		}
		if v.record == nil && !all && !m.wants(v) {
			m.quiet(&s, v)
		} else {
			m.look(&s, v)
		}
	}
	if all {
		m.census.left, m.census.workers = m.cfg.Policy.censusEvery(), s.fleet.workers
		m.census.have = map[string]bool{}
		for w := range m.expected {
			m.census.have[w] = odd.of[w].record != nil
		}
	} else if fresh := m.census.workers - s.fleet.workers; fresh > 0 {
		s.fleet.workers += fresh
		s.verdicts[Healthy] += fresh
	}
	m.census.left--
	for _, v := range s.due {
		v.fleet = s.fleet
	}
	return s, nil
}

// oddities reads what there is beside records: workers with more than one, and the fleet's own keys.
func (m *Monitor) oddities(ctx context.Context, s *scan) (*oddities, error) {
	odd := &oddities{of: map[string]*view{}}
	err := m.keys.List(ctx, incidentPrefix, func(e kvlocation.SharedEntry) bool {
		if worker, _, ok := splitKey(e.Key, incidentPrefix); ok {
			m.odd(odd, worker).take(e)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	err = m.keys.List(ctx, markerPrefix, func(e kvlocation.SharedEntry) bool {
		if worker, rest, ok := splitKey(e.Key, markerPrefix); ok && rest == "" {
			m.odd(odd, worker).marker = factOf[Marker](e)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	err = m.keys.List(ctx, fleetPrefix, func(e kvlocation.SharedEntry) bool {
		if strings.HasPrefix(e.Key, fleetPrefix+"alert.") {
			s.fleetAlerts[e.Key] = factOf[delivery](e)
		} else {
			s.fleetKeys[e.Key] = e
		}
		return true
	})
	for _, worker := range m.cfg.Expected {
		m.odd(odd, worker)
	}
	return odd, err
}

func (m *Monitor) odd(o *oddities, worker string) *view {
	if o.of[worker] == nil {
		v := &view{worker: worker, self: m.run.self, expected: m.expected[worker]}
		o.of[worker], o.all = v, append(o.all, v)
	}
	return o.of[worker]
}

// records reads all records, or the old ones.
func (m *Monitor) records(ctx context.Context, s *scan, odd *oddities, all bool) error {
	p := &m.cfg.Policy
	return m.keys.List(ctx, workerPrefix, func(e kvlocation.SharedEntry) bool {
		if !all && s.now.Add(-s.bound).Sub(e.Time) < p.HungAfter {
			return false
		}
		worker, rest, ok := splitKey(e.Key, workerPrefix)
		if !ok || rest != "" {
			return true
		}
		rec := factOf[Record](e)
		if v := odd.of[worker]; v != nil {
			v.record = rec
			return true
		}
		if f := p.judge(rec, s.now, s.bound); f.verdict == Healthy {
			s.fleet.workers++
			s.verdicts[Healthy]++
		} else {
			m.odd(odd, worker).record = rec
		}
		return true
	})
}

// wants reports whether the worker's record is wanted in each look: something is open about it, or it is expected and had
// none.
func (m *Monitor) wants(v *view) bool {
	c := v.incident
	open := c != nil && (c.value.State == IncidentOpen || c.value.running() != nil)
	return open || v.sight != nil || v.timer != nil || v.lock != nil || m.run.holds(v.worker) || v.expected && !m.census.have[v.worker]
}

// quiet is a worker whose heartbeat is fresh and about which nothing is open. It is among those that the census counted;
// somebody may have yet to hear what has become of it.
func (m *Monitor) quiet(s *scan, v *view) {
	v.now, v.bound, v.control = s.now, s.bound, factOf[Control](s.fleetKeys[controlKey])
	if why, _ := v.planned(); why != "" {
		s.planned++
	}
	if m.run.dueAny(v) {
		s.alerts = append(s.alerts, v.worker)
	}
}

// look judges a worker that has more than a healthy record.
func (m *Monitor) look(s *scan, v *view) {
	if v.record == nil && v.incident == nil && !v.expected {
		return // no worker of ours: a marker that came early, or keys that are about to expire
	}
	p := &m.cfg.Policy
	v.now, v.bound = s.now, s.bound
	v.control, v.budget = factOf[Control](s.fleetKeys[controlKey]), factOf[budget](s.fleetKeys[budgetKey])
	v.hands = m.target(v.worker).Restarter != nil
	if v.record != nil || v.expected {
		f := p.judge(v.record, v.now, v.bound)
		s.fleet.workers++
		s.verdicts[f.verdict]++
		why, _ := v.planned()
		if why != "" {
			s.planned++
		} else if f.verdict != Healthy && f.verdict != Stalled {
			s.fleet.broken++
		}
	}
	if v.incident != nil && v.incident.value.State == IncidentOpen {
		s.incidents++
	}
	// The fleet is not counted yet. It can only turn a step into a wait, which is found when the step is taken.
	switch step := p.next(v); {
	case step.do != doWait || m.run.holds(v.worker):
		s.due = append(s.due, v)
	case step.event != "":
		m.run.note(v, step)
		if step.of == "budget" {
			s.waiting++
		}
	}
	if m.run.dueAny(v) {
		s.alerts = append(s.alerts, v.worker)
	}
}
