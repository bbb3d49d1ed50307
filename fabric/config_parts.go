package fabric

import (
	"errors"
	"fmt"
	"time"

	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/objects"
	"natsfabric/relocate"
	"natsfabric/session"
	"natsfabric/supervise"
)

// Relocation says how the node's objects move to other nodes.
type Relocation struct {
	// Concurrency is how many objects move at a time while the whole node is relocated. Default 64; 1 to 1,024.
	Concurrency int
	// UnitTimeout is the deadline of one object's move, from the choice of the target until it serves there. Default 30 s;
	// 2 s to 5 min, and enough for what a move does: see Config.Validate.
	UnitTimeout time.Duration
	// FollowTime is for how long this node passes messages on to objects that have moved away. Default 30 s, or RouteTTL if
	// that is longer; RouteTTL, after which no caller uses the old route, to 1 h.
	FollowTime time.Duration
	// NoFollow turns that off: a message by an old route is refused, NotAccepted, and the caller's next one finds the object.
	NoFollow bool
}

// withDefaults returns r with every unset field filled in.
func (r Relocation) withDefaults(routeTTL time.Duration) Relocation {
	if r.Concurrency == 0 {
		r.Concurrency = relocate.DefaultConcurrency
	}
	if r.UnitTimeout == 0 {
		r.UnitTimeout = relocate.DefaultUnitTimeout
	}
	if r.FollowTime == 0 && !r.NoFollow {
		r.FollowTime = max(relocate.DefaultFollowTime, min(routeTTL, relocate.MaxFollowTime))
	}
	return r
}

// checkRelocation checks what concerns moves, and that their deadlines agree with those of routes and of the store.
func (cfg Config) checkRelocation() error {
	r := cfg.Relocation
	var errs []error
	if r.Concurrency < 1 || r.Concurrency > relocate.MaxConcurrency {
		errs = append(errs, fmt.Errorf("Relocation.Concurrency %d is not allowed: it must be 1 to %d", r.Concurrency, relocate.MaxConcurrency))
	}
	if r.NoFollow && r.FollowTime != 0 {
		errs = append(errs, fmt.Errorf("Relocation.FollowTime %v clashes with Relocation.NoFollow: give one or the other", r.FollowTime))
	}
	err := checkRange("Relocation.UnitTimeout", r.UnitTimeout, relocate.MinUnitTimeout, relocate.MaxUnitTimeout)
	if err == nil {
		if least := 2*cfg.storeAttempt() + relocate.Fallback; r.UnitTimeout < least {
			err = fmt.Errorf("Relocation.UnitTimeout %v clashes with the store attempt timeout %v: two attempts and the fallback of %v must fit, %v",
				r.UnitTimeout, cfg.storeAttempt(), relocate.Fallback, least)
		}
	}
	errs = append(errs, err)
	if !r.NoFollow {
		err := checkRange("Relocation.FollowTime", r.FollowTime, time.Millisecond, relocate.MaxFollowTime)
		route := cfg.RouteTTL
		if route == 0 {
			route = objects.DefaultRouteTTL
		}
		if err == nil && r.FollowTime < route {
			err = fmt.Errorf("Relocation.FollowTime %v clashes with RouteTTL %v: callers use a route for that long after the object has moved (NoFollow turns following off)",
				r.FollowTime, route)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkSessions checks what concerns sessions.
func (cfg Config) checkSessions() error {
	if cfg.Sessions == nil {
		return nil
	}
	s := *cfg.Sessions // Tune fills in defaults
	var errs []error
	if s.Authenticate == nil {
		errs = append(errs, errors.New("Sessions.Authenticate is required: it decides who a client is"))
	}
	if err := s.Tune(); err != nil {
		errs = append(errs, under("Sessions.", err))
	}
	return errors.Join(errs...)
}

// under puts the place in the configuration before each thing that is wrong there.
func under(place string, err error) error {
	parts, several := err.(interface{ Unwrap() []error })
	if !several {
		return fmt.Errorf("%s%w", place, err)
	}
	var errs []error
	for _, part := range parts.Unwrap() {
		errs = append(errs, under(place, part))
	}
	return errors.Join(errs...)
}

// sessionConfig is the configuration of the node's sessions.
func (n *Node) sessionConfig() session.Config {
	var c session.Config
	if n.cfg.Sessions != nil {
		c = *n.cfg.Sessions
	}
	c.Mesh, c.RID, c.Lifecycle = n.mesh, n.cfg.RID, n.lease.Lifecycle()
	c.Conn, c.Router, c.Objects, c.LeaseOf = n.link.nc, n.router, n.objects, n.store.LeaseOf
	if c.Logger == nil {
		c.Logger = n.log
	}
	return c
}

// checkSupervision checks how monitors are to know the node.
func (cfg Config) checkSupervision() error {
	s := cfg.Supervision
	var errs []error
	if s.Worker != "" {
		if _, err := wire.EscapeID(s.Worker); err != nil {
			errs = append(errs, fmt.Errorf("Supervision.Worker %.80q is not allowed: it must be valid UTF-8 of 1 to %d bytes", s.Worker, wire.MaxID))
		}
	}
	return errors.Join(append(errs,
		checkRange("Supervision.Every", s.Every, 50*time.Millisecond, time.Hour),
		checkRange("Supervision.MarkerTime", s.MarkerTime, time.Second, supervise.MaxMarker))...)
}

// checkSelfFence checks when the node is to stop itself.
func (cfg Config) checkSelfFence() error {
	if cfg.SelfFence != nil && (cfg.SelfFence.After < 0 || cfg.SelfFence.After > time.Hour) {
		return fmt.Errorf("SelfFence.After %v is not allowed: it must be 1ns to 1h0m0s, or 0 for %v", cfg.SelfFence.After, fence.DefaultSelfFence)
	}
	return nil
}
