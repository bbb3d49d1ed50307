package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
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
	defer func() {
		for i := len(r.processes) - 1; i >= 0; i-- {
			err = errors.Join(err, r.processes[i].stop())
		}
	}()
	o.Progress(s.Name + ": starting processes")
	return s.run(ctx, r)
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

// server starts the external server.
func (r *run) server(ctx context.Context, meshes ...string) (p *process, s serverStarted, err error) {
	p, err = r.start(ctx, "server", serverStart{Dir: filepath.Join(r.dir, "server"), Meshes: meshes}, &s)
	return p, s, err
}

// side is one side of a comparison: a slice measures it once.
type side struct {
	name  string
	slice func(ctx context.Context) (Sample, error)
}

// rounds measures all sides in turns and returns their samples, one per round. One slice of each, which is thrown
// away, warms them up.
func rounds(ctx context.Context, n int, sides []side) (map[string][]Sample, error) {
	out := make(map[string][]Sample, len(sides))
	for round := -1; round < n; round++ {
		for _, i := range Order(max(round, 0), len(sides)) {
			s, err := sides[i].slice(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].name, err)
			}
			if round >= 0 {
				out[sides[i].name] = append(out[sides[i].name], s)
			}
		}
	}
	return out, nil
}

// against is one comparison that a scenario's samples allow: the fabric's side against another one.
type against struct {
	name string // of the result
	side string
}

// slices measures one operation for every payload and number of callers, and adds the comparisons to the report.
func (r *run) slices(ctx context.Context, p *process, op string, comparisons ...against) error {
	for _, payload := range r.Payloads {
		for _, callers := range r.Callers {
			r.Progress(fmt.Sprintf("%s: %s, %d bytes, %d callers", r.name, comparisons[0].name, payload, callers))
			sides := []side{r.side(p, sliceKey{op, fabricSide, payload, callers})}
			for _, c := range comparisons {
				sides = append(sides, r.side(p, sliceKey{op, c.side, payload, callers}))
			}
			samples, err := rounds(ctx, r.Pairs, sides)
			if err != nil {
				return err
			}
			for _, c := range comparisons {
				r.report.Results = append(r.report.Results, compare(c.name, payload, callers, samples[fabricSide], samples[c.side])...)
			}
		}
	}
	return nil
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
	common = fmt.Sprintf("nats-server %s embedded in a process of its own, sync_interval always, one server on loopback; %s; "+
		"%d pairs of slices of %v, medians; %s, GOMAXPROCS %d", s.Version, common, r.Pairs, r.Slice, runtime.Version(), runtime.GOMAXPROCS(0))
	r.report.Setups = append(r.report.Setups, Setup{Scenario: name, Common: common, Fabric: fabric, Raw: raw})
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
