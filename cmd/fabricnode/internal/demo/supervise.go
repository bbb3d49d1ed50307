package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

// The demo of supervision: one worker, and the monitors that watch it.
const (
	superviseWorker = "worker-1"
	superviseCount  = 2
)

// DefaultScale makes a minute of the default policy a second of the demo.
const DefaultScale = 1.0 / 60

// SuperviseOptions say how to run the demo of supervision.
type SuperviseOptions struct {
	// Scale multiplies the default policy's times: 0.005 to 1. Default DefaultScale.
	Scale float64
	// Tell, Logger and Abort are those of Options.
	Tell   func(format string, args ...any)
	Logger *zap.Logger
	Abort  func(func())
}

// superviseStage is everything that one demo of supervision has started.
type superviseStage struct {
	o      SuperviseOptions
	policy supervise.Policy
	dir    string
	server *embedded.Server
	child  *supervise.Child

	mu    sync.Mutex
	pipes []*os.File // our ends of the pipes whose closing ends a worker; guarded by mu

	nc       *nats.Conn
	store    *kvlocation.Store
	monitors []*supervise.Monitor
	close    []func() // in reverse order
}

// RunSupervise runs the demo of supervision: a child process reports from its work loop, is frozen with SIGSTOP, and two
// monitors restart it, once. The error says that it could not be run; whether what it shows holds is in the result.
func RunSupervise(ctx context.Context, o SuperviseOptions) (SuperviseResult, error) {
	if o.Scale == 0 {
		o.Scale = DefaultScale
	}
	if !(o.Scale >= 0.005 && o.Scale <= 1) {
		return SuperviseResult{}, fmt.Errorf("scale %v is not allowed: it must be 0.005 to 1", o.Scale)
	}
	if o.Tell == nil {
		o.Tell = func(string, ...any) {}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Abort == nil {
		o.Abort = func(func()) {}
	}
	s := &superviseStage{o: o, policy: supervise.DefaultPolicy().Scale(o.Scale)}
	res, err := s.run(ctx)
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
	o.Abort(nil)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return res, err
}

func (s *superviseStage) run(ctx context.Context) (SuperviseResult, error) {
	if err := s.open(ctx); err != nil {
		return SuperviseResult{}, err
	}
	keys := s.store.Shared(kvlocation.BucketSupervise)
	if err := s.await(ctx, "the worker to work", startTime, func() (bool, error) {
		found, err := supervise.Workers(ctx, keys, s.policy, nil)
		return len(found) == 1 && found[0].State == supervise.Processing && found[0].Beats > 3, err
	}); err != nil {
		return SuperviseResult{}, err
	}
	before, err := supervise.Workers(ctx, keys, s.policy, nil)
	if err != nil {
		return SuperviseResult{}, err
	}
	frozen, err := s.freeze(ctx, keys)
	if err != nil {
		return SuperviseResult{}, err
	}
	s.o.Tell("process %d of %s is frozen with SIGSTOP, in the middle of %s: connections stay open, and it says nothing any more", s.child.PID(), superviseWorker, before[0].Job)
	whole := s.policy.HungAfter + 3*s.policy.CheckInterval + s.policy.Persistence
	if err := s.await(ctx, "the incident to end", whole+startTime, func() (bool, error) {
		c, err := s.incident(ctx, keys)
		return c != nil && c.State == supervise.IncidentRecovered, err
	}); err != nil {
		return SuperviseResult{}, err
	}
	s.o.Tell("%s works again; the monitors go on for the cooldown of %v, in which nothing may happen", superviseWorker, s.policy.Cooldown)
	c, err := s.incident(ctx, keys)
	if err != nil {
		return SuperviseResult{}, err
	}
	if err := s.await(ctx, "the cooldown to pass", s.policy.Cooldown+startTime, func() (bool, error) {
		now, _, err := keys.Now(ctx)
		return now.After(c.Attempts[0].Finished.Add(s.policy.Cooldown + 2*s.policy.CheckInterval)), err
	}); err != nil {
		return SuperviseResult{}, err
	}
	if c, err = s.incident(ctx, keys); err != nil {
		return SuperviseResult{}, err
	}
	steps, err := supervise.Events(ctx, keys, supervise.EventFilter{Worker: superviseWorker})
	if err != nil {
		return SuperviseResult{}, err
	}
	return s.result(frozen, c, steps), nil
}

// incident returns the worker's incident, nil before there is one.
func (s *superviseStage) incident(ctx context.Context, keys *kvlocation.Shared) (*supervise.Incident, error) {
	all, err := supervise.Incidents(ctx, keys, superviseWorker)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// freeze freezes the worker and returns when, on the store's clock.
func (s *superviseStage) freeze(ctx context.Context, keys *kvlocation.Shared) (time.Time, error) {
	if err := freezeChild(s.child); err != nil {
		return time.Time{}, err
	}
	now, _, err := keys.Now(ctx)
	return now, err
}

// await asks again and again until it is so.
func (s *superviseStage) await(ctx context.Context, what string, within time.Duration, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(max(5*time.Millisecond, s.policy.CheckInterval/10))
	defer tick.Stop()
	for {
		if ok, err := so(); err != nil {
			return err
		} else if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

func (s *superviseStage) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if s.dir, err = os.MkdirTemp("", "fabricnode-demo-"); err != nil {
		return err
	}
	s.closing(func() { _ = os.RemoveAll(s.dir) }) // what stays is in the directory for temporary files
	s.o.Abort(func() { _ = os.RemoveAll(s.dir) })
	s.server, err = embedded.Start(ctx, embedded.Config{ServerName: "demo", Port: -1, StoreDir: filepath.Join(s.dir, "nats")})
	if err != nil {
		return err
	}
	s.closing(s.server.Shutdown)
	s.o.Tell("NATS server at %s, data in %s (removed at the end)", s.server.URL(), s.dir)
	if s.nc, s.store, err = s.connect(ctx, "demo"); err != nil {
		return err
	}
	s.child = supervise.NewChild(superviseWorker, s.command)
	s.closing(s.endWorker)
	if err := s.child.Start(); err != nil {
		return err
	}
	for i := range superviseCount {
		name := fmt.Sprintf("monitor-%d", i+1)
		_, store, err := s.connect(ctx, name)
		if err != nil {
			return err
		}
		m, err := supervise.NewMonitor(ctx, store, supervise.Config{
			Policy: s.policy, Logger: s.o.Logger, Notifiers: []supervise.Notifier{teller{s.o.Tell}},
			Targets: []supervise.Target{{Match: "*", Restarter: s.child, Collector: s.child}},
		})
		if err != nil {
			return err
		}
		s.closing(m.Close)
		s.monitors = append(s.monitors, m)
	}
	s.o.Tell("%d monitors watch %s; the default times are scaled by %.4g: a look every %v, hung after %v, %v of persistence, %v of cooldown",
		superviseCount, superviseWorker, s.o.Scale, s.policy.CheckInterval, s.policy.HungAfter, s.policy.Persistence, s.policy.Cooldown)
	return nil
}

func (s *superviseStage) closing(f func()) { s.close = append(s.close, f) }

// connect opens the store on a connection of its own. The first one makes the streams.
func (s *superviseStage) connect(ctx context.Context, name string) (*nats.Conn, *kvlocation.Store, error) {
	nc, err := fabric.Dial(ctx, name, fabric.Connect{URL: s.server.URL()})
	if err != nil {
		return nil, nil, err
	}
	s.closing(nc.Close)
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: Mesh, Replicas: 1}); err != nil {
		return nil, nil, err
	}
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: Mesh, RID: name, Logger: s.o.Logger})
	if err != nil {
		return nil, nil, err
	}
	s.closing(func() { store.Close() })
	return nc, store, nil
}

