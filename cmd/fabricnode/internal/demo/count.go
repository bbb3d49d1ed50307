package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/objects"
	"natsfabric/outcome"
)

const (
	// countTimeout bounds one request to a client's Spot. It is longer than a node is frozen, so that what waits there
	// is answered after all.
	countTimeout = FreezeTime + 2*time.Second
	// maxCounts bounds the requests to Spots that are under way: those at a frozen node wait for it.
	maxCounts = 4096
	// maxAsks bounds the requests for totals that are under way at the end.
	maxAsks = 32
)

// countOf is how the count of one line ended.
type countOf struct {
	sent   bool // the line was classified, and names a client
	client string
	status int
	bytes  int64

	err   error
	reply countReply
	end   time.Time
	ended int   // how many times it ended; the proof demands one
	first error // of the attempt before, when the line was sent again
}

// counts sends each classified line to its client's Spot and keeps how that ended.
type counts struct {
	s       *stage
	out     []countOf // by line number less one; each entry belongs to the goroutine that counts its line
	slots   chan struct{}
	running sync.WaitGroup

	replied, failed atomic.Int64

	mu sync.Mutex
	at map[string]string // a client that a node has counted for, by RID

	// Written by release, read when it has ended.
	freed int       // Spots of the killed node
	proof time.Time // when their release was accepted

	// Written by finish.
	totals map[string]countReply // what each client's Spot said at the end
	mute   map[string]error      // why a client's Spot said nothing
}

func newCounts(s *stage, lines int) *counts {
	return &counts{s: s, out: make([]countOf, lines), slots: make(chan struct{}, maxCounts), at: map[string]string{}}
}

// begin counts a classified line, and returns as soon as that is under way.
func (c *counts) begin(ctx context.Context, i int, v Verdict) {
	if v.Malformed != "" {
		return
	}
	o := &c.out[i]
	o.sent, o.client, o.status, o.bytes = true, v.Client, v.Status, v.Bytes
	c.slots <- struct{}{}
	c.running.Go(func() {
		defer func() { <-c.slots }()
		c.count(ctx, i)
		o.ended++
	})
}

func (c *counts) count(ctx context.Context, i int) {
	o := &c.out[i]
	payload, err := json.Marshal(countRequest{Line: i + 1, Status: o.status, Bytes: o.bytes})
	if err == nil {
		o.reply, err = c.request(ctx, o.client, payload, objects.WithInstance(ClientType))
	}
	o.err, o.end = err, time.Now()
	if err != nil {
		c.failed.Add(1)
		return
	}
	c.replied.Add(1)
	c.mu.Lock()
	c.at[o.reply.Node] = o.client
	c.mu.Unlock()
}

// clientAt returns a client whose Spot a node has; empty when there is none.
func (c *counts) clientAt(rid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[rid]
}

// progress is the counts' part of the progress line.
func (c *counts) progress() string {
	return fmt.Sprintf("counted %d, %d not", c.replied.Load(), c.failed.Load())
}

func (c *counts) request(ctx context.Context, client string, payload []byte, opts ...objects.CallOption) (countReply, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var r countReply
	reply, err := c.s.client.Spots().Request(ctx, client, payload, opts...)
	if err == nil {
		err = json.Unmarshal(reply.Data, &r)
	}
	return r, err
}

// finish waits for every count, sends those that ended as not accepted once more, and asks every Spot for its totals.
// Sending again is safe for them, because not accepted means that nobody has run them or will; what ended as unknown is
// never sent again.
func (c *counts) finish(ctx context.Context) {
	c.running.Wait()
	for i := range c.out {
		o := &c.out[i]
		if !o.sent || !errors.Is(o.err, outcome.NotAccepted) {
			continue
		}
		o.first = o.err
		c.failed.Add(-1)
		c.slots <- struct{}{}
		c.running.Go(func() {
			defer func() { <-c.slots }()
			c.count(ctx, i)
		})
	}
	c.running.Wait()
	c.ask(ctx)
}

// clients returns the clients that were sent a count.
func (c *counts) clients() []string {
	seen := map[string]bool{}
	var out []string
	for i := range c.out {
		if o := &c.out[i]; o.sent && !seen[o.client] {
			seen[o.client] = true
			out = append(out, o.client)
		}
	}
	slices.Sort(out)
	return out
}

// ask asks the Spot of each client for its totals. It makes none: whose Spot was released and not called again has none.
func (c *counts) ask(ctx context.Context) {
	c.totals, c.mute = map[string]countReply{}, map[string]error{}
	clients := make(chan string)
	var mu sync.Mutex
	var asking sync.WaitGroup
	for range maxAsks {
		asking.Go(func() {
			for name := range clients {
				r, err := c.request(ctx, name, []byte(`{}`))
				if errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted) {
					// The route was still that of the killed node; it is forgotten now.
					r, err = c.request(ctx, name, []byte(`{}`))
				}
				mu.Lock()
				if err != nil {
					c.mute[name] = err
				} else {
					c.totals[name] = r
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range c.clients() {
		clients <- name
	}
	close(clients)
	asking.Wait()
}
