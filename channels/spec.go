package channels

import (
	"errors"
	"fmt"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// Defaults and bounds of a Spec.
const (
	// WeightOut is the Weight of a RouteMesh member that starts without a share.
	WeightOut = -1
	// MaxWeight is the greatest weight: each unit is a subscription at the server.
	MaxWeight = kvlocation.MaxWeight

	DefaultQueue      = 1024
	DefaultQueueBytes = 16 << 20
	DefaultWorkers    = 64

	maxQueue      = 1 << 20
	maxQueueBytes = 1 << 30
	maxWorkers    = 1 << 16
)

// Spec describes one channel that a node serves.
type Spec struct {
	// Name is the channel's name.
	Name string
	// Kind is kvlocation.RouteMesh (the default) or kvlocation.ClientServer.
	Kind kvlocation.ChannelKind
	// Weight is the member's share of a RouteMesh channel, relative to the other members' weights: 1 to 256, 0 for
	// the default 1, or WeightOut. A ClientServer channel has no weights: leave it 0.
	Weight int
	// Queue bounds the accepted requests that wait for a worker (1,024; 1 to 1,048,576). A request beyond it is
	// refused at once.
	Queue int
	// QueueBytes bounds the payload and header bytes of what waits (16 MiB; up to 1 GiB).
	QueueBytes int
	// Workers bounds the handlers that run at the same time (64; 1 to 65,536). Workers start on demand; idle ones
	// end.
	Workers int
	// Handler runs the requests. Required.
	Handler Handler
	// Middleware wraps Handler, the first one outermost.
	Middleware []Middleware
}

// Validate returns an error that names each field that is wrong, its value and the allowed range.
func (s Spec) Validate() error { return s.check() }

// check fills the defaults in and validates.
func (s *Spec) check() error {
	errs := []error{wire.CheckName("Spec.Name", s.Name)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("Spec."+format, args...)) }
	if s.Handler == nil {
		bad("Handler is required")
	}
	switch s.Kind {
	case "":
		s.Kind = kvlocation.RouteMesh
	case kvlocation.RouteMesh, kvlocation.ClientServer:
	default:
		bad("Kind %q is not allowed: it must be %q or %q", s.Kind, kvlocation.RouteMesh, kvlocation.ClientServer)
	}
	switch {
	case s.Kind == kvlocation.ClientServer && s.Weight != 0 && s.Weight != 1:
		bad("Weight %d is not allowed: a client_server channel has no weights", s.Weight)
	case s.Weight == 0:
		s.Weight = 1
	case s.Weight == WeightOut:
		s.Weight = 0
	case s.Weight < 0 || s.Weight > MaxWeight:
		bad("Weight %d is not allowed: it must be 1 to %d, or %d for none", s.Weight, MaxWeight, WeightOut)
	}
	for _, f := range []struct {
		name     string
		v        *int
		def, max int
	}{
		{"Queue", &s.Queue, DefaultQueue, maxQueue},
		{"QueueBytes", &s.QueueBytes, DefaultQueueBytes, maxQueueBytes},
		{"Workers", &s.Workers, DefaultWorkers, maxWorkers},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 1 || *f.v > f.max {
			bad("%s %d is not allowed: it must be 1 to %d", f.name, *f.v, f.max)
		}
	}
	return errors.Join(errs...)
}
