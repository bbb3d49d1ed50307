package demo

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// WriteTable writes the result for a person.
func (r Result) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nlines sent\t%d\n", r.Lines)
	fmt.Fprintf(t, "  replied\t%d\t%d of them malformed lines\n", r.Replied, r.Malformed)
	fmt.Fprintf(t, "  failed\t%d\tknown as not accepted, or as accepted and failed\n", r.Failed)
	fmt.Fprintf(t, "  unknown\t%d\tno answer came; the members' files show that %d of them ran\n", r.Unknown, r.UnansweredRan)
	fmt.Fprintf(t, "refusals\t%d\tby a member's full queue, or by one that was not ready\n", r.Refused)
	fmt.Fprintf(t, "re-selections\t%d\tanother member was tried before anybody had accepted\n", r.Reselected)
	fmt.Fprintf(t, "run twice\t%d\n", r.Doubled)

	if len(r.Failures) > 0 {
		fmt.Fprintf(t, "\nNOT REPLIED\tLINES\tFOR EXAMPLE\n")
		for _, f := range r.Failures {
			fmt.Fprintf(t, "%s, %s\t%d\t%s\n", f.Kind, f.Acceptance, f.Lines, f.Example)
		}
	}
	fmt.Fprintf(t, "\nNODE\tREPLIED\tRAN\t\n")
	for _, rid := range slices.Sorted(maps.Keys(r.Nodes)) {
		n := r.Nodes[rid]
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", rid, n.Replied, n.Ran, n.Fate)
	}
	fmt.Fprintf(t, "\nSTATUS\tLINES\n")
	for _, s := range byCount(r.Status) {
		fmt.Fprintf(t, "%s\t%d\n", s, r.Status[s])
	}
	fmt.Fprintf(t, "\nCLASS\tLINES\n")
	for _, c := range byCount(r.Classes) {
		fmt.Fprintf(t, "%s\t%d\n", c, r.Classes[c])
	}
	fmt.Fprintf(t, "\nBUSIEST CLIENT\tLINES\n")
	for _, c := range r.Clients {
		fmt.Fprintf(t, "%s\t%d\n", c.Client, c.Lines)
	}
	r.Objects.write(t)
	fmt.Fprintf(t, "\nPROOF, FROM THE MEMBERS' FILES\n")
	for _, p := range r.Proof {
		verdict := "holds"
		if !p.Holds {
			verdict = "DOES NOT HOLD: " + p.Against
		}
		fmt.Fprintf(t, "%s\t%s\n", p.Claim, verdict)
	}
	fmt.Fprintf(t, "\n%.1f s\n", r.Seconds)
	return t.Flush()
}

func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b))
	})
}

// write writes the part of the clients' Instance Spots.
func (r ObjectsResult) write(w io.Writer) {
	fmt.Fprintf(w, "\nINSTANCE SPOTS\t%d\tone for each client address\n", r.Clients)
	fmt.Fprintf(w, "lines sent to them\t%d\t%d of them again, after the release: the first attempt was not accepted\n", r.Sent, r.Repeated)
	fmt.Fprintf(w, "  replied\t%d\t\n", r.Replied)
	fmt.Fprintf(w, "  failed\t%d\tknown as not accepted, or as accepted and failed\n", r.Failed)
	fmt.Fprintf(w, "  unknown\t%d\tno answer came, and none is sent again; the nodes' files show that %d of them were counted\n", r.Unknown, r.UnansweredCounted)
	fmt.Fprintf(w, "counted twice\t%d\t\n", r.Doubled)
	fmt.Fprintf(w, "released with %s\t%d\tSpots, and %d counted lines with them: they were in its memory\n", killedNode, r.Released, r.LostWithNode)
	fmt.Fprintf(w, "  made again\t%d\tby a later line, under a new generation\n", r.Reactivated)
	fmt.Fprintf(w, "told at the end\t%d\trequests, %d bytes, by all that live\n", r.Totals.Requests, r.Totals.Bytes)
	if len(r.Failures) > 0 {
		fmt.Fprintf(w, "\nNOT COUNTED\tLINES\tFOR EXAMPLE\n")
		for _, f := range r.Failures {
			fmt.Fprintf(w, "%s, %s\t%d\t%s\n", f.Kind, f.Acceptance, f.Lines, f.Example)
		}
	}
	fmt.Fprintf(w, "\nNODE\tSPOTS MADE\tLINES COUNTED\n")
	for _, rid := range slices.Sorted(maps.Keys(r.Nodes)) {
		fmt.Fprintf(w, "%s\t%d\t%d\n", rid, r.Nodes[rid].Spots, r.Nodes[rid].Counted)
	}
}
