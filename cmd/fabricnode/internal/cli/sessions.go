package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
	"natsfabric/session"
)

type sessionsCmd struct {
	meshFlags
	RID   string `arg:"" optional:"" name:"rid" help:"Name of the node. Default: every node that takes sessions."`
	Limit int    `default:"100" help:"How many of a node at most: 1 to 1000."`
}

// sessionsReply is what sessions answers with --json, for each node.
type sessionsReply struct {
	OK bool `json:"ok"`
	fabric.SessionsReply
}

func (c *sessionsCmd) Run(a *app) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return withCode(ExitUsage, fmt.Errorf("--limit %d is not allowed: it must be 1 to 1000", c.Limit))
	}
	if err := checkRID("RID", c.RID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	nc, err := c.dial(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	if c.RID != "" {
		return c.show(ctx, a, nc, c.RID)
	}
	all, err := askAdmin[fabric.NodesReply](ctx, nc, wire.Mesh(c.Mesh).Admin("nodes"), "sessions", "all nodes", struct{}{})
	if err != nil {
		return adminJob{op: "sessions", target: "all nodes", look: "no node answers in time"}.failed(ctx, c.Mesh, false, err)
	}
	some := false
	for _, n := range all.Nodes {
		if !n.Alive {
			continue
		}
		switch err := c.show(ctx, a, nc, n.RID); {
		case err == nil:
			some = true
		case !errors.Is(err, outcome.NotConfigured):
			return err
		}
	}
	if !some {
		return outcome.New("sessions", outcome.NotConfigured, outcome.NotAccepted, fmt.Sprintf("mesh %q", c.Mesh), "no node that is alive takes sessions (fabricnode run --sessions)")
	}
	return nil
}

// show asks one node, and prints what it answers.
func (c *sessionsCmd) show(ctx context.Context, a *app, nc *nats.Conn, rid string) error {
	job := adminJob{op: "sessions", target: fmt.Sprintf("node %q", rid), look: "the node does not answer in time"}
	reply, err := askAdmin[fabric.SessionsReply](ctx, nc, wire.Mesh(c.Mesh).Admin("sessions"), job.op, job.target, fabric.SessionsRequest{RID: rid, Limit: c.Limit})
	if err != nil {
		return job.failed(ctx, c.Mesh, false, err)
	}
	if reply.Sessions == nil {
		reply.Sessions = []session.Info{}
	}
	return a.print(sessionsReply{true, reply}, func(w io.Writer) { printSessions(w, reply) })
}

func printSessions(w io.Writer, r fabric.SessionsReply) {
	fmt.Fprintf(w, "%s owns %s; %s of Actors here\n", r.AnsweredBy, plural(r.Stats.Sessions, "session"), plural(r.Stats.Bound, "binding"))
	if len(r.Sessions) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "SESSION\tOVER\tSINCE\tIN FLIGHT\tWAITING\tSUBJECT\tBOUND TO") // what is text comes last
	for _, s := range r.Sessions {
		var bound []string
		for _, b := range s.Bindings {
			bound = append(bound, fmt.Sprintf("%s at %s", b.Actor, b.RID))
		}
		subject, to := s.Subject, strings.Join(bound, ", ")
		if subject == "" {
			subject = "-"
		}
		if to == "" {
			to = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%q\t%s\n", s.Session, s.Transport, s.Since.UTC().Format(time.RFC3339), s.InFlight, s.Waiting, subject, to)
	}
}
