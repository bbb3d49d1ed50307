// Package httpd serves a node's health pages and metrics over HTTP.
//
// # Overview
//
//   - /healthz answers 200 while the process may go on, 503 once the node has ended itself in state Error.
//   - /readyz answers 200 while the node serves, 503 otherwise.
//   - / lists the pages.
//   - /metrics is the Prometheus page; its names begin with fabric_.
//
// Both health pages answer one JSON object with the host state and the reason of its last change. The pages are there before the node is: until
// [Server.Observe] the node counts as Preparing.
//
// # Guarantees
//
// The default address is on loopback. A page asks nothing of NATS or the store, so it answers at once, whatever fails.
package httpd
