// Package channels calls and serves channels: stateless work that the fabric gives to one of many members, or to one
// node that the caller names. Below them it carries services: the protocols that nodes speak with each other.
//
// # Overview
//
// A [Router] is both sides on one NATS connection. [Router.Channel] is the caller's side: [Channel.Request] waits for
// the reply, [Channel.Send] for the acceptance, [Channel.SendUnconfirmed] for neither; [Channel.At] is the same at
// one named node. [Router.Serve] is the member's side: a [Handler] behind a bounded queue and bounded workers. Any
// NATS client may call a channel with a plain request and no headers, and `nats micro` lists every channel as a
// service.
//
// [Router.Listen] and [Router.CallRun] are the same for a [Service], a protocol of the fabric's own parts between
// process runs: one operation, one attempt, at one process run. Acceptance, deadlines, epochs, freezes, peer liveness
// and bounds are those of channels, by the same code; queue, turns and middleware are the service's own affair. An
// [Inbound] is refused, or accepted and answered later, by this node or (from its reply subject, [Router.Answer]) by
// another.
//
// Selection is NATS's: a member of weight N holds N subscriptions in the queue group "fabric" of the channel's
// subject, and the server draws one for each request. A request costs no store access, no header and no allocation
// that a raw request does not have.
//
// # Guarantees: acceptance
//
// Every operation ends exactly once, by its deadline: with a reply, or with an *outcome.Error that says its kind and
// what is known of acceptance.
//
//   - NotAccepted: refused before it was sent, nothing listened (503), or the member's own refusal. It did not run and
//     will not.
//   - Accepted: the member's reply, error reply or acceptance notice says that its queue took it.
//   - Unknown: it was sent, and none of these came. It may run, have run, or never run.
//
// The fabric selects another member only after NotAccepted, and only within the same operation's deadline. After
// acceptance, a timeout, a lost connection or a cancellation it never does, and a node that the caller named is never
// swapped. So one operation runs at most once.
//
// An accepted request runs, unless its deadline passes in the member's queue (it then ends with DeadlineExceeded and
// Accepted, counted as Expired), the member's lease ends before its turn (Unavailable and Accepted, counted as
// Lapsed) or the member dies. The deadline of a Send ends with its acceptance.
//
// # Guarantees: order
//
//   - What one member accepts is begun in the order of acceptance. With Spec.Workers = 1 it also runs in that order.
//   - The acceptance notice of a request is sent before its handler begins, and so arrives before its reply.
//   - A reply that this process had read before the connection was lost comes first.
//
// # What may not be assumed
//
//   - Two requests of one caller to a channel may go to two members, and run in any order. With weight above 1, or
//     through Channel and Channel.At in turn, they may also overtake each other at one member.
//   - SendUnconfirmed may be lost, refused without a word, or run; it carries no deadline.
//   - After Unknown, sending it once more may run it twice. Only the application can know whether that is harmless.
//   - NotFound and Unavailable rest on the directory as this process last read it.
//   - A handler's context tells that the caller has gone; it stops nothing by itself.
//
// # Bounds
//
// Operations in flight ([Config.MaxInFlight], of channels and services together), each channel's queue in count and
// bytes, its workers, what the client library holds for a subscription (65,536 messages, 64 MiB; what is dropped then
// is counted as a slow consumer and is Unknown to its caller), the time of every operation ([MaxTimeout]), and the
// refusers named (64).
//
// # Failure handling
//
// Publishing and waiting are separate steps, on a reply subject of the router's own. What an error of publishing
// means:
//
//	ErrReconnectBufExceeded                       not sent: Unavailable, NotAccepted (the reconnect buffer is -1)
//	ErrConnectionClosed, ErrConnectionDraining    not sent: ShuttingDown, NotAccepted
//	ErrMaxPayload                                 not sent: CapacityExceeded, NotAccepted
//	ErrBadSubject, ErrHeadersNotSupported         not sent: InvalidOperation, NotConfigured, NotAccepted
//	anything else (a socket's write)              Unavailable, Unknown: a shared buffer may have gone out in part
//
// A lost connection ends every waiting operation at once. Each connection epoch has its own reply prefix; what
// arrives for an earlier one is dropped and counted, and no peer counts as ready in it before another hello.
//
// Peers. What stays unanswered for 2 s makes the router probe every ready member that may hold it. A probe unanswered
// for 2 s makes the peer suspect, for 5 s not ready; without a lease it is not ready at once; any answer makes it
// ready. A frozen member stays in the server's queue group for minutes and swallows its share, so while a member is
// suspect or not ready, callers draw among the ready members themselves, by the members' own subjects and the same
// weights, until it answers or the server says (503) that it has gone. Each caller whose requests are slow probes all
// ready members of the channel, each at most once in 2 s.
//
// Freezes. A process that was stopped for more than a second, or whose machine was suspended, is handed afterwards
// what its callers gave up on. A request past its deadline is refused on arrival and judged once more before its
// turn. One without a deadline is refused until, per subscription, the PONG of a fresh PING was read and what was
// received by then has been dealt with; if no PONG comes for 5 s, [Config.ReplaceConnection] is asked for another
// connection.
//
// # Goroutines
//
// A router has one ticker (tick) and one goroutine that follows the directory (follow); one per subscription belongs
// to nats.go (a service's Handle runs on it), and one answers service discovery once a channel is served. Others come
// and go: one per peer that is being greeted or probed, one while a thaw lasts, and each server's workers. Close
// waits for all of them.
package channels
