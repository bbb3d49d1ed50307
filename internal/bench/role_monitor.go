package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

// monitorRole is one process with one monitor of a mesh's workers.
type monitorRole struct {
	nc      *nats.Conn
	monitor *supervise.Monitor
}

type monitorStart struct {
	URL  string `json:"url"`
	Mesh string `json:"mesh"`
	Name string `json:"name"`
	// Workers are the records that it writes before it watches; all of them idle.
	Workers int `json:"workers"`
}

// checkEvery is the time between two looks of a monitor: a tenth of the default, so that a window holds some.
const checkEvery = 3 * time.Second

func (r *monitorRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[monitorStart](raw)
		if err != nil {
			return nil, err
		}
		return nil, r.start(ctx, a)
	case "cpu":
		used, ok := processorTime()
		if !ok {
			used = -1
		}
		return used, nil
	}
	return nil, unknownOp(op)
}

func (r *monitorRole) start(ctx context.Context, a monitorStart) (err error) {
	if r.nc, err = nats.Connect(a.URL, nats.Name("monitor "+a.Mesh+"/"+a.Name), nats.ReconnectBufSize(-1)); err != nil {
		return err
	}
	store, err := kvlocation.Open(ctx, r.nc, kvlocation.Config{Mesh: a.Mesh, RID: a.Name})
	if err != nil {
		return err
	}
	if err := writeWorkers(ctx, store.Shared(kvlocation.BucketSupervise), a.Workers); err != nil {
		return err
	}
	p := supervise.DefaultPolicy()
	p.CheckInterval = checkEvery
	p.HungAfter, p.UnreachableAfter = time.Hour, time.Hour // nobody beats for these workers
	p.Responsible[supervise.Hung], p.Responsible[supervise.Erroneous] = supervise.Person, supervise.Person
	r.monitor, err = supervise.NewMonitor(ctx, store, supervise.Config{Policy: p, Notifiers: []supervise.Notifier{supervise.Log{}}})
	return err
}

// writeWorkers makes the records of idle workers, some at a time.
func writeWorkers(ctx context.Context, sh *kvlocation.Shared, n int) error {
	now := time.Now()
	const writers = 64
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += writers {
				id := fmt.Sprintf("worker-%05d", i)
				value, err := json.Marshal(supervise.Record{V: 1, Worker: id, State: supervise.Idle, StateSince: now, Heartbeat: now, Booted: now, Instance: "bench", Beats: 1})
				if err == nil {
					_, err = sh.Create(ctx, "worker."+id, value, time.Hour)
				}
				errs[w] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *monitorRole) close(context.Context) error {
	if r.monitor != nil {
		r.monitor.Close()
	}
	if r.nc != nil {
		r.nc.Close()
	}
	return nil
}

// The small fleet of the scenario supervise, and the monitors of each.
const (
	smallFleet = 10
	monitors   = 3
)

func runSupervise(ctx context.Context, r *run) error {
	_, s, err := r.server(ctx, benchMesh, fewMesh)
	if err != nil {
		return err
	}
	fleet := r.Workers
	watch := func(mesh string, workers int) (all []*process, err error) {
		for i := range monitors {
			p, err := r.start(ctx, "monitor", monitorStart{URL: s.URL, Mesh: mesh, Name: fmt.Sprintf("monitor-%d", i), Workers: workers}, nil)
			if err != nil {
				return nil, err
			}
			all, workers = append(all, p), 0 // the first has written them
		}
		return all, nil
	}
	many, err := watch(benchMesh, fleet)
	if err != nil {
		return err
	}
	few, err := watch(fewMesh, smallFleet)
	if err != nil {
		return err
	}
	r.report.Setups = append(r.report.Setups, Setup{
		Scenario: "supervise",
		Common: fmt.Sprintf("nats-server %s embedded in a process of its own; %d monitors, each alone in its process, look every %v (the default is 30 s); processor time of one monitor; "+
			"%d windows of %v, both fleets in the same windows, medians", s.Version, monitors, checkEvery, r.Pairs, r.IdleWindow),
		Fabric: fmt.Sprintf("%d healthy workers", fleet), Raw: fmt.Sprintf("%d healthy workers", smallFleet),
	})
	r.Progress(fmt.Sprintf("supervise: %d windows of %v", r.Pairs, r.IdleWindow))
	var samples [2][]Sample
	var last [2]time.Duration
	for window := range r.Pairs + 1 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(r.IdleWindow):
		}
		for i, group := range [2][]*process{many, few} {
			var sum time.Duration
			for _, p := range group {
				var used time.Duration
				if err := p.call(ctx, "cpu", nil, &used); err != nil {
					return err
				}
				sum += used
			}
			if window > 0 {
				samples[i] = append(samples[i], Sample{CPU: float64(sum-last[i]) / float64(time.Millisecond) / monitors / r.IdleWindow.Seconds()})
			}
			last[i] = sum
		}
	}
	r.add("supervise", 0, 0, samples[0], samples[1])
	return nil
}
