package fabric

import (
	"context"
	"fmt"

	"natsfabric/outcome"
	"natsfabric/session"
	"natsfabric/supervise"
)

const (
	defaultListed = 100
	maxListed     = 1000
)

// SessionsRequest is the operator request `sessions`: the sessions that a node owns.
type SessionsRequest struct {
	// RID is the node; empty means the one that answers.
	RID string `json:"rid,omitempty"`
	// Limit is how many are listed. Default 100, at most 1,000.
	Limit int `json:"limit,omitempty"`
}

// SessionsReply is the answer to `sessions`.
type SessionsReply struct {
	Mesh       string `json:"mesh"`
	AnsweredBy string `json:"answered_by"`
	// Stats has the node's counters; Sessions lists some of its sessions.
	Stats    session.Stats  `json:"stats"`
	Sessions []session.Info `json:"sessions"`
}

// WorkersReply is the answer to the operator request `workers`: what monitors see, judged by their default policy.
type WorkersReply struct {
	Mesh       string                   `json:"mesh"`
	AnsweredBy string                   `json:"answered_by"`
	Workers    []supervise.WorkerStatus `json:"workers"`
}

func adminSessions(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what SessionsRequest
	if len(req.data) > 0 {
		if err := req.decode(&what); err != nil {
			return nil, err
		}
	}
	if what.Limit < 0 || what.Limit > maxListed {
		return nil, req.invalid(fmt.Sprintf("limit %d is not allowed: it must be 1 to %d, or 0 for %d", what.Limit, maxListed, defaultListed))
	}
	switch {
	case what.RID != "" && what.RID != n.cfg.RID && req.own:
		return nil, req.invalid(fmt.Sprintf("rid %q is not this node", what.RID))
	case what.RID != "" && what.RID != n.cfg.RID:
		return n.passOnTo(ctx, req, what.RID)
	case n.cfg.Sessions == nil:
		return nil, outcome.New("admin", outcome.NotConfigured, outcome.NotAccepted, req.verb, fmt.Sprintf("node %q takes no sessions: its configuration has no Sessions (fabricnode run --sessions)", n.cfg.RID))
	case what.Limit == 0:
		what.Limit = defaultListed
	}
	return SessionsReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Stats: n.sessions.Stats(), Sessions: n.sessions.List(what.Limit)}, nil
}

func adminWorkers(ctx context.Context, n *Node, _ adminRequest) (any, error) {
	workers, err := supervise.Workers(ctx, n.shared(), supervise.DefaultPolicy(), nil)
	return WorkersReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Workers: workers}, err
}
