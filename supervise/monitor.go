package supervise

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Config says what a monitor does. Policy is required, and a notifier, since an alert that nobody gets is silence.
type Config struct {
	// Policy should be the same for all monitors of a mesh. See DefaultPolicy.
	Policy Policy
	// Targets say how workers are restarted; the first that matches counts. A worker that none matches is left to a
	// person, with a page.
	Targets []Target
	// Notifiers get every alert: 1 to 8 with different names.
	Notifiers []Notifier
	// Expected names workers that are unreachable when they have no record. At most 100,000.
	Expected []string
	// Parallel bounds the workers that are worked on at the same time, and the same again for alerts. Default 64, 1 to 1024.
	Parallel int
	// Logger gets what goes wrong. nil means silence.
	Logger *zap.Logger
}

func (c Config) withDefaults() Config {
	if c.Parallel == 0 {
		c.Parallel = 64
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate returns an error that names every field that is not allowed (SV-3): a verdict without anybody, a restart
// without a restarter, a person whom no notifier reaches.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Policy.Validate()}
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	hands := false
	for i, t := range c.Targets {
		hands = hands || t.Restarter != nil
		if _, err := matches(t.Match, "x"); err != nil || t.Match == "" {
			wrong("Targets[%d].Match %q is not allowed: it must be a pattern, * for instance", i, t.Match)
		}
	}
	for _, v := range verdicts {
		if c.Policy.Responsible[v] == Restart && !hands {
			wrong("Responsible says that workers with verdict %q are restarted, and no target has a restarter", v)
		}
	}
	names := map[string]bool{}
	for i, n := range c.Notifiers {
		switch name := n.Name(); {
		case name == "" || len(name) > 64:
			wrong("Notifiers[%d] has the name %q: it must have 1 to 64 bytes", i, name)
		case names[name]:
			wrong("Notifiers[%d] has the name %q of another one", i, name)
		default:
			names[name] = true
		}
	}
	if len(c.Notifiers) < 1 || len(c.Notifiers) > maxNotifiers {
		wrong("Notifiers has %d: it must have 1 to %d, or nobody hears of what is wrong", len(c.Notifiers), maxNotifiers)
	}
	for _, w := range c.Expected {
		if _, err := escape(w); err != nil {
			wrong("Expected: %w", err)
		}
	}
	if len(c.Expected) > maxExpected {
		wrong("Expected has %d workers: at most %d are allowed", len(c.Expected), maxExpected)
	}
	if c.Parallel < 1 || c.Parallel > 1024 {
		wrong("Parallel %d is not allowed: it must be 1 to 1024", c.Parallel)
	}
	return errors.Join(errs...)
}

const maxExpected = 100_000

// Monitor watches all workers of a mesh and acts on what it finds. Any number of monitors may watch the same workers:
// each alone does all that is to be done, and together they do it once.
//
// Concurrency: every method may be called from any goroutine.
type Monitor struct {
	cfg      Config
	run      *runner
	keys     keys
	expected map[string]bool
	events   *eventWriter

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{}
	work   *pool
	tell   *pool
	blind  blind
	census census // used by scan only

	mu    sync.Mutex
	last  scan                       // guarded by mu
	fails error                      // guarded by mu; of the last scan
	scans struct{ n, failed uint64 } // guarded by mu
}

// NewMonitor starts a monitor. ctx bounds the start alone; Close ends the monitor.
//
// Errors are *outcome.Error: InvalidOperation for a configuration that is not allowed, Unavailable when the store does
// not answer.
func NewMonitor(ctx context.Context, store *kvlocation.Store, cfg Config) (*Monitor, error) {
	m, err := newMonitor(store.Shared(kvlocation.BucketSupervise), string(store.Mesh()), cfg)
	if err != nil {
		return nil, err
	}
	if m.last.clock, err = readClock(ctx, m.keys, monotime.Now); err != nil {
		m.cancel()
		return nil, err
	}
	m.start()
	return m, nil
}

func newMonitor(k keys, mesh string, cfg Config) (*Monitor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, outcome.Wrap("monitor", outcome.InvalidOperation, outcome.NotAccepted, "mesh "+mesh, "", err)
	}
	m := &Monitor{cfg: cfg, keys: k, expected: map[string]bool{}, done: make(chan struct{})}
	for _, w := range cfg.Expected {
		m.expected[w] = true
	}
	st := newStats()
	m.events = newEventWriter(k, cfg.Policy.Retention, st)
	m.run = &runner{
		keys: k, policy: &m.cfg.Policy, self: nuid.Next(), mesh: mesh, mono: monotime.Now, target: m.target, notify: cfg.Notifiers,
		record: m.events.add, told: m.alerts, before: func(step) {}, stats: st, hands: map[string]*hand{},
	}
	m.work, m.tell = newPool(cfg.Parallel), newPool(cfg.Parallel)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

func (m *Monitor) start() {
	go m.events.write()
	go m.loop(m.ctx)
}

// ID is the monitor's name in locks, attempts and events: a fresh one for each monitor.
func (m *Monitor) ID() string { return m.run.self }

// Close ends the monitor. A restart command that runs is waited for, at most Policy.CommandLimit and 5 s more, and then its
// outcome and the last events are written down, within some seconds. It may be called any number of times.
func (m *Monitor) Close() {
	m.cancel()
	<-m.done
}

// matches is path.Match with a slash that is a character like others.
func matches(pattern, worker string) (bool, error) {
	return path.Match(strings.ReplaceAll(pattern, "/", "\x1f"), strings.ReplaceAll(worker, "/", "\x1f"))
}

// target returns how a worker is restarted.
func (m *Monitor) target(worker string) Target {
	for _, t := range m.cfg.Targets {
		if ok, _ := matches(t.Match, worker); ok { // the pattern was checked
			return t
		}
	}
	return Target{}
}

// loop scans at every check interval.
func (m *Monitor) loop(ctx context.Context) {
	defer close(m.done)
	defer m.events.close()
	defer m.tell.wait()
	defer m.work.wait()
	tick := time.NewTicker(m.cfg.Policy.CheckInterval)
	defer tick.Stop()
	for {
		m.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// check is one look at all workers. When the store does not answer, nothing is decided.
func (m *Monitor) check(ctx context.Context) {
	begin := monotime.Now()
	bound, cancel := context.WithTimeout(ctx, max(10*time.Second, m.cfg.Policy.CheckInterval))
	defer cancel()
	s, err := m.scan(bound)
	m.mu.Lock()
	m.scans.n++
	before := m.fails
	if m.fails = err; err != nil {
		m.scans.failed++
	} else {
		s.took, s.end = monotime.Since(begin), monotime.Now()
		m.last = s
	}
	m.mu.Unlock()
	if err != nil {
		if before == nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("the workers can't be looked at; nothing is decided meanwhile", zap.Error(err))
		}
		m.tellBlind(ctx, begin, err)
		return
	}
	if before != nil {
		m.cfg.Logger.Info("the workers can be looked at again")
	}
	m.tellSees(ctx)
	m.dispatch(ctx, s)
	m.events.flush()
}

// dispatch hands each worker for which something is due to a goroutine. One that is still worked on, or finds no
// room, has its turn at the next check.
func (m *Monitor) dispatch(ctx context.Context, s scan) {
	for _, v := range s.due {
		ok := m.work.try(v.worker, func() {
			err := m.run.work(ctx, s.clock, v.worker, s.fleet, m.expected[v.worker])
			m.failed(ctx, "worker", v.worker, err)
		})
		if !ok {
			m.run.stats.deferred.Add(1)
		}
	}
	for _, worker := range s.alerts {
		m.tellLater(ctx, s.clock, worker)
	}
	for _, a := range m.fleetDue(&s) {
		m.tell.try(a.fleetKey(), func() { m.failed(ctx, "fleet", a.Kind, m.tellFleet(ctx, &s, a)) })
	}
}

// fleetDue returns the alerts about the fleet as a whole that are to be told now.
func (m *Monitor) fleetDue(s *scan) []Alert {
	due := m.cfg.Policy.dueFleet(s.fleet, s.budget(), s.now, s.bound, m.run.self, s.waiting)
	return slices.DeleteFunc(due, func(a Alert) bool {
		d := s.fleetAlerts[a.fleetKey()]
		return d != nil && d.value.waits(s.now)
	})
}

func (m *Monitor) tellFleet(ctx context.Context, s *scan, a Alert) error {
	key := a.fleetKey()
	return m.run.deliver(ctx, s.clock, key, s.fleetAlerts[key], a, nil)
}

// alerts is called when alerts about a worker may be due that were not before.
func (m *Monitor) alerts(worker string) {
	m.mu.Lock()
	c := m.last.clock
	m.mu.Unlock()
	if c.mono != nil { // a monitor of a test may have no time to tell by yet
		m.tellLater(m.ctx, c, worker)
	}
}

func (m *Monitor) tellLater(ctx context.Context, c clock, worker string) {
	m.tell.try(worker, func() { m.failed(ctx, "alerts of worker", worker, m.run.tell(ctx, c, worker)) })
}

// failed counts and logs what went wrong with one worker. Nothing else depends on it: the next check begins anew.
func (m *Monitor) failed(ctx context.Context, what, name string, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
	case lostRace(err):
		m.run.stats.races.Add(1)
	default:
		var e *outcome.Error
		if errors.As(err, &e) {
			m.run.stats.storeErrors.Add(1)
		}
		m.cfg.Logger.Warn("not done; the next check begins anew", zap.String(what, name), zap.Error(err))
	}
}

// Metrics returns the monitor's numbers.
func (m *Monitor) Metrics() Snapshot {
	m.mu.Lock()
	s := Snapshot{
		Monitor: m.run.self, Workers: map[Verdict]int{}, Planned: m.last.planned, Incidents: m.last.incidents,
		Scans: m.scans.n, ScansFailed: m.scans.failed, ScanTook: m.last.took, Mode: m.last.mode,
	}
	for v, n := range m.last.verdicts {
		s.Workers[v] = n
	}
	if m.last.end != 0 {
		s.ScanAge = monotime.Since(m.last.end)
	}
	m.mu.Unlock()
	m.run.stats.fill(&s)
	s.Out = m.run.leash.Out()
	return s
}
