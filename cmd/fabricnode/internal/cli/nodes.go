package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// storeTimeout bounds what nodes and forget ask of the store.
const storeTimeout = 10 * time.Second

type nodesCmd struct {
	meshFlags
}

// nodesReply is what nodes answers with --json.
type nodesReply struct {
	OK    bool                    `json:"ok"`
	Mesh  string                  `json:"mesh"`
	Nodes []kvlocation.NodeStatus `json:"nodes"`
}

func (c *nodesCmd) Run(a *app) error {
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	client, err := c.client(ctx, storeTimeout, a.log)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	nodes, err := client.Store().Nodes(ctx)
	if err != nil {
		return err
	}
	return a.print(nodesReply{true, c.Mesh, nodes}, func(w io.Writer) { printNodes(w, nodes) })
}

func printNodes(w io.Writer, nodes []kvlocation.NodeStatus) {
	if len(nodes) == 0 {
		fmt.Fprintln(w, "no nodes")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RID\tALIVE\tSTATE\tLIFECYCLE\tVERSION\tWAVE\tCHANNELS (WEIGHT)\tTYPES\tLEASE RENEWED")
	for _, n := range nodes {
		alive, state, version, wave, renewed := "no", "-", "-", "-", "-"
		var chans []string
		if n.Alive {
			alive = "yes"
		}
		if n.Renewed != nil {
			renewed = n.Renewed.UTC().Format(time.RFC3339)
		}
		if d := n.Descriptor; d != nil {
			state, version = string(d.State), d.AppVersion
			if d.Wave != "" {
				wave = d.Wave
			}
			for _, c := range d.Channels {
				chans = append(chans, fmt.Sprintf("%s (%d)", c.Name, c.Weight))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", n.RID, alive, state, n.Lifecycle, version, wave,
			strings.Join(chans, ", "), typesText(n.Descriptor), renewed)
	}
	t.Flush()
}

// typesText lists a node's object types: each name with the classes that it is registered for.
func typesText(d *kvlocation.Descriptor) string {
	if d == nil || len(d.Types) == 0 {
		return "-"
	}
	classes := map[string][]string{}
	var names []string
	for _, t := range d.Types {
		if classes[t.Name] == nil {
			names = append(names, t.Name)
		}
		class := string(t.Class)
		if t.Full {
			class += " (full)"
		}
		classes[t.Name] = append(classes[t.Name], class)
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%s)", name, strings.Join(classes[name], ", "))
	}
	return strings.Join(names, ", ")
}

type forgetCmd struct {
	meshFlags
	RID string `arg:"" name:"rid" help:"Name of the dead node."`
}

// forgetReply is what forget answers with --json.
type forgetReply struct {
	OK        bool   `json:"ok"`
	Mesh      string `json:"mesh"`
	Forgotten string `json:"forgotten"`
}

func (c *forgetCmd) Run(a *app) error {
	if err := wire.CheckName("RID", c.RID); err != nil {
		return withCode(ExitUsage, err)
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	client, err := c.client(ctx, storeTimeout, a.log)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	if err := client.Store().ForgetNode(ctx, c.RID); err != nil {
		return err
	}
	return a.print(forgetReply{true, c.Mesh, c.RID}, func(w io.Writer) {
		fmt.Fprintf(w, "the descriptor of node %q is removed\n", c.RID)
	})
}
