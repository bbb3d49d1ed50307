package objects

import (
	"context"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/kvlocation"
)

// Self is what an object knows of itself, and what it may ask of the node that hosts it.
//
// Concurrency: every method may be called from any goroutine, for as long as the object lives here.
type Self struct {
	o *object
}

// ID is the object's logical ID.
func (s *Self) ID() string { return s.o.id }

// Moved reports whether the object came to this node from another one: a factory then gets nil as its input.
func (s *Self) Moved() bool {
	sd := s.o.side.Load()
	return sd != nil && sd.moved
}

// Instance is what the factory made; nil before. It is for turns, and for a Companion.
func (s *Self) Instance() Object { return s.o.inst }

// Class is the class of the object's type.
func (s *Self) Class() Class { return s.o.reg.Class }

// Type is the name of the object's type.
func (s *Self) Type() string { return s.o.reg.Name }

// Generation is the ObjectGeneration: the number of this incarnation of the ID.
func (s *Self) Generation() uint64 { return s.o.generation.Load() }

// OwnerGeneration is the number of this ownership of the incarnation.
func (s *Self) OwnerGeneration() uint64 { return s.o.ownerGeneration.Load() }

// RID and Lifecycle name the process run that owns the object.
func (s *Self) RID() string { return s.o.rt.rid }

// Lifecycle is the number of the process run that owns the object.
func (s *Self) Lifecycle() uint64 { return s.o.rt.lifecycle }

// ActorRef names this incarnation of an Actor. It is zero for a Spot.
func (s *Self) ActorRef() ActorRef {
	if s.o.reg.kind != kvlocation.KindActor {
		return ActorRef{}
	}
	return ActorRef{ID: s.o.id, Generation: s.Generation()}
}

// SpotRef names this incarnation of a Spot. It is zero for an Actor.
func (s *Self) SpotRef() SpotRef {
	if s.o.reg.kind != kvlocation.KindSpot {
		return SpotRef{}
	}
	return SpotRef{ID: s.o.id, Generation: s.Generation()}
}

// Logger returns the node's logger with the object's fields.
func (s *Self) Logger() *zap.Logger {
	return s.o.rt.log.With(zap.String("class", string(s.Class())), zap.String("type", s.Type()), zap.String("id", s.o.id),
		zap.Uint64("generation", s.Generation()))
}

// SetTimer starts a timer, or starts it anew if the object has one of that name: once, after the given time, a turn
// runs whose Request.Timer is the name. Timers live in memory: they move with the object, and end with it or with its
// node. While the node's lease has lapsed no timer runs; one that became due meanwhile runs once the object was adopted again.
//
// The error is an *outcome.Error with NotAccepted: InvalidOperation for a negative time or a name that is empty or
// above 255 bytes, CapacityExceeded when the object has MaxTimers or the data is larger than its mailbox, Unavailable
// when ownership is lost, the object is closed, or it moves and its timers have been captured.
func (s *Self) SetTimer(name string, after time.Duration, data []byte) error {
	return s.o.setTimer(name, after, data)
}

// CancelTimer ends a timer and reports whether it had not run yet.
func (s *Self) CancelTimer(name string) bool { return s.o.cancelTimer(name) }

// Members returns the Actors that are in the Spot; nil for an Actor.
func (s *Self) Members() []ActorRef { return s.o.rt.back.selfMembers(s.o) }

// Broadcast sends data to every member of the Spot and says what became of it; see Spots.Broadcast.
func (s *Self) Broadcast(ctx context.Context, data []byte) (BroadcastResult, error) {
	return s.o.rt.back.selfBroadcast(ctx, s.o, data)
}

// Spot returns the Spot that the Actor is in; ok is false for a Spot.
func (s *Self) Spot() (spot SpotRef, ok bool) { return s.o.rt.back.selfSpot(s.o) }

// Close asks for the object's end after the present turn: what waits then ends with NotFound and Accepted. An Entry
// Spot lives as long as its node, and takes no notice.
func (s *Self) Close() { s.o.askClose(CloseSelf) }

// Actors calls Actors. Calls made with the turn's context carry the chain of turns.
func (s *Self) Actors() *Actors { return s.o.rt.back.Actors() }

// Spots calls Spots. Calls made with the turn's context carry the chain of turns.
func (s *Self) Spots() *Spots { return s.o.rt.back.Spots() }

// Channel returns a channel to call.
func (s *Self) Channel(name string) *channels.Channel { return s.o.rt.back.channel(name) }
