// Package fabric is the one façade a program needs: a [Node] that serves channels, hosts objects, owns clients' sessions and
// hands its objects over before maintenance, or a [Client] that only calls. It enforces the failover boundaries: a caller always learns whether its operation was not accepted,
// accepted, or unknown, and nothing is ever run again behind its back.
//
// # Overview
//
//	node, err := fabric.Start(ctx, fabric.Config{Mesh: "shop", Connect: fabric.Connect{URL: "nats://127.0.0.1:4222"}})
//	...
//	err = node.Serve(ctx, channels.Spec{Name: "work", Handler: handle})
//	reply, err := node.Channel("work").Request(ctx, []byte("hello"))
//	ref, created, err := node.Actors().GetOrCreate(ctx, "account", "alice", nil) // of a type of Config.Types
//	reply, err = node.Actors().Request(ctx, "alice", []byte("balance?"))
//	...
//	result, err := node.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}) // of types that move (objects.Type.Move)
//	err = node.Shutdown(ctx)
//
// Start connects, checks the server and the mesh's streams (made once by `fabricnode init`, or
// [natsfabric/kvlocation.Init]), takes the owner lease of the node's RID, follows the descriptors of the mesh, publishes
// its own, and begins to serve.
//
// # Guarantees
//
//   - One process at a time holds a RID. A second one waits until the first one's lease has expired and says for how
//     long; if the lease is renewed meanwhile, Start fails and names the holder.
//   - A node takes nothing new past its local admission deadline (lease TTL minus margin, on its own monotonic clock),
//     whatever the store says or fails to say (FO-7c).
//   - After a reconnect the node is not ready until its identity, its lease and the store's identity were checked
//     again; reply routes and ready states of the old connection are not used again (FO-3.2c).
//   - A failing peer never turns the host to Error (FO-3.2b). Only these do: another process took over the RID, the
//     store was rolled back or made again, or the connection was closed for good.
//   - While its lease is not valid a node runs no turn of an object; when it has one again, under another generation, each
//     object is adopted by compare-and-set before its next turn.
//   - The descriptor in the store is what the node says of itself, within seconds of anybody's change.
//   - [Node.Shutdown] refuses new work, finishes what was accepted, and leaves no goroutine.
//   - [Node.Relocate] moves every object that can move while it is used. What cannot stays, with the reason, and the node
//     serves again. After it Shutdown ends no call of what has moved.
//   - A planned action leaves the marker that monitors honour, if they know the node (Config.Supervision, SV-16).
//
// # States
//
//	Preparing --verified--> Serving --Relocate--> Relocating --nothing left--> Relocated
//	    ^-------doubt---------'  ^-----blocked-------'                            |
//	any of them --Shutdown--> Draining --> Stopped;  any but Stopped --may not go on--> Error
//
// Serving, Relocating and Relocated answer for channels and objects; only Serving gets new objects. A doubt is a lost
// connection, a lapsed lease or a missing stream; a node that relocates keeps its state meanwhile.
//
// # Non-guarantees
//
// An orderly end without a relocation closes no objects unless their type says so (objects.Type.CloseOnShutdown): they stay
// those of the process run that has ended, Unavailable until they are released.
//
// A relocation picks targets by state, version, wave, type and free slots, not by load.
//
// The fabric never repeats an operation whose acceptance is unknown, and never tells whether repeating is safe (FO-8).
//
// # Topologies
//
// A node and the mesh's streams belong to one NATS cluster, on one server or several. docs/operations.md says what
// was tried over leafnodes and gateways.
package fabric
