package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// run is one run of one scenario: its processes, and what it found.
type run struct {
	Options
	name      string
	dir       string
	processes []*process
	report    *Report
	sync      string // of the server that the scenario's figures depend on
}

// Run runs the scenarios one after the other and returns what they measured. ctx ends it early, with an error and what
// is complete. Its children have ended when it returns.
func Run(ctx context.Context, o Options) (Report, error) {
	var report Report
	o, err := o.withDefaults()
	if err != nil {
		return report, err
	}
	for _, s := range scenarios {
		for _, name := range o.Scenarios {
			if name != s.Name {
				continue
			}
			if err := o.run(ctx, s, &report); err != nil {
				return report, fmt.Errorf("scenario %s: %w", s.Name, err)
			}
		}
	}
	return report, nil
}

func (o Options) run(ctx context.Context, s scenario, report *Report) (err error) {
	dir, err := os.MkdirTemp(o.Dir, "fabric-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &run{Options: o, name: s.Name, dir: dir, report: report}
	defer func() { err = errors.Join(err, r.stopAll()) }()
	o.Progress(s.Name + ": starting processes")
	return s.run(ctx, r)
}

// stopAll ends what was started, the last process first.
func (r *run) stopAll() (err error) {
	for _, p := range slices.Backward(r.processes) {
		err = errors.Join(err, p.stop())
	}
	r.processes = nil
	return err
}

// startTimeout bounds the start of a process: a cluster elects, and many nodes take their leases one by one.
const startTimeout = 2 * time.Minute

// start starts a process that ends with the run.
func (r *run) start(ctx context.Context, role string, start, result any) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := startProcess(ctx, r.Command, role, start, result)
	if err != nil {
		return nil, err
	}
	r.processes = append(r.processes, p)
	return p, nil
}

// wait runs one operation of a process, bounded as a start is.
func (r *run) wait(ctx context.Context, p *process, op string, arguments any) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.call(ctx, op, arguments, nil)
}

// server starts the external server with the product's defaults.
func (r *run) server(ctx context.Context, meshes ...string) (p *process, s serverStarted, err error) {
	return r.serverWith(ctx, serverStart{Meshes: meshes})
}

func (r *run) serverWith(ctx context.Context, start serverStart) (p *process, s serverStarted, err error) {
	start.Dir = filepath.Join(r.dir, fmt.Sprintf("server-%d", len(r.report.Setups))) // a scenario may start several
	p, err = r.start(ctx, "server", start, &s)
	r.sync = s.Sync
	return p, s, err
}

// add puts a comparison into the report.
func (r *run) add(name string, payload, callers int, fabric, raw []Sample) {
	for _, x := range compare(name, payload, callers, fabric, raw) {
		x.Sync = r.sync
		r.report.Results = append(r.report.Results, x)
	}
}

// side is one side of a comparison: a slice measures it once.
type side struct {
	name  string
	slice func(ctx context.Context) (Sample, error)
}

// rounds measures all sides in turns, n times, and returns their samples, one per round. One slice of each, which is
// thrown away, warms them up.
func rounds(ctx context.Context, n int, sides []side) (map[string][]Sample, error) {
	out := make(map[string][]Sample, len(sides))
	for r := -1; r < n; r++ {
		if err := round(ctx, r, sides, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// roundsWhile measures all sides in turns for as long as f runs, at least once. An error ends f.
func roundsWhile(ctx context.Context, sides []side, f func(context.Context) error) (map[string][]Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	out := make(map[string][]Sample, len(sides))
	for r := 0; ; r++ {
		if err := round(ctx, r, sides, out); err != nil {
			cancel(err)
			return nil, errors.Join(err, <-done)
		}
		select {
		case err := <-done:
			return out, err
		default:
		}
	}
}

// round measures each side once and appends its sample to out; a round before the first one is thrown away.
func round(ctx context.Context, r int, sides []side, out map[string][]Sample) error {
	for _, i := range Order(max(r, 0), len(sides)) {
		s, err := sides[i].slice(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", sides[i].name, err)
		}
		if r >= 0 {
			out[sides[i].name] = append(out[sides[i].name], s)
		}
	}
	return nil
}

// against is one comparison that a scenario's samples allow: one side against another.
type against struct {
	name string // of the result
	raw  string // side in the column raw
	side string // side in the column fabric; default the fabric's
}

// slices measures one operation for every payload and number of callers, and adds the comparisons to the report.
func (r *run) slices(ctx context.Context, p *process, op string, comparisons ...against) error {
	return r.slicesOf(ctx, p, op, r.Payloads, r.Callers, comparisons...)
}

// slicesOf is slices for given payloads and numbers of callers.
func (r *run) slicesOf(ctx context.Context, p *process, op string, payloads, callers []int, comparisons ...against) error {
	for _, payload := range payloads {
		for _, n := range callers {
			var sides []side
			for _, name := range sidesOf(comparisons) {
				sides = append(sides, r.side(p, sliceKey{Do: op, Side: name, Payload: payload, Callers: n}))
			}
			if err := r.compare(ctx, payload, n, sides, comparisons...); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare measures sides in turns and adds the comparisons to the report.
func (r *run) compare(ctx context.Context, payload, callers int, sides []side, comparisons ...against) error {
	r.Progress(fmt.Sprintf("%s: %s, %d bytes, %d callers", r.name, comparisons[0].name, payload, callers))
	samples, err := rounds(ctx, r.Pairs, sides)
	if err != nil {
		return err
	}
	for _, c := range comparisons {
		r.add(c.name, payload, callers, samples[c.fabric()], samples[c.raw])
	}
	return nil
}

func (c against) fabric() string {
	if c.side == "" {
		return fabricSide
	}
	return c.side
}

// sidesOf lists the sides that take part, each once.
func sidesOf(comparisons []against) (names []string) {
	for _, c := range comparisons {
		for _, name := range []string{c.fabric(), c.raw} {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func (r *run) side(p *process, k sliceKey) side {
	return side{name: k.Side, slice: func(ctx context.Context) (s Sample, err error) {
		ctx, cancel := context.WithTimeout(ctx, startTimeout+r.Slice)
		defer cancel()
		return s, p.call(ctx, "slice", sliceArgs{k, r.Slice}, &s)
	}}
}

// setup adds both configurations to the report.
func (r *run) setup(name string, s serverStarted, common, fabric, raw string) {
	r.report.Setups = append(r.report.Setups, Setup{Scenario: name, Fabric: fabric, Raw: raw, Common: fmt.Sprintf(
		"nats-server %s embedded in a process of its own, sync_interval %s, one server on loopback; %s; "+
			"%d pairs of slices of %v, medians; %s, GOMAXPROCS %d",
		s.Version, s.Sync, common, r.Pairs, r.Slice, runtime.Version(), runtime.GOMAXPROCS(0))})
}

// freePorts returns n ports of loopback that nobody used a moment ago.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func routeTo(port int) string { return "nats://127.0.0.1:" + strconv.Itoa(port) }
