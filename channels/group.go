package channels

import (
	"errors"
	"slices"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
)

// group is what this node holds of a queue group: as many subscriptions as its share says. Its lists are guarded by
// Router.serveMu.
type group struct {
	r       *Router
	subject string
	take    taker

	open    []*intake
	leaving []*intake // drained, and possibly with messages left
}

// resizeLocked opens or drains subscriptions until there are as many as wanted.
func (g *group) resizeLocked(want int) error {
	for len(g.open) < want {
		in, err := g.r.subscribe(g.subject, wire.QueueGroup, g.take)
		if err != nil {
			return err
		}
		g.open = append(g.open, in)
	}
	var errs []error
	for len(g.open) > want {
		last := len(g.open) - 1
		in := g.open[last]
		g.open = g.open[:last]
		g.leaving = append(g.leaving, in)
		if err := in.leave(); err != nil && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, err)
		}
	}
	g.leaving = slices.DeleteFunc(g.leaving, (*intake).isClosed)
	return errors.Join(errs...)
}
