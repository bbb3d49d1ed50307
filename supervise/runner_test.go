package supervise

import (
	"context"
	"testing"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
)

// The command begins in its launch window and within a second of the last look, or not at all: whoever was frozen in between has
// the worker looked at again.
func TestCommandBeginsInTime(t *testing.T) {
	p := DefaultPolicy()
	const now = monotime.Time(time.Hour)
	for _, c := range []struct {
		looked, late time.Duration // since the last look, and since the end of the launch window
		runs         bool
	}{
		{0, -time.Second, true}, {maxLook, -time.Second, true}, {maxLook + 1, -time.Second, false}, {0, 0, true}, {0, 1, false},
	} {
		j := &journal{}
		r := &runner{keys: newModelStore(), policy: &p, mesh: "m", mono: func() monotime.Time { return now }}
		v := &view{worker: "w", began: now.Add(-c.looked), incident: &fact[Incident]{at: kvlocation.SharedEntry{Revision: 9}}}
		res := r.run(context.Background(), v, step{attempt: Attempt{ID: "i-1"}}, &hand{until: now.Add(-c.late)}, j)
		if ran := len(j.list()) == 1; ran != c.runs || (res != nil) != c.runs {
			t.Errorf("%v after the last look, %v after the end of its window: %+v", c.looked, c.late, res)
		}
	}
}

// A monitor that was frozen between its intent and the command, or whose intent took too long, or that is told to end meanwhile,
// runs nothing and says so.
func TestIntentThatIsNotRun(t *testing.T) {
	for name, disturb := range map[string]func(s step, intended bool, pass func(time.Duration), stop func()){
		"frozen before the command": func(s step, _ bool, pass func(time.Duration), _ func()) {
			if s.do == doRun {
				pass(DefaultPolicy().LaunchWindow + time.Second)
			}
		},
		"a slow intent": func(s step, intended bool, pass func(time.Duration), _ func()) {
			switch {
			case s.do == doIntend:
				pass(DefaultPolicy().LaunchWindow - time.Second)
			case s.do == doConfirm && intended:
				pass(2 * time.Second)
			}
		},
		"told to end": func(s step, _ bool, _ func(time.Duration), stop func()) {
			if s.do == doIntend {
				stop()
			}
		},
	} {
		now, store, j := epoch, newModelStore(), &journal{}
		store.now = func() time.Time { return now }
		m, err := newMonitor(store, "m", config(DefaultPolicy(), j, &alerts{}))
		if err != nil {
			t.Fatal(err)
		}
		m.run.mono = func() monotime.Time { return monotime.Time(now.Sub(epoch)) }
		m.run.record, m.run.told = func(Event) {}, func(string) {}
		if _, err := store.set(kvlocation.SharedEntry{Key: workerPrefix + "w"}, encode(Record{V: 1, Worker: "w", State: Processing}), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		intended, done := false, false
		m.run.before = func(s step) {
			if !done {
				disturb(s, intended, func(d time.Duration) { now = now.Add(d) }, m.cancel)
			}
			intended = intended || s.do == doIntend
			done = done || s.do == doRun
		}
		var found *fact[Incident]
		for range 40 {
			now = now.Add(m.cfg.Policy.CheckInterval)
			s, err := m.scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range s.due {
				if err := m.run.work(m.ctx, s.clock, v.worker, s.fleet, false); err != nil {
					t.Fatal(err)
				}
			}
			if found = factOf[Incident](store.read(incidentPrefix+"w.case", now)); found != nil && len(found.value.Attempts) > 0 {
				break
			}
		}
		m.cancel()
		if found == nil || len(found.value.Attempts) != 1 || found.value.Attempts[0].Outcome != Cancelled || len(j.list()) > 0 {
			t.Errorf("%s: %+v, commands %+v", name, found, j.list())
		}
	}
}
