package fabric

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// adminTimeout bounds the work behind one operator request.
const adminTimeout = 4 * time.Second

// adminPending bounds the operator requests that wait at one node, and their bytes.
const (
	adminPending      = 256
	adminPendingBytes = 1 << 20
)

// admin answers operator requests, JSON in and out, on fab.<mesh>.admin.<verb>. Any Ready node answers, one per request.
type admin struct {
	n   *Node
	sub *nats.Subscription
	// closed when the subscription has handled its last message
	done chan struct{}
}

// verbs are the operator requests that a node answers.
var verbs = map[string]func(context.Context, *Node) (any, error){
	"nodes": func(ctx context.Context, n *Node) (any, error) {
		nodes, err := n.store.Nodes(ctx)
		return NodesReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Nodes: nodes}, err
	},
}

// NodesReply is the answer to the operator request `nodes`.
type NodesReply struct {
	Mesh       string                  `json:"mesh"`
	AnsweredBy string                  `json:"answered_by"`
	Nodes      []kvlocation.NodeStatus `json:"nodes"`
}

func openAdmin(n *Node) (*admin, error) {
	a := &admin{n: n, done: make(chan struct{})}
	sub, err := n.link.nc.QueueSubscribe(n.mesh.Admin("*"), wire.QueueGroup, a.handle)
	if err != nil {
		return nil, outcome.Wrap("start", outcome.Unavailable, outcome.NotAccepted, "admin", "cannot subscribe", err)
	}
	sub.SetClosedHandler(func(string) { close(a.done) })
	if err := sub.SetPendingLimits(adminPending, adminPendingBytes); err != nil {
		return nil, outcome.Wrap("start", outcome.InternalFailure, outcome.NotAccepted, "admin", "cannot bound the subscription", err)
	}
	a.sub = sub
	return a, nil
}

// handle answers one request. Requests are answered one at a time: an operator's load is small.
func (a *admin) handle(m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	verb := m.Subject[len(a.n.mesh.Admin("")):]
	answer, err := a.answer(verb)
	reply := nats.NewMsg(m.Reply)
	if err == nil {
		reply.Data, err = json.Marshal(answer)
	}
	if err == nil && int64(len(reply.Data)) > a.n.link.nc.MaxPayload() {
		err = outcome.New("admin", outcome.CapacityExceeded, outcome.Accepted, verb, "the answer is larger than the server's payload limit")
	}
	if err != nil {
		e := asError("admin", verb, err)
		reply.Data, reply.Header = nil, e.Headers(e.Acceptance)
	}
	// A failure to answer is the asker's timeout; there is nobody else to tell.
	_ = a.n.link.nc.PublishMsg(reply)
}

func (a *admin) answer(verb string) (any, error) {
	do, ok := verbs[verb]
	if !ok {
		return nil, outcome.New("admin", outcome.NotFound, outcome.NotAccepted, verb, "there is no such operator request")
	}
	if s := a.n.State(); s != kvlocation.StateServing {
		return nil, outcome.New("admin", outcome.Unavailable, outcome.NotAccepted, verb, "this node is "+string(s))
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return do(ctx, a.n)
}

func (a *admin) close() {
	if !a.n.link.nc.IsConnected() {
		_ = a.sub.Unsubscribe() // there is nobody to answer, and nothing to drain
		return
	}
	if a.sub.Drain() == nil {
		select {
		case <-a.done:
		case <-time.After(adminTimeout + time.Second):
		}
	}
}
