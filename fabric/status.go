package fabric

import (
	"time"

	"natsfabric/kvlocation"
)

// Status is how a node stands at one moment: for metrics, health pages and people.
type Status struct {
	State kvlocation.NodeState
	// Reason says why the node is in State, in a few words.
	Reason    string
	Lifecycle uint64
	// Connected is true while the connection to the NATS server stands.
	Connected bool
	// LeaseHeld is true while the node may start something new; LeaseGeneration is the lease's, or that of the lease
	// that lapsed last.
	LeaseHeld       bool
	LeaseGeneration uint64
	// Directory says how far the list of members can be trusted, DirectoryStats what following it took.
	Directory      kvlocation.DirectoryState
	DirectoryStats kvlocation.DirectoryStats
	// StoreFault says what is wrong with the store, as far as the node has noticed; nil when nothing is. See
	// kvlocation.Store.Fault.
	StoreFault error
	// Members is the number of descriptors in the list.
	Members int
	// Skew is how far the store's clock is ahead of this machine's wall clock (negative: behind), as far as it is
	// certain; ClockJumps counts the measurements that contradicted what was known.
	Skew       time.Duration
	ClockJumps uint64
}

// Status returns how the node stands now.
func (n *Node) Status() Status {
	clock := n.lease.Clock()
	skew, _ := clock.Skew() // 0 before the first measurement
	return Status{
		State: n.State(), Reason: n.state.why(), Lifecycle: n.lease.Lifecycle(), Connected: n.link.nc.IsConnected(),
		LeaseHeld: n.lease.Held(), LeaseGeneration: n.lease.Generation(),
		Directory: n.dir.State(), DirectoryStats: n.dir.Stats(), Members: n.dir.Members().Len(),
		StoreFault: n.store.Fault(), Skew: skew, ClockJumps: clock.Jumps(),
	}
}
