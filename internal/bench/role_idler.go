package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"natsfabric/fabric"
	"natsfabric/kvlocation"
)

// idlerRole is a process of nodes that do nothing.
type idlerRole struct {
	mu    sync.Mutex
	nodes []*fabric.Node
}

type idlerStart struct {
	URL   string `json:"url"`
	Mesh  string `json:"mesh"`
	RID   string `json:"rid"` // of the first node; the others' begin with it
	Nodes int    `json:"nodes"`
}

// startTogether bounds the nodes of one process that start at the same time.
const startTogether = 8

func (r *idlerRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[idlerStart](raw)
		if err != nil {
			return nil, err
		}
		return nil, r.start(ctx, a)
	case "know": // wait until every node knows so many serving members
		n, err := decode[int](raw)
		if err != nil {
			return nil, err
		}
		for _, node := range r.nodes {
			if err := awaitServing(ctx, n, func() []kvlocation.Member { return node.Members().All() }); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "cpu": // in nanoseconds; negative where it can't be told
		used, ok := processorTime()
		if !ok {
			used = -1
		}
		return used, nil
	}
	return nil, unknownOp(op)
}

func (r *idlerRole) start(ctx context.Context, a idlerStart) error {
	var wg sync.WaitGroup
	errs := make([]error, a.Nodes)
	free := make(chan struct{}, startTogether)
	for i := range a.Nodes {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			rid := a.RID
			if i > 0 {
				rid = fmt.Sprintf("%s-%d", a.RID, i)
			}
			node, err := fabric.Start(ctx, fabric.Config{Mesh: a.Mesh, RID: rid, Connect: fabric.Connect{URL: a.URL}})
			if err != nil {
				errs[i] = err
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.nodes = append(r.nodes, node)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *idlerRole) close(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.nodes))
	for i, node := range r.nodes {
		wg.Go(func() { errs[i] = node.Shutdown(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
