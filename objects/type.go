package objects

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// Defaults and bounds of a Type.
const (
	// DefaultCapacity is how many objects of one type a node owns at most.
	DefaultCapacity = 1_000_000
	// DefaultMailbox and DefaultMailboxBytes bound what waits for one object.
	DefaultMailbox      = 1024
	DefaultMailboxBytes = 4 << 20
	// DefaultCreateTimeout is the default of Type.CreateTimeout.
	DefaultCreateTimeout = 30 * time.Second
	// MaxCreateTimeout is the greatest CreateTimeout: below the time for which a first message is kept.
	MaxCreateTimeout = 5 * time.Minute

	maxMailbox      = 1 << 20
	maxMailboxBytes = 1 << 30
	minIdleAfter    = 10 * time.Millisecond
)

// Class tells the kinds of objects: Actors, and Spots by how they come to be.
type Class = kvlocation.Class

// Reply is what a handler answers and a caller gets.
type Reply = channels.Reply

// Handler runs one turn. Its error goes back to the caller: an *outcome.Error keeps its kind, any other becomes
// InternalFailure, and both say Accepted.
//
// ctx and req are valid until the handler returns. The context ends at the request's deadline (a Send's has ended with
// its acceptance), and with the cause kvlocation.ErrOwnershipLost when the node's lease lapses; it carries the fencing
// token (fence.FromContext) and the chain of enclosing turns, so it is the context for calls to other objects. It does
// not end because the caller went away.
type Handler func(ctx context.Context, req *Request) (Reply, error)

// Middleware wraps a Handler. It runs around every message and every timer of the type's objects.
type Middleware func(Handler) Handler

// Object is the state and behaviour of one Actor or Spot. The fabric calls it in turns: never two at a time for one
// object, each one seeing what the ones before it did, without a lock of the object's own.
type Object interface {
	Handle(ctx context.Context, req *Request) (Reply, error)
}

// HandlerFunc is an Object made of a function, for state that stands in a closure.
type HandlerFunc func(ctx context.Context, req *Request) (Reply, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, req *Request) (Reply, error) { return f(ctx, req) }

// Factory makes the instance of an object. input is what its creator gave, empty for one that a message made. The
// context ends after Type.CreateTimeout and when ownership is lost; there is no fencing token yet (a guard answers
// InvalidOperation): what is written outside belongs into Activator. A factory may run again, at another node, when its
// node died before the object was ready.
//
// An error ends the creation. An *outcome.Error keeps its kind, any other becomes InternalFailure.
type Factory func(ctx context.Context, self *Self, input []byte) (Object, error)

// Activator is implemented by objects that raise a guard or load state before their first turn. Activate runs with the
// fencing token in ctx, after the object became this node's, and again after the node had lost its lease and got it
// back. While it fails no turn runs: what waits ends with Unavailable and Accepted, and the next message tries again.
type Activator interface {
	Activate(ctx context.Context, self *Self) error
}

// Closer is implemented by objects that want a last turn before their record is closed. An error is logged and counted,
// and the close goes on.
type Closer interface {
	Closing(ctx context.Context, self *Self, why CloseReason) error
}

// MemberWatcher is implemented by Spots that decide about their members. Joining may refuse a join with an error; Left
// tells that a member has left. Both run in turns of the Spot.
type MemberWatcher interface {
	Joining(ctx context.Context, self *Self, actor ActorRef) error
	Left(ctx context.Context, self *Self, actor ActorRef)
}

// CloseReason says why an object is closed.
type CloseReason string

// The reasons of a close.
const (
	// CloseAsked: a caller destroyed the Actor or closed the Spot.
	CloseAsked CloseReason = "asked"
	// CloseSelf: the object called Self.Close.
	CloseSelf CloseReason = "self"
	// CloseIdle: it had no turn for Type.IdleAfter.
	CloseIdle CloseReason = "idle"
	// ClosePanic: a turn panicked and Type.OnPanic is DestroyOnPanic.
	ClosePanic CloseReason = "panic"
	// CloseShutdown: the node stops and Type.CloseOnShutdown is set.
	CloseShutdown CloseReason = "shutdown"
	// CloseSpot: the Actor is a member of a SpotWide Spot that is closed.
	CloseSpot CloseReason = "spot"
)

// PanicPolicy says what becomes of an object whose turn panicked. The caller hears InternalFailure and Accepted in
// either case.
type PanicPolicy uint8

const (
	// KeepOnPanic keeps the object as the panic left it.
	KeepOnPanic PanicPolicy = iota
	// DestroyOnPanic closes it; what waits ends with NotFound and Accepted.
	DestroyOnPanic
)

