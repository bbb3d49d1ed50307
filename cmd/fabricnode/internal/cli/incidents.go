package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"natsfabric/outcome"
	"natsfabric/supervise"
)

type incidentsCmd struct {
	meshFlags
	Worker string `arg:"" optional:"" help:"Only this worker's, step by step. Default: the present or latest incident of each worker."`
	ID     string `name:"id" placeholder:"INCIDENT" help:"Only the steps of this incident."`
	Open   bool   `help:"Only incidents that are open."`
	Logs   bool   `help:"Also what was collected last from the worker."`
}

// incidentsReply is what incidents answers with --json.
type incidentsReply struct {
	OK        bool                 `json:"ok"`
	Mesh      string               `json:"mesh"`
	Incidents []supervise.Incident `json:"incidents"`
	Events    []supervise.Event    `json:"events,omitempty"`
	Logs      *supervise.Logs      `json:"logs,omitempty"`
}

func (c *incidentsCmd) Run(a *app) error {
	if c.Worker == "" && (c.ID != "" || c.Logs) {
		return withCode(ExitUsage, fmt.Errorf("--id and --logs need a worker"))
	}
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		all, err := supervise.Incidents(ctx, s.keys, c.Worker)
		if err != nil {
			return err
		}
		r := incidentsReply{OK: true, Mesh: c.Mesh, Incidents: []supervise.Incident{}}
		for _, x := range all {
			if !c.Open || x.State == supervise.IncidentOpen {
				r.Incidents = append(r.Incidents, x)
			}
		}
		if c.Worker != "" {
			if r.Events, err = supervise.Events(ctx, s.keys, supervise.EventFilter{Worker: c.Worker, Incident: c.ID}); err != nil {
				return err
			}
			if len(r.Incidents) == 0 && len(r.Events) == 0 {
				return outcome.New("incidents", outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("worker %q", c.Worker), "nothing was ever decided about it, or it is no longer kept")
			}
		}
		if c.Logs {
			l, ok, err := supervise.LogsOf(ctx, s.keys, c.Worker)
			if err != nil {
				return err
			}
			if ok {
				r.Logs = &l
			}
		}
		return a.print(r, func(w io.Writer) { printIncidents(w, r, c.Worker != "") })
	})
}

func printIncidents(w io.Writer, r incidentsReply, steps bool) {
	if len(r.Incidents) == 0 && !steps {
		fmt.Fprintln(w, "no incidents")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORKER\tINCIDENT\tSTATE\tVERDICT\tOPENED\tLASTED\tATTEMPTS\tLAST ATTEMPT\tJOB")
	for _, x := range r.Incidents {
		lasted, last := "", ""
		if !x.Ended.IsZero() {
			lasted = x.Ended.Sub(x.Opened).Round(100 * time.Millisecond).String()
		}
		if n := len(x.Attempts); n > 0 {
			last = string(x.Attempts[n-1].Outcome)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", x.Worker, x.ID, x.State, x.Verdict, x.Opened.UTC().Format(time.RFC3339),
			orDash(lasted), len(x.Attempts), orDash(last), orDash(x.Job))
	}
	t.Flush()
	if steps {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nTIME\tSTEP\tWHICH\tREASON\tMONITOR")
		for _, e := range r.Events {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), e.Kind, orDash(e.Of), orDash(e.Reason), e.By)
		}
		t.Flush()
	}
	if r.Logs != nil {
		fmt.Fprintf(w, "\nlogs of %s:\n%s\n", r.Logs.Time.UTC().Format(time.RFC3339), r.Logs.Text+r.Logs.Error)
	}
}
