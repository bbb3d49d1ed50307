package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
)

// setupFlags say how the mesh's streams should be.
type setupFlags struct {
	Replicas int `placeholder:"N" help:"Servers that keep each stream: 1, 3 or 5. Default 3 when the server belongs to a cluster, else 1."`
}

func (f setupFlags) validate() error {
	if !slices.Contains([]int{0, 1, 3, 5}, f.Replicas) {
		return fmt.Errorf("--replicas %d is not allowed: it must be 1, 3 or 5", f.Replicas)
	}
	return nil
}

// setup fills in the default, which depends on the server.
func (f setupFlags) setup(m *meshFlags, nc *nats.Conn) (kvlocation.Setup, error) {
	if err := f.validate(); err != nil {
		return kvlocation.Setup{}, withCode(ExitUsage, err)
	}
	if f.Replicas == 0 {
		f.Replicas = 1
		if nc.ConnectedClusterName() != "" {
			f.Replicas = 3
		}
	}
	return kvlocation.Setup{Mesh: m.Mesh, Domain: m.Domain, Replicas: f.Replicas}, nil
}

// setupTimeout bounds init and check.
const setupTimeout = time.Minute

type initCmd struct {
	meshFlags
	setupFlags
	SetReplicas bool `help:"Change the number of replicas of streams that exist."`
}

func (c *initCmd) Run(a *app) error {
	return c.do(a, func(ctx context.Context, nc *nats.Conn, s kvlocation.Setup) (kvlocation.Report, error) {
		s.SetReplicas = c.SetReplicas
		return kvlocation.Init(ctx, nc, s)
	}, c.setupFlags)
}

type checkCmd struct {
	meshFlags
	setupFlags
}

func (c *checkCmd) Run(a *app) error { return c.do(a, kvlocation.Check, c.setupFlags) }

// setupReply is what init and check answer with --json.
type setupReply struct {
	OK bool `json:"ok"`
	kvlocation.Report
}

func (f *meshFlags) do(a *app, run func(context.Context, *nats.Conn, kvlocation.Setup) (kvlocation.Report, error), sf setupFlags) error {
	ctx, cancel := context.WithTimeout(a.sig.ctx, setupTimeout)
	defer cancel()
	nc, err := f.dial(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	s, err := sf.setup(f, nc)
	if err != nil {
		return err
	}
	report, err := run(ctx, nc, s)
	if err != nil {
		return withCode(ExitNATS, err)
	}
	if err := a.print(setupReply{report.OK(), report}, func(w io.Writer) { printReport(w, report) }); err != nil {
		return err
	}
	if !report.OK() {
		return withCode(ExitDrift, fmt.Errorf("mesh %q: the streams are missing or not as they should be", f.Mesh))
	}
	return nil
}

func printReport(w io.Writer, r kvlocation.Report) {
	fmt.Fprintf(w, "mesh %s on nats-server %s\n", r.Mesh, r.Server)
	for _, b := range r.Buckets {
		state := "as it should be"
		switch {
		case b.Missing:
			state = "missing: fabricnode init makes it"
		case b.Created:
			state = "made"
		case b.Changed:
			state = "replicas changed"
		case len(b.Drift) > 0:
			state = "not as it should be"
		}
		fmt.Fprintf(w, "  %s: %s", b.Bucket, state)
		if !b.Missing {
			fmt.Fprintf(w, " (replicas %d, epoch %d)", b.Replicas, b.Epoch)
		}
		fmt.Fprintln(w)
		for _, d := range b.Drift {
			fmt.Fprintf(w, "    %s\n", d)
		}
	}
}
