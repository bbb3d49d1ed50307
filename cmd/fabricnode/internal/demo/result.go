package demo

import (
	"cmp"
	"slices"
	"strconv"

	"natsfabric/outcome"
)

// Result is what the demo found. As JSON it is the last line of `fabricnode demo --json`.
type Result struct {
	// OK: every proof holds.
	OK    bool `json:"ok"`
	Lines int  `json:"lines"`
	// Every line is in exactly one of these three.
	Replied int `json:"replied"`
	Failed  int `json:"failed"`  // known as not accepted, or as accepted and failed
	Unknown int `json:"unknown"` // sent, and neither reply nor refusal came

	// Reselected counts the attempts at a further member, Refused the refusals by a member's queue.
	Reselected int `json:"reselected"`
	Refused    int `json:"refused"`
	// Doubled counts the lines that were run more than once.
	Doubled int `json:"doubled"`
	// UnansweredRan counts the lines that ended as unknown and were run after all.
	UnansweredRan int `json:"unanswered_ran"`
	// Malformed counts the lines that a member could not parse.
	Malformed int `json:"malformed"`

	Nodes    map[string]NodeResult `json:"nodes"`
	Failures []FailureCount        `json:"failures"`
	Status   map[string]int        `json:"status"`  // replied lines by status code
	Classes  map[string]int        `json:"classes"` // the same by class
	Clients  []ClientCount         `json:"clients"` // the busiest clients
	Objects  ObjectsResult         `json:"objects"` // the clients' Instance Spots
	Proof    []Proof               `json:"proof"`
	Seconds  float64               `json:"seconds"`
}

// NodeResult is one member's part.
type NodeResult struct {
	Replied int    `json:"replied"`
	Ran     int    `json:"ran"` // lines in its file
	Fate    string `json:"fate"`
}

// FailureCount counts the lines that ended in one way.
type FailureCount struct {
	Kind       string `json:"kind"`
	Acceptance string `json:"acceptance"`
	Lines      int    `json:"lines"`
	Example    string `json:"example"`
}

// ClientCount is one client of the log and how many lines are its.
type ClientCount struct {
	Client string `json:"client"`
	Lines  int    `json:"lines"`
}

// topClients bounds Result.Clients.
const topClients = 5

// result judges how every line ended against what the members wrote down.
func (d *driver) result(noted journals) Result {
	ran := noted.ran
	r := Result{
		Lines: len(d.lines), Nodes: map[string]NodeResult{}, Status: map[string]int{}, Classes: map[string]int{},
		Clients: []ClientCount{},
	}
	clients, failures := map[string]int{}, tallied{}
	byNode := map[string]NodeResult{}
	for _, rid := range nodes {
		byNode[rid] = NodeResult{Fate: d.fate[rid]}
	}
	for i := range d.out {
		o := &d.out[i]
		r.Reselected += o.reselected
		r.Refused += o.refused
		if o.err == nil {
			r.Replied++
			n := byNode[o.verdict.Node]
			n.Replied++
			byNode[o.verdict.Node] = n
			if o.verdict.Malformed != "" {
				r.Malformed++
				continue
			}
			r.Status[strconv.Itoa(o.verdict.Status)]++
			r.Classes[string(o.verdict.Class)]++
			clients[o.verdict.Client]++
			continue
		}
		kind, acceptance := outcome.KindOf(o.err), outcome.AcceptanceOf(o.err)
		if acceptance == outcome.Unknown {
			r.Unknown++
			if len(ran[i+1]) > 0 {
				r.UnansweredRan++
			}
		} else {
			r.Failed++
		}
		failures.add(kind, acceptance, o.err)
	}
	for _, rids := range ran {
		if len(rids) > 1 {
			r.Doubled++
		}
		for _, rid := range rids {
			n := byNode[rid]
			n.Ran++
			byNode[rid] = n
		}
	}
	r.Nodes = byNode
	r.Failures = failures.sorted()
	for c, n := range clients {
		r.Clients = append(r.Clients, ClientCount{c, n})
	}
	slices.SortFunc(r.Clients, func(a, b ClientCount) int { return cmp.Or(b.Lines-a.Lines, cmp.Compare(a.Client, b.Client)) })
	r.Clients = r.Clients[:min(topClients, len(r.Clients))]
	r.Objects = d.counts.result(noted.counted)
	r.Proof = append(prove(d.out, ran), d.counts.prove(noted.counted)...)
	r.OK = !slices.ContainsFunc(r.Proof, func(p Proof) bool { return !p.Holds })
	return r
}

// tallied counts failures by kind and acceptance.
type tallied map[[2]string]*FailureCount

func (t tallied) add(kind outcome.Kind, acceptance outcome.Acceptance, err error) {
	key := [2]string{kind.String(), acceptance.String()}
	if t[key] == nil {
		t[key] = &FailureCount{Kind: key[0], Acceptance: key[1], Example: err.Error()}
	}
	t[key].Lines++
}

// sorted returns the most frequent first.
func (t tallied) sorted() []FailureCount {
	out := []FailureCount{}
	for _, f := range t {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b FailureCount) int {
		return cmp.Or(b.Lines-a.Lines, cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Acceptance, b.Acceptance))
	})
	return out
}
