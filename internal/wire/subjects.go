package wire

import "strconv"

// ProtocolVersion is the version of the messages between nodes. A hello says it; another major version is refused.
const ProtocolVersion = 1

// SchemaVersion is the field v of every record.
const SchemaVersion = 1

// QueueGroup is the queue group of every channel.
const QueueGroup = "fabric"

// Headers of the fabric. None is needed on an ordinary request.
const (
	// HeaderRefused lists, separated by commas, the RIDs that have refused this operation already.
	HeaderRefused = "Fabric-Refused"
	// HeaderFrom is the RID of the member that sent a refusal or an error.
	HeaderFrom = "Fabric-From"
	// HeaderServedBy is the RID that served a request of a reference channel.
	HeaderServedBy = "Fabric-Served-By"
	// HeaderIntent says what an operation may do beyond reaching an object that exists: instance (a missing Instance
	// Spot is made), and between nodes recover, create, get-or-create.
	HeaderIntent = "Fabric-Intent"
	// HeaderType and HeaderClass name the type of an object that may be made.
	HeaderType  = "Fabric-Type"
	HeaderClass = "Fabric-Class"
	// HeaderRoute tells a caller where an object is, or "-" when it is only not here.
	HeaderRoute = "Fabric-Route"
	// HeaderFinal stands in a refusal after which no other node may be asked to make the object.
	HeaderFinal = "Fabric-Final"
	// HeaderHops counts how often a message was followed to where its object had moved.
	HeaderHops = "Fabric-Hops"
	// HeaderSpot is the Spot that sent a message to all its members.
	HeaderSpot = "Fabric-Spot"
	// HeaderChain lists the objects whose turns wait for this operation.
	HeaderChain = "Fabric-Chain"
	// HeaderOps lists, separated by spaces, the operation IDs of a shared key's last eight writes, the newest last.
	HeaderOps = "Fabric-Ops"
	// HeaderPart says which part of a move a message of the move stream is.
	HeaderPart = "Fabric-Part"
	// HeaderWrite counts the writes of a shared key.
	HeaderWrite = "Fabric-Write"
)

// Mesh spells the subjects and bucket names of one mesh.
type Mesh string

func (m Mesh) prefix() string { return "fab." + string(m) + "." }

// Channel is the select-one subject of a channel.
func (m Mesh) Channel(channel string) string { return m.prefix() + "ch." + channel }

// Admin is the subject of an operator request.
func (m Mesh) Admin(verb string) string { return m.prefix() + "admin." + verb }

// Call is the prefix of the gateway's subjects, without a final dot: the kind and the escaped ID follow.
func (m Mesh) Call() string { return m.prefix() + "call" }

// Node is the prefix of one process run's inbox, without a final dot.
func (m Mesh) Node(rid string, lifecycle uint64) string {
	return m.prefix() + "node." + rid + "." + strconv.FormatUint(lifecycle, 10)
}

// NodeChannel is the subject of a channel at one process run.
func (m Mesh) NodeChannel(rid string, lifecycle uint64, channel string) string {
	return m.Node(rid, lifecycle) + ".ch." + channel
}

// NodeHello is the subject of the handshake with one process run, which is also its liveness probe.
func (m Mesh) NodeHello(rid string, lifecycle uint64) string {
	return m.Node(rid, lifecycle) + ".hello"
}

// NodeService is the prefix of a service's subjects at one process run, without a final dot.
func (m Mesh) NodeService(rid string, lifecycle uint64, service string) string {
	return m.Node(rid, lifecycle) + "." + service
}

// Client is the prefix of the inbox of a program that is no node.
func (m Mesh) Client(name string) string { return m.prefix() + "client." + name }

// LocationBucket holds object records.
func (m Mesh) LocationBucket() string { return "FABRIC_" + string(m) + "_LOCATION" }

// NodesBucket holds descriptors and owner leases.
func (m Mesh) NodesBucket() string { return "FABRIC_" + string(m) + "_NODES" }

// SuperviseBucket holds what operators and monitors write down.
func (m Mesh) SuperviseBucket() string { return "FABRIC_" + string(m) + "_SUPERVISE" }

// FenceBucket holds leadership terms, the right to fence, and confirmations that something is fenced.
func (m Mesh) FenceBucket() string { return "FABRIC_" + string(m) + "_FENCE" }

// MoveStream holds what moves hand from one process run to another.
func (m Mesh) MoveStream() string { return "FABRIC_" + string(m) + "_MOVE" }

// MovePrefix is the prefix of the move stream's subjects, without a final dot.
func (m Mesh) MovePrefix() string { return m.prefix() + "move" }

// RelayStream holds creation inputs and first messages too large for a record.
func (m Mesh) RelayStream() string { return "FABRIC_" + string(m) + "_RELAY" }

// RelayPrefix is the prefix of the relay stream's subjects, without a final dot.
func (m Mesh) RelayPrefix() string { return m.prefix() + "relay" }

// ChangePrefix is the prefix of the republished changes of the mesh's buckets.
func (m Mesh) ChangePrefix() string { return m.prefix() + "chg" }
