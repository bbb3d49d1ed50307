// Package reference holds the two channels that every fabricnode serves, for demos and for checks from outside.
//
// # Overview
//
//   - echo answers with the payload it got.
//   - work gets {"sleep_ms":n,"payload":any JSON}, sleeps n milliseconds and answers with the payload.
//
// Both answer with the header Fabric-Served-By, whose value is the RID of the node that ran the request.
//
// # Failure handling
//
// A work request that is no such JSON object is answered with InvalidOperation; a sleep above [MaxSleep] is answered
// with Rejected. When the caller's deadline ends the sleep, the answer is DeadlineExceeded. All three say Accepted: the
// node took the request and answered it.
package reference
