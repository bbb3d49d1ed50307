// Package relocate moves objects to other nodes while they live: one Actor or Spot, or all that a node has before it goes away.
//
// # Overview
//
// A [Service] is one node's part, as the source of what leaves and as the target of what comes. [Service.Move] moves one unit: an Actor, a
// PerActor Spot, or a SpotWide Spot with its members. [Service.Host] moves every unit of the node and says what stayed and why.
// [Service.Progress] and [Service.Watch] tell how far that is.
//
// A move of a unit from source S to target T, with the Location Store L and the relay stream R (docs/relocation.md has the messages, and where each of
// them can be struck):
//
//	S                          L                   R                      T
//	asks for a place  ----------------------------------------------->  reserves
//	writes preparing  -------> Moving(preparing)
//	lets turns end, seals, captures; arrivals are held
//	relays the cargo  --------------------------> cargo  ------------>  restores, inert
//	                  <-----------------------------------------------  relay-ready
//	writes accepted   -------> Moving(accepted)                           the irreversible boundary
//	frees the instance
//	publishes the hold  ------------------------> cut  -------------->
//	                           Ready(T, h)  <-------------------------  commits at the marker or after 1,000 ms
//	                                                                    work, held messages up to h, what comes
//	                  <-----------------------------------------------  says h
//	sends the rest of the hold to T, then follows
//	                           Ready(T)     <-------------------------  clears the move
//
// Two of the four record writes stand inside the pause that senders feel, and nothing else that waits for a disk: no promise rests on a part of R
// being stored, and with one copy its stream acknowledges before it writes. A cargo above 128 KiB goes in chunks that the target fetches while
// they are written, a hold above that message by message.
//
// # States
//
// unit.go holds the states of both sides, each with where it may go, and step, the one function that decides what follows what. It
// is pure; testdata has scripts of it, and the tests explore all interleavings of two units, the store, the network, deaths, lapsed leases and releases
// (docs/adr/0025-a-moves-life-is-one-function-and-a-model.md).
//
// # Guarantees
//
//   - One owner (I1): S unseals only when the record, read or written for certain, names it; T opens only once its commit is
//     known. Abort, accept and commit are compare-and-sets on one record.
//   - The boundary (FO-5a, FO-5b, FO-10.13): before *accepted* an explicit failure leaves the object at S as if nothing had been, and no other
//     target is tried. Once *accepted* is written S never comes back to it, whatever happens to it or to T.
//   - Nothing accepted is lost, nothing runs twice, each sender's order stays (I2 to I4): what S had accepted goes along, what it
//     holds is accepted by T alone, after its commit, and only up to the h in the record; S sends the rest, once it knows h.
//   - Nothing is guessed (FO-5c, FO-7e, FO-10.16): a write of unknown result is pursued before S admits or T dispatches.
//   - The death of either side is no reason for another target, nor for going on after a restart (FO-5f, FO-10.14). T aborts a
//     move whose source is silent before the boundary: that frees T, and revives nothing.
//   - After the commit S forwards what still reaches it, for Config.FollowTime (FO-4.2b), and never to anybody but the committed target.
//   - What goes through the relay is read by one standing ephemeral consumer per node (CA-5).
//   - Steps that begin something need the node's lease (FO-7c); what was begun is settled without it.
//   - Everything is bounded (I10): units that leave and come, what they hold, what is in memory of bulk state, every wait.
//
// # Non-guarantees
//
//   - A state is restored as it was captured, and no check says that the application understands it: that is for its version.
//   - Behind the boundary an object whose target dies is Unavailable until it is released. The pause in which that may happen is
//     about two record writes long.
//   - A handler that never returns keeps its object where it is: the move is given up after Config.UnitTimeout.
//   - Code at T before the commit has no fencing token, and what it does outside is not undone when the move is given up.
//
// # Failure handling
//
//   - A move that failed: [ReasonOf] its error, and the reason's Text, say what that means and what can be done.
//   - The store is silent: the caller of a move waits one second longer than the unit's time; the unit is pursued until the store
//     answers, or the Service is closed.
//   - S dies: T aborts after the unit's time. T dies: S aborts at once when nobody listens for it; behind the boundary it waits until
//     T's lease is gone, or the unit's time is over, and then tells callers Unknown for what it published and NotAccepted for the rest.
//   - What was relayed goes by its TTL when nobody clears it.
//
// # Files
//
//   - service.go, config.go, mode.go, moved.go, progress.go, errors.go are the surface.
//   - unit.go, unit_source.go, unit_target.go are the transition function; runner.go carries a unit through it, departure.go is the
//     source's side around it, arrival.go the target's; record.go writes and reads the unit's record.
//   - wire.go is what goes between the sides, choose.go finds a target, host.go moves a whole node, units.go keeps what is under way.
package relocate
