// Package client is a client of sessions, for Go programs that are no nodes: over a WebSocket or over plain NATS.
//
// # Overview
//
// [Dial] opens a session at one of several addresses. [Client.Bind] binds it to an Actor; a [Binding] sends requests and
// gets pushes. When the connection is lost, or the node goes away, the client connects again, to the next address, with
// waits that grow and differ, authenticates, and binds again what was bound.
//
// # Guarantees
//
//   - Every call ends, by its context or Config.RequestTimeout, with a reply or an *outcome.Error that says what is known of
//     acceptance. NotAccepted: it did not and will not run. Unknown: the connection was lost, or the time was over, before
//     the answer came.
//   - Nothing is sent again by itself: what has no answer when the connection is lost ends with Unavailable and Unknown.
//   - A new session is new in everything: no reply, push or token of an earlier one reaches it (FO-6d, FO-10.15).
//   - A connection on which nothing comes for two and a half heartbeats is given up.
//   - OnPush and OnEvent are called one after the other, in the order of what they tell.
//
// # Non-guarantees
//
//   - While there is no session, and while a node goes away, calls are refused with Unavailable and NotAccepted; nothing
//     waits for better times.
//   - Pushes between two sessions are lost.
//
// # Failure handling
//
// A binding that cannot be made again ends, and OnEvent tells so: its Actor is gone, or the client is not allowed any more.
// What may pass is tried again for as long as the session lasts. A node that refuses the client is asked again as any other;
// OnEvent tells of each refusal.
package client
