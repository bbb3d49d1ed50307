package kvlocation

import (
	"context"
	"slices"
	"strings"
	"time"
)

// NodeStatus is what the store says about one node: for operators, not for decisions.
type NodeStatus struct {
	RID string `json:"rid"`
	// Alive is true while a process run holds the RID's lease.
	Alive bool `json:"alive"`
	// Lifecycle is the process run that holds the lease, or else the last one that published a descriptor.
	Lifecycle uint64 `json:"lifecycle,omitempty"`
	// LeaseGeneration is the revision at which the present lease was created.
	LeaseGeneration uint64 `json:"lease_generation,omitempty"`
	// Renewed is when the lease was last renewed, on the store's clock.
	Renewed *time.Time `json:"renewed,omitempty"`
	// LeaseTTL is the lease's TTL in milliseconds.
	LeaseTTL int64 `json:"lease_ttl_ms,omitempty"`
	// Host is where the process runs, if it says so.
	Host string `json:"host,omitempty"`
	// Proof names who holds the key, instead of the node, to prove that a process run is gone.
	Proof string `json:"proof,omitempty"`
	// Descriptor is what the node publishes about itself; nil when it has published nothing.
	Descriptor *Descriptor `json:"descriptor,omitempty"`
}

// Nodes returns every node that has a descriptor or a lease, sorted by RID. Any replica may answer, and it is read in
// parts: what it says of a node may be a few milliseconds old, and one that came meanwhile may be missing.
//
// Errors are *outcome.Error: Unavailable when the store does not answer in time.
func (s *Store) Nodes(ctx context.Context) ([]NodeStatus, error) {
	last := map[string]*storedMsg{}
	if _, err := s.walk(ctx, s.nodes, 0, false, func(m *storedMsg) bool { last[m.key] = m; return true }); err != nil {
		return nil, err
	}
	byRID := map[string]*NodeStatus{}
	node := func(rid string) *NodeStatus {
		if byRID[rid] == nil {
			byRID[rid] = &NodeStatus{RID: rid}
		}
		return byRID[rid]
	}
	for _, m := range last {
		rid, ok := strings.CutPrefix(m.key, descKey(""))
		if !ok || m.deleted() {
			continue
		}
		d := new(Descriptor)
		if err := d.UnmarshalJSON(m.value); err != nil {
			continue // a value that nobody can read is shown as absent
		}
		n := node(rid)
		n.Descriptor, n.Lifecycle = d, d.Lifecycle
	}
	for _, m := range last {
		rid, ok := strings.CutPrefix(m.key, leaseKey(""))
		if !ok {
			continue
		}
		st, _, err := leaseState(rid, m)
		if err != nil || !st.held() {
			continue
		}
		n := node(rid)
		n.Alive, n.Proof, n.Host, n.LeaseTTL = st.Live, st.Proof, st.Host, st.TTL.Milliseconds()
		n.Renewed = &st.Renewed
		if st.Live {
			n.Lifecycle, n.LeaseGeneration = st.Lifecycle, st.Generation
		}
	}
	out := make([]NodeStatus, 0, len(byRID))
	for _, n := range byRID {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b NodeStatus) int { return strings.Compare(a.RID, b.RID) })
	return out, nil
}
