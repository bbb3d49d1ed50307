package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/cmd/fabricnode/internal/httpd"
	"natsfabric/cmd/fabricnode/internal/reference"
	"natsfabric/fabric"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

type runCmd struct {
	meshFlags
	setupFlags
	serverFlags

	RID        string `name:"rid" placeholder:"NAME" help:"Name of the node in the mesh. Default: a fresh one."`
	AppVersion string `placeholder:"VERSION" help:"Application version in the descriptor."`
	Wave       string `placeholder:"NAME" help:"Maintenance wave of the node."`
	Weight     int    `default:"1" help:"Share of the reference channels, relative to other nodes: 0 (none) to 256."`
	Queue      int    `default:"1024" help:"Accepted requests that may wait, per channel; more are refused."`
	Workers    int    `default:"64" help:"Requests that run at the same time, per channel."`
	Capacity   int    `default:"1000000" help:"Actors and Spots that the node owns at most."`
	HTTP       string `name:"http" default:"127.0.0.1:0" placeholder:"ADDR" help:"Address of /healthz, /readyz and /metrics; port 0 takes a free one, off turns them off. Default ${default}."`

	sessionFlags

	Report    bool `help:"Report as a worker, under the node's name, so that monitors (fabricnode supervise run) see when it hangs."`
	SelfFence bool `help:"Stop this process with exit code 75 when its lease is lost and what runs does not end within 10 s."`

	LeaseTTL     time.Duration `default:"18s" group:"Lease" help:"Life of the owner lease: whole seconds."`
	LeaseRenew   time.Duration `default:"3s" group:"Lease" help:"Time between renewals."`
	LeaseMargin  time.Duration `default:"3s" group:"Lease" help:"How long before the lease's end the node stops taking work."`
	StartTimeout time.Duration `default:"60s" help:"Bound of the start: the embedded cluster's other servers, the streams. A predecessor's lease is waited for beside it."`
	StopTimeout  time.Duration `default:"45s" help:"Bound of an orderly stop."`

	ridIsFresh bool
}

func (c *runCmd) config(a *app) fabric.Config {
	weight := c.Weight
	if weight == 0 {
		weight = channels.WeightOut
	}
	cfg := fabric.Config{
		Mesh: c.Mesh, RID: c.RID, AppVersion: c.AppVersion, Wave: c.Wave, Domain: c.Domain, Connect: c.connect(),
		Channels: reference.Specs(reference.Options{RID: c.RID, Weight: weight, Queue: c.Queue, Workers: c.Workers}),
		Types:    reference.Types(), Capacity: c.Capacity,
		LeaseTTL: c.LeaseTTL, LeaseRenew: c.LeaseRenew, LeaseMargin: c.LeaseMargin, Logger: a.log,
		Supervision: fabric.Supervision{Report: c.Report},
	}
	if c.SelfFence {
		cfg.SelfFence = &fence.SelfFence{}
	}
	return cfg
}

// validate checks what can be checked before anything is started.
func (c *runCmd) validate(cfg fabric.Config) error {
	spec := cfg.Channels[0] // the others are like it
	spec.Weight, cfg.Channels = 1, nil
	errs := []error{c.serverFlags.validate(c), c.meshFlags.validate(), cfg.Validate()}
	if c.Weight < 0 || c.Weight > channels.MaxWeight {
		errs = append(errs, fmt.Errorf("--weight %d is not allowed: it must be 0 to %d", c.Weight, channels.MaxWeight))
	}
	for _, lease := range []struct {
		flag        string
		time, least time.Duration
	}{{"--lease-ttl", c.LeaseTTL, kvlocation.MinTTL}, {"--lease-renew", c.LeaseRenew, kvlocation.MinRenew}, {"--lease-margin", c.LeaseMargin, kvlocation.MinMargin}} {
		if lease.time == 0 { // which means the default in the library
			errs = append(errs, fmt.Errorf("%s 0s is not allowed: it must be at least %v", lease.flag, lease.least))
		}
	}
	switch {
	case c.Queue == 0:
		errs = append(errs, errors.New("--queue 0 is not allowed: it must be at least 1"))
	case c.Workers == 0:
		errs = append(errs, errors.New("--workers 0 is not allowed: it must be at least 1"))
	case c.Capacity == 0:
		errs = append(errs, errors.New("--capacity 0 is not allowed: it must be at least 1"))
	default:
		errs = append(errs, spec.Validate())
	}
	errs = append(errs,
		checkDuration("--start-timeout", c.StartTimeout, time.Second, time.Hour),
		checkDuration("--stop-timeout", c.StopTimeout, time.Second, time.Hour))
	return inFlags(errors.Join(errs...))
}

