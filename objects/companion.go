package objects

import (
	"context"
	"errors"

	"natsfabric/outcome"
)

// The reasons for which an object is over at a node without being closed: no Closer runs.
const (
	// CloseMoved: it goes on at another node.
	CloseMoved CloseReason = "moved"
	// CloseLost: it was released, or is another node's, or nobody can tell any more.
	CloseLost CloseReason = "lost"
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

// Slot returns the companion's value in the object, and what the companion's header of this turn's message says; empty when
// it carries none.
func (r *Request) Slot() (v any, header string) { return r.self.o.slotValue(), r.mail.mark() }

// InTurn runs f as a turn of the framework, in mailbox order, of an object of this node of exactly that incarnation, with
// the companion's slot, which f may set. While the object moves, f waits for the move's end. It returns f's error, or an
// *outcome.Error with NotAccepted: Unavailable when the object is not here, with what RouteOf tells; NotFound for another
// incarnation; otherwise as a turn of the framework ends.
func (s *Service) InTurn(ctx context.Context, ref ActorRef, f func(ctx context.Context, self *Self, slot *any) error) error {
	const op = "turn"
	key := actorKey(ref)
	ctx, cancel := s.bound(ctx)
	defer cancel()
	for {
		o, err := s.present(ctx, key)
		switch {
		case err != nil:
			return renamed(err, op, key)
		case o == nil:
			return s.placed(renamed(plain(s.notOwner(key)), op, key), key)
		}
		err = o.between(ctx, func(tctx context.Context) error {
			if g := o.generation.Load(); g != ref.Generation {
				return otherGeneration(op, key, g, ref.Generation)
			}
			v := o.slotValue()
			defer func() { o.setSlot(v) }()
			return f(tctx, &o.me, &v)
		})
		if errors.Is(err, errMoved) && o.isClosed() {
			continue // it left between the look and the offer: what is here now knows where it is
		}
		if again, werr := s.whenUnsealed(ctx, o, err); !again {
			return werr
		}
	}
}

// endSlot tells the companion that the object is over here.
func (o *object) endSlot(why CloseReason) {
	if v := o.slotValue(); v != nil {
		o.setSlot(nil)
		o.rt.back.endCompanion(o, v, why)
	}
}

func (s *Service) endCompanion(o *object, v any, why CloseReason) {
	s.companion.of.Ended(&o.me, v, why)
}

// admitMarked asks the companion about a message that carries its header.
func (s *Service) admitMarked(o *object, e *envelope) error {
	if s.companion == nil {
		return outcome.New("turn", outcome.InvalidOperation, outcome.Accepted, o.target(), "the message has a companion's mark, and this node has no companion")
	}
	return s.companion.of.Admit(&o.me, o.slotValue(), e.mark())
}
