package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// ClientType is the type of the Instance Spots that count: one for each client address of the log, whose ID it is.
const ClientType = "client"

// countRequest is the payload of a request to a client's Spot. Line 0 asks for the totals and counts nothing.
type countRequest struct {
	Line   int   `json:"line"`
	Status int   `json:"status"`
	Bytes  int64 `json:"bytes"`
}

// Totals is what a client's Spot has counted.
type Totals struct {
	Requests int            `json:"requests"`
	Bytes    int64          `json:"bytes"`
	Status   map[string]int `json:"status"` // requests by status code
}

func (t *Totals) add(status int, bytes int64) {
	if t.Status == nil {
		t.Status = map[string]int{}
	}
	t.Requests++
	t.Bytes += bytes
	t.Status[strconv.Itoa(status)]++
}

func (t *Totals) merge(o Totals) {
	if t.Status == nil {
		t.Status = map[string]int{}
	}
	t.Requests += o.Requests
	t.Bytes += o.Bytes
	for s, n := range o.Status {
		t.Status[s] += n
	}
}

func (t Totals) equal(o Totals) bool {
	return t.Requests == o.Requests && t.Bytes == o.Bytes && maps.Equal(t.Status, o.Status)
}

// countReply is a Spot's reply: who it is now, and what it has counted.
type countReply struct {
	Node            string `json:"node"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	Totals
}

// clientType is the type as a node registers it.
func clientType(noted *journal) objects.Type {
	return objects.Type{
		Name: ClientType, Class: kvlocation.ClassInstanceSpot,
		New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
			return &client{self: self, noted: noted}, nil
		},
	}
}

// client is one client's Spot. Its totals live in memory: they end with the process, as the demo shows.
type client struct {
	self  *objects.Self
	noted *journal
	total Totals
}

// Handle notes the line, then counts it.
func (c *client) Handle(_ context.Context, req *objects.Request) (objects.Reply, error) {
	var r countRequest
	if err := json.Unmarshal(req.Data(), &r); err != nil {
		return objects.Reply{}, outcome.Wrap("count", outcome.InvalidOperation, outcome.Accepted, "", "", err)
	}
	if r.Line > 0 {
		err := c.noted.noteCounted(counted{
			line: r.Line, generation: c.self.Generation(), ownerGeneration: c.self.OwnerGeneration(),
			status: r.Status, bytes: r.Bytes, client: c.self.ID(),
		})
		if err != nil {
			return objects.Reply{}, fmt.Errorf("line %d was not counted, because it cannot be noted: %w", r.Line, err)
		}
		c.total.add(r.Status, r.Bytes)
	}
	data, err := json.Marshal(countReply{c.self.RID(), c.self.Generation(), c.self.OwnerGeneration(), c.total})
	return objects.Reply{Data: data}, err
}
