package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

type releaseCmd struct {
	meshFlags
	exactFlags
	Owner   owner         `group:"Bulk" placeholder:"RID/LIFECYCLE" help:"Release every object that this process run owns, in place of one object."`
	Type    string        `group:"Bulk" placeholder:"NAME" help:"Only those of this type."`
	DryRun  bool          `group:"Bulk" help:"Say what would be released; change nothing."`
	Rate    *int          `group:"Bulk" placeholder:"N" help:"Releases a second at most: 1 to 10000. Default 500."`
	Reason  string        `placeholder:"TEXT" help:"Goes into the audit entries."`
	Timeout time.Duration `default:"10m" help:"How long to wait for the end. The release goes on at the node that works on it; the same command goes on with what is left."`
}

const (
	// releasePoll bounds one question to the node that works on a release; it answers within half of it.
	releasePoll = 5 * time.Second
	// maxReason bounds --reason.
	maxReason = 1000
)

// releaseReply is what release answers with --json.
type releaseReply struct {
	OK bool `json:"ok"`
	fabric.ReleaseReply
}

// request checks the flags.
func (c *releaseCmd) request() (objects.ReleaseRequest, string, error) {
	req := objects.ReleaseRequest{DryRun: c.DryRun, Reason: c.Reason, By: operator()}
	if c.Rate != nil {
		req.Rate = *c.Rate
	}
	usage := func(err error) (objects.ReleaseRequest, string, error) { return req, "", withCode(ExitUsage, err) }
	switch {
	case len(c.Reason) > maxReason:
		return usage(fmt.Errorf("--reason has %d bytes: it may have %d", len(c.Reason), maxReason))
	case c.Rate != nil && (req.Rate < 1 || req.Rate > objects.MaxReleaseRate):
		return usage(fmt.Errorf("--rate %d is not allowed: it must be 1 to %d", req.Rate, objects.MaxReleaseRate))
	}
	if c.Owner.rid == "" {
		if c.Type != "" || c.Rate != nil {
			return usage(errors.New("--type and --rate need --owner"))
		}
		n, err := c.exact()
		req.Kind, req.ID, req.Generation = n.Kind, n.ID, n.generation
		return req, n.text(), err
	}
	switch {
	case c.Actor != nil || c.Spot != nil || c.Object != "" || c.Generation != 0:
		return usage(errors.New("--owner clashes with the name of an object: give one of them"))
	case c.Owner.lifecycle == 0:
		return usage(fmt.Errorf("--owner %q is not allowed: it must be RID/LIFECYCLE, with the number that fabricnode objects --owner %s shows", c.Owner.rid, c.Owner.rid))
	}
	if c.Type != "" {
		if err := wire.CheckName("--type", c.Type); err != nil {
			return usage(err)
		}
	}
	req.RID, req.Lifecycle, req.Type = c.Owner.rid, c.Owner.lifecycle, c.Type
	return req, "objects of " + c.Owner.String(), nil
}

// operator names who releases, for the audit entries.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func (c *releaseCmd) Run(a *app) error {
	req, target, err := c.request()
	if err != nil {
		return err
	}
	if err := checkDuration("--timeout", c.Timeout, time.Second, 24*time.Hour); err != nil {
		return withCode(ExitUsage, err)
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, c.Timeout)
	defer cancel()
	nc, err := c.dial(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	report, err := c.release(ctx, a, nc, req, target)
	a.screen.end()
	if err != nil {
		return err
	}
	if err := a.print(releaseReply{report.Failed == 0, report}, func(w io.Writer) { printRelease(w, target, report) }); err != nil {
		return err
	}
	if report.Failed > 0 {
		return withCode(ExitFailure, fmt.Errorf("%d of the %s were not released: the same command goes on with them", report.Failed, target))
	}
	return nil
}

// release begins a release at any node, and asks that node until it has ended. When the node goes away another one goes
// on; that it finds nothing is the end of a release then, and a mistake of the operator's where nothing had begun.
func (c *releaseCmd) release(ctx context.Context, a *app, nc *nats.Conn, req objects.ReleaseRequest, target string) (fabric.ReleaseReply, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return fabric.ReleaseReply{}, err
	}
	anyNode := wire.Mesh(c.Mesh).Admin("release")
	subject, lost, last := anyNode, 0, fabric.ReleaseReply{}
	for {
		report, err := askRelease(ctx, nc, subject, data, target)
		nothing := req.RID != "" && errors.Is(err, outcome.NotFound)
		switch {
		case err == nil && report.Done:
			return report, nil
		case err == nil:
			subject, lost, last = report.Poll, 0, report
			a.screen.progress(releaseProgress(report))
		case nothing && last.Poll != "":
			last.Done, last.Waiting = true, false
			return last, nil
		case nothing:
			return report, fmt.Errorf("%w (fabricnode objects --owner %s shows what is left)", err, req.RID)
		case errors.Is(err, nats.ErrNoResponders) && subject == anyNode:
			return report, outcome.Wrap("release", outcome.Unavailable, outcome.NotAccepted, target, fmt.Sprintf("no node of mesh %q serves: a release is the work of one, so start one", c.Mesh), err)
		case ctx.Err() != nil:
			return report, outcome.FromContext(ctx, "release", outcome.Unknown, target, "the wait for it has ended; "+goesOn(last)+", and the same command goes on with what is left")
		case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded) && lost < 2:
			a.screen.tell("the node that worked on the release does not answer; another one is asked to go on")
			subject = anyNode
			lost++
		default:
			return report, err
		}
	}
}

func askRelease(ctx context.Context, nc *nats.Conn, subject string, data []byte, target string) (r fabric.ReleaseReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, releasePoll)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return r, err
	}
	if e := outcome.FromHeaders(m.Header, "release", target); e != nil {
		return r, e
	}
	return r, json.Unmarshal(m.Data, &r)
}

// goesOn says where a release goes on without the command.
func goesOn(last fabric.ReleaseReply) string {
	if last.AnsweredBy == "" {
		return "a node that took it works on it"
	}
	return last.AnsweredBy + " works on it"
}

func releaseProgress(r fabric.ReleaseReply) string {
	if r.Waiting {
		return fmt.Sprintf("%s makes sure that the owner is gone, until %s at least", r.AnsweredBy, r.Until.UTC().Format(time.TimeOnly))
	}
	return fmt.Sprintf("%d released, %d skipped, %d failed", r.Released, r.Skipped, r.Failed)
}

func printRelease(w io.Writer, target string, r fabric.ReleaseReply) {
	verb := "released"
	if r.DryRun {
		verb = "would be released"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, o := range r.Objects {
		if r.DryRun || o.Outcome != "released" {
			row := []string{refText(kvlocation.ObjectKey{Kind: o.Kind, ID: o.ID}, o.Generation), o.Type, o.Outcome}
			if o.Why != "" {
				row = append(row, o.Why)
			}
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
	}
	t.Flush()
	fmt.Fprintf(w, "%s: %d %s", target, r.Released, verb)
	if r.Skipped > 0 || r.Failed > 0 {
		fmt.Fprintf(w, ", %d skipped, %d failed", r.Skipped, r.Failed)
	}
	if !r.DryRun && r.Released+r.Skipped+r.Failed == 0 {
		fmt.Fprint(w, "; none is left, they were released or closed meanwhile")
	}
	fmt.Fprintln(w)
}
