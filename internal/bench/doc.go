// Package bench measures the fabric beside what NATS itself does, on one machine, and is the library under
// cmd/fabric-bench.
//
// # Overview
//
// [Run] runs scenarios. A scenario starts the processes that it needs (the program starts itself again, see [Child]):
// one or more servers, members and a caller. Then it measures its sides in turns: each round holds one short slice of
// every side, and the side that goes first changes from round to round, so that what else the machine does falls on
// all sides alike. From the rounds come the medians of both sides, the median of the rounds' ratios, and their spread.
//
// # What makes a comparison fair
//
//   - Both sides use the same server process with the product's defaults (package embedded): every write is synced to
//     disk before its acknowledgement.
//   - The raw connection is made from the options of the fabric's own connection.
//   - Members and their subscriptions are of the same number, members and caller are the same processes for both.
//   - The raw store writes go to buckets that the product's own set-up made, with values of the same size.
//   - The caller's garbage is collected before each slice, and its allocations are counted in its process alone.
//   - What stays in one process has no counterpart in NATS: its raw side is a goroutine behind a Go channel.
//   - Where a load runs beside what is measured, another side has as much load of another make: what the machine alone
//     does to the measured can be told apart.
//   - A slice in which one operation failed is no measurement: the run ends with that error.
//
// # Non-guarantees
//
// A ratio says something about the machine that it was measured on. With fewer than 15 pairs, or while the machine is
// busy, its spread says so.
//
// # Failure handling
//
// Children never outlive the run: each ends when its standard input does, on Linux also when its parent dies, and is
// killed with its process group when it does not end in time. An error of a child carries the end of what it wrote to
// standard error.
package bench
