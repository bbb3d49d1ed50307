package fabric

import "natsfabric/kvlocation"

// Clock is the store's clock as the node knows it.
func (n *Node) Clock() *kvlocation.Clock { return n.lease.Clock() }

// InDoubt reports whether the host goroutine has taken the node out of service until it is verified again, whatever its state is.
func (n *Node) InDoubt() bool { return n.inDoubt.Load() }
