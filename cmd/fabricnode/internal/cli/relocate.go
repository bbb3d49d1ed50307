package cli

import (
	"context"
	"encoding/json"
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
	"natsfabric/relocate"
)

// askTimeout bounds one operator request; a node answers within 4 s.
const askTimeout = 5 * time.Second

// askAdmin asks a node, and reads its answer.
func askAdmin[T any](ctx context.Context, nc *nats.Conn, subject, op, target string, request any) (reply T, err error) {
	data, err := json.Marshal(request)
	if err != nil {
		return reply, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return reply, err
	}
	if e := outcome.FromHeaders(m.Header, op, target); e != nil {
		return reply, e
	}
	return reply, json.Unmarshal(m.Data, &reply)
}

// adminJob is something that a node works on: asked for at any node, which passes it on, then followed at the one that works.
type adminJob struct {
	op, target string
	goesOn     string // what becomes of it without the command
	look       string // how the operator finds out how it ended
}

// failed puts an error of a question into an operator's words. begun: the job had been answered for before.
func (j adminJob) failed(ctx context.Context, mesh string, begun bool, err error) error {
	var known *outcome.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, nats.ErrNoResponders) && begun:
		return outcome.New(j.op, outcome.Unavailable, outcome.Unknown, j.target, "the node that worked on it has gone; "+j.look)
	case errors.Is(err, nats.ErrNoResponders):
		return outcome.Wrap(j.op, outcome.Unavailable, outcome.NotAccepted, j.target, fmt.Sprintf("no node of mesh %q serves", mesh), err)
	case ctx.Err() != nil:
		return outcome.FromContext(ctx, j.op, outcome.Unknown, j.target, "the wait for it has ended; "+j.goesOn)
	}
	return outcome.Wrap(j.op, outcome.Unavailable, outcome.Unknown, j.target, "no answer; "+j.look, err)
}

type relocateCmd struct {
	meshFlags
	objectFlags
	To      string        `placeholder:"RID" help:"The node to which it moves, whatever its wave and version. Default: the one that fits best, as in a drain for maintenance."`
	Timeout time.Duration `default:"2m" help:"How long to wait for the end. The move goes on without the command."`
}

// relocateReply is what relocate answers with --json.
type relocateReply struct {
	OK  bool   `json:"ok"`
	Ref string `json:"ref"`
	fabric.MoveReply
}

