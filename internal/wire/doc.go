// Package wire holds the contract with the outside: the rules for names, the subjects, the headers and the bucket
// names that plain NATS clients and operators rely on. Nothing else in this module spells a subject.
//
// # Subjects
//
//	fab.<mesh>.ch.<channel>                           select-one through the queue group
//	fab.<mesh>.node.<rid>.<lifecycle>.ch.<channel>    the same channel at one process run
//	fab.<mesh>.node.<rid>.<lifecycle>.hello           handshake and liveness probe of one process run
//	fab.<mesh>.node.<rid>.<lifecycle>.r<epoch>.<blob> replies to one connection epoch of a node
//	fab.<mesh>.client.<name>.r<run>_<epoch>.<blob>    replies to one connection epoch of a client that is no node
//	fab.<mesh>.admin.<verb>                           operator requests
//	fab.<mesh>.chg.<bucket>.<key...>                  republished changes of a bucket
//	fab.<mesh>.relay.>                                subjects of the relay stream
//	fab.<mesh>.move.>                                 subjects of the move stream
//
// # The reply subject carries what the receiver must know
//
// A caller's token, deadline and flags stand in the last token of the reply subject (see [ReplyBlob]), so that a
// request between fabric programs needs no header at all: a header costs two allocations and 330 ns at each end.
// A plain client's reply subject carries none of it, and none is needed.
package wire
