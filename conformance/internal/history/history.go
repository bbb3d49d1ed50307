package history

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// Way is how a caller issues an operation.
type Way string

// The ways to call.
const (
	Request Way = "request"          // Channel.Request
	Send    Way = "send"             // Channel.Send
	Early   Way = "early acceptance" // Channel.Request with WithEarlyAcceptance
	Direct  Way = "node direct"      // Peer.Request
)

// The ways to call an object. They run no handler but those of the object's own beginning and end; an ordinary message is
// a Request or a Send.
const (
	Create      Way = "create"
	GetOrCreate Way = "get or create"
	Find        Way = "find"
	Destroy     Way = "destroy" // an Actor's Destroy and a Spot's Close
	Release     Way = "release"
	Join        Way = "join"
	Leave       Way = "leave"
	Move        Way = "move" // by the node that owns it
)

// Lifecycle reports whether the way changes or looks up an object instead of sending it a message.
func (w Way) Lifecycle() bool {
	switch w {
	case Create, GetOrCreate, Find, Destroy, Release, Join, Leave, Move:
		return true
	}
	return false
}

// Ways are all ways to call a channel, in the order of tables.
func Ways() []Way { return []Way{Request, Send, Early, Direct} }

// Op is one operation as its caller saw it.
type Op struct {
	ID  string
	Way Way
	// Target is the node that the caller named, or empty.
	Target string
	// Object is the object that was called, as in a journal, or empty for a channel.
	Object string
	// Relayed is true when it went through a session's binding.
	Relayed bool
	// Sender is who issued the operation. A sender's operations may be issued at the same time.
	Sender string
	// Start, End and Deadline are the caller's.
	Start, End, Deadline time.Time
	// Ends counts how often the operation ended for its caller.
	Ends int
	// Reply is the answer's text, when Err is nil.
	Reply string
	Err   error
	Trace channels.Trace
}

// accepted reports whether the caller was told that its operation was accepted.
func (o *Op) accepted() bool {
	return o.Ends > 0 && (o.Err == nil || outcome.AcceptanceOf(o.Err) == outcome.Accepted)
}

// tooLate reports whether its caller gave it up at its deadline.
func (o *Op) tooLate() bool { return o.Ends > 0 && outcome.KindOf(o.Err) == outcome.DeadlineExceeded }

// Took is how long the caller waited.
func (o *Op) Took() time.Duration { return o.End.Sub(o.Start) }

// told is what the caller heard, in words for texts.
func (o *Op) told() string {
	switch {
	case o.Ends == 0:
		return "nothing"
	case o.Err == nil && o.Way == Send:
		return "accepted"
	case o.Err == nil:
		return "replied"
	}
	return fmt.Sprintf("%v, %v", outcome.KindOf(o.Err), outcome.AcceptanceOf(o.Err))
}

// Recorder notes operations while they go on. Its methods may be called from any goroutine.
type Recorder struct {
	prefix string // of the identities, so that those of two recorders differ

	mu  sync.Mutex
	ops map[string]*Op
	n   int
}

// NewRecorder returns a recorder whose operations are named prefix-1, prefix-2, and so on.
func NewRecorder(prefix string) *Recorder {
	return &Recorder{ops: map[string]*Op{}, prefix: prefix}
}

// Begin notes that an operation starts, and returns its identity.
func (r *Recorder) Begin(way Way, target string, deadline time.Time) string {
	return r.begin(Op{Way: way, Target: target, Deadline: deadline})
}

// BeginAt notes that an operation at an object starts, and returns its identity.
func (r *Recorder) BeginAt(way Way, object string, deadline time.Time) string {
	return r.begin(Op{Way: way, Object: object, Deadline: deadline})
}

func (r *Recorder) begin(op Op) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	op.ID, op.Sender, op.Start = fmt.Sprintf("%s-%d", r.prefix, r.n), r.prefix, time.Now()
	r.ops[op.ID] = &op
	return op.ID
}

// Relayed notes that the operation goes through a session's binding.
func (r *Recorder) Relayed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops[id].Relayed = true
}

// End notes how the operation ended.
func (r *Recorder) End(id string, reply []byte, err error, trace channels.Trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op := r.ops[id]
	op.Ends++
	op.End, op.Reply, op.Err, op.Trace = time.Now(), string(reply), err, trace
}

// Get returns what is known of one operation now.
func (r *Recorder) Get(id string) Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op := r.ops[id]; op != nil {
		return *op
	}
	return Op{}
}

// Ops returns every operation, in the order in which they began.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Op, 0, len(r.ops))
	for _, op := range r.ops {
		out = append(out, *op)
	}
	slices.SortFunc(out, func(a, b Op) int { return a.Start.Compare(b.Start) })
	return out
}

// Totals sums up what callers were told.
type Totals struct {
	Sent, Replied, Refused, FailedAccepted, Unknown int
	// Reselected counts the operations that were sent more than once.
	Reselected int
	Longest    time.Duration
}

// Sum returns the totals of ops. Replied includes every Send that was accepted.
func Sum(ops []Op) Totals {
	var t Totals
	for i := range ops {
		op := &ops[i]
		t.Sent++
		switch {
		case op.Ends == 0:
		case op.Err == nil:
			t.Replied++
		case outcome.AcceptanceOf(op.Err) == outcome.NotAccepted:
			t.Refused++
		case outcome.AcceptanceOf(op.Err) == outcome.Accepted:
			t.FailedAccepted++
		default:
			t.Unknown++
		}
		if op.Trace.Reselected > 0 {
			t.Reselected++
		}
		t.Longest = max(t.Longest, op.Took())
	}
	return t
}
