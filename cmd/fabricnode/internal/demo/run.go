package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/cmd/fabricnode/internal/reference"
	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
)

// Mesh is the demo's mesh.
const Mesh = "demo"

// The demo's nodes, and what becomes of them.
const (
	steadyNode = "n1"
	frozenNode = "n2"
	killedNode = "n3"
)

var nodes = []string{steadyNode, frozenNode, killedNode}

const (
	// FreezeTime is longer than a lease of the demo lives.
	FreezeTime = 6 * time.Second
	// returnTime bounds the wait for the thawed node to serve again.
	returnTime = 15 * time.Second
	// startTime bounds the start of the server and the nodes.
	startTime = 30 * time.Second
)

// The greatest values of Options.
const (
	MaxConcurrency = 10_000
	MaxRate        = 1_000_000
)

// Options say what to run. Lines is required.
type Options struct {
	Lines []string
	// Concurrency bounds the lines that are under way at the same time. Default 64.
	Concurrency int
	// Rate is how many lines are sent a second. Default 1,000, or as many as send them all in 10 s.
	Rate int
	// Tell gets what a person should read while the demo runs; one call a line, without a line end. Optional.
	Tell func(format string, args ...any)
	// Progress gets a progress line a few times a second. Optional.
	Progress func(line string)
	// Logger gets the log of the server and of the demo's own client. Optional.
	Logger *zap.Logger
	// Abort is told how to end the child processes and remove the files at once, for a process that must end
	// without waiting; it is told nil when there is nothing left to end. Optional.
	Abort func(func())
}

func (o Options) withDefaults() Options {
	if o.Concurrency == 0 {
		o.Concurrency = 64
	}
	if o.Rate == 0 {
		o.Rate = max(1000, len(o.Lines)/10)
	}
	if o.Tell == nil {
		o.Tell = func(string, ...any) {}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Abort == nil {
		o.Abort = func(func()) {}
	}
	return o
}

func (o Options) validate() error {
	switch {
	case len(o.Lines) == 0:
		return errors.New("there are no lines to send")
	case o.Concurrency < 1 || o.Concurrency > MaxConcurrency:
		return fmt.Errorf("concurrency %d is not allowed: it must be 1 to %d", o.Concurrency, MaxConcurrency)
	case o.Rate < 1 || o.Rate > MaxRate:
		return fmt.Errorf("rate %d is not allowed: it must be 1 to %d lines a second", o.Rate, MaxRate)
	}
	return nil
}

// stage is everything that one demo has started.
type stage struct {
	o      Options
	dir    string
	server *embedded.Server
	client *fabric.Client

	mu    sync.Mutex
	procs map[string]*process // by RID; a process stays here when it has ended
}

// Run runs the demo. The error says that it could not be run; whether what it shows holds is in the result.
func Run(ctx context.Context, o Options) (Result, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	start := time.Now()
	s := &stage{o: o, procs: map[string]*process{}}
	res, err := s.run(ctx)
	err = errors.Join(err, s.close())
	res.Seconds = time.Since(start).Seconds()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return res, err
}

func (s *stage) run(ctx context.Context) (Result, error) {
	if err := s.open(ctx); err != nil {
		return Result{}, err
	}
	s.o.Tell("sending %d lines through channel %q, at most %d at a time, %d a second; each is counted by the Instance Spot of its client", len(s.o.Lines), Channel, s.o.Concurrency, s.o.Rate)
	d := newDriver(s)
	if err := d.run(ctx); err != nil {
		return Result{}, err
	}
	// The journals are complete once the nodes have ended: nothing runs late.
	if err := s.stopNodes(); err != nil {
		return Result{}, err
	}
	noted, err := readJournals(s.dir)
	if err != nil {
		return Result{}, err
	}
	return d.result(noted), nil
}

func (s *stage) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if s.dir, err = os.MkdirTemp("", "fabricnode-demo-"); err != nil {
		return err
	}
	s.o.Abort(s.abort)
	s.server, err = embedded.Start(ctx, embedded.Config{ServerName: "demo", Port: -1, StoreDir: filepath.Join(s.dir, "nats")})
	if err != nil {
		return err
	}
	s.o.Tell("NATS server at %s, data in %s (removed at the end)", s.server.URL(), s.dir)
	connect := fabric.Connect{URL: s.server.URL()}
	nc, err := fabric.Dial(ctx, "demo init", connect)
	if err != nil {
		return err
	}
	_, err = kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: Mesh, Replicas: 1})
	nc.Close()
	if err != nil {
		return err
	}
	if err := s.startNodes(ctx); err != nil {
		return err
	}
	s.client, err = fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: Mesh, Connect: connect, Logger: s.o.Logger})
	if err != nil {
		return err
	}
	for _, rid := range nodes {
		if err := s.awaitNode(ctx, rid); err != nil {
			return err
		}
	}
	s.o.Tell("nodes %v serve; their leases are short for the demo: %v instead of %v", nodes, LeaseTTL, kvlocation.DefaultTTL)
	return nil
}

func (s *stage) startNodes(ctx context.Context) error {
	errs := make(chan error, len(nodes))
	for _, rid := range nodes {
		go func() {
			p, err := startProcess(ctx, rid, s.dir, "demo-node", "--log-level", "info", "--mesh", Mesh, "--rid", rid, "--server", s.server.URL(), "--dir", s.dir)
			if err == nil {
				s.mu.Lock()
				s.procs[rid] = p
				s.mu.Unlock()
			}
			errs <- err
		}()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-errs)
	}
	return err
}

// askPause is the time between two questions to a node whether it serves.
const askPause = 50 * time.Millisecond

// awaitNode returns once the node has answered a request that was addressed to it.
func (s *stage) awaitNode(ctx context.Context, rid string) error {
	for {
		ask, cancel := context.WithTimeout(ctx, time.Second)
		_, err := s.client.Channel(reference.Echo).At(rid).Request(ask, nil)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s does not serve: %w", rid, err)
		case <-time.After(askPause):
		}
	}
}

func (s *stage) proc(rid string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[rid]
}

// started returns the child processes that were started, in any order.
func (s *stage) started() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.procs))
}

// stopNodes ends every node in order, but the one that was killed.
func (s *stage) stopNodes() error {
	errs := make(chan error)
	n := 0
	for _, p := range s.started() {
		if p.rid == killedNode {
			continue
		}
		n++
		go func() { errs <- p.stop() }()
	}
	var err error
	for range n {
		err = errors.Join(err, <-errs)
	}
	return err
}

// close ends, at once, what run has left, and removes the files.
func (s *stage) close() error {
	for _, p := range s.started() {
		p.kill()
	}
	var err error
	if s.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), nodeStopTime)
		err = s.client.Close(ctx)
		cancel()
	}
	if s.server != nil {
		s.server.Shutdown()
	}
	s.o.Abort(nil)
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// abort ends the child processes and removes the files without waiting for anything.
func (s *stage) abort() {
	for _, p := range s.started() {
		// One that has ended already is nobody to end.
		_ = p.cmd.Process.Kill()
	}
	// What the server writes meanwhile may stay behind.
	_ = os.RemoveAll(s.dir)
}
