package objects

import (
	"context"
	"fmt"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// entryPrefix begins the IDs of Entry Spots; the node's RID follows.
const entryPrefix = "entry:"

// Spots is the caller's side of the mesh's Spots: User Spots, which are made by Create, Instance Spots, which are made
// by the first message that says so (WithInstance), and the Entry Spot of each node. All have one space of IDs. The
// deadlines and the errors are those of Actors.
//
// Concurrency: all methods may be called from any goroutine.
type Spots struct{ s *Service }

// Create makes a User Spot; see Actors.Create.
func (p *Spots) Create(ctx context.Context, typ, id string, input []byte, opts ...CallOption) (SpotRef, error) {
	got, err := p.s.create(ctx, "create", kvlocation.ClassUserSpot, typ, id, input, true, opts)
	return SpotRef{ID: id, Generation: got.generation}, err
}

// GetOrCreate makes a User Spot if there is none; see Actors.GetOrCreate.
func (p *Spots) GetOrCreate(ctx context.Context, typ, id string, input []byte, opts ...CallOption) (ref SpotRef, created bool, err error) {
	got, err := p.s.create(ctx, "get or create", kvlocation.ClassUserSpot, typ, id, input, false, opts)
	return SpotRef{ID: id, Generation: got.generation}, got.created, err
}

// Find reads where a Spot is; see Actors.Find.
func (p *Spots) Find(ctx context.Context, id string) (Location, error) {
	return p.s.Locate(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: id})
}

// Close ends a Spot. It refuses joins from the beginning of the call on; then as Actors.Destroy. Members that are left
// belong to their nodes' Entry Spots again. Those of a SpotWide Spot end with it: their Closing runs with CloseSpot before the
// Spot's, what they have accepted and not run ends with NotFound and Accepted, and their IDs are free.
func (p *Spots) Close(ctx context.Context, ref SpotRef) error {
	return p.s.end(ctx, "close", kvlocation.KindSpot, ref.ID, ref.Generation)
}

// Request asks a Spot and waits for the reply. With WithInstance it makes an Instance Spot that is Missing, whose first
// turn is this request (FO-4.4a).
func (p *Spots) Request(ctx context.Context, id string, data []byte, opts ...CallOption) (Reply, error) {
	return p.s.call(ctx, "request", kvlocation.KindSpot, id, data, false, opts)
}

// Send hands a Spot a message and waits until its mailbox has it; see Request and Actors.Send. The caller of a cold
// activation hears Accepted only once the Spot is Ready with the message at the head of its mailbox.
func (p *Spots) Send(ctx context.Context, id string, data []byte, opts ...CallOption) error {
	_, err := p.s.call(ctx, "send", kvlocation.KindSpot, id, data, true, opts)
	return err
}

// Release takes the authority over a Spot from an owner that is provably gone; see Actors.Release. The members of a SpotWide
// Spot are released with it.
func (p *Spots) Release(ctx context.Context, ref SpotRef) error {
	return p.s.releaseOne(ctx, kvlocation.KindSpot, ref.ID, ref.Generation)
}

// Entry returns the Entry Spot of a node, as the directory knows it. NotFound: there is no such node.
func (p *Spots) Entry(rid string) (SpotRef, error) {
	if err := wire.CheckName("RID", rid); err != nil {
		return SpotRef{}, outcome.Wrap("find", outcome.InvalidOperation, outcome.NotAccepted, "entry spot", "", err)
	}
	m, err := p.s.listed("find", fmt.Sprintf("entry spot of node %q", rid), rid)
	if err != nil {
		return SpotRef{}, err
	}
	return SpotRef{ID: entryPrefix + rid, Generation: m.Lifecycle}, nil
}

// Members returns the Actors that are members of a Spot, sorted by ID; of an Entry Spot, the node's Actors that are in no
// other one. A reference to another incarnation is NotFound.
func (p *Spots) Members(ctx context.Context, ref SpotRef) ([]ActorRef, error) {
	return p.s.members(ctx, ref)
}

// Broadcast sends one message to each member that a Spot has at a moment of the call, and waits until each has taken
// or refused it. Members that could not be reached are in the result; the error is about the Spot.
func (p *Spots) Broadcast(ctx context.Context, ref SpotRef, data []byte) (BroadcastResult, error) {
	return p.s.broadcast(ctx, ref, data)
}
