package objects

import (
	"context"

	"natsfabric/kvlocation"
)

// Actors is the caller's side of the mesh's Actors. A call names an Actor by its logical ID (valid UTF-8, 1 to 255
// bytes) and reaches whichever incarnation is Ready (FO-4.1); a call by ActorRef means exactly that one (FO-10.8).
//
// Every operation ends by its context's deadline, or after Config.DefaultTimeout without one. Its error is an
// *outcome.Error whose acceptance says what is known:
//
//   - NotAccepted: it was not taken and will not run. NotFound: there is no such object; Unavailable: its owner is gone
//     or not reachable, the route was stale, the mailbox of another node is full, or the store does not answer;
//     NotConfigured: no node of the mesh registers the type; TypeMismatch, AlreadyExists, InvalidOperation,
//     CapacityExceeded (a full mailbox in this process, or something too large), ShuttingDown.
//   - Accepted: the target took it; the kind is the handler's own, or says why it did not come to an end.
//   - Unknown: sent, and no answer came. It was not sent anywhere else, and is not.
//
// Concurrency: all methods may be called from any goroutine.
type Actors struct{ s *Service }

// Create makes an Actor of a type that some node of the mesh registers, with input for its Factory. It succeeds once
// the Actor is Ready. AlreadyExists says that there is one, or that one is being made. The input stands in the object's
// record (above 64 KiB beside it) until the Actor is Ready.
func (a *Actors) Create(ctx context.Context, typ, id string, input []byte, opts ...CallOption) (ActorRef, error) {
	got, err := a.s.create(ctx, "create", kvlocation.ClassActor, typ, id, input, true, opts)
	return ActorRef{ID: id, Generation: got.generation}, err
}

// GetOrCreate is Create, but an Actor of this type that exists is no error: created tells the two apart. The existing
// one's owner need not be alive. The input counts only when the Actor is made.
func (a *Actors) GetOrCreate(ctx context.Context, typ, id string, input []byte, opts ...CallOption) (ref ActorRef, created bool, err error) {
	got, err := a.s.create(ctx, "get or create", kvlocation.ClassActor, typ, id, input, false, opts)
	return ActorRef{ID: id, Generation: got.generation}, got.created, err
}

// Find reads where an Actor is. NotFound is confirmed: it is said only when a write shows that the store was asked now.
func (a *Actors) Find(ctx context.Context, id string) (Location, error) {
	return a.s.Locate(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: id})
}

// Destroy ends an Actor: what its mailbox held before runs, then Closing (if it is a Closer), then the record is closed
// and the ID is free. A reference to another incarnation is NotFound.
func (a *Actors) Destroy(ctx context.Context, ref ActorRef) error {
	return a.s.end(ctx, "destroy", kvlocation.KindActor, ref.ID, ref.Generation)
}

// Request asks an Actor and waits for the reply.
func (a *Actors) Request(ctx context.Context, id string, data []byte, opts ...CallOption) (Reply, error) {
	return a.s.call(ctx, "request", kvlocation.KindActor, id, data, false, opts)
}

// Send hands an Actor a message and waits until its mailbox has it. What the handler returns is not reported; its
// deadline ends with the acceptance.
func (a *Actors) Send(ctx context.Context, id string, data []byte, opts ...CallOption) error {
	_, err := a.s.call(ctx, "send", kvlocation.KindActor, id, data, true, opts)
	return err
}

// Join makes an Actor a member of a Spot: a turn of the Spot, which may refuse it, and a change of the Actor's record.
// An Actor is a member of one Spot at most, so it leaves the one that it is in. Joining an Entry Spot is leaving.
//
// From a SpotWide Spot (Type.Members) it leaves before, so it is in none if the join then fails. Into a SpotWide Spot it is
// moved to the Spot's node first if it is elsewhere, and joins between two of its turns: InvalidOperation when one of its own
// turns waits for that, or when nothing here moves objects. It has the next owner generation then, and Activate runs.
func (a *Actors) Join(ctx context.Context, actor ActorRef, spot SpotRef) error {
	return a.s.join(ctx, actor, spot)
}

// Leave ends an Actor's membership of a Spot: a turn of the Spot. InvalidOperation says that it is no member of it, or that
// one of its own turns waits to leave a SpotWide Spot. From such a Spot it leaves between two of its turns, stays at the
// node, and has the next owner generation then.
func (a *Actors) Leave(ctx context.Context, actor ActorRef, spot SpotRef) error {
	return a.s.leave(ctx, actor, spot)
}

// Release takes the authority over an Actor from an owner that is provably gone, and frees its ID; what it had in
// memory is lost. It waits one TTL of the owner's lease. InvalidOperation with kvlocation.ErrNodeAlive, which says until
// when, is the answer while the owner lives.
func (a *Actors) Release(ctx context.Context, ref ActorRef) error {
	return a.s.releaseOne(ctx, kvlocation.KindActor, ref.ID, ref.Generation)
}
