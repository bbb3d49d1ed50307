// Package fence keeps a holder that was overtaken from writing to what it no longer owns.
//
// # Overview
//
// A [Token] says who may write. It grows with every grant of ownership (FE-1): for a turn of an object it is
// (epoch of the store, the object's generation, its owner generation), for a term of leadership (epoch, revision of the
// grant). A guarded resource remembers the highest token it has seen and refuses a lower one at the moment the write
// arrives, whatever the writer believes and whatever it checked before: the holder with 33 that is paused, overtaken by
// 34 and woken up again writes nothing.
//
// Handlers find the token of their turn in their context, and so does the work of a term. Guards take it from there:
//
//   - [Guard]: a resource inside this process, or one that only this process writes.
//   - [KVGuard] and [StreamGuard]: a JetStream KV key and a stream of the application's.
//   - Package fence/sqlguard: rows and transactions of a relational database.
//   - [Gate]: the part that they share, for a guard of one's own.
//
// [Election] grants leadership by a lease in the store, one [Term] after the other (FE-4). With a [Plan] of [Device]s a
// silent leader is fenced before another one leads (FE-5): the drivers stand in fence/device. [SelfFencer] and package
// fence/watchdog let a node stop itself (FE-13). docs/fencing.md says which to use.
//
//	func (l *Ledger) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
//		err := l.guard.Do(ctx, func() error { return l.file.Append(req.Data()) })
//		...
//	}
//
// # Guarantees
//
//   - A guard lets in the write of a token only if no higher one was presented or raised before. Once a write or a Raise
//     of a higher token has returned, no write of a lower token takes place any more.
//   - Equal tokens pass. A lower one gets a [*StaleError], and nothing is written (FE-3).
//   - A guarded resource is bound to one source (one object, one leadership). A token of another is a [*SourceError].
//   - A write whose own turn or term has lost its ownership is refused even if the resource has seen nothing newer. Which
//     of the two barriers stopped a write stands in [StaleError.StoppedBy] and is counted in [Stats] (FE-10).
//   - Raise shuts the door before the new owner's first write (FE-11): objects call it in their activation, which runs
//     between the change of ownership and the first turn.
//   - A term ends by its holder's own monotonic clock before anybody else can be granted the next one; time in which the
//     process was frozen, and a renewal that hangs, count.
//   - With a Plan, nobody is granted a term until it is recorded that the silent holder of the last one is fenced, confirmed
//     by the devices' own checks or by a person, or that it has resigned (invariant I8). Only who holds the right to fence,
//     a compare-and-set in the replicated store, fences (FE-9), and never its own node.
//
// # States
//
// A leadership is one record, changed by one pure transition function: see [Phase].
//
// # Non-guarantees
//
// A token fences only what checks it. A mail that was sent, a payment that was ordered, a call of a service that knows
// no tokens cannot be fenced (FE-12): a holder that is paused just before such a call makes it when it wakes up,
// however long ago it was overtaken. Give such effects an idempotency key of your own, or let them be done by
// something that does check the token (a table of orders to be sent, written through a guard).
//
// [Guard] remembers in memory. It guards what dies with the process or what only this process writes. What several
// processes write needs a guard at the resource itself.
//
// Without a Plan a silent leader is succeeded when its lease is over; that its lease is over does not stop it.
//
// A write that a guard let in is not called back: a higher token waits for it, until its own context ends.
//
// # Failure handling
//
// Refusals are errors and change nothing. A write's own error is returned as it is; the token counts as seen. A panic
// in a write passes through, and leaves the guard usable. Writes to NATS and to the store are sent again, as the same
// message, until it is known what became of them or the context ends: then the error says Unknown.
//
// While the store does not answer, terms end and nobody is granted one. While fencing fails, nobody leads and it is tried
// again; [Election.Snapshot] says why.
package fence
