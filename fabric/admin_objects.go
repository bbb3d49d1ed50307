package fabric

import (
	"context"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// LocateRequest is the operator request `locate`: where an object is.
type LocateRequest struct {
	Kind kvlocation.ObjectKind `json:"kind"`
	ID   string                `json:"id"`
}

// LocateReply is the answer to `locate`; an object that is not there is the error NotFound.
type LocateReply struct {
	Mesh       string           `json:"mesh"`
	AnsweredBy string           `json:"answered_by"`
	Location   objects.Location `json:"location"`
}

// ExplainReply is the answer to the operator request `explain`, whose request is an objects.ExplainRequest.
type ExplainReply struct {
	Mesh string `json:"mesh"`
	objects.Explanation
}

// ObjectsReply is the answer to the operator request `objects`, whose request is an objects.ListRequest.
type ObjectsReply struct {
	Mesh       string `json:"mesh"`
	AnsweredBy string `json:"answered_by"`
	objects.ListPage
}

func adminLocate(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what LocateRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if err := req.checkKey(what.Kind, what.ID); err != nil {
		return nil, err
	}
	at, err := n.objects.Locate(ctx, kvlocation.ObjectKey{Kind: what.Kind, ID: what.ID})
	return LocateReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Location: at}, err
}

func adminExplain(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what objects.ExplainRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if err := req.checkKey(what.Kind, what.ID); err != nil {
		return nil, err
	}
	why, err := n.objects.Explain(ctx, what)
	why.AnsweredBy = n.cfg.RID
	return ExplainReply{Mesh: n.cfg.Mesh, Explanation: why}, err
}

func adminObjects(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what objects.ListRequest
	if len(req.data) > 0 {
		if err := req.decode(&what); err != nil {
			return nil, err
		}
	}
	page, err := n.objects.List(ctx, what)
	return ObjectsReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, ListPage: page}, err
}

// checkKey refuses what names no object.
func (r adminRequest) checkKey(kind kvlocation.ObjectKind, id string) error {
	if kind != kvlocation.KindActor && kind != kvlocation.KindSpot {
		return r.invalid(fmt.Sprintf("kind %q is not allowed: it must be %s or %s", kind, kvlocation.KindActor, kvlocation.KindSpot))
	}
	if id == "" {
		return r.invalid("id is missing")
	}
	return nil
}
