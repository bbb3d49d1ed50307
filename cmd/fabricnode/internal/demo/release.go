package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// releasePause is the time between two attempts while the killed node's lease lives.
const releasePause = 250 * time.Millisecond

// release shows what callers of a killed node's Spots hear, releases all of them as soon as that is allowed, and returns
// then.
func (c *counts) release(ctx context.Context, killed *process) error {
	c.showUnavailable(ctx)
	begin := time.Now()
	told := false
	for {
		c.proof = time.Now()
		freed, err := c.releaseAll(ctx, killed)
		switch {
		case err == nil:
			c.freed = freed
			c.s.o.Tell("released %d Spots of %s, %v after the kill: the next line of each client makes one anew, under a new generation", freed, killed.rid, time.Since(begin).Round(10*time.Millisecond))
			return nil
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, kvlocation.ErrNodeAlive):
			return fmt.Errorf("release the objects of %s: %w", killed.rid, err)
		case !told:
			told = true
			c.s.o.Tell("the release of its objects is refused as yet: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(releasePause):
		}
	}
}

// releaseAll releases what the killed process run owned, and returns how many objects that were.
func (c *counts) releaseAll(ctx context.Context, killed *process) (int, error) {
	report, err := c.s.client.Objects().Release(ctx, objects.ReleaseRequest{
		RID: killed.rid, Lifecycle: killed.lifecycle, By: "fabricnode demo", Reason: "its node was killed",
	}, func(r objects.ReleaseReport) {
		if r.Waiting {
			c.s.o.Tell("the release of its objects waits until it is certain that %s is gone", killed.rid)
		}
	})
	switch {
	case err != nil:
		return report.Released, err
	case report.Failed > 0 || !report.Done:
		return report.Released, fmt.Errorf("%d objects were released, %d could not be", report.Released, report.Failed)
	}
	return report.Released, nil
}

// showUnavailable asks one of the killed node's Spots, with the permission to make it, and tells what came of it.
func (c *counts) showUnavailable(ctx context.Context) {
	client := c.clientAt(killedNode)
	if client == "" {
		return
	}
	if _, err := c.request(ctx, client, []byte(`{}`), objects.WithInstance(ClientType)); err != nil {
		c.s.o.Tell("client %s was counted by %s; a call to its Spot now: %v", client, killedNode, err)
	}
}
