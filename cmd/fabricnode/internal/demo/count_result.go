package demo

import "natsfabric/outcome"

// ObjectsResult is what became of the counts: the requests to the clients' Instance Spots.
type ObjectsResult struct {
	// Clients counts the client addresses, each of which has an Instance Spot.
	Clients int `json:"clients"`
	// Sent counts the lines that were sent to a client's Spot: the classified ones. Each is in exactly one of the
	// three below, by how its last attempt ended.
	Sent    int `json:"sent"`
	Replied int `json:"replied"`
	Failed  int `json:"failed"`
	Unknown int `json:"unknown"`
	// Doubled counts the lines that were counted more than once, UnansweredCounted those that ended as unknown and
	// were counted after all.
	Doubled           int `json:"doubled"`
	UnansweredCounted int `json:"unanswered_counted"`
	// Repeated counts the lines whose first attempt was not accepted, and which were sent again after the release.
	Repeated int `json:"repeated"`

	// Released counts the Spots of the killed node that were released, Reactivated those that a later line made again
	// under a new generation, and LostWithNode the lines that the killed node had counted in its memory.
	Released     int `json:"released"`
	Reactivated  int `json:"reactivated"`
	LostWithNode int `json:"lost_with_node"`

	// Totals is the sum of what the Spots said at the end.
	Totals   Totals                 `json:"totals"`
	Nodes    map[string]NodeObjects `json:"nodes"`
	Failures []FailureCount         `json:"failures"` // of the last attempts
}

// NodeObjects is one node's part.
type NodeObjects struct {
	Spots   int `json:"spots"`   // that were made there
	Counted int `json:"counted"` // lines in its file
}

// result adds up how the counts ended.
func (c *counts) result(noted map[int][]counted) ObjectsResult {
	r := ObjectsResult{Clients: len(c.clients()), Released: c.freed, Nodes: map[string]NodeObjects{}}
	failures := tallied{}
	for i := range c.out {
		o := &c.out[i]
		if !o.sent {
			continue
		}
		r.Sent++
		if o.first != nil {
			r.Repeated++
		}
		if o.err == nil {
			r.Replied++
			continue
		}
		acceptance := outcome.AcceptanceOf(o.err)
		failures.add(outcome.KindOf(o.err), acceptance, o.err)
		if acceptance != outcome.Unknown {
			r.Failed++
			continue
		}
		r.Unknown++
		if len(noted[i+1]) > 0 {
			r.UnansweredCounted++
		}
	}
	r.Failures = failures.sorted()
	for _, rid := range nodes {
		r.Nodes[rid] = NodeObjects{}
	}
	for _, all := range noted {
		if len(all) > 1 {
			r.Doubled++
		}
		for _, n := range all {
			at := r.Nodes[n.node]
			at.Counted++
			r.Nodes[n.node] = at
		}
	}
	for _, lives := range livesOf(noted) {
		for _, l := range lives {
			at := r.Nodes[l.node]
			at.Spots++
			r.Nodes[l.node] = at
			if l.node == killedNode {
				r.LostWithNode += l.totals.Requests
			}
		}
		if len(lives) > 1 {
			r.Reactivated++
		}
	}
	for _, said := range c.totals {
		r.Totals.merge(said.Totals)
	}
	return r
}
