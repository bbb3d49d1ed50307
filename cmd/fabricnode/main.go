// Fabricnode is the reference node of a natsfabric mesh, and the tool that operators use on one.
//
//	fabricnode demo                                       see a mesh of three nodes lose one and freeze another
//	fabricnode run --mesh shop --embedded                 a node with its own NATS server
//	fabricnode run --mesh shop --server nats://host:4222  a node on a NATS server or cluster
//	fabricnode init|check --mesh shop                     make or check the mesh's streams
//	fabricnode nodes --mesh shop                          who is there
//	fabricnode call --mesh shop echo hello                call a channel
//	fabricnode create --mesh shop --type ledger --actor a  make an Actor
//	fabricnode call --mesh shop --actor a '{"op":"read"}'  call it
//	fabricnode objects|locate|explain --mesh shop ...     which objects there are, where, and what a call would meet
//	fabricnode release --mesh shop --owner n1/7           give up what a dead node owned
//	fabricnode relocate --mesh shop actor/a --to n2       move it, while it is used
//	fabricnode drain --mesh shop n1 --watch               move all that n1 has
//	fabricnode sessions --mesh shop n1                    the clients' sessions that n1 owns
//	fabricnode destroy --mesh shop actor/a@12             destroy one incarnation
//	fabricnode forget --mesh shop n1                      remove a dead node's descriptor
//
// Every flag may also stand in the environment (FABRIC_MESH for --mesh) or in a YAML file given by --config; a flag
// wins over the environment, the environment over the file.
//
// # Exit codes
//
//	  0  done
//	  1  failure of another kind
//	  2  wrong usage or configuration; an address or directory that cannot be used
//	  3  NATS cannot be reached or used (server, credentials, JetStream, the mesh's streams)
//	  4  check found streams that are missing or not as they should be
//	  5  not found: no such channel, object, incarnation, node or descriptor
//	  6  not accepted: no target ran the operation and none will
//	  7  accepted, and failed
//	  8  unknown whether it was accepted
//	  9  another process run holds the RID, or took it over
//	 10  the demo's proof does not hold
//	 11  drain ended Blocked: something could not move
//	 75  the node stopped itself: its lease was lost and what ran did not end (--self-fence)
//	130  interrupted
package main

import (
	"os"

	"natsfabric/cmd/fabricnode/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
