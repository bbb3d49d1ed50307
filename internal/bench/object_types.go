package bench

import (
	"context"
	"sync"
	"sync/atomic"

	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// The object types of a process that hosts objects: echo answers with the payload, count counts its turns,
// carry moves (move_types.go).
const (
	echoType  = "echo"
	countType = "count"
)

// objectTypes are the types that a process hosts, with room for so many objects of each (0: the product's default).
// Their counting objects are found in c.
func objectTypes(c *counters, capacity int) []objects.Type {
	return []objects.Type{
		{Name: echoType, Class: kvlocation.ClassActor, New: newEcho, Capacity: capacity},
		{Name: echoType, Class: kvlocation.ClassInstanceSpot, New: newEcho},
		{Name: countType, Class: kvlocation.ClassActor, New: c.new},
		{Name: carryType, Class: kvlocation.ClassActor, New: newCarrier, Capacity: capacity, Move: objects.MoveState},
	}
}

// echoObject has no state: what an object weighs is the fabric's.
var echoObject objects.Object = objects.HandlerFunc(func(_ context.Context, req *objects.Request) (objects.Reply, error) {
	return objects.Reply{Data: req.Data()}, nil
})

func newEcho(context.Context, *objects.Self, []byte) (objects.Object, error) { return echoObject, nil }

// counter is an object that counts its turns. One sender may wait for a turn.
type counter struct {
	turns atomic.Int64
	// wanted is the turn that the sender waits for; 0 while it does not.
	wanted  atomic.Int64
	reached chan struct{}
}

// Handle counts.
func (c *counter) Handle(context.Context, *objects.Request) (objects.Reply, error) {
	n := c.turns.Add(1)
	if w := c.wanted.Load(); w != 0 && n >= w && c.wanted.CompareAndSwap(w, 0) {
		c.reached <- struct{}{}
	}
	return objects.Reply{}, nil
}

// await waits for the given turn, without keeping a processor.
func (c *counter) await(turn int64) {
	c.wanted.Store(turn)
	if c.turns.Load() >= turn && c.wanted.CompareAndSwap(turn, 0) {
		return
	}
	<-c.reached
}

// counters are the counting objects of a process, by ID.
type counters struct {
	mu   sync.Mutex
	byID map[string]*counter
}

func (c *counters) new(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = make(map[string]*counter)
	}
	o := &counter{reached: make(chan struct{}, 1)}
	c.byID[self.ID()] = o
	return o, nil
}

func (c *counters) get(id string) *counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[id]
}
