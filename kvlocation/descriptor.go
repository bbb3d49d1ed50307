package kvlocation

import (
	"encoding/json"
	"time"
)

// NodeState is a node's host state. Its descriptor publishes Serving, Relocating, Relocated and Draining: a node in another
// state cannot or may not write, and its descriptor keeps what it said last.
type NodeState string

// The host states. New objects, and objects that move, come to Serving nodes only; candidates of select-one (FO-3.1a) are
// nodes whose state [NodeState.Serves].
const (
	// StatePreparing: started, not yet serving, or checking its identity and lease again after a reconnect.
	// Next: Serving, Draining, Stopped, Error.
	StatePreparing NodeState = "Preparing"
	// StateServing: takes new work. Next: Preparing, Relocating, Draining, Error.
	StateServing NodeState = "Serving"
	// StateRelocating: its objects move to other nodes. No new object comes to it; what it still owns, its channels and its
	// sessions go on. Next: Relocated, Serving or Preparing (blocked), Draining, Error.
	StateRelocating NodeState = "Relocating"
	// StateRelocated: every object has moved; messages that still come for them are followed. Next: Draining, Error.
	StateRelocated NodeState = "Relocated"
	// StateDraining: finishes what it accepted and refuses the rest. Next: Stopped, Error.
	StateDraining NodeState = "Draining"
	// StateStopped is terminal: an orderly end.
	StateStopped NodeState = "Stopped"
	// StateError is terminal: the node ended itself; its log and last error say why.
	StateError NodeState = "Error"
)

// Serves reports whether a node in this state answers: for its channels, and for the objects that it owns or follows.
func (s NodeState) Serves() bool {
	return s == StateServing || s == StateRelocating || s == StateRelocated
}

// ChannelKind tells the two kinds of channel apart.
type ChannelKind string

// The kinds of channel.
const (
	// RouteMesh channels are served by nodes of the mesh, with weights.
	RouteMesh ChannelKind = "route_mesh"
	// ClientServer channels are served by declared servers, without weights; any program may be a client.
	ClientServer ChannelKind = "client_server"
)

// ChannelInfo is one channel of a descriptor.
type ChannelInfo struct {
	Name string      `json:"name"`
	Kind ChannelKind `json:"kind"`
	// Weight is the member's share, 0 = out; always 1 for ClientServer.
	Weight int `json:"weight"`
}

// TypeInfo is one object type of a descriptor.
type TypeInfo struct {
	Name  string `json:"name"`
	Class Class  `json:"class"`
	// Capacity is the most objects of the type at the node; 0 = none said.
	Capacity int `json:"capacity,omitempty"`
	// Full is true while the node has no free slot for the type.
	Full bool `json:"full,omitempty"`
}

// Descriptor is what a node publishes about itself under desc.<rid>. Only the node itself writes it, while it
// holds its lease; the one other writer is an operator who forgets a dead node.
type Descriptor struct {
	V          int           `json:"v"`
	RID        string        `json:"rid"`
	Lifecycle  uint64        `json:"lifecycle"`
	State      NodeState     `json:"state"`
	AppVersion string        `json:"app_version,omitempty"`
	Weight     int           `json:"weight"` // the node's; a channel's share stands in Channels
	Wave       string        `json:"wave,omitempty"`
	Types      []TypeInfo    `json:"types,omitempty"`
	Capacity   int           `json:"capacity,omitempty"` // most objects of all types together; 0 = none said
	Channels   []ChannelInfo `json:"channels,omitempty"`
	Started    time.Time     `json:"started"`
	Updated    time.Time     `json:"updated"`
	// LeaseTTLMillis is the TTL of the node's lease in milliseconds: whoever proves the node gone waits that long.
	LeaseTTLMillis int64 `json:"lease_ttl_ms,omitempty"`
	// Write is the operation ID of the write that made this value.
	Write string `json:"write"`

	// Unknown keeps the fields that this version does not know, so that a rewrite does not drop them.
	Unknown map[string]json.RawMessage `json:"-"`
}

// Type returns the entry of an object type, and whether the descriptor lists it.
func (d *Descriptor) Type(class Class, name string) (TypeInfo, bool) {
	for _, t := range d.Types {
		if t.Name == name && t.Class == class {
			return t, true
		}
	}
	return TypeInfo{}, false
}

// Channel returns the entry of a channel, and whether the descriptor lists it.
func (d *Descriptor) Channel(name string) (ChannelInfo, bool) {
	for _, c := range d.Channels {
		if c.Name == name {
			return c, true
		}
	}
	return ChannelInfo{}, false
}