// Type says how a node hosts one type of objects. Name, Class and New are required; the zero value of every other field
// is its default.
type Type struct {
	// Name is the type's name, the same at every node: [A-Za-z0-9_-]{1,64}.
	Name string
	// Class is what the type's objects are. One name may be registered once for each class; a node has at most one
	// type of the class entry_spot.
	Class Class
	// New makes the instances.
	New Factory
	// Capacity is how many objects of the type this node owns at most. Default 1,000,000.
	Capacity int
	// Mailbox and MailboxBytes bound what waits for one object. Default 1,024 messages and 4 MiB. What does not fit
	// is refused: CapacityExceeded to a caller in this process, Unavailable to one elsewhere, both NotAccepted.
	Mailbox, MailboxBytes int
	// CreateTimeout bounds a creation at this node, from the first write of its record to the last, the factory
	// included; and each run of the activation callback. Default 30 s, at most 5 min.
	CreateTimeout time.Duration
	// OnPanic says what becomes of an object whose turn panicked. Default: it is kept.
	OnPanic PanicPolicy
	// IdleAfter closes an Instance Spot that had no turn for so long: its record goes, and the next message that
	// says so makes it anew. 0 means never. For other classes it must be 0.
	IdleAfter time.Duration
	// CloseOnShutdown closes the type's objects when the node stops in order. Without it their records stay, and
	// their callers hear Unavailable until they are released.
	CloseOnShutdown bool
	// Move says whether the type's objects may move to another node. Default: they stay. For entry spots it must be
	// MoveDisabled.
	Move MovePolicy
	// MaxState bounds the captured state of one object, in bytes. Default 32 MiB, at most 256 MiB.
	MaxState int
	// Members says how the members of a Spot move. Default: each one for itself. For Actors and entry spots it must be
	// PerActor.
	Members MemberMode
	// Middleware wraps every turn, the first one outermost.
	Middleware []Middleware
}

// Validate checks every field, defaults filled in. Its error names the type, and each field that is wrong with
// its value and what is allowed.
func (t Type) Validate() error { return t.check() }

// check fills in defaults.
func (t *Type) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("type %q: "+format, append([]any{t.Name}, args...)...))
	}
	errs = append(errs, wire.CheckName("Type.Name", t.Name))
	switch t.Class {
	case kvlocation.ClassActor, kvlocation.ClassEntrySpot, kvlocation.ClassUserSpot, kvlocation.ClassInstanceSpot:
	default:
		bad("Class %q is not allowed: it must be actor, entry_spot, user_spot or instance_spot", t.Class)
	}
	if t.New == nil {
		bad("New is required")
	}
	switch {
	case t.OnPanic > DestroyOnPanic:
		bad("OnPanic %d is not allowed: it must be KeepOnPanic or DestroyOnPanic", t.OnPanic)
	case t.OnPanic == DestroyOnPanic && t.Class == kvlocation.ClassEntrySpot:
		bad("OnPanic DestroyOnPanic is not allowed: an Entry Spot lives as long as its node")
	}
	switch {
	case t.IdleAfter != 0 && t.Class != kvlocation.ClassInstanceSpot:
		bad("IdleAfter %v is not allowed: only instance spots are removed when idle", t.IdleAfter)
	case t.IdleAfter != 0 && t.IdleAfter < minIdleAfter:
		bad("IdleAfter %v is not allowed: it must be 0 or at least %v", t.IdleAfter, minIdleAfter)
	}
	switch {
	case t.Move > MoveState:
		bad("Move %d is not allowed: it must be MoveDisabled, MoveRecreate or MoveState", t.Move)
	case t.Move != MoveDisabled && t.Class == kvlocation.ClassEntrySpot:
		bad("Move %s is not allowed: an Entry Spot stays at its node", t.Move)
	}
	switch {
	case t.Members > SpotWide:
		bad("Members %d is not allowed: it must be PerActor or SpotWide", t.Members)
	case t.Members == SpotWide && t.Class != kvlocation.ClassUserSpot && t.Class != kvlocation.ClassInstanceSpot:
		bad("Members spot_wide is not allowed for the class %s: it must be user_spot or instance_spot", t.Class)
	}
	for _, f := range []struct {
		name           string
		value          *int
		standard, most int
	}{
		{"MaxState", &t.MaxState, DefaultMaxState, MaxMaxState},
		{"Capacity", &t.Capacity, DefaultCapacity, MaxCapacity},
		{"Mailbox", &t.Mailbox, DefaultMailbox, maxMailbox},
		{"MailboxBytes", &t.MailboxBytes, DefaultMailboxBytes, maxMailboxBytes},
	} {
		if *f.value == 0 {
			*f.value = f.standard
		}
		if *f.value < 1 || *f.value > f.most {
			bad("%s %d is not allowed: it must be 1 to %d", f.name, *f.value, f.most)
		}
	}
	if t.CreateTimeout == 0 {
		t.CreateTimeout = DefaultCreateTimeout
	}
	if t.CreateTimeout < time.Millisecond || t.CreateTimeout > MaxCreateTimeout {
		bad("CreateTimeout %v is not allowed: it must be 1ms to %v", t.CreateTimeout, MaxCreateTimeout)
	}
	return errors.Join(errs...)
}
