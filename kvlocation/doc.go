// Package kvlocation is the Location Store of a mesh: which object is owned by which node, which nodes there are, and
// which of them hold their leases. It keeps this in JetStream KV, where the stock nats CLI can read it, and it is the
// one place that writes it.
//
// # Overview
//
// [Init] makes the streams of a mesh (the buckets NODES, LOCATION, SUPERVISE and FENCE, and the streams RELAY and MOVE), [Check]
// compares them with what they should be, [Open] opens them for a program.
//
//   - Objects: an [Entry] is what an object's key holds at one revision. [Store.Create], [Store.Ready],
//     [Store.Takeover], [Store.Cancel], [Store.Adopt], [Store.SetWith], [Store.CloseObject] and [Store.Release] are the
//     moves of its record; [Transition] alone decides which are allowed. [Store.Lookup] is for routing, [Store.Read] and
//     [Store.ReadSince] are for deciding, [Store.Peek] is for who decides by a write anyway. [Store.Scan] and
//     [Store.ScanPage] read all objects.
//   - Planned moves: [Store.Prepare], [Store.Accept], [Store.Abort], [Store.Commit] and [Store.ClearMove] are the
//     writes of one. The owner stays the source until the commit. What is handed over goes through the relay: parts
//     ([Store.Relay]) through the one consumer of each target ([Store.OpenRelay]), bulk state beside it
//     ([Store.RelayBulk], [Store.FetchBulk]); [Store.ClearRelay] removes it.
//   - Members of SpotWide Spots: [Store.Join] takes an Actor's record its own owner and locates it by a [Reference] to its
//     Spot, so that one write of the Spot's record moves all of them; [Store.Leave] gives it an owner again.
//     [Store.LookupWith] and [Store.ReadWith] follow the reference.
//   - Shared keys: [Store.Shared] offers the buckets SUPERVISE and FENCE to the packages that keep their own values
//     there, with the same care for results.
//   - First messages: what a Creating record has no room for is written to RELAY by [Store.Spill] before the record
//     points to it, kept by [Store.KeepSpilled] afterwards, and removed by [Store.DropSpilled].
//   - Audits: [Store.Audit] writes down what an operator did, [Store.Audits] lists it.
//   - Leases: [Store.AcquireLease] makes a [Lease], which renews itself and says whether work may begin
//     ([Lease.Admit]). [Store.ConfirmAbsent] and [Store.ProvablyGone] make the evidence that others need.
//   - Nodes: [Store.PublishDescriptor] says what a node is, [Store.OpenDirectory] follows what all of them say.
//   - Time: [Clock] is the store's clock, with the bound of its error.
//
// A record moves like this; every arrow is one compare-and-set on the revision that was read:
//
//	            create                    ready           adopt, set with, join, leave, clear move
//	Missing ------------> Creating ------------------> Ready <------+
//	  ^  ^                 |    |  ^                   |  | ^ |     |
//	  |  |     cancel      |    |  | takeover          |  | | +-----+
//	  |  +-----------------+    +--+                   |  | |
//	  |            close, release                      |  | | commit (by the target, which owns it then)
//	  +------------------------------------------------+  | +-----------------------------------------+
//	  |                                           prepare | ^ abort (by source or target)             |
//	  |                                                   v |                                         |
//	  |                                     Moving (preparing) ----------------------> Moving (accepted)
//	  |                 release (source gone)     |  ^  |        accept (by the source)       |
//	  +-------------------------------------------+  +--+ adopt                               |
//	  |                 release (target gone)                                                 |
//	  +---------------------------------------------------------------------------------------+
//
// Missing is a delete marker that keeps the list of operations for 10 minutes, or nothing at all; a record by reference to
// an incarnation of a Spot that is gone counts as Missing too. Accept is the boundary of a move: before it the object is
// its source's, behind it the target's or nobody's.
//
// # Guarantees
//
//   - One write path. Every key of the mesh is written by Store.write: a compare-and-set with an operation ID, which
//     is also the message ID. (Exceptions to compare-and-set: a program's own probe key, on whose value nothing is ever
//     decided; parts of moves, each known by its message ID; and the removal of spilled or relayed data, whose key
//     belongs to one operation.)
//   - Nothing is guessed (FO-7a, FO-5c). A write without an answer is sent again, the same one, until the store says what
//     became of it: that it is a duplicate, or that the key has another revision. Then the record is read no older
//     than that revision, and its list of the last eight operations tells. What cannot be told is reported as
//     Unavailable with Unknown and a [Pending], never as lost.
//   - "Lost" is concluded only within 9 minutes of the first sending, and delete markers stay for 10, so a delayed
//     create cannot come true behind a close.
//   - Nothing opens on an answer that belongs to a repeated write before the record was read again (FO-7e, FO-10.16):
//     a nil error means that the write was applied, and [Change.Overwritten] tells whether somebody has written since.
//   - Missing is never concluded from a stale replica: [Store.Lookup] confirms it by a write of an own key and a read
//     no older than it. Without a quorum the answer is Unavailable. The same holds for every refusal of a move.
//   - "Not sent" and "sent, no answer" are never the same error, and a lost connection wakes whoever waits at once.
//   - Generations never go backwards (I6): an ObjectGeneration is the revision of its Creating record, takeover keeps
//     it and raises the owner generation by one.
//   - A lease ends here before it can end on the store: at the first sending of the renewal that was acknowledged last,
//     plus TTL, less the margin, on a clock that also counts suspended time (FO-7c). A lease generation that has lapsed
//     never admits again; the process comes back, if nobody took its key, under a new generation and the same lifecycle.
//   - Nobody overwrites a live lease, and an older process run never comes back after a later one.
//   - While the store does not answer, a [Directory] keeps the list that it read last, adds nobody to it (FO-7b), and
//     says so; when the store is back everything is read again before only what differs is changed (FO-7d).
//   - A scan misses no object that exists all the time that it takes, whichever replicas answer and whatever is written
//     meanwhile, and holds one answer of the store at a time.
//   - An Actor and its Spot are read together in one consistent state of the store, never from two reads.
//   - Parts of a move are stored once, however often they are sent, and come in the order of the stream; the consumer
//     goes on where it was when the server lost it. What nobody clears goes by its TTL. No right to purge is needed.
//   - What a creation is continued from goes with the record through every takeover and ends with Ready (FO-4.5).
//   - Spilled data that no record points to goes away by itself; what a record points to stays until it is dropped.
//   - An idle node costs one write and three small reads per renewal interval, however large the mesh is.
//   - Fields that this version does not know are kept when a record is rewritten. A record of a later schema version
//     is a ProtocolError that names the version.
//   - Every operation ends: with its context, or after [Config.Timeout] when that has no deadline.
//
// # Non-guarantees
//
//   - No read in NATS is linearizable. [Store.Read] is, because it writes first; [Store.Lookup] of an existing record
//     may be a few milliseconds old.
//   - A scan is no snapshot: an object that is written meanwhile may come twice, and one that came may be gone.
//   - Neither audits nor spilled data are fenced: whoever removes their streams loses what they held, and no more.
//   - Two records are not changed together. Whoever needs that puts them into one record, or is safe at every prefix.
//   - A tool that deletes or purges keys by hand takes the list of operations away. Unknown results of that moment
//     then stay unknown.
//   - A directory is behind the store by the way of a notice, or by its interval when a notice was lost. Whoever is on
//     the list may be gone: that is for the peers to find out.
//   - A mesh has at most [MaxMembers] descriptors, those of nodes that are gone and not forgotten included.
//   - What the store acknowledged is as durable as the servers keep it: see the settings in the project's scripts. What moves hand over
//     need not outlive a single server.
//
// # Failure handling
//
// An operation that ends with Unknown has a [Pending] in its error. [Store.Resolve] goes on with the same write;
// [Store.GiveUp] makes sure that it can never be applied, by moving the revision, or finds that it was. A store that
// was rolled back or made again is recognised by the acknowledgement of an own write and refused from then on
// ([ErrRolledBack], [ErrMadeAgain]). [Store.Fault] says what is wrong with the store, a removed stream within a renewal
// interval ([ErrStreamMissing]); [Directory.Displaced] that somebody else changed the node's own descriptor.
//
// # Files
//
//   - store.go opens the store; setup*.go makes and checks the buckets; identity.go recognises another store.
//   - write.go is the write path, ack.go reads the server's answers, mux.go waits for them; read.go reads; probe.go
//     confirms what "now" is.
//   - record.go, record_json.go and jsonfields.go are the records, transition.go is what may follow what, change.go the
//     operations, pending.go those of unknown result, lookup.go the reads of objects, scan.go those of all objects.
//   - move.go is a planned move in a record, reference.go are records without an owner of their own, entry.go what
//     another process told of a record.
//   - spill.go is what records have no room for, relay*.go what moves hand over, audit.go what operators did, shared.go
//     are the keys that other packages keep.
//   - lease*.go are owner leases, gone.go is evidence against others, clock.go the store's clock.
//   - descriptor*.go, publish.go, members.go, directory.go, follow.go, nodes.go are the nodes of the mesh.
package kvlocation
