package demo

import (
	"context"
	"encoding/json"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// The Actor of the web demo.
const (
	counterType = "counter"
	counterID   = "counter-1"
)

// maxCounted bounds the senders that one counter knows.
const maxCounted = 10_000

// counterObject is the type of the Actor that moves: it counts what each sender sends, and notices what comes twice or out of
// order.
func counterObject() objects.Type {
	return objects.Type{
		Name: counterType, Class: kvlocation.ClassActor, Move: objects.MoveState, CloseOnShutdown: true,
		New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
			return &counter{self: self, Senders: map[string]*tally{}}, nil
		},
	}
}

// counter is the Actor; its exported fields are its state.
type counter struct {
	self    *objects.Self
	Total   uint64
	Senders map[string]*tally
}

// tally is what a counter knows of one sender, whose requests have the numbers 1, 2, 3 and so on.
type tally struct {
	Ran  uint64 // requests run
	Last uint64 // the greatest number
	// Late counts numbers that were not greater than all before: run twice, or out of order.
	Late uint64
}

// tallyRequest is a request to the counter, tallyReply its answer.
type tallyRequest struct {
	Sender string `json:"sender"`
	Number uint64 `json:"number"`
}

type tallyReply struct {
	Number          uint64 `json:"number"`
	Total           uint64 `json:"total"`
	Ran             uint64 `json:"ran"`
	Late            uint64 `json:"late"`
	Node            string `json:"node"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
}

// Handle counts one request.
func (c *counter) Handle(_ context.Context, req *objects.Request) (objects.Reply, error) {
	var r tallyRequest
	if err := json.Unmarshal(req.Data(), &r); err != nil || r.Sender == "" || len(r.Sender) > 64 {
		return objects.Reply{}, outcome.New("count", outcome.InvalidOperation, outcome.Accepted, "", `the payload must look like {"sender":"s","number":1}`)
	}
	t := c.Senders[r.Sender]
	if t == nil {
		if len(c.Senders) >= maxCounted {
			return objects.Reply{}, outcome.New("count", outcome.CapacityExceeded, outcome.Accepted, "", fmt.Sprintf("the counter knows %d senders already", maxCounted))
		}
		t = &tally{}
		c.Senders[r.Sender] = t
	}
	if r.Number <= t.Last {
		t.Late++
	}
	c.Total++
	t.Ran++
	t.Last = max(t.Last, r.Number)
	data, err := json.Marshal(tallyReply{
		Number: r.Number, Total: c.Total, Ran: t.Ran, Late: t.Late, Node: c.self.RID(),
		Generation: c.self.Generation(), OwnerGeneration: c.self.OwnerGeneration(),
	})
	return objects.Reply{Data: data}, err
}

// counterVersion is the version of a captured counter.
const counterVersion = 1

// Capture hands out the state.
func (c *counter) Capture(context.Context, *objects.Self) (objects.State, error) {
	data, err := json.Marshal(c)
	return objects.State{Version: counterVersion, Data: data}, err
}

// Restore takes it in at the target.
func (c *counter) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	if s.Version != counterVersion {
		return objects.ErrStateVersion
	}
	return json.Unmarshal(s.Data, c)
}
