package demo

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"natsfabric/outcome"
)

// prove checks how the counts ended, and what the Spots said at the end, against what the nodes noted.
func (c *counts) prove(noted map[int][]counted) []Proof {
	lives := livesOf(noted)
	claims := []struct {
		text    string
		against func(line int, o *countOf, noted []counted) string // empty: nothing
	}{
		{"every line with a client was counted, refused or left unknown exactly once", func(_ int, o *countOf, _ []counted) string {
			if want := btoi(o.sent); o.ended != want {
				return fmt.Sprintf("it ended %d times, want %d", o.ended, want)
			}
			return ""
		}},
		{"no line was counted twice, those that were sent again included", func(_ int, _ *countOf, noted []counted) string {
			if len(noted) > 1 {
				return fmt.Sprintf("it was counted %d times: %+v", len(noted), noted)
			}
			return ""
		}},
		{"every counted line stands in the file of the node and under the generation that replied", func(line int, o *countOf, noted []counted) string {
			want := counted{o.reply.Node, line, o.reply.Generation, o.reply.OwnerGeneration, o.status, o.bytes, o.client}
			if o.sent && o.ended > 0 && o.err == nil && !slices.Equal(noted, []counted{want}) {
				return fmt.Sprintf("the files have %+v, the reply is %+v", noted, want)
			}
			return ""
		}},
		{"no line whose count was not accepted was counted", func(_ int, o *countOf, noted []counted) string {
			if o.err != nil && errors.Is(o.err, outcome.NotAccepted) && len(noted) > 0 {
				return fmt.Sprintf("%v, but it was counted by %s", o.err, noted[0].node)
			}
			return ""
		}},
		{"a client's Spot began anew only after its release, under a larger generation", func(_ int, o *countOf, noted []counted) string {
			for _, n := range noted {
				switch first := lives[n.client][0]; {
				case n.generation == first.generation:
				case first.node != killedNode:
					return fmt.Sprintf("client %s of %s, which lives, has generation %d after %d", n.client, first.node, n.generation, first.generation)
				case c.proof.IsZero() || o.end.Before(c.proof.Add(LeaseTTL)):
					return fmt.Sprintf("client %s of %s was counted by %s before %s was proven gone", n.client, first.node, n.node, first.node)
				}
			}
			return ""
		}},
	}
	proofs := make([]Proof, 0, len(claims)+2)
	for _, claim := range claims {
		p := Proof{Claim: claim.text, Holds: true}
		for i := range c.out {
			if against := claim.against(i+1, &c.out[i], noted[i+1]); against != "" {
				p.Holds, p.Against = false, fmt.Sprintf("line %d: %s", i+1, against)
				break
			}
		}
		proofs = append(proofs, p)
	}
	return append(proofs, oneOwner(noted), c.sameTotals(noted))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// life is one incarnation of a client's Spot, as the nodes noted it.
type life struct {
	generation uint64
	node       string // where it counted first
	totals     Totals
}

// livesOf returns each client's incarnations, by generation.
func livesOf(noted map[int][]counted) map[string][]life {
	lives := map[string][]life{}
	for _, line := range slices.Sorted(maps.Keys(noted)) {
		for _, n := range noted[line] {
			all := lives[n.client]
			i := slices.IndexFunc(all, func(l life) bool { return l.generation == n.generation })
			if i < 0 {
				i, all = len(all), append(all, life{generation: n.generation, node: n.node})
			}
			all[i].totals.add(n.status, n.bytes)
			lives[n.client] = all
		}
	}
	for _, all := range lives {
		slices.SortFunc(all, func(a, b life) int { return cmp.Compare(a.generation, b.generation) })
	}
	return lives
}

// oneOwner checks that no two nodes counted for one Spot under the same owner generation.
func oneOwner(noted map[int][]counted) Proof {
	type term struct {
		client                      string
		generation, ownerGeneration uint64
	}
	p := Proof{Claim: "no two nodes counted for one Spot under the same owner generation", Holds: true}
	owner := map[term]string{}
	for _, all := range noted {
		for _, n := range all {
			at := term{n.client, n.generation, n.ownerGeneration}
			if other, ok := owner[at]; ok && other != n.node {
				p.Holds, p.Against = false, fmt.Sprintf("client %s: %s and %s counted under generation %d, owner generation %d", n.client, other, n.node, n.generation, n.ownerGeneration)
			}
			owner[at] = n.node
		}
	}
	return p
}

// sameTotals checks what each client's Spot said at the end. One that said nothing must have been released.
func (c *counts) sameTotals(noted map[int][]counted) Proof {
	p := Proof{Claim: "every client's Spot told at the end what the files say of it, or was released with its node", Holds: true}
	lives := livesOf(noted)
	for _, name := range c.clients() {
		said, ok := c.totals[name]
		var last life
		if all := lives[name]; len(all) > 0 {
			last = all[len(all)-1]
		}
		switch {
		case ok && said.Generation > last.generation && said.Requests == 0: // made, and its first line was past its deadline
		case ok && (said.Generation != last.generation || !said.equal(last.totals)):
			p.Holds, p.Against = false, fmt.Sprintf("client %s: it said %+v, the files have %+v", name, said, last)
		case !ok && (last.node != "" && last.node != killedNode || !errors.Is(c.mute[name], outcome.NotFound)):
			p.Holds, p.Against = false, fmt.Sprintf("client %s of %s said nothing: %v", name, last.node, c.mute[name])
		}
	}
	return p
}
