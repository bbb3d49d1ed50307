package demo

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"natsfabric/fabric"
	"natsfabric/outcome"
)

// loadPause is the time between two requests of the demo's own load.
const loadPause = 50 * time.Millisecond

// Load is how the demo's own load fares: 20 requests a second of a client of the mesh, one at a time.
type Load struct {
	Sent    uint64 `json:"sent"`
	Replied uint64 `json:"replied"`
	// NotAccepted, Accepted and Unknown count the failures.
	NotAccepted uint64 `json:"not_accepted"`
	Accepted    uint64 `json:"accepted"`
	Unknown     uint64 `json:"unknown"`
	// Lost is how many were replied and are not counted, Doubled how many were counted twice or out of order.
	Lost    uint64 `json:"lost"`
	Doubled uint64 `json:"doubled"`
	// GapMS is the longest time between two replies.
	GapMS float64 `json:"gap_ms"`
}

// load is that client.
type load struct {
	client *fabric.Client

	mu  sync.Mutex
	now Load // guarded by mu
}

// run sends until ctx ends.
func (l *load) run(ctx context.Context) {
	tick := time.NewTicker(loadPause)
	defer tick.Stop()
	var last time.Time
	for number := uint64(1); ; number++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		reply, err := l.send(ctx, number)
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		l.now.Sent++
		switch {
		case err == nil:
			l.now.Replied++
			l.now.Doubled = reply.Late
			if l.now.Replied > reply.Ran {
				l.now.Lost = max(l.now.Lost, l.now.Replied-reply.Ran)
			}
			if !last.IsZero() {
				l.now.GapMS = max(l.now.GapMS, float64(time.Since(last).Microseconds())/1000)
			}
			last = time.Now()
		case errors.Is(err, outcome.NotAccepted):
			l.now.NotAccepted++
		case errors.Is(err, outcome.Accepted):
			l.now.Accepted++
		default:
			l.now.Unknown++
		}
		l.mu.Unlock()
	}
}

func (l *load) send(ctx context.Context, number uint64) (r tallyReply, err error) {
	data, err := json.Marshal(tallyRequest{Sender: "load", Number: number})
	if err != nil {
		return r, err
	}
	reply, err := l.client.Actors().Request(ctx, counterID, data)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(reply.Data, &r)
}

func (l *load) snapshot() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}