// servingEvent is what --json prints once the node serves; stoppedEvent, when it has ended.
type servingEvent struct {
	Event     string   `json:"event"`
	Mesh      string   `json:"mesh"`
	RID       string   `json:"rid"`
	Lifecycle uint64   `json:"lifecycle"`
	Server    string   `json:"server"`
	HTTP      string   `json:"http,omitempty"`
	Sessions  string   `json:"sessions,omitempty"` // of WebSockets
	Channels  []string `json:"channels"`
	Types     []string `json:"types"`
	PID       int      `json:"pid"`
}

type stoppedEvent struct {
	Event string `json:"event"`
	RID   string `json:"rid"`
}

func (c *runCmd) Run(a *app) error {
	if c.RID == "" {
		c.RID, c.ridIsFresh = freshRID(), true
	}
	cfg := c.config(a)
	if err := c.validate(cfg); err != nil {
		return err
	}
	if c.Replicas != 0 && !c.Embedded {
		a.log.Warn("--replicas is ignored: without --embedded, run makes no streams; fabricnode init does")
	}
	ctx := a.sig.ctx

	pages, err := httpd.Listen(c.HTTP)
	if err != nil {
		return withCode(ExitUsage, fmt.Errorf("--http: %w", err))
	}
	defer pages.Close()
	gate, err := c.sessionFlags.listen(&cfg)
	if err != nil {
		return withCode(ExitUsage, err)
	}
	defer gate.Close()

	serverLog := newServerLog(a.log)
	node, stop, err := c.start(ctx, cfg, a.log, serverLog)
	defer stop()
	if err != nil {
		return err
	}
	pages.Observe(node)
	gate.Serve(node.Sessions().Handler())
	c.sessionFlags.warn(a.log, gate.URL())
	a.sig.abortWith(func() { c.endAtOnce(a, node) })
	defer a.sig.abortWith(nil)
	watched, err := watchOver(node, a.log)
	if err == nil {
		err = c.serve(a, node, pages, gate, serverLog.full)
	}
	watched.stopping()
	return errors.Join(err, c.shutdown(a, node), watched.end())
}

// start starts the embedded server, if one is wanted, and the node. stop ends the server; it is never nil.
func (c *runCmd) start(ctx context.Context, cfg fabric.Config, log *zap.Logger, serverLog *serverLog) (node *fabric.Node, stop func(), err error) {
	stop = func() {}
	if !c.Embedded {
		node, err = fabric.Start(ctx, cfg)
		return node, stop, startError(err)
	}
	forming, cancel := context.WithTimeout(ctx, c.StartTimeout)
	defer cancel()
	srv, err := c.startServer(forming, serverLog)
	if err != nil {
		return nil, stop, err
	}
	stop = srv.Shutdown
	cfg.Connect.URL = srv.URL()
	cfg.Connect.Options = append(cfg.Connect.Options, srv.InProcess())
	if err := c.initEmbedded(forming, srv, cfg.Connect, log); err != nil {
		return nil, stop, err
	}
	err = c.forming(forming, log, func() (err error) {
		node, err = fabric.Start(ctx, cfg)
		return err
	})
	serverLog.formed()
	return node, stop, startError(err)
}

