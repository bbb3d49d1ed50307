package session

import (
	"net/http"
	"strconv"
)

// Transport is how a client reaches its session's node.
type Transport string

// The transports.
const (
	// TransportWebSocket: Service.Handler.
	TransportWebSocket Transport = "websocket"
	// TransportNATS: plain NATS messages.
	TransportNATS Transport = "nats"
)

// Hello is what a client says of itself when it opens a session.
type Hello struct {
	Transport Transport
	// Client is the name that the client gives itself; up to 128 bytes. It proves nothing.
	Client string
	// Credentials are the application's: a token, for example.
	Credentials []byte
	// Remote is the client's network address, and Header that of its HTTP request; empty for a NATS client.
	Remote string
	Header http.Header
}

// Identity is who a client is, as the application's authenticator says.
type Identity struct {
	// Subject names the client to the Actors that it is bound to (Binding.Subject); up to 255 bytes.
	Subject string
	// Data goes to these Actors too, and moves with them; up to 4 KiB.
	Data []byte
	// Welcome is for the client: the references of the Actors that it may bind to, for example. It travels with the
	// welcome and is not kept. To a NATS client it has at most what the server allows (max_payload), less 1 KiB.
	Welcome []byte
}

const (
	maxClientName   = 128
	maxSubject      = 255
	maxIdentityData = 4 << 10
)

// Ref names one session: the process run that owns it, and its ID there. It is comparable. A client that connects again
// has another one.
type Ref struct {
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	// ID is known to the client and the nodes it has to do with; it proves who speaks, so it belongs in no log.
	ID string `json:"id"`
	// Number counts the sessions of that process run, from 1: it names the session in logs.
	Number uint64 `json:"number"`
}

// String names the session without its ID: n1/17/4 is the fourth session of lifecycle 17 of node n1.
func (r Ref) String() string {
	return r.RID + "/" + strconv.FormatUint(r.Lifecycle, 10) + "/" + strconv.FormatUint(r.Number, 10)
}

func (r Ref) run() run { return run{r.RID, r.Lifecycle} }

// Reason says why a binding is over.
type Reason string

// The reasons.
const (
	// ReasonUnbound: the client asked for it.
	ReasonUnbound Reason = "unbound"
	// ReasonReplaced: another session, or the same one again, was bound to the Actor.
	ReasonReplaced Reason = "replaced"
	// ReasonDisconnected: the session is over.
	ReasonDisconnected Reason = "disconnected"
	// ReasonNodeGone: the session's node has lost its lease or ended, and its sessions with it.
	ReasonNodeGone Reason = "node gone"
	// ReasonActor: the Actor ended it (Binding.Unbind).
	ReasonActor Reason = "actor"
	// ReasonClosed: the Actor was destroyed or closed.
	ReasonClosed Reason = "closed"
	// ReasonLost: the Actor's node has ended, or the Actor was released or made anew since.
	ReasonLost Reason = "lost"
)
