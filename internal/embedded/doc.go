// Package embedded runs a nats-server with JetStream inside this process.
//
// # Overview
//
// [Start] checks that the server can work at all (its ports are free, its
// store directory takes and keeps a file), starts it and returns once clients
// may connect. Three processes that each run one with the same cluster name
// and each other's routes form a NATS cluster; [Server.WaitJetStream] then
// tells when the cluster's JetStream has a leader.
//
// # Guarantees
//
//   - The zero Config keeps what was acknowledged: every write is synced to
//     disk before its acknowledgement (sync_interval: always), unless
//     UnsafeNoSync says otherwise.
//   - It listens on loopback only, unless a host is given.
//   - Two servers never share a store directory: the second is refused.
//   - [Server.Shutdown] may be called any number of times and waits until the
//     server has closed its files.
//
// # Non-guarantees
//
//   - A single server that is down is down: what survives is its data.
//   - In a cluster, Start does not wait for the others. JetStream answers only
//     when a majority is up.
//
// # Failure handling
//
// What a person can put right is reported by Start as a [StartError] that
// names the address or the directory. A server that fails later says so in its
// log, see Config.Log.
package embedded
