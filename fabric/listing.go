package fabric

import (
	"context"
	"slices"
	"time"

	"natsfabric/kvlocation"
)

// listingPause is the least time between two descriptors that are written without a call of the program's.
const listingPause = time.Second

// keepListed writes the descriptor again when a type has no free slot any more or has one again, and when what the store
// holds is not what this node wrote: somebody removed it, or wrote over it.
func (n *Node) keepListed(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		members, types := n.dir.Changed(), n.objects.TypesChanged()
		if n.mustList() {
			_ = n.relist(ctx) // when it fails, the host repeats it until it succeeds
		} else {
			select {
			case <-ctx.Done():
				return
			case <-members:
			case <-types:
			}
		}
		pause.Reset(listingPause)
	}
}

// mustList reports whether the store holds another descriptor of this node than it should. A node that does not serve
// leaves that to whatever brings it back.
func (n *Node) mustList() bool {
	if !n.State().Serves() {
		return false
	}
	n.publishing.Lock()
	defer n.publishing.Unlock()
	return n.dir.Displaced() || !slices.Equal(n.listed, n.objects.Types())
}

// relist publishes the descriptor after what it says changed. While the node does not serve, that is done when it does
// again; after a failure, by the host, until it succeeds.
func (n *Node) relist(ctx context.Context) error {
	if !n.State().Serves() {
		return nil
	}
	err := n.publish(ctx)
	if err != nil {
		n.post(hostEvent{verify: true})
	}
	return err
}

// publish writes the node's descriptor, always from the present host state and the present lists of channels and types.
func (n *Node) publish(ctx context.Context) error {
	n.publishing.Lock()
	defer n.publishing.Unlock()
	types := n.objects.Types()
	err := n.store.PublishDescriptor(ctx, n.lease, kvlocation.Descriptor{
		State: n.described(), AppVersion: n.cfg.AppVersion, Weight: n.cfg.Weight, Wave: n.cfg.Wave, Started: n.started,
		Channels: n.servers.infos(), Types: types, Capacity: n.cfg.Capacity,
	})
	if err == nil {
		n.listed = types
	}
	return err
}

// publishLeaving lets the descriptor say Draining, and nothing else any more: a verification that is still under way does
// not list the node as Serving again.
func (n *Node) publishLeaving(ctx context.Context) error {
	n.publishing.Lock()
	n.leaving = true
	n.publishing.Unlock()
	return n.publish(ctx)
}

// described is the host state as the descriptor says it. A node that prepares is about to serve when it can write. The
// caller holds publishing.
func (n *Node) described() kvlocation.NodeState {
	s := n.State()
	switch {
	case n.leaving:
		return kvlocation.StateDraining
	case s == kvlocation.StateRelocating, s == kvlocation.StateRelocated:
		return s
	}
	return kvlocation.StateServing
}
