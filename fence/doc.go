// Package fence keeps a holder that was overtaken from writing to what it no longer owns.
//
// # Overview
//
// A [Token] says who may write. It grows with every grant of ownership (FE-1): for a turn of an object it is
// (epoch of the store, the object's generation, its owner generation). A guarded resource remembers the highest
// token it has seen and refuses a lower one at the moment the write arrives, whatever the writer believes and
// whatever it checked before: the holder with 33 that is paused, overtaken by 34 and woken up again writes nothing.
//
// Handlers find the token of their turn in their context. [Guard] is the guard for a resource inside this process:
//
//	func (l *Ledger) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
//		err := l.guard.Do(ctx, func() error { return l.file.Append(req.Data()) })
//		...
//	}
//
// A resource outside the process does the same with [Token.String], whose text sorts as the tokens do, or with the
// three numbers: store the highest with the data and make every write conditional on it, in one statement.
//
// # Guarantees
//
//   - A guard calls the write of a token only if no higher one was presented or raised before, and runs one write at a
//     time: once a write or [Guard.Raise] of a higher token has returned, none of a lower token runs or will run.
//   - Equal tokens pass. A lower one gets a [*StaleError], and nothing is called (FE-3).
//   - A guard is bound to one source (one object, one leadership). A token of another is a [*SourceError].
//   - A write whose own turn has lost its ownership is refused even if the guard has seen nothing newer. Which of the
//     two barriers stopped a write stands in [StaleError.StoppedBy] and is counted in [Stats] (FE-10).
//   - [Guard.Raise] shuts the door before the new owner's first write (FE-11): objects call it in their activation,
//     which runs between the change of ownership and the first turn.
//
// # Non-guarantees
//
// A token fences only what checks it. A mail that was sent, a payment that was ordered, a call of a service that knows
// no tokens cannot be fenced (FE-12): a holder that is paused just before such a call makes it when it wakes up,
// however long ago it was overtaken. Give such effects an idempotency key of your own, or let them be done by
// something that does check the token (a table of orders to be sent, written through a guard).
//
// The guard of this package remembers in memory. It guards what dies with the process (a cache, an in-memory table) or
// what only this process writes (a file). What several processes write needs a guard at the resource itself.
//
// A write that the guard let in is not called back: a higher token waits for it, until its own context ends.
//
// # Failure handling
//
// Refusals are errors and change nothing. A write's own error is returned as it is; the token counts as seen. A panic
// in a write passes through, and leaves the guard usable.
package fence