func (c *relocateCmd) Run(a *app) error {
	n, err := c.object()
	switch {
	case err != nil:
		return err
	case n.Kind == "":
		return withCode(ExitUsage, fmt.Errorf("%q says neither Actor nor Spot: give --actor or --spot, or a word like actor/alice", n.ID))
	}
	if err := errors.Join(checkRID("--to", c.To), withCode(ExitUsage, checkDuration("--timeout", c.Timeout, time.Second, time.Hour))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, c.Timeout)
	defer cancel()
	nc, err := c.dial(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	target := word(n.ObjectKey)
	if n.generation > 0 {
		target = n.text()
	}
	job := adminJob{op: "relocate", target: target, goesOn: "the move goes on", look: "fabricnode locate " + word(n.ObjectKey) + " says where it is"}
	request := fabric.MoveRequest{Kind: n.Kind, ID: n.ID, Generation: n.generation, To: c.To}
	subject := wire.Mesh(c.Mesh).Admin("relocate")
	for {
		reply, err := askAdmin[fabric.MoveReply](ctx, nc, subject, job.op, target, request)
		if err != nil {
			a.screen.end()
			return job.failed(ctx, c.Mesh, request.Poll, err)
		}
		if reply.Done {
			a.screen.end()
			ref := refText(n.ObjectKey, reply.Moved.Generation)
			return a.print(relocateReply{true, ref, reply}, func(w io.Writer) { printMoved(w, ref, *reply.Moved) })
		}
		subject, request.Poll = reply.Poll, true
		a.screen.progress(fmt.Sprintf("%s moves it since %s", reply.AnsweredBy, reply.Started.UTC().Format(time.TimeOnly)))
	}
}

func printMoved(w io.Writer, ref string, m relocate.Moved) {
	fmt.Fprintf(w, "%s moved from %s to %s, owner generation %d\n", ref, m.From.RID, m.To.RID, m.OwnerGeneration)
	fmt.Fprintf(w, "  %s, %s of state, %s taken along, %s held meanwhile; its senders felt %v\n", plural(m.Objects, "object"),
		plural(m.Bytes, "byte"), plural(m.Work, "message"), plural(int(m.Held), "message"), m.Phases.Blackout.Round(10*time.Microsecond))
}

type drainCmd struct {
	meshFlags
	RID     string        `arg:"" name:"rid" help:"Name of the node whose objects are to move."`
	Mode    string        `enum:"maintenance,rolling_update" default:"maintenance" placeholder:"MODE" help:"maintenance: to nodes of the same version, of another wave. rolling_update: to nodes of --version. Default ${default}."`
	Version string        `name:"version" placeholder:"VERSION" env:"-" help:"The higher application version whose nodes take the objects in a rolling_update."`
	Watch   bool          `help:"Wait for the end, and show how far it is. Without it the command begins the drain, and waits 2 s for its end."`
	Timeout time.Duration `default:"2h" help:"How long --watch waits. The drain goes on without the command; the same command asks again."`
}

// drainReply is what drain answers with --json. OK: everything has moved, or is about to.
type drainReply struct {
	OK  bool   `json:"ok"`
	RID string `json:"rid"`
	fabric.DrainReply
}

func (c *drainCmd) mode() (relocate.Mode, error) {
	m := relocate.Mode{Kind: relocate.ModeKind(c.Mode), Version: c.Version}
	switch {
	case m.Kind == relocate.RollingUpdate && c.Version == "":
		return m, withCode(ExitUsage, errors.New("--version is missing: --mode rolling_update needs the version whose nodes take the objects"))
	case m.Kind == relocate.Maintenance && c.Version != "":
		return m, withCode(ExitUsage, errors.New("--version is for --mode rolling_update: in maintenance objects move to nodes of the same version"))
	}
	return m, nil
}

func (c *drainCmd) Run(a *app) error {
	mode, err := c.mode()
	if err != nil {
		return err
	}
	if err := errors.Join(checkRID("RID", c.RID), withCode(ExitUsage, checkDuration("--timeout", c.Timeout, time.Second, 24*time.Hour))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, c.Timeout)
	defer cancel()
	nc, err := c.dial(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	reply, err := c.drain(ctx, a, nc, fabric.DrainRequest{RID: c.RID, Mode: mode})
	a.screen.end()
	if err != nil {
		return err
	}
	blocked := reply.Done && reply.Result.Outcome == relocate.Blocked
	if err := a.print(drainReply{!blocked, c.RID, reply}, func(w io.Writer) { printDrain(w, c.RID, reply) }); err != nil {
		return err
	}
	if blocked {
		r := reply.Result
		return withCode(ExitBlocked, fmt.Errorf("drain node %q: Blocked by %s, %d of %d stayed: %s", c.RID, r.Reason, r.KeptCount, r.KeptCount+r.Moved, r.Reason.Text()))
	}
	return nil
}

// drain begins a drain, and with --watch follows it to its end.
func (c *drainCmd) drain(ctx context.Context, a *app, nc *nats.Conn, request fabric.DrainRequest) (fabric.DrainReply, error) {
	job := adminJob{op: "drain", target: fmt.Sprintf("node %q", c.RID), goesOn: "the drain goes on, and the same command asks how far it is",
		look: fmt.Sprintf("fabricnode objects --owner %s shows what it still has", c.RID)}
	subject := wire.Mesh(c.Mesh).Admin("drain")
	for {
		reply, err := askAdmin[fabric.DrainReply](ctx, nc, subject, job.op, job.target, request)
		if err != nil {
			return reply, job.failed(ctx, c.Mesh, request.Poll, err)
		}
		if reply.Done || !c.Watch {
			return reply, nil
		}
		subject, request.Poll = reply.Poll, true
		a.screen.progress(drainProgress(reply.Progress))
	}
}

func drainProgress(p relocate.Progress) string {
	return fmt.Sprintf("%d of %d moved, %d stay so far, %d under way", p.Moved, p.Total, p.Kept, p.Moving)
}

func printDrain(w io.Writer, rid string, r fabric.DrainReply) {
	if !r.Done {
		fmt.Fprintf(w, "%s is %s: %s; --watch waits for the end\n", rid, r.State, drainProgress(r.Progress))
		return
	}
	res := r.Result
	fmt.Fprintf(w, "%s: %s", rid, res.Outcome)
	if res.Outcome == relocate.Blocked {
		fmt.Fprintf(w, " (%s)", res.Reason)
	}
	fmt.Fprintf(w, ": %d moved (%s), %d stayed\n", res.Moved, plural(res.Objects, "object"), res.KeptCount)
	if res.Outcome == relocate.Relocated {
		fmt.Fprintln(w, "  nothing is left; stop the process: it passes on what comes by old routes until those are out of use")
		return
	}
	if res.Detail != "" && !strings.Contains(res.Detail, res.Reason.Text()) { // the reason's text is that of the failure
		fmt.Fprintf(w, "  %s\n", res.Detail)
	}
	if len(res.Kept) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STAYED\tTYPE\tREASON\tWHY")
	for _, k := range res.Kept {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", refText(k.Key, k.Generation), k.Type, k.Reason, k.Detail)
	}
	t.Flush()
	if more := res.KeptCount - len(res.Kept); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}
