// Package outcome says how an operation of the fabric ended: what kind of failure it was, and what is known
// about its acceptance.
//
// # Overview
//
// Every failure that a public operation returns is an [*Error]. It carries a [Kind] (what went wrong) and an
// [Acceptance] (whether the target took the operation). Both are usable as targets of [errors.Is], and
// [errors.As] finds the [*Error] itself:
//
//	if errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted) {
//		// definitely not run: the caller may start a new operation
//	}
//
// # Guarantees
//
//   - NotAccepted is said only where it is certain that no target ran or will run the operation.
//   - Accepted is said only after the target's own word (its reply, its acceptance notice, or its error).
//   - Everything else is Unknown, the zero value: code that forgets to decide claims nothing.
//   - A context's error stays visible: errors.Is(err, context.Canceled) holds when the caller cancelled.
//   - Kind and acceptance are those of the outermost [*Error]. What a cause says of another operation does not shine
//     through; every other error in the chain is found as usual.
//   - [Error.Remote] tells what a peer said from what was concluded here.
//
// # Non-guarantees
//
// Nothing here advises to retry (FO-8): whether repeating is safe depends on what the operation means, which
// only the application knows.
package outcome
