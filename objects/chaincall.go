package objects

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// withChain adds the enclosing turns to what a call made in a turn says; outside of turns it adds nothing. The error is
// NotAccepted: the turn has lost its ownership, or is one of too many that wait for each other.
func withChain(ctx context.Context, op string, key kvlocation.ObjectKey, h nats.Header) (nats.Header, error) {
	c, err := callChain(ctx, op)
	if err != nil {
		return nil, renamed(err, op, key)
	}
	if c == nil {
		return h, nil
	}
	out := make(nats.Header, len(h)+1)
	for name, values := range h {
		out[name] = values
	}
	out[wire.HeaderChain] = []string{c.String()}
	return out, nil
}

// inCycle names the cycle in the error of a call that came to its deadline because its target's turn waits for it.
func inCycle(ctx context.Context, key kvlocation.ObjectKey, err error) error {
	var e *outcome.Error
	if !errors.As(err, &e) || e.Kind != outcome.DeadlineExceeded {
		return err
	}
	c, cerr := callChain(context.WithoutCancel(ctx), e.Op)
	if cerr != nil || c == nil {
		return err
	}
	way := c.cycle(key)
	if way == "" {
		return err
	}
	out := *e
	out.Detail = "the turns wait for each other in a cycle: " + way
	return &out
}
