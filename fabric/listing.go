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

// mustList reports whether the store holds another descriptor of this node than it should. A node that is not Serving
// leaves that to whatever brings it back, and one that cannot trust its list of members to the day when it can.
func (n *Node) mustList() bool {
	if n.State() != kvlocation.StateServing || !n.dir.Healthy() {
		return false
	}
	stored, ok := n.dir.Members().Get(n.cfg.RID)
	want := n.descriptor(kvlocation.StateServing)
	same := ok && stored.Lifecycle == n.lease.Lifecycle() && stored.State == want.State && stored.AppVersion == want.AppVersion &&
		stored.Weight == want.Weight && stored.Wave == want.Wave && stored.Capacity == want.Capacity &&
		slices.Equal(stored.Channels, want.Channels) && slices.Equal(stored.Types, want.Types)
	return !same
}

// relist publishes the descriptor after the list of channels changed. While the node is not Serving, that is done when
// it becomes so again; after a failure, by the host, until it succeeds.
func (n *Node) relist(ctx context.Context) error {
	if n.State() != kvlocation.StateServing {
		return nil
	}
	err := n.publish(ctx, kvlocation.StateServing)
	if err != nil {
		n.post(hostEvent{verify: true})
	}
	return err
}

// publish writes the node's descriptor, always from the present lists of channels and types. Draining is final: a verification
// that is still under way does not list the node as Serving again.
func (n *Node) publish(ctx context.Context, state kvlocation.NodeState) error {
	n.publishing.Lock()
	defer n.publishing.Unlock()
	if n.leaving {
		state = kvlocation.StateDraining
	}
	n.leaving = state == kvlocation.StateDraining
	return n.store.PublishDescriptor(ctx, n.lease, n.descriptor(state))
}

// descriptor is what the node says about itself now.
func (n *Node) descriptor(state kvlocation.NodeState) kvlocation.Descriptor {
	return kvlocation.Descriptor{
		State: state, AppVersion: n.cfg.AppVersion, Weight: n.cfg.Weight, Wave: n.cfg.Wave, Started: n.started,
		Channels: n.servers.infos(), Types: n.objects.Types(), Capacity: n.cfg.Capacity,
	}
}
