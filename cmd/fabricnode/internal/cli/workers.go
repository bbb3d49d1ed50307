package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"natsfabric/supervise"
)

type workersCmd struct {
	meshFlags
	policyFlags
	Expect []string `placeholder:"WORKER,..." help:"Workers that are unreachable when they have no record."`
}

// workersReply is what workers answers with --json.
type workersReply struct {
	OK      bool                     `json:"ok"`
	Mesh    string                   `json:"mesh"`
	Control *supervise.Control       `json:"control,omitempty"`
	Workers []supervise.WorkerStatus `json:"workers"`
}

func (c *workersCmd) Run(a *app) error {
	p, err := c.policy()
	if err != nil {
		return err
	}
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		control, err := supervise.GetControl(ctx, s.keys)
		if err != nil {
			return err
		}
		workers, err := supervise.Workers(ctx, s.keys, p, c.Expect)
		if err != nil {
			return err
		}
		if workers == nil {
			workers = []supervise.WorkerStatus{}
		}
		return a.print(workersReply{true, c.Mesh, control, workers}, func(w io.Writer) { printWorkers(w, workers, control) })
	})
}

func printWorkers(w io.Writer, workers []supervise.WorkerStatus, control *supervise.Control) {
	if control != nil {
		fmt.Fprintln(w, controlText(control))
	}
	if len(workers) == 0 {
		fmt.Fprintln(w, "no workers")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORKER\tVERDICT\tSTATE\tHEARTBEAT\tJOB\tPROGRESS\tRESTARTS\tINCIDENT\tPLANNED")
	for _, x := range workers {
		planned := ""
		if x.Marker != nil {
			planned = fmt.Sprintf("%s until %s", x.Marker.Action, x.Marker.Until.UTC().Format(time.RFC3339))
		}
		state, age := string(x.State), x.Age.Round(100*time.Millisecond).String()+" ago"
		if x.Instance == "" {
			state, age = "", "never"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", x.Worker, x.Verdict, orDash(state), age, orDash(x.Job), orDash(x.Progress),
			x.Restarts, orDash(x.Incident), orDash(planned))
	}
	t.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
