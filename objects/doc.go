// Package objects keeps stateful objects on the nodes of a mesh: Actors and Spots, each found by its logical ID, owned by
// one node at a time, created once however many ask, and honest when its owner is gone.
//
// # Overview
//
// A node registers [Type] values and makes a [Service] on its store, lease and router; a client makes one without types.
// [Actors] and [Spots] are the callers' side: Create, GetOrCreate, Find, Destroy or Close, Request, Send, Join, Leave,
// Broadcast, Release. An [Object] runs in turns, one at a time, with a [Self] that knows its identity, its timers and
// the other objects.
//
//   - An Actor is made by Create and lives until Destroy. It is a member of one Spot at most.
//   - A User Spot is made by Create and lives until Close.
//   - An Instance Spot is made by the first message that says so ([WithInstance]) and lives until Close.
//   - An Entry Spot belongs to a node: its ID is "entry:<rid>", its generation the node's lifecycle. It has no record. The
//     node's Actors that joined no other Spot are its members.
//
// # States
//
// The record in the Location Store decides (package kvlocation draws its states):
//
//	Missing -- Create, instance intent --> Creating -- factory ran --> Ready -- Close, Destroy, Release --> Missing
//
// In memory an object is creating (its mail is held, nothing is accepted), open, closing (mail is held), closed; for a move it is
// sealed at its source (no turn runs, mail is held) and arriving at its target (mail is held).
//
// # Moves
//
// Package relocate moves units, an Actor or a Spot, from one node to another; here are the two sides of it. A [Departure]
// seals the unit's objects between two turns, captures what they consist of (state, timers, what was accepted and has not
// run, the companion's value), holds what arrives, and in the end sends the rest on and follows. An [Arrival] reserves,
// makes the instances while it holds what arrives, and opens them once the commit is known. Order: what was accepted at the
// source, the numbered hold up to h, what came to the target meanwhile, the rest.
//
//   - Before the boundary a departure can be aborted: what was captured stands first again, what was held is accepted behind
//     it, the timers run on. From the boundary on the source never runs the object again (FO-5b, FO-10.13).
//   - The source says of nothing that it holds that it was accepted. Answers go from the target straight to whoever asked,
//     also to a caller of the source's own process, which waits on a reply subject of that process (channels.Router.Await).
//   - A due timer goes along as work or as timer, never as both, and is early nowhere.
//   - Follow (FO-4.2b): what reaches the old owner is sent on, with its own reply subject, within bounds of time, count, bytes and
//     hops; its answer, or the notice of its acceptance, tells the sender the new place, which replaces a route only when it
//     is newer. Turns of the framework (Destroy, Join) that meet a move wait for its end, and go on where the object is.
//   - A [Companion] is another package's part of an object (the bindings of its sessions).
//
// # Guarantees
//
//   - One owner (I1): a node opens an object only after its own compare-and-set made the record Ready, or put its present
//     lease generation there after a lapse. What the store did not answer is pursued until it is definite; meanwhile the
//     object runs nothing and is not dropped (FO-7a, FO-7e).
//   - One factory (FO-4.3, FO-10.6): callers whose directories agree choose the same node, in which all creations of one ID
//     are one flight; whoever else tries loses the compare-and-set on the Creating record. A node that dies between
//     Creating and Ready leaves the record with its input: the next operation makes on from it, at another node, under the
//     same ObjectGeneration and the next owner generation, or cancels exactly that record.
//   - At most once (I2): an operation is delivered to one mailbox. The nodes that may make an object are asked one after
//     the other, only while those before certainly began nothing; where one says that the object is, the operation goes on
//     there, once, within its deadline.
//   - The first message of a cold activation stands in the Creating record, and runs at the head of the mailbox, here or
//     where the record is taken over; past its deadline it does not run. Its caller hears Accepted only once the object is
//     Ready with the message at the head, and a refusal only once the cancel has won; all else is Unknown.
//   - An ordinary message reaches whichever incarnation is Ready (FO-4.1, FO-10.7). What names a generation reaches that
//     one or nothing (FO-10.8).
//   - A SpotWide Spot and its members are on one node, and move, end and are released together or not at all: a member's
//     record names its Spot instead of an owner. Its owner generation, and so its fencing token, grows with each join, leave
//     and move of the Spot, and never repeats (I6).
//   - A dead owner's objects are Unavailable until released: nothing restores them elsewhere (FO-4.2c, FO-10.10).
//   - A stale route ends the call with Unavailable and NotAccepted; the wrong node never runs it (FO-4.2a). Missing,
//     Creating and failures are never cached.
//   - Every operation ends by its deadline, whatever the turn does (I5). Everything is bounded (I10).
//
// # Non-guarantees
//
//   - State lives in memory: what must survive a node belongs into a store of the application, guarded by the fencing
//     token (package fence).
//   - Nothing is repeated. After Unknown the operation may have run; examples/idempotent shows how to ask again safely.
//   - In one process caller and object share payload slices: they must not be changed after the call, nor during the turn.
//   - Membership is a field of the Actor's record. A Spot's list of members is in memory, and may name for a while an Actor
//     that has gone; it is corrected when a message to that Actor is refused. That of a SpotWide Spot is exact.
//   - The members of a SpotWide Spot end with it, and with its release.
//   - A factory that never returns costs a goroutine until its process ends, and its creation is cancelled.
//
// # Failure handling
//
//   - The node's lease lapses: nothing starts, running turns' contexts end. Back under a new lease generation each object
//     is adopted by a compare-and-set at its next turn, and dropped only when that shows that it is another's.
//   - A node dies in the middle of a join or leave: the Actor's record says what it is. The write is settled before the
//     turn of the Spot ends, however long the store takes.
//   - The store is away: objects that are open go on for as long as the lease lasts. Creations, closes and first look-ups
//     end with Unavailable, as NotAccepted when nothing was written.
//   - A node dies: see Release. Its lease must be provably gone, which takes one TTL.
//
// # Files
//
//   - service.go, config.go, actors.go, spots.go, ref.go, type.go, typed.go, request.go, self.go, location.go are the
//     surface.
//   - call.go is the caller of a message, route.go the cache of routes, placement.go the choice of a node, chaincall.go
//     what a call out of a turn carries.
//   - inbound.go is what other nodes ask, gateway.go what plain NATS clients ask, callat.go one attempt at a named node.
//   - seal.go halts an object; depart.go, depart_capture.go and depart_end.go are a move's source, arrive.go and
//     arrive_load.go its target, move.go, cargo.go, cargo_code.go and parcel.go what goes between them, moved.go the mail
//     that came so, timer_move.go the timers, follow.go message follow, moving.go and gauge.go what is under way,
//     companion.go the companion.
//   - create.go, flight.go and activation.go make objects; settle.go pursues record writes; adopt.go keeps objects after a
//     lapse; end.go closes them; release.go takes them from the dead, which proof.go
//     proves.
//   - membership.go, membership_list.go and broadcast.go are Spots and their members; spotwide.go, spotwide_write.go and
//     spotwide_life.go are SpotWide Spots, whose members are located by reference, interrupt.go the turns that they put between
//     two others; entry.go is the Entry Spot, explain.go and list.go what
//     operators ask, stats.go the counters of all this; pool.go keeps its goroutines.
//   - object.go, mailbox.go, ahead.go (what a worker has taken in advance), blanks.go (envelopes of Sends, to be used
//     again), turn.go, deal.go, scheduler.go, lane.go, timer.go, waiter.go, chain.go, registry.go, refusal.go, instant.go, metrics.go (the counters of turns) and stop.go run the turns.
package objects
