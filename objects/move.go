package objects

import (
	"context"
	"errors"

	"natsfabric/kvlocation"
)

// MovePolicy says whether objects of a type may move to another node while they live, and what goes with them. What was
// accepted and has not run, and timers, go along in either case.
type MovePolicy uint8

const (
	// MoveDisabled: the type's objects stay where they are.
	MoveDisabled MovePolicy = iota
	// MoveRecreate: the factory makes the instance anew at the target, with nil input and Self.Moved true. It is for
	// objects that load what they need, in Activator, from elsewhere.
	MoveRecreate
	// MoveState: the instance is a Mover. Its state is captured at the source, and restored at the target after the
	// factory. One that is none stays where it is (ErrNoMover): the log warns of it when the type's first object is made.
	MoveState
)

// String is the form in records and texts.
func (p MovePolicy) String() string {
	switch p {
	case MoveDisabled:
		return "disabled"
	case MoveRecreate:
		return "recreate"
	case MoveState:
		return "state"
	}
	return "unknown"
}

// MemberMode says how the members of a Spot move.
type MemberMode uint8

const (
	// PerActor: the Spot and each member are units of their own.
	PerActor MemberMode = iota
	// SpotWide: the Spot and all its members are always on one node, and move together or not at all.
	SpotWide
)

// String is the form in records and texts.
func (m MemberMode) String() string {
	if m == SpotWide {
		return "spot_wide"
	}
	return "per_actor"
}

const (
	// DefaultMaxState is the default of Type.MaxState, in bytes.
	DefaultMaxState = 32 << 20
	// MaxMaxState is its greatest value.
	MaxMaxState = 256 << 20
)

// State is what an object's instance consists of while it moves: opaque to the fabric, versioned by the application.
type State struct {
	// Version is the application's: the target's Restore decides by it.
	Version uint64
	// Data has at most Type.MaxState bytes.
	Data []byte
}

// Mover is implemented by the instances of types with MoveState.
//
// Capture runs at the source in a turn of the object's own, with the fencing token, after every other turn has ended. An
// error ends the move, and the object goes on as if nothing had been; so it must not tear down what the next turn needs.
//
// Restore runs at the target after the factory, before the move is certain: there is no fencing token, and with its
// context nothing can be sent (both are InvalidOperation). A version that it does not know is ErrStateVersion. An error
// ends the move, and the object goes on at the source. What has to be done with the token belongs into Activator, which
// runs once the object is the target's.
type Mover interface {
	Capture(ctx context.Context, self *Self) (State, error)
	Restore(ctx context.Context, self *Self, state State) error
}

var (
	// ErrStateVersion is what a Restore returns for a version of the state that it does not know.
	ErrStateVersion = errors.New("the version of the captured state is not known")
	// ErrMoveDisabled is in the chain of the error of a move that the object's type does not allow.
	ErrMoveDisabled = errors.New("the type's objects do not move (Type.Move is MoveDisabled)")
	// ErrMoving is in the chain of the error of a move while another one, or the object's end, is under way.
	ErrMoving = errors.New("another move of the object, or its end, is under way")
	// ErrMember is in the chain of the error of a move of a member of a SpotWide Spot: it moves with its Spot.
	ErrMember = errors.New("it is a member of a SpotWide Spot and moves with it")
	// ErrStateTooLarge is in the chain of the error of a capture whose state is above Type.MaxState.
	ErrStateTooLarge = errors.New("the captured state is above the type's MaxState")
	// ErrNoMover is in the chain of the error of a move of an instance that should be a Mover.
	ErrNoMover = errors.New("the type's Move is MoveState, and its instance has no Capture and Restore")
	// ErrPolicy is in the chain of a target's refusal of a type that moves otherwise there (Type.Move, Type.Members).
	ErrPolicy = errors.New("the node's type has another Move or Members")
	// ErrUnknownType is in the chain of a target's refusal of a type that it does not have.
	ErrUnknownType = errors.New("the node does not host the type")
	// ErrNoSlot is in the chain of a target's refusal that has no free slot.
	ErrNoSlot = errors.New("the node has no free slot")
)

// Unit is what moves together: one Actor, one PerActor Spot, or a SpotWide Spot with its members. Its JSON form travels in
// the reservation at the target.
type Unit struct {
	Key     kvlocation.ObjectKey `json:"key"`
	Class   Class                `json:"class"`
	Type    string               `json:"type"`
	Policy  MovePolicy           `json:"policy"`
	Members MemberMode           `json:"members"`
	// Generation and OwnerGeneration are those of the unit's record before the move.
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	// AppVersion is the application version of the source (Config.AppVersion).
	AppVersion string `json:"app_version,omitempty"`
	// Types says how many objects of which type the unit has, the unit's own first.
	Types []UnitType `json:"types"`
	// MaxBytes bounds what Capture hands out: it is the sum of what the types allow.
	MaxBytes int64 `json:"max_bytes"`
}

// UnitType is how many objects of one type a unit has.
type UnitType struct {
	Class  Class      `json:"class"`
	Type   string     `json:"type"`
	Policy MovePolicy `json:"policy"`
	Count  int        `json:"count"`
}

// Objects is how many objects the unit has.
func (u Unit) Objects() int {
	n := 0
	for _, t := range u.Types {
		n += t.Count
	}
	return n
}

// MoveItem is one unit of this node, for the move of a whole host.
type MoveItem struct {
	Key        kvlocation.ObjectKey
	Class      Class
	Type       string
	Policy     MovePolicy
	Members    MemberMode
	Generation uint64
	// Spot is the PerActor Spot that an Actor has joined; zero for none. An Actor follows it to the same node.
	Spot SpotRef
}
