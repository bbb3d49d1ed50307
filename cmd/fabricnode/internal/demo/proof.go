package demo

import (
	"fmt"
	"slices"

	"natsfabric/outcome"
)

// Proof is one claim and whether the members' files bear it out.
type Proof struct {
	Claim string `json:"claim"`
	Holds bool   `json:"holds"`
	// Against is the first thing that speaks against it.
	Against string `json:"against,omitempty"`
}

// prove checks the claims against how the lines ended, by number less one, and who ran which line.
func prove(out []outcomeOf, ran map[int][]string) []Proof {
	claims := []struct {
		text    string
		against func(line int, o *outcomeOf, ran []string) string // empty: nothing
	}{
		{"every line ended exactly once: lines = replied + failed + unknown", func(_ int, o *outcomeOf, _ []string) string {
			if o.ended != 1 {
				return fmt.Sprintf("it ended %d times", o.ended)
			}
			return ""
		}},
		{"no line was run twice", func(_ int, _ *outcomeOf, ran []string) string {
			if len(ran) > 1 {
				return fmt.Sprintf("it was run by %v", ran)
			}
			return ""
		}},
		{"every replied line stands in the file of the member that replied, and in no other", func(_ int, o *outcomeOf, ran []string) string {
			if o.ended > 0 && o.err == nil && !slices.Equal(ran, []string{o.verdict.Node}) {
				return fmt.Sprintf("%s replied, it was run by %v", o.verdict.Node, ran)
			}
			return ""
		}},
		{"no line that was not accepted was run", func(_ int, o *outcomeOf, ran []string) string {
			if o.err != nil && outcome.AcceptanceOf(o.err) == outcome.NotAccepted && len(ran) > 0 {
				return fmt.Sprintf("%v, but it was run by %v", o.err, ran)
			}
			return ""
		}},
	}
	proofs := make([]Proof, 0, len(claims)+1)
	for _, c := range claims {
		p := Proof{Claim: c.text, Holds: true}
		for i := range out {
			if against := c.against(i+1, &out[i], ran[i+1]); against != "" {
				p.Holds, p.Against = false, fmt.Sprintf("line %d: %s", i+1, against)
				break
			}
		}
		proofs = append(proofs, p)
	}
	strangers := Proof{Claim: "no line was run that was not sent", Holds: true}
	for line, rids := range ran {
		if line < 1 || line > len(out) {
			strangers.Holds, strangers.Against = false, fmt.Sprintf("line %d was run by %v", line, rids)
		}
	}
	return append(proofs, strangers)
}
