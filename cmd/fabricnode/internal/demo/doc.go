// Package demo shows a mesh at work on real input, and proves from what its members wrote down what happened.
//
// # Overview
//
// [Run] starts a NATS server inside this process, with its data on disk in a temporary directory, and three nodes
// n1, n2 and n3 as child processes. It sends every line of a web server's access log through one channel, whose
// members parse and classify it; a line's identity is its number. Each classified line is then counted by the Instance
// Spot of its client, which the first line makes. Half way n2 is frozen with SIGSTOP, and thawed six seconds later, and n3
// is killed with SIGKILL. Leases are short, so that one demo shows their end: the Spots of n2 go on as they were, those of
// n3 are Unavailable until the demo releases them, and are made again by the next line, under a new generation. Counts
// that were not accepted meanwhile are sent again at the end, those whose outcome is unknown are not.
//
// # Guarantees
//
// The result is good only when the members' own files bear it out (see [Proof]):
//
//   - no line was run twice;
//   - every line ended exactly once: lines = replied + failed + unknown;
//   - every line that was replied stands in exactly one member's file: that of the member that replied;
//   - no line that ended as not accepted was run by anybody;
//   - the same for the counts, those that were sent again included;
//   - no two nodes counted for one Spot under the same owner generation, and a Spot began anew only after its owner was
//     proven gone;
//   - what the Spots say at the end is what the nodes wrote down.
//
// A node writes a line's number into its append-only files before it runs or counts the line, so a kill cannot hide that.
// Child processes never outlive the demo: they die with the thread that started them (Linux), and when the pipe that
// they hold from it is closed.
//
// # Failure handling
//
// When the context ends, [Run] ends the nodes, removes the directory and returns the context's error. It needs a Unix
// system, because of the signals.
package demo
