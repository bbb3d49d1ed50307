package objects

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Place is where an object is, as somebody said: which process run owns it, and how often it has changed its owner.
type Place struct {
	RID             string `json:"rid"`
	Lifecycle       uint64 `json:"lifecycle"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
}

// Newer reports whether p says more than q: places are replaced only by a higher (ObjectGeneration, owner generation).
func (p Place) Newer(q Place) bool {
	if p.Generation != q.Generation {
		return p.Generation > q.Generation
	}
	return p.OwnerGeneration > q.OwnerGeneration
}

// Message is one message for CallAt.
type Message struct {
	// Op stands in errors: "relay", for example.
	Op     string
	Data   []byte
	Header nats.Header
	// Mark is the value of the companion's header; empty for none.
	Mark string
	// OneWay makes it a Send, Early asks for the notice of acceptance of a request.
	OneWay, Early bool
}

// CallAt brings a message to exactly the process run that at names: one attempt, no look-up and no second place, whatever
// comes of it. A not-owner refusal carries its route (RouteOf), and so does the answer of a message that was followed:
// then moved is where the object is now, and else zero. Errors are those of Actors.Request.
func (s *Service) CallAt(ctx context.Context, at Place, key kvlocation.ObjectKey, m *Message) (reply Reply, moved Place, err error) {
	return Reply{}, Place{}, outcome.New(m.Op, outcome.Unavailable, outcome.NotAccepted, key.String(), "")
}

// RouteOf returns where an object is, as the node said that refused a message because it does not own the object; ok is
// false when the error says nothing about that, or the node knew no place.
func RouteOf(err error) (p Place, ok bool) {
	var r *routedError
	if !errors.As(err, &r) {
		return p, false
	}
	return r.at, true
}

// routedError is an error with the place that a not-owner answer named.
type routedError struct {
	error
	at Place
}

func (e *routedError) Unwrap() error { return e.error }
