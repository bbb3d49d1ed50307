package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// fenceCmd is what operators do about leaderships and fence devices.
type fenceCmd struct {
	Status  fenceStatusCmd  `cmd:"" help:"Say who leads what, and how the fencing of a silent holder stands."`
	Test    fenceTestCmd    `cmd:"" help:"Ask the devices of a plan about a node; with --fence let them cut it off."`
	Confirm fenceConfirmCmd `cmd:"" help:"Vouch for it that a node which is being fenced, or has fallen silent, can do no more harm; promotion goes on from it."`
}

// fenceStore opens the store of leaderships. The name that it goes by there is a fresh one.
func (f *meshFlags) fenceStore(ctx context.Context, a *app) (*kvlocation.Store, *nats.Conn, error) {
	nc, err := f.dial(ctx, a.log)
	if err != nil {
		return nil, nil, err
	}
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: f.Mesh, Domain: f.Domain, RID: "fence-" + nuid.Next(), Logger: a.log})
	if err != nil {
		nc.Close()
		return nil, nil, startError(err)
	}
	return store, nc, nil
}

type fenceStatusCmd struct {
	meshFlags
	Name string `arg:"" optional:"" help:"Only this leadership."`
}

// fenceStatusReply is what fence status answers with --json.
type fenceStatusReply struct {
	OK          bool              `json:"ok"`
	Mesh        string            `json:"mesh"`
	Replicas    int               `json:"replicas"`
	Leaderships []fenceLeadership `json:"leaderships"`
}

// fenceLeadership is one of them.
type fenceLeadership struct {
	fence.Leadership
	Grant    uint64     `json:"grant"`
	Revision uint64     `json:"revision"`
	Written  *time.Time `json:"written,omitempty"`
}

func (c *fenceStatusCmd) Run(a *app) error {
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	store, nc, err := c.fenceStore(ctx, a)
	if err != nil {
		return err
	}
	defer nc.Close()
	defer store.Close()
	all, bad := fence.Leaderships(ctx, store, 0)
	if len(all) == 0 && bad != nil {
		return bad
	}
	if c.Name != "" {
		all = slices.DeleteFunc(all, func(s fence.Status) bool { return s.Name != c.Name })
		if len(all) == 0 {
			return outcome.New("fence status", outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("leadership %q", c.Name), "there is no such leadership")
		}
	}
	replicas, err := store.Shared(kvlocation.BucketFence).Replicas(ctx)
	if err != nil {
		return err
	}
	r := fenceStatusReply{OK: true, Mesh: c.Mesh, Replicas: replicas, Leaderships: []fenceLeadership{}}
	for _, s := range all {
		l := fenceLeadership{Leadership: s.Leadership, Grant: s.Grant, Revision: s.Revision}
		if !s.Written.IsZero() {
			l.Written = &s.Written
		}
		r.Leaderships = append(r.Leaderships, l)
	}
	r.OK = bad == nil // what could be read is shown beside what could not
	return errors.Join(a.print(r, func(w io.Writer) { printLeaderships(w, r) }), bad)
}

func printLeaderships(w io.Writer, r fenceStatusReply) {
	if len(r.Leaderships) == 0 {
		fmt.Fprintln(w, "no leaderships")
	} else {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "NAME\tPHASE\tHOLDER\tGRANT\tFENCED BEFORE THE NEXT\tWRITTEN")
		for _, l := range r.Leaderships {
			holder, fenced, written := "-", "no", "-"
			if l.Holder != nil {
				holder = l.Holder.Node
			}
			if l.MustFence {
				fenced = "yes"
			}
			if l.Written != nil {
				written = l.Written.UTC().Format(time.RFC3339)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", l.Name, l.Phase, holder, l.Grant, fenced, written)
		}
		t.Flush()
	}
	for _, l := range r.Leaderships {
		if c := l.Claim; c != nil {
			fmt.Fprintf(w, "%s: %s fences %s, attempt %d", l.Name, c.By.Node, l.Holder.Node, c.Attempt)
			if c.Device != "" {
				fmt.Fprintf(w, ", device %s of level %d is at work", c.Device, c.Level+1)
			}
			fmt.Fprintln(w, "; nobody leads until it is confirmed")
		}
		for _, t := range l.Tries {
			fmt.Fprintf(w, "  %s attempt %d, level %d, %s: %s: %s\n", t.At.UTC().Format(time.RFC3339), t.Attempt, t.Level+1, t.Device, t.Answer, t.Detail)
		}
		if c := l.Confirmed; c != nil {
			fmt.Fprintf(w, "%s: %s can do no more harm: confirmed by %s (%s) at %s", l.Name, l.Holder.Node, c.How, c.By, c.At.UTC().Format(time.RFC3339))
			if c.Reason != "" {
				fmt.Fprintf(w, ": %s", c.Reason)
			}
			fmt.Fprintln(w)
		}
	}
	if r.Replicas < 3 {
		fmt.Fprintf(w, "the store is kept on fewer than three servers (%d): fencing needs three, or AllowUnreplicated\n", r.Replicas)
	}
}

type fenceConfirmCmd struct {
	meshFlags
	Name   string `arg:"" help:"The leadership whose holder is being fenced."`
	Node   string `required:"" placeholder:"NAME" help:"The node that can do no more harm: it is off, or everything it wrote to is closed to it."`
	Reason string `required:"" placeholder:"TEXT" help:"What was seen; kept in the record."`
	By     string `placeholder:"NAME" help:"Who vouches for it. Default the user and the host."`
}

// fenceConfirmReply is what fence confirm answers with --json.
type fenceConfirmReply struct {
	OK        bool               `json:"ok"`
	Name      string             `json:"name"`
	Node      string             `json:"node"`
	Confirmed fence.Confirmation `json:"confirmed"`
}

func (c *fenceConfirmCmd) Run(a *app) error {
	if err := errors.Join(wire.CheckName("leadership", c.Name), wire.CheckName("--node", c.Node), checkText("--reason", c.Reason, maxReason)); err != nil {
		return withCode(ExitUsage, err)
	}
	if c.By == "" {
		c.By = operator()
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout+fence.MaxTermTTL) // a holder's silence is waited for
	defer cancel()
	store, nc, err := c.fenceStore(ctx, a)
	if err != nil {
		return err
	}
	defer nc.Close()
	defer store.Close()
	s, err := fence.ConfirmFenced(ctx, store, c.Name, c.Node, c.By, c.Reason)
	if err != nil {
		return err
	}
	return a.print(fenceConfirmReply{true, c.Name, c.Node, *s.Confirmed}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: recorded that %s can do no more harm, by %s: %s\n", c.Name, c.Node, c.By, c.Reason)
	})
}
