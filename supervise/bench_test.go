//go:build unix

package supervise

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// benchWorkers and benchMonitors are the fleet of the benchmarks.
const (
	benchWorkers  = 10_000
	benchMonitors = 3
)

// BenchmarkDecision is the decision about one worker alone: from its record to what is to be done. No store, no reading.
func BenchmarkDecision(b *testing.B) {
	p, now := DefaultPolicy(), time.Now()
	healthy := &view{worker: "w", now: now, record: recordAt(Processing, 5*time.Second, now), self: "m", hands: true}
	hung := &view{
		worker: "w", now: now, record: recordAt(Processing, 10*time.Minute, now), self: "m", hands: true, fleet: fleet{workers: benchWorkers, broken: 1},
		sight:    &fact[sighting]{time: now.Add(-5 * time.Minute), value: sighting{Verdict: Hung, Episode: "r7", Record: 7}},
		timer:    &fact[timer]{time: now.Add(-4 * time.Minute), value: timer{Verdict: Hung, Episode: "r7", Record: 7}},
		lock:     &fact[lock]{value: lock{By: "another"}},
		incident: &fact[Incident]{value: Incident{ID: "i", State: IncidentOpen, Verdict: Hung}},
	}
	for name, v := range map[string]*view{"healthy": healthy, "hung": hung} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if s := p.next(v); s.do != doWait {
					b.Fatalf("%v: %s", s.do, s.why)
				}
			}
		})
	}
}

// BenchmarkScan is one look of each of three monitors at 10,000 workers in a real store: reading, decoding and deciding. One
// operation is three looks. Besides the time it reports the processor time of this process (monitors and embedded server
// together) for one worker and look, and what that is of one processor at the default of a look every 30 s.
func BenchmarkScan(b *testing.B) {
	bed := newBed(b)
	ctx := context.Background()
	now, _, err := bed.sh.Now(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchWorkers {
		id := fmt.Sprintf("worker-%05d", i)
		r := Record{V: 1, Worker: id, State: Processing, StateSince: now, Heartbeat: now, Job: "job-4711", Progress: "17", ProgressAt: now, Booted: now, Instance: "benchmark", Beats: 17}
		if _, err := bed.sh.Update(ctx, sharedAt(workerPrefix+id), encode(r), time.Hour); err != nil {
			b.Fatal(err)
		}
	}
	var cast []*still
	p := DefaultPolicy()
	p.HungAfter, p.UnreachableAfter = time.Hour, time.Hour
	for range benchMonitors {
		cast = append(cast, bed.still(b, config(p, &journal{}, &alerts{})))
	}
	before := processorTime(b)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		for _, m := range cast {
			s, err := m.scan(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if s.fleet.workers != benchWorkers || len(s.due) > 0 {
				b.Fatalf("%d workers, %d due", s.fleet.workers, len(s.due))
			}
		}
	}
	b.StopTimer()
	looks := float64(b.N) * benchMonitors * benchWorkers
	each := (processorTime(b) - before).Seconds() / looks
	b.ReportMetric(each*1e9, "cpu-ns/worker-look")
	b.ReportMetric(100*each*benchMonitors*benchWorkers/p.CheckInterval.Seconds(), "%cpu-at-defaults")
}

func sharedAt(key string) kvlocation.SharedEntry { return kvlocation.SharedEntry{Key: key} }

func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTick is what a worker's loop pays for a beat that is not due.
func BenchmarkTick(b *testing.B) {
	bed := newBed(b)
	a, err := NewAgent(testContext(b), bed.sh, AgentConfig{Worker: "w", Every: time.Hour, TTL: 24 * time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	loop := a.Loop()
	loop.Tick(Processing, "job", "0")
	fabrictest.Eventually(b, readyIn, "the first beat", func() bool { _, err := bed.sh.Get(testContext(b), a.key); return err == nil })
	b.ReportAllocs()
	for b.Loop() {
		loop.Tick(Processing, "job", "1")
	}
	b.StopTimer()
	if err := a.Close(testContext(b)); err != nil {
		b.Fatal(err)
	}
}
