package objects

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// gateway takes the message of a plain client, fab.<mesh>.call.<kind>.<escaped id>, and brings it to the object: as its
// own call, once, wherever the object is. With Fabric-Intent: instance and Fabric-Type a missing Instance Spot is made.
func (s *Service) gateway(in *channels.Inbound) {
	rest := strings.TrimPrefix(in.Subject(), s.cfg.Mesh.Call()+".")
	kindText, token, _ := strings.Cut(rest, ".")
	key, err := keyOf(kindText, token)
	if err != nil {
		in.Refuse(outcome.InvalidOperation, err.Error(), nil)
		return
	}
	call := &Call{Op: "request", Kind: key.Kind, ID: key.ID, Data: in.Data(), OneWay: in.OneWay()}
	if h := in.Header(); len(h) > 0 {
		switch intent := h.Get(wire.HeaderIntent); intent {
		case "":
		case intentInstance:
			if call.Type = h.Get(wire.HeaderType); call.Type == "" {
				in.Refuse(outcome.InvalidOperation, "header "+wire.HeaderType+" is missing: it names the type of the instance", nil)
				return
			}
		default:
			in.Refuse(outcome.InvalidOperation, "header "+wire.HeaderIntent+" has a value that is not allowed: it must be "+intentInstance, nil)
			return
		}
		call.Header = userHeader(h)
	}
	s.stats.gateway.Add(1)
	if o := s.rt.find(key.Kind, key.ID); o != nil && call.fits(o.reg.Class, o.reg.Name) == nil {
		switch because := s.offerInbound(o, in, foreign{in}); because {
		case whyNot:
			return
		case whyMoved: // it is brought to where the object is
		default:
			s.refuseInbound(o, in, because, verbMessage)
			return
		}
	}
	if call.OneWay {
		call.Op = "send"
	}
	s.work(in, func(ctx context.Context) {
		reply, err := s.invokeCall(ctx, call)
		if err != nil {
			s.forwarded(in, err)
			return
		}
		in.Accept()
		in.Reply(reply.Data, reply.Header)
	})
}

// foreign is a message of a plain client: what it says in headers of the fabric's own was read, and counts no further.
type foreign struct{ *channels.Inbound }

// Header is what the client said beside that.
func (f foreign) Header() nats.Header { return userHeader(f.Inbound.Header()) }

// forwarded answers a plain client with the error of the call that was made for it. What this node's own bounds refused is
// Unavailable to somebody elsewhere.
func (s *Service) forwarded(in *channels.Inbound, err error) {
	var e *outcome.Error
	if errors.As(err, &e) && e.Kind == outcome.ShuttingDown {
		out := *e
		out.Kind = outcome.Unavailable
		err = &out
	}
	s.fail(in, err)
}

// isEntry reports whether a key names an Entry Spot, which no record describes.
func isEntry(key kvlocation.ObjectKey) bool {
	return key.Kind == kvlocation.KindSpot && strings.HasPrefix(key.ID, entryPrefix)
}