// command makes the worker's process: this program again.
func (s *superviseStage) command() *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.Command(self, "demo-worker", "--mesh", Mesh, "--server", s.server.URL(), "--worker", superviseWorker, "--every", (s.policy.HungAfter / 12).String())
	cmd.Env = withoutSettings(os.Environ())
	if theirs, ours, err := os.Pipe(); err == nil { // without one the worker says why it can't run
		cmd.ExtraFiles = []*os.File{theirs}
		s.mu.Lock()
		s.pipes = append(s.pipes, ours, theirs)
		s.mu.Unlock()
	}
	return cmd
}

// endWorker kills the worker, frozen or not.
func (s *superviseStage) endWorker() {
	s.child.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.pipes {
		f.Close()
	}
}

// teller tells alerts to whoever watches the demo.
type teller struct {
	tell func(format string, args ...any)
}

// Name is "demo".
func (teller) Name() string { return "demo" }

// Notify tells the alert in one line.
func (t teller) Notify(_ context.Context, a supervise.Alert) error {
	t.tell("alert (%s): %s", a.Severity, a.Text)
	return nil
}

// WorkerOptions say how to run the worker of the demo.
type WorkerOptions struct {
	Mesh, Server, Worker string
	Every                time.Duration
	Logger               *zap.Logger
}

// RunWorker works until ctx ends or the demo's own process has died, and reports from its loop. It is the body of the
// child process.
func RunWorker(ctx context.Context, o WorkerOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := dieWithParent(cancel); err != nil {
		return err
	}
	nc, err := fabric.Dial(ctx, o.Worker, fabric.Connect{URL: o.Server})
	if err != nil {
		return err
	}
	defer nc.Close()
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: o.Mesh, RID: o.Worker, Logger: o.Logger})
	if err != nil {
		return err
	}
	defer store.Close()
	agent, err := supervise.NewAgent(ctx, store.Shared(kvlocation.BucketSupervise), supervise.AgentConfig{Worker: o.Worker, Every: o.Every, Logger: o.Logger})
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	step := 0
	err = agent.Loop().Work(ctx, func(ctx context.Context) (supervise.State, string, string, error) {
		select {
		case <-ctx.Done():
			return "", "", "", ctx.Err()
		case <-tick.C:
		}
		if step++; step%100 == 1 {
			fmt.Printf("process %d begins job-%d\n", os.Getpid(), step/100+1)
		}
		return supervise.Processing, "job-" + strconv.Itoa((step-1)/100+1), strconv.Itoa(step), nil
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), nodeStopTime)
	defer done()
	return errors.Join(err, agent.Close(stop))
}
