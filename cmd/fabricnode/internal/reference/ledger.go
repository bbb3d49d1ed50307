package reference

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session"
)

// Ledger is the name of the reference type: one for each class of object.
const Ledger = "ledger"

// Types returns the reference type as an Actor, as a User Spot and as an Instance Spot, ready to be registered at one
// node. All objects of the node share its guarded resources.
func Types() []objects.Type {
	shared := &resources{named: map[string]*resource{}}
	var types []objects.Type
	for _, class := range []kvlocation.Class{kvlocation.ClassActor, kvlocation.ClassUserSpot, kvlocation.ClassInstanceSpot} {
		types = append(types, objects.Type{
			Name: Ledger, Class: class, Move: objects.MoveState, MaxState: maxLedgerState,
			New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
				return &ledger{self: self, shared: shared}, nil
			},
		})
	}
	return types
}

// ledger is one object: a list of what was appended to it, in memory. It moves with the object.
type ledger struct {
	self   *objects.Self
	shared *resources
	kept   entries
	timers uint64 // timers set so far; each has its number for a name
}

// ledgerReply is the answer to every operation but a read.
type ledgerReply struct {
	Len             int    `json:"len"`
	Owner           string `json:"owner"`
	Lifecycle       uint64 `json:"lifecycle"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	Token           string `json:"token"`
}

// Handle runs one operation.
func (l *ledger) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	if _, fired := req.Timer(); fired {
		return objects.Reply{}, l.fired(req.Data())
	}
	r, err := parseLedger(req.Data())
	if err != nil {
		return objects.Reply{}, err
	}
	var answer any
	switch r.Op {
	case "read":
		answer, err = l.kept.read(r.From, r.Limit)
	case "panic":
		panic("the request asked for a panic")
	default:
		if err = l.do(ctx, req, r); err == nil {
			answer, err = l.reply(ctx)
		}
	}
	if err != nil {
		return objects.Reply{}, err
	}
	data, err := json.Marshal(answer)
	return objects.Reply{Data: data, Header: nats.Header{wire.HeaderServedBy: {l.self.RID()}}}, err
}

// do runs an operation that is answered with a ledgerReply.
func (l *ledger) do(ctx context.Context, req *objects.Request, r ledgerRequest) error {
	switch r.Op {
	case "append":
		return l.append(r.Client, r.Seq, r.Data)
	case "sleep":
		return sleep(ctx, "sleep", time.Duration(r.MS)*time.Millisecond)
	case "push":
		b, ok := session.Of(req)
		if !ok {
			return outcome.New("push", outcome.NotFound, outcome.Accepted, "", "no session is bound to this ledger")
		}
		return b.Push(ctx, []byte(r.Data))
	case "timer":
		data, err := json.Marshal(timerData{r.Client, r.Seq, r.Data})
		if err != nil {
			return err
		}
		l.timers++
		return l.self.SetTimer(strconv.FormatUint(l.timers, 10), time.Duration(r.AfterMS)*time.Millisecond, data)
	default:
		return l.shared.write(ctx, r.Resource, r.Value)
	}
}

func (l *ledger) append(client string, seq int64, data string) error {
	return l.kept.add(ledgerEntry{client, seq, data, l.self.RID(), l.self.OwnerGeneration()})
}

// timerData is what a timer keeps until it fires.
type timerData struct {
	Client string `json:"client"`
	Seq    int64  `json:"seq"`
	Data   string `json:"data"`
}

func (l *ledger) fired(data []byte) error {
	var t timerData
	if err := json.Unmarshal(data, &t); err != nil {
		return err
	}
	return l.append(t.Client, t.Seq, t.Data)
}

func (l *ledger) reply(ctx context.Context) (ledgerReply, error) {
	token, err := fence.FromContext(ctx)
	return ledgerReply{
		Len: len(l.kept.list), Owner: l.self.RID(), Lifecycle: l.self.Lifecycle(),
		Generation: l.self.Generation(), OwnerGeneration: l.self.OwnerGeneration(), Token: token.String(),
	}, err
}

// sleep waits within a request or turn. One that is ended before its deadline is ended by the node: because it stops, or
// lost its lease.
func sleep(ctx context.Context, op string, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return outcome.Wrap(op, outcome.Unavailable, outcome.Accepted, "", "ended while it slept", context.Cause(ctx))
		}
		return outcome.FromContext(ctx, op, outcome.Accepted, "", "ended while it slept")
	}
}

// resources are what guarded writes at one node write to. Each lives as long as the process and is bound to the first
// object that wrote to it.
type resources struct {
	mu    sync.Mutex
	named map[string]*resource
}

type resource struct {
	guard *fence.Guard
	value string // guarded
}

// write sets a resource's value under the token of the turn.
func (s *resources) write(ctx context.Context, name, value string) error {
	r, err := s.get(name)
	if err != nil {
		return err
	}
	return r.guard.Do(ctx, func() error { r.value = value; return nil })
}

func (s *resources) get(name string) (*resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.named[name]
	switch {
	case ok:
		return r, nil
	case len(s.named) >= MaxResources:
		return nil, tooMuch("resource %.40q is one too many: this node guards %d", name, MaxResources)
	}
	r = &resource{guard: fence.NewGuard(name, "")}
	s.named[name] = r
	return r, nil
}
