// Package history records what callers were told and what members ran, and judges one by the other.
//
// A [Recorder] notes every operation of a test: its identity, when it began and ended, and what its caller heard. A
// [Ledger] is the file in which a member notes what it runs, before it does anything else. Together with what was read
// from the store and counted before and after they are the [Evidence], and each [Validator] is one promise that the
// evidence must not break. What nobody can know, an operation that was sent and not answered, stays unknown: it may
// stand in one ledger or in none.
package history
