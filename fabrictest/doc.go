// Package fabrictest runs real NATS servers for tests and breaks the network
// between them and the program under test, at the moment a test chooses.
//
// # Overview
//
// [StartServer] and [StartCluster] start nats-server with JetStream inside the
// test process, within milliseconds and about a second. With [AsProcess] each
// server is a process of its own, which can also be killed with SIGKILL and
// frozen with SIGSTOP, and whose clocks may be apart ([WithClocks]). All of them
// keep their data when they are stopped and started again on the same port.
//
// A [Proxy] stands in the path between a client and a server and applies
// [Fault] values: cut, half-open, hang, delay, loss of one direction, refused
// reconnects. In a cluster started [WithProxiedRoutes] the same faults apply
// between servers, see [Cluster.Link].
//
// A Proxy reads the NATS protocol, so a fault can also be armed on one message:
// the n-th one with a subject and a direction, or the answer to it.
//
//	lost := proxy.Arm(fabrictest.Trigger{
//		Dir:     fabrictest.ToServer,
//		Subject: "$KV.accounts.alice",
//		Answer:  true, // let the write pass, lose its acknowledgement
//		Action:  fabrictest.Drop,
//	})
//
// [StartProcess] and [BuildBinary] run child programs that can be killed and
// frozen, and [Eventually] waits for a condition without sleeping blindly.
//
// Functions that start something take a testing.TB, fail the test when they
// can't do their work, and clean up when it ends. [Example] provides a
// testing.TB to testable examples and to programs that aren't tests.
//
// # Guarantees
//
//   - Servers and proxies listen on loopback only.
//   - What is behind a held or delayed message of a connection and direction
//     stays behind it, unless the action says that it acts on the message alone.
//   - A message that no trigger matches is passed on byte for byte.
//   - Memory per proxied connection is bounded: at most about 1 MiB of waiting
//     bytes plus one message of up to 64 MiB in each direction, and 4096
//     messages that triggers keep apart; beyond that the proxy stops reading and
//     the sender feels it as TCP back-pressure.
//
// # Non-guarantees
//
//   - A server inside the test process can't die abruptly: its Kill closes all
//     connections without lame duck mode, but JetStream leadership is handed
//     over within a fraction of a second. Use [AsProcess] for a real kill -9.
//   - Acknowledged writes survive the death of a server process, not a power
//     failure: servers run without sync unless started with [Durable].
//   - Servers keep the ping interval of a stock nats-server (2 minutes), so a
//     silent peer is noticed by your program or not at all.
//   - Connections with TLS or WebSocket pass through a Proxy and feel faults,
//     but triggers don't see their messages.
package fabrictest
