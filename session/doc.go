// Package session keeps clients' connections at the edge of a mesh: browsers and other programs that are no nodes. A
// session is one connection to one node; through it a client is bound to Actors, sends them messages and gets what they
// push, while they move from node to node.
//
// # Overview
//
// A [Service] is a node's part. As the owner of sessions it serves WebSockets ([Service.Handler]) and plain NATS clients,
// asks the application who a client is ([Authenticator]), and relays. As the host of Actors it knows who is bound to them:
// a handler asks [From] or [Of] for the [Binding], and pushes with [Binding.Push]; an Actor that implements [Watcher] is
// told of binds and ends. A node without an authenticator is only that: a node that hosts Actors needs a Service, one at the
// edge an authenticator too. docs/sessions.md describes the protocol for clients; session/client speaks it in Go,
// session/js in JavaScript.
//
// # States
//
//	session:  handshake -- hello, authenticated --> open -- left, lost, silent, slow, go-away over, malformed --> ended
//	binding:  opening -- the Actor's turn --> open -- unbind, replaced, session ended, Actor gone --> over
//
// An Actor has one binding at most; a session has many. A bind is a turn of the Actor: it replaces the present binding,
// which ends. Every binding has a token that nobody else knows and a number that grows with each bind of the Actor.
//
// # Guarantees
//
//   - The named Actor is kept (FO-10.2): a binding is to one incarnation. A new one under the same ID needs a new bind
//     (FO-6b, FO-10.9).
//   - What an earlier binding sends late, a message, an unbind or a disconnect, does not touch the present one: the Actor
//     judges each by its token (FO-6c).
//   - Requests of one session to one Actor run in their order, and each is answered once: with the reply, or with an error
//     that says what is known of acceptance. A request is sent once. One that met a node which does not own the Actor any
//     more is refused; the next takes the new way (FO-4.2a).
//   - In the steady state a relay asks no store.
//   - A move of an Actor ends no binding and no connection: the binding is part of what moves, and the target tells the
//     session's node until it has answered (FO-6a).
//   - Pushes of one binding reach the client in order, at most once, across moves. The client sees a gap where one was lost:
//     what is missing is waited for for Config.GapWait.
//   - After its node's connection to NATS was lost, a binding is used again only once the Actor's owner has confirmed its
//     token (FO-3.2c, FO-10.5); a session of a NATS client ends.
//   - Nothing of a session outlives its node (FO-6d, FO-10.15). The Actors learn of its end when its lease is over, at
//     once when it stops in order.
//   - Every queue, wait and list is bounded (Config).
//
// # Non-guarantees
//
//   - A push that was taken may be lost with its node or with the client. What a client must not miss, it asks for.
//   - Requests of one session to two Actors have no order between them.
//   - After Unknown a request may have run. Nothing is sent again, by the client packages either.
//   - A NATS client's own connection may drop frames when it reads too slowly: the requests whose answers it dropped end at
//     their deadlines.
//
// # Failure handling
//
//   - A client that reads too slowly: Config.Slow. One of which nothing comes for two heartbeats is given up; it does the
//     same with the node.
//   - The Actor's node does not answer: the request ends with Unknown by its deadline; the binding stays until that node's
//     lease is over, which a node that has met the silence finds out within a second (suspects.go).
//   - A notice to another node is lost: it is repeated (notices.go), and twice in each heartbeat bindings are compared
//     (watch.go), so that both sides come to the same view.
//   - The node drains: every client gets a go-away with a deadline, connects elsewhere, authenticates and binds again.
//
// # Files
//
//   - config.go, types.go, binding.go, service.go and stats.go are the surface.
//   - The owner of sessions: handshake.go, websocket.go and nats.go let clients in, session.go is one session, outbound.go
//     what waits for its client, tie.go a binding with its requests, which workers.go runs, bind.go its begin and end,
//     inflow.go its pushes.
//   - The host of Actors: actor.go is the companion of objects, turns.go the order of binds, binding.go the pushes.
//   - Between them: inbound.go the messages, notices.go what is repeated, watch.go and
//     suspects.go who is gone.
package session
