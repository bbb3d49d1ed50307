package fabric

import (
	"context"
	"time"

	"natsfabric/objects"
	"natsfabric/outcome"
)

// releaseTime bounds the work on one release. What is left then is gone on with by the next request.
const releaseTime = 2 * time.Hour

// ReleaseReply is the answer to the operator request `release`, whose request is an objects.ReleaseRequest. The first
// request begins the release at the node that answers; it goes on there whether or not anybody asks. The same request on
// Poll says how far it is. When nothing answers on Poll, that node has gone: the same request on the shared subject goes
// on with what is left, for what was released is not there any more. A release that is refused or fails is an error.
type ReleaseReply struct {
	Mesh       string `json:"mesh"`
	AnsweredBy string `json:"answered_by"`
	// Poll is the subject on which the same request asks for the progress.
	Poll    string    `json:"poll"`
	Started time.Time `json:"started"`
	objects.ReleaseReport
}

func adminRelease(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what objects.ReleaseRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if what.ID == "" && what.RID == "" {
		return nil, req.invalid("it names nothing to release: one object is named by kind, id and generation, those of a process run by rid and lifecycle")
	}
	key := what // who asks, and how fast it is to be, make no other release
	key.By, key.Reason, key.Rate, key.Cursor = "", "", 0, ""
	r := &n.admin.releases
	var begun *job[objects.ReleaseReport]
	var err error
	if req.own { // asked again, or for the first time by somebody who chose this node
		begun, _ = r.find(key)
	}
	if begun == nil {
		begun, err = r.begin(key, func(ctx context.Context, note func(objects.ReleaseReport)) (objects.ReleaseReport, error) {
			return n.workOnRelease(ctx, what, note)
		})
	}
	if err != nil {
		return nil, err
	}
	report, _, err := r.await(ctx, begun)
	if err != nil {
		return nil, err
	}
	return ReleaseReply{
		Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Poll: n.adminSubject("release"), Started: begun.started, ReleaseReport: report,
	}, nil
}

// workOnRelease works on a release to its end.
func (n *Node) workOnRelease(ctx context.Context, what objects.ReleaseRequest, note func(objects.ReleaseReport)) (objects.ReleaseReport, error) {
	report, err := n.objects.Release(ctx, what, note)
	switch {
	case err == nil && report.Done:
	case n.admin.releases.ctx.Err() != nil:
		err = outcome.Wrap("release", outcome.ShuttingDown, outcome.Accepted, "", "this node is stopping; what is left is for another one to release", err)
	case err == nil:
		err = outcome.New("release", outcome.DeadlineExceeded, outcome.Accepted, "", "it was not done within "+releaseTime.String()+"; what is left is for another request")
	}
	return report, err
}