// serve says that the node serves, and returns when it is told to stop, has ended by itself, or its embedded server's
// disk is full.
func (c *runCmd) serve(a *app, node *fabric.Node, pages *httpd.Server, gate *httpd.Gate, diskFull <-chan struct{}) error {
	ev := servingEvent{
		Event: "serving", Mesh: c.Mesh, RID: c.RID, Lifecycle: node.Lifecycle(), Server: node.Conn().ConnectedUrlRedacted(),
		HTTP: pages.URL(), Sessions: gate.URL(), Channels: []string{reference.Echo, reference.Work}, Types: []string{reference.Ledger}, PID: os.Getpid(),
	}
	a.log.Info("serving", zap.String("mesh", ev.Mesh), zap.String("rid", ev.RID), zap.Uint64("lifecycle", ev.Lifecycle),
		zap.String("server", ev.Server), zap.String("http", ev.HTTP), zap.String("sessions", ev.Sessions), zap.Strings("channels", ev.Channels), zap.Strings("types", ev.Types))
	if a.json {
		if err := a.print(ev, nil); err != nil {
			return err
		}
	}
	select {
	case <-a.sig.ctx.Done():
		return nil
	case <-diskFull:
		return withCode(ExitNATS, fmt.Errorf("data directory %q: %w", cmp.Or(string(c.Data), defaultData), errDiskFull))
	case <-node.Done():
		if node.State() == kvlocation.StateError {
			return withCode(errorStateCode(node.Err()), fmt.Errorf("node %q of mesh %q ended: %w", c.RID, c.Mesh, node.Err()))
		}
		return nil
	}
}

// endAtOnce says what an end without an orderly stop leaves behind.
func (c *runCmd) endAtOnce(a *app, node *fabric.Node) {
	under := 0
	for _, s := range node.Metrics().Served {
		under += s.Running + s.Queued
	}
	text := fmt.Sprintf("fabricnode: ended at once: requests cut off: %d", under)
	held := node.Objects().Metrics()
	turns, mail := 0, 0
	for _, t := range held.Types {
		turns += t.Running
		mail += int(t.Accepted - t.Run - t.Expired - t.Dropped)
	}
	if turns+mail > 0 {
		text += fmt.Sprintf(", turns of objects: %d, with %s waiting", turns, plural(mail, "message"))
	}
	text += fmt.Sprintf("; the lease of %s expires by itself within %v", c.RID, c.LeaseTTL)
	if left := c.left(held, held, node.Lifecycle()); left != "" {
		text += "; " + left
	}
	a.screen.tell("%s", text)
}

// left says how many objects stay with this process run: what it had before its end, but for those that were closed since,
// or never came to be. Empty when none does.
func (c *runCmd) left(before, after objects.Snapshot, lifecycle uint64) string {
	owned := int(before.Closed+before.CreateFailed) - int(after.Closed+after.CreateFailed)
	for _, t := range before.Types {
		owned += t.Owned
	}
	if owned <= 0 {
		return ""
	}
	run := owner{c.RID, lifecycle}
	return fmt.Sprintf("%s with %s, Unavailable until released: fabricnode release --owner %s", stay(owned), run, run)
}

func stay(n int) string {
	if n == 1 {
		return "1 object stays"
	}
	return fmt.Sprintf("%d objects stay", n)
}

func (c *runCmd) shutdown(a *app, node *fabric.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.StopTimeout)
	defer cancel()
	before := node.Objects().Metrics()
	err := node.Shutdown(ctx)
	if left := c.left(before, node.Objects().Metrics(), node.Lifecycle()); left != "" {
		a.log.Warn(left)
	}
	if err != nil {
		code := ExitFailure
		if errors.Is(err, fabric.ErrCutOff) {
			code = ExitAccepted
		}
		return withCode(code, fmt.Errorf("the stop was not orderly: %w", err))
	}
	a.log.Info("stopped", zap.String("rid", c.RID))
	if !a.json {
		return nil
	}
	return a.print(stoppedEvent{"stopped", c.RID}, func(io.Writer) {})
}
