package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

const (
	// moveTime bounds the work on one `relocate` of an operator's. The move's own deadline is shorter.
	moveTime = relocate.MaxUnitTimeout + time.Minute
	// drainTime bounds the work on one `drain`. What has not moved then stays, and the node serves again.
	drainTime = 2 * time.Hour
)

// MoveRequest is the operator request `relocate`: one object moves to another node. Whichever node is asked passes it on to
// the object's owner.
type MoveRequest struct {
	Kind kvlocation.ObjectKind `json:"kind"`
	ID   string                `json:"id"`
	// Generation names one incarnation; 0 means whichever there is.
	Generation uint64 `json:"generation,omitempty"`
	// To is the RID of the target; empty means the node that fits best.
	To string `json:"to,omitempty"`
	// Poll asks how far a move is, or how it has ended in the last ten minutes, and begins none.
	Poll bool `json:"poll,omitempty"`
}

// MoveReply is the answer to `relocate`. The first request begins the move at the object's owner; the same one with "poll",
// on the subject Poll, asks how far it is. A move that is refused or fails is an error, whose acceptance says where the object is: NotAccepted,
// where it was.
type MoveReply struct {
	Mesh       string    `json:"mesh"`
	AnsweredBy string    `json:"answered_by"`
	Poll       string    `json:"poll"`
	Started    time.Time `json:"started"`
	Done       bool      `json:"done"`
	// Moved says how the move went, once it is done.
	Moved *relocate.Moved `json:"moved,omitempty"`
}

// DrainRequest is the operator request `drain`: every object of a node moves to others, as Node.Relocate does it.
// Whichever node is asked passes it on to the one that is named.
type DrainRequest struct {
	// RID is the node; empty means the one that answers, which only a request on its own subject may say.
	RID string `json:"rid,omitempty"`
	relocate.Mode
	// Poll asks how far the relocation is, or how it has ended in the last ten minutes, and begins none.
	Poll bool `json:"poll,omitempty"`
}

// DrainReply is the answer to `drain`. The first request begins the relocation; the same one with "poll", on the subject
// Poll, asks how far it is.
type DrainReply struct {
	Mesh       string               `json:"mesh"`
	AnsweredBy string               `json:"answered_by"`
	Poll       string               `json:"poll"`
	Started    time.Time            `json:"started"`
	State      kvlocation.NodeState `json:"state"`
	Done       bool                 `json:"done"`
	Progress   relocate.Progress    `json:"progress"`
	// Result says how it ended, once it is done.
	Result *relocate.Result `json:"result,omitempty"`
}

func adminRelocate(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what MoveRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if err := req.checkKey(what.Kind, what.ID); err != nil {
		return nil, err
	}
	if what.To != "" {
		if err := wire.CheckName("to", what.To); err != nil {
			return nil, req.invalid(err.Error())
		}
	}
	key := kvlocation.ObjectKey{Kind: what.Kind, ID: what.ID}
	if !req.own {
		at, err := n.objects.Locate(ctx, key)
		if err != nil {
			return nil, err
		}
		return n.passOn(ctx, req, at.RID, at.Lifecycle)
	}
	m, order := &n.admin.moves, what
	order.Poll = false
	begun, err := m.find(order)
	if !what.Poll {
		begun, err = m.begin(order, func(ctx context.Context, _ func(*relocate.Moved)) (*relocate.Moved, error) {
			moved, err := n.Move(ctx, key, what.Generation, what.To)
			return &moved, err
		})
	}
	if err != nil {
		return nil, err
	}
	moved, done, err := m.await(ctx, begun)
	if err != nil {
		return nil, err
	}
	return MoveReply{
		Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Poll: n.adminSubject(req.verb), Started: begun.started, Done: done, Moved: moved,
	}, nil
}

func adminDrain(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what DrainRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if !req.own {
		if what.RID == "" {
			return nil, req.invalid("rid is missing: it names the node whose objects are to move")
		}
		return n.passOnTo(ctx, req, what.RID)
	}
	if what.RID != "" && what.RID != n.cfg.RID {
		return nil, req.invalid(fmt.Sprintf("rid %q is not this node", what.RID))
	}
	d := &n.admin.drains
	begun, err := d.find(what.Mode)
	if !what.Poll {
		begun, err = d.begin(what.Mode, func(ctx context.Context, _ func(*relocate.Result)) (*relocate.Result, error) {
			result, err := n.Relocate(ctx, what.Mode)
			return &result, err
		})
	}
	if err != nil {
		return nil, err
	}
	result, done, err := d.await(ctx, begun)
	if err != nil {
		return nil, err
	}
	return DrainReply{
		Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Poll: n.adminSubject(req.verb), Started: begun.started,
		State: n.State(), Done: done, Progress: n.mover.Progress(), Result: result,
	}, nil
}

// passOnTo passes an operator request on to the process run that the list of members has under rid.
func (n *Node) passOnTo(ctx context.Context, req adminRequest, rid string) (any, error) {
	members := n.dir.Members()
	m, ok := members.Get(rid)
	switch {
	case ok:
		return n.passOn(ctx, req, rid, m.Lifecycle)
	case members.Expired():
		return nil, outcome.New("admin", outcome.Unavailable, outcome.NotAccepted, req.verb, "the store has not answered for long, so the list of members is not to be trusted")
	}
	return nil, outcome.New("admin", outcome.NotFound, outcome.NotAccepted, req.verb, fmt.Sprintf("the mesh has no node %.80q", rid))
}

// passOn passes an operator request on to one process run, once, and returns its answer as it is.
func (n *Node) passOn(ctx context.Context, req adminRequest, rid string, lifecycle uint64) (any, error) {
	to := fmt.Sprintf("%s at node %q", req.verb, rid)
	if err := ctx.Err(); err != nil {
		return nil, outcome.Wrap("admin", outcome.DeadlineExceeded, outcome.NotAccepted, to, "", err)
	}
	m, err := n.link.nc.RequestWithContext(ctx, n.mesh.NodeService(rid, lifecycle, adminService)+"."+req.verb, req.data)
	switch {
	case err == nats.ErrNoResponders:
		return nil, outcome.New("admin", outcome.Unavailable, outcome.NotAccepted, to, "it does not answer: it has gone, or is not connected")
	case err != nil:
		return nil, outcome.Wrap("admin", outcome.Unavailable, outcome.Unknown, to, "it has not answered", err)
	}
	if e := outcome.FromHeaders(m.Header, "admin", to); e != nil {
		return nil, e
	}
	return json.RawMessage(m.Data), nil
}
