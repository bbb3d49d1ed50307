package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

type explainCmd struct {
	meshFlags
	objectFlags
	Type string `placeholder:"NAME" help:"Say also how an object of this type would be made: a Spot as an Instance Spot."`
}

// explainReply is what explain answers with --json.
type explainReply struct {
	OK bool `json:"ok"`
	objects.Explanation
}

func (c *explainCmd) Run(a *app) error {
	n, err := c.object()
	if err != nil {
		return err
	}
	if c.Type != "" {
		if err := wire.CheckName("--type", c.Type); err != nil {
			return withCode(ExitUsage, err)
		}
	}
	return c.with(a, storeTimeout, func(ctx context.Context, client *fabric.Client) error {
		if n.Kind == "" {
			at, err := locate(ctx, client.Objects(), n)
			if errors.Is(err, outcome.NotFound) {
				return fmt.Errorf("%w (--actor or --spot explains what a call would meet)", err)
			}
			if err != nil {
				return err
			}
			n.ObjectKey = at.Key()
		}
		req := objects.ExplainRequest{Kind: n.Kind, ID: n.ID, Type: c.Type}
		if c.Type != "" {
			req.Class = kvlocation.ClassActor
			if n.Kind == kvlocation.KindSpot {
				req.Class = kvlocation.ClassInstanceSpot
			}
		}
		e, err := client.Objects().Explain(ctx, req)
		if err != nil {
			return err
		}
		if known := e.Location != nil; known || e.Error == outcome.NotFound.String() {
			present := uint64(0)
			if known {
				present = e.Location.Generation
			}
			if err := n.is("explain", present); err != nil {
				return err
			}
		}
		return a.print(explainReply{true, e}, func(w io.Writer) { printExplanation(w, n, e) })
	})
}

func printExplanation(w io.Writer, n named, e objects.Explanation) {
	verdict := "would succeed"
	if !e.WouldSucceed {
		verdict = "would fail: " + e.Error
	}
	fmt.Fprintf(w, "a call to %s %q %s (%s)\n  %s\n", n.Kind, n.ID, verdict, e.Rule, e.Why)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	if e.Location != nil {
		writeLocation(t, *e.Location)
	}
	if o := e.Object; o != nil {
		running := "no turn is running"
		if o.RunningMillis > 0 {
			running = fmt.Sprintf("a turn has been running for %v", time.Duration(o.RunningMillis)*time.Millisecond)
		}
		fmt.Fprintf(t, "  in memory\t%s; waiting: %s (%s); %s; %s\n", o.State, plural(o.Mail, "message"), plural(o.MailBytes, "byte"), running, plural(o.Timers, "timer"))
		if o.MustAdopt {
			fmt.Fprintf(t, "\tits owner's lease lapsed: it is adopted at its next turn\n")
		}
		if !o.LeaseAdmits {
			fmt.Fprintf(t, "\tits owner's lease admits nothing new now\n")
		}
	}
	if e.Location == nil && len(e.Placement) > 0 {
		fmt.Fprintf(t, "  NODE\tWEIGHT\tSCORE\tELIGIBLE\n")
		for _, p := range e.Placement {
			eligible := "yes"
			if !p.Eligible {
				eligible = "no: " + p.Why
			}
			fmt.Fprintf(t, "  %s\t%d\t%.4f\t%s\n", p.RID, p.Weight, p.Score, eligible)
		}
	}
}

type objectsCmd struct {
	meshFlags
	Owner  owner  `placeholder:"RID[/LIFECYCLE]" help:"Those of this node, or of one run of it."`
	Kind   string `enum:",actor,spot" default:"" placeholder:"KIND" help:"actor or spot."`
	Class  string `enum:",actor,user_spot,instance_spot" default:"" placeholder:"CLASS" help:"actor, user_spot or instance_spot."`
	Type   string `placeholder:"NAME" help:"Those of this type."`
	Prefix string `placeholder:"TEXT" help:"Those whose ID begins with it."`
	Limit  int    `default:"100" help:"How many at most: 1 to 1000."`
	Cursor string `placeholder:"TEXT" help:"Go on behind the last page, which says how."`
}

// objectsReply is what objects answers with --json.
type objectsReply struct {
	OK   bool   `json:"ok"`
	Mesh string `json:"mesh"`
	objects.ListPage
}

func (c *objectsCmd) Run(a *app) error {
	if c.Limit < 1 || c.Limit > objects.MaxListLimit {
		return withCode(ExitUsage, fmt.Errorf("--limit %d is not allowed: it must be 1 to %d", c.Limit, objects.MaxListLimit))
	}
	if c.Type != "" {
		if err := wire.CheckName("--type", c.Type); err != nil {
			return withCode(ExitUsage, err)
		}
	}
	return c.with(a, storeTimeout, func(ctx context.Context, client *fabric.Client) error {
		page, err := client.Objects().List(ctx, objects.ListRequest{
			Kind: kvlocation.ObjectKind(c.Kind), Class: kvlocation.Class(c.Class), Type: c.Type, RID: c.Owner.rid,
			Lifecycle: c.Owner.lifecycle, Prefix: c.Prefix, Limit: c.Limit, Cursor: c.Cursor,
		})
		var refused *outcome.Error
		if errors.As(err, &refused) && refused.Kind == outcome.InvalidOperation && refused.Cause != nil {
			return withCode(ExitUsage, fmt.Errorf("--cursor is not allowed: %w", refused.Cause)) // the rest was checked
		}
		if err != nil {
			return err
		}
		if page.Objects == nil {
			page.Objects = []objects.Location{}
		}
		return a.print(objectsReply{true, c.Mesh, page}, func(w io.Writer) { printObjects(w, page) })
	})
}

func printObjects(w io.Writer, page objects.ListPage) {
	if len(page.Objects) == 0 && page.Next == "" {
		fmt.Fprintln(w, "no objects")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TYPE\tCLASS\tPHASE\tOWNER\tALIVE\tOWNER GENERATION\tCREATED\tOBJECT") // an ID may be long
	for _, o := range page.Objects {
		alive := "yes"
		if !o.Alive {
			alive = "no"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s/%d\t%s\t%d\t%s\t%s\n", o.Type, o.Class, o.Phase, o.RID, o.Lifecycle, alive,
			o.OwnerGeneration, o.Created.UTC().Format(time.RFC3339), refText(o.Key(), o.Generation))
	}
	t.Flush()
	if page.Next != "" {
		fmt.Fprintf(w, "more: --cursor %s\n", page.Next)
	}
}
