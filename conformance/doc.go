// Package conformance proves the mesh's rules at its public surface, with real processes and real nats-server code.
//
// # Overview
//
// The package holds nothing but tests. Members are processes of their own (package internal/member), so that they can
// be killed with SIGKILL and frozen with SIGSTOP. Before a member's handler does anything else it appends the
// operation's identity to a file, the ledger, which outlives the process. What callers were told is recorded beside it
// (package internal/history) and named validators compare the two. Objects note their factories, activations and turns in
// one journal of all members (package internal/journal), whose order is that of the machine's kernel; the store's own
// notices say who owned what.
//
//   - TestConformance has one sub-test per rule, named by its ID, under the fault of which the rule speaks.
//   - TestMatrix crosses faults, ways to call and numbers of servers. `go test` runs a quick choice of it;
//     scripts/faults runs all of it with the default leases and writes docs/faults.md.
//   - TestCrash brings objects to each step of their lives, before and after each write, and strikes a process or the server there.
//     scripts/faults runs all of it and writes docs/objects-crash-matrix.md.
//   - TestMoveCrash brings moves of small and large Actors and of SpotWide Spots to each step of their protocol and strikes the
//     source, the target, the owner of a session, or the store's leader there. scripts/faults runs all of it and writes docs/relocation-crash-matrix.md.
//   - TestBounded, TestBoundedObjects and TestBoundedMoves count goroutines, subscriptions, connections, consumers, memory and records around
//     many repetitions.
//
// # Guarantees
//
// Tests look at the public surface only: the chosen target, an error's kind and acceptance, the store's records, a
// node's reported state, and what an outside NATS client sees. Acceptance is judged against the ledgers. The servers'
// pings stay at their defaults of two minutes, so that no test passes because the server noticed a dead peer.
//
// # Non-guarantees
//
// Times are bounded generously: a test says that something happens at all within its deadline, never how fast. Speed is
// measured by cmd/fabric-bench. Members keep the product's leases, but for those whose lease a test lets end (bed.Brief); a
// halt of the machine itself is measured and allowed for (Evidence.Stalled).
package conformance
