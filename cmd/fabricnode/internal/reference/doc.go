// Package reference holds the two channels that every fabricnode serves and the type of objects that it hosts, for demos
// and for checks from outside.
//
// # Overview
//
//   - echo answers with the payload it got.
//   - work gets {"sleep_ms":n,"payload":any JSON}, sleeps n milliseconds and answers with the payload.
//
// The type ledger, an Actor, a User Spot and an Instance Spot, is a list of entries in memory. Its requests are JSON
// objects with an op: append, read, sleep, timer, push, panic or guard; docs/fabricnode.md shows them. An entry is recorded as
// often as it was appended, so that who checks can see what was run twice. A ledger moves with its entries and its timers.
//
// All answer with the header Fabric-Served-By, whose value is the RID of the node that ran the request.
//
// # Failure handling
//
// A work request that is no such JSON object is answered with InvalidOperation; a sleep above [MaxSleep] is answered
// with Rejected. When the caller's deadline ends the sleep, the answer is DeadlineExceeded. All three say Accepted: the
// node took the request and answered it. A ledger answers likewise: what is no request, or has a number out of its range,
// is InvalidOperation, and what is above a bound (see the constants) CapacityExceeded.
package reference
