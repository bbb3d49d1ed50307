package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/outcome"
)

// story is a demo's counts and journals that bear each other out.
func story() (*counts, map[int][]counted) {
	at := time.Unix(1_000, 0)
	proven := at.Add(LeaseTTL)
	ok := func(client, node string, generation uint64, end time.Time) countOf {
		return countOf{sent: true, client: client, status: 200, bytes: 10, ended: 1, end: end,
			reply: countReply{Node: node, Generation: generation, OwnerGeneration: 1}}
	}
	bad := func(client string, a outcome.Acceptance) countOf {
		return countOf{sent: true, client: client, status: 200, bytes: 10, ended: 1, end: at, err: outcome.New("request", outcome.Unavailable, a, "", "")}
	}
	note := func(node string, line int, generation uint64, client string) counted {
		return counted{node, line, generation, 1, 200, 10, client}
	}
	c := &counts{proof: at, out: []countOf{
		ok("a", "n1", 5, at),
		ok("b", "n3", 6, at),
		ok("b", "n2", 9, proven),
		{}, // a malformed line
		bad("a", outcome.NotAccepted),
		bad("a", outcome.Unknown),
		bad("a", outcome.Unknown), // counted after all
		ok("c", "n3", 7, at),      // released, and never called again
	}}
	noted := map[int][]counted{
		1: {note("n1", 1, 5, "a")}, 2: {note("n3", 2, 6, "b")}, 3: {note("n2", 3, 9, "b")}, 7: {note("n1", 7, 5, "a")}, 8: {note("n3", 8, 7, "c")},
	}
	total := func(n int) (t Totals) {
		for range n {
			t.add(200, 10)
		}
		return t
	}
	c.totals = map[string]countReply{
		"a": {Node: "n1", Generation: 5, OwnerGeneration: 1, Totals: total(2)},
		"b": {Node: "n2", Generation: 9, OwnerGeneration: 1, Totals: total(1)},
	}
	c.mute = map[string]error{"c": outcome.New("request", outcome.NotFound, outcome.NotAccepted, "", "")}
	return c, noted
}

// A proof that cannot fail proves nothing: each claim is broken once, and that claim must fall.
func TestProveCountsSeesEachLie(t *testing.T) {
	c, noted := story()
	for _, p := range c.prove(noted) {
		if !p.Holds {
			t.Fatalf("a true story is refused: %+v", p)
		}
	}
	r := c.result(noted)
	if r.Clients != 3 || r.Sent != 7 || r.Replied != 4 || r.Failed != 1 || r.Unknown != 2 || r.UnansweredCounted != 1 || r.Doubled != 0 ||
		r.Reactivated != 1 || r.LostWithNode != 2 || r.Totals.Requests != 3 || r.Totals.Bytes != 30 || r.Nodes["n3"] != (NodeObjects{2, 2}) {
		t.Errorf("the true story adds up to %+v", r)
	}
	for name, lie := range map[string]struct {
		tell  func(c *counts, noted map[int][]counted)
		claim string
		says  string
	}{
		"never ended":                {func(c *counts, _ map[int][]counted) { c.out[5].ended = 0 }, "exactly once", "line 6"},
		"ended twice":                {func(c *counts, _ map[int][]counted) { c.out[0].ended = 2 }, "exactly once", "line 1"},
		"counted twice by two":       {func(_ *counts, n map[int][]counted) { n[7] = append(n[7], n[2][0]) }, "counted twice", "line 7"},
		"replied, not noted":         {func(_ *counts, n map[int][]counted) { delete(n, 3) }, "under the generation that replied", "line 3"},
		"noted by another":           {func(_ *counts, n map[int][]counted) { n[1][0].node = "n2" }, "under the generation that replied", "line 1"},
		"noted under another":        {func(_ *counts, n map[int][]counted) { n[1][0].generation = 4 }, "under the generation that replied", "line 1"},
		"noted with other bytes":     {func(_ *counts, n map[int][]counted) { n[1][0].bytes = 4 }, "under the generation that replied", "line 1"},
		"not accepted, but counted":  {func(_ *counts, n map[int][]counted) { n[5] = n[1] }, "not accepted", "line 5"},
		"anew before the proof":      {func(c *counts, _ map[int][]counted) { c.out[2].end = c.proof.Add(LeaseTTL - 1) }, "began anew", "line 3"},
		"anew without a release":     {func(c *counts, _ map[int][]counted) { c.proof = time.Time{} }, "began anew", "line 3"},
		"anew while the owner lives": {func(_ *counts, n map[int][]counted) { n[7][0].generation = 8 }, "began anew", "line 7"},
		"two owners":                 {func(_ *counts, n map[int][]counted) { n[7][0].node = "n2" }, "no two nodes", "client a"},
		"forgot a line":              {func(c *counts, _ map[int][]counted) { c.totals["a"] = c.totals["b"] }, "told at the end", "client a"},
		"mute while its node lives":  {func(c *counts, _ map[int][]counted) { delete(c.totals, "a") }, "told at the end", "client a"},
		"mute for another reason":    {func(c *counts, _ map[int][]counted) { c.mute["c"] = errors.New("boom") }, "told at the end", "client c"},
	} {
		t.Run(name, func(t *testing.T) {
			c, noted := story()
			lie.tell(c, noted)
			for _, p := range c.prove(noted) {
				if strings.Contains(p.Claim, lie.claim) && (p.Holds || !strings.Contains(p.Against, lie.says)) {
					t.Errorf("claim %q: holds is %v, against it %q", p.Claim, p.Holds, p.Against)
				}
			}
		})
	}
}
