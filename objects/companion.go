package objects

import (
	"context"

	"natsfabric/outcome"
)

// CloseMoved: the object went on at another node; it is over here, and lives. No Closer runs.
// CloseReleased and CloseLost: somebody else decided its end, or owns it now.
const (
	CloseMoved    CloseReason = "moved"
	CloseReleased CloseReason = "released"
	CloseLost     CloseReason = "lost"
)

// Companion is another package's part of an object: a value in a slot of the object that lives and moves with it, such as
// the bindings of its sessions. All methods but Ended run within a turn of the object, so they never run at once for one
// object; they must not block.
type Companion interface {
	// Capture returns what of the value goes along when the object moves; it does not change the value, because the
	// move may end with the object where it was. It is asked only while the slot holds something.
	Capture(self *Self, v any) ([]byte, error)
	// Restore makes the value at the target, before the move is certain: it must not act.
	Restore(self *Self, data []byte) (any, error)
	// Opened is called at the target right after the move is certain, before any turn.
	Opened(self *Self, v any)
	// Ended is called once when the object is over at this node, in no particular goroutine.
	Ended(self *Self, v any, why CloseReason)
	// Admit is called right before the turn of a message that carries the companion's header, with its value: an error
	// refuses the turn, and the caller gets it as that of a turn.
	Admit(self *Self, v any, header string) error
}

// companionPart is the companion of a Service.
type companionPart struct {
	header string
	of     Companion
}

// Accompany sets the Service's one companion, and the header (Fabric-Binding, for example) with which CallAt marks the
// messages that concern it. It must be called before the router serves, once.
func (s *Service) Accompany(header string, c Companion) {
	s.companion = &companionPart{header: header, of: c}
}

// Companion returns the companion's value; nil for none. It may be called from any goroutine.
func (s *Self) Companion() any { return s.o.slotValue() }

// Accompanied reports whether the message carried the companion's header, which Companion.Admit let pass.
func (r *Request) Accompanied() bool { return r.mail.mark != "" }

// InTurn runs f as a turn of the framework, in mailbox order, of an object of this node of exactly that incarnation, with
// the companion's slot, which f may set. While the object moves, f waits for the move's end. It returns f's error, or an
// *outcome.Error with NotAccepted: Unavailable when the object is not here, with what RouteOf tells; NotFound for another
// incarnation; otherwise as a turn of the framework ends.
func (s *Service) InTurn(ctx context.Context, ref ActorRef, f func(ctx context.Context, self *Self, slot *any) error) error {
	return outcome.New("turn", outcome.Unavailable, outcome.NotAccepted, ref.String(), "")
}

// admitted asks the companion about a message that carries its header.
func (o *object) admitted(e *envelope, c *companionPart) error {
	return c.of.Admit(&o.me, o.slotValue(), e.mark)
}
