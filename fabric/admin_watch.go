package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"natsfabric/kvlocation"
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

// WorkersReply is the answer to the operator request `workers`: what monitors see.
type WorkersReply struct {
	Mesh       string `json:"mesh"`
	AnsweredBy string `json:"answered_by"`
	// Now is the store's time at the reading; the ages of heartbeats count from it.
	Now     time.Time      `json:"now"`
	Workers []WorkerStatus `json:"workers"`
}

// WorkerStatus is one worker's record, and the marker of a planned action if there is one.
type WorkerStatus struct {
	supervise.Record
	// Written is the store's time of the record: its heartbeat.
	Written time.Time `json:"written"`
	// Marker is left by a planned action; monitors leave the worker alone until it expires.
	Marker *supervise.Marker `json:"marker,omitempty"`
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
	case n.sessions == nil:
		return nil, outcome.New("admin", outcome.NotConfigured, outcome.NotAccepted, req.verb, "this node owns no sessions")
	case what.Limit == 0:
		what.Limit = defaultListed
	}
	return SessionsReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Stats: n.sessions.Stats(), Sessions: n.sessions.List(what.Limit)}, nil
}

func adminWorkers(ctx context.Context, n *Node, _ adminRequest) (any, error) {
	sh := n.shared()
	now, _, err := sh.Now(ctx)
	if err != nil {
		return nil, err
	}
	markers := map[string]*supervise.Marker{}
	err = sh.List(ctx, "marker.", func(e kvlocation.SharedEntry) bool {
		var m supervise.Marker
		if json.Unmarshal(e.Value, &m) == nil && m.Until.After(now) {
			markers[m.Worker] = &m
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	reply := WorkersReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Now: now.UTC(), Workers: []WorkerStatus{}}
	err = sh.List(ctx, "worker.", func(e kvlocation.SharedEntry) bool {
		w := WorkerStatus{Written: e.Time}
		if json.Unmarshal(e.Value, &w.Record) == nil {
			w.Marker = markers[w.Worker]
			delete(markers, w.Worker)
			reply.Workers = append(reply.Workers, w)
		}
		return true
	})
	for worker, m := range markers { // announced before it has ever reported, or gone since
		reply.Workers = append(reply.Workers, WorkerStatus{Record: supervise.Record{Worker: worker}, Marker: m})
	}
	slices.SortFunc(reply.Workers, func(a, b WorkerStatus) int { return strings.Compare(a.Worker, b.Worker) })
	return reply, err
}
