package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"natsfabric/kvlocation"
)

// moves are the departures and arrivals under way at this node.
type moves struct {
	mu       sync.Mutex
	leaving  map[*Departure]bool
	arriving map[kvlocation.ObjectKey]*Arrival
	closed   bool
	under    gauge
}

func (m *moves) init() {
	m.leaving, m.arriving = make(map[*Departure]bool), make(map[kvlocation.ObjectKey]*Arrival)
}

// begin enters a departure; it returns false once the Service stops.
func (m *moves) begin(d *Departure) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.leaving[d] = true
	m.under.add(1)
	return true
}

func (m *moves) end(d *Departure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaving[d] {
		delete(m.leaving, d)
		m.under.add(-1)
	}
}

// await enters an arrival, unless one of that unit is under way or the Service stops.
func (m *moves) await(a *Arrival) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.arriving[a.unit.Key] != nil {
		return false
	}
	m.arriving[a.unit.Key] = a
	m.under.add(1)
	return true
}

func (m *moves) over(a *Arrival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.arriving[a.unit.Key] == a {
		delete(m.arriving, a.unit.Key)
		m.under.add(-1)
	}
}

// close refuses new ones and returns those under way.
func (m *moves) close() (leaving []*Departure, arriving []*Arrival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for d := range m.leaving {
		leaving = append(leaving, d)
	}
	for _, a := range m.arriving {
		arriving = append(arriving, a)
	}
	return leaving, arriving
}

// errStops is the cause with which moves end when their node stops.
var errStops = errors.New("the node stops")

// endMoves ends the moves that are still under way when the Service stops: what was held and never published is refused, and
// what was published is Unknown.
func (s *Service) endMoves(ctx context.Context) error {
	err := s.moves.under.wait(ctx)
	n := s.moves.under.now()
	leaving, arriving := s.moves.close()
	for _, d := range leaving {
		d.Abort(errStops)
		d.Fail(errStops)
	}
	for _, a := range arriving {
		a.Abort(errStops)
	}
	s.follows.clear()
	if err != nil {
		return fmt.Errorf("%d moves of objects were under way: %w", n, err)
	}
	return nil
}

// Movable lists the units of this node, for the move of a whole host: Spots first, then the Actors that follow them. The
// members of SpotWide Spots are not listed: they move with their Spot. Objects that are being made or closed are not listed
// either.
func (s *Service) Movable() []MoveItem {
	var spots, actors []MoveItem
	s.rt.each(func(o *object) {
		if o.reg.Class == kvlocation.ClassEntrySpot || s.isSpotWideMember(o) {
			return
		}
		if state := o.is(); state != objectOpen && state != objectSealed {
			return
		}
		m := MoveItem{
			Key: o.key(), Class: o.reg.Class, Type: o.reg.Name, Policy: o.reg.Move, Members: o.reg.Members,
			Generation: o.generation.Load(),
		}
		if m.Key.Kind == kvlocation.KindSpot {
			spots = append(spots, m)
			return
		}
		m.Spot = spotOf(o)
		actors = append(actors, m)
	})
	return append(spots, actors...)
}

// Unsettled counts what Movable does not list though it may be here in a moment: objects that are being made or closed, and
// units that are on their way here.
func (s *Service) Unsettled() int {
	s.moves.mu.Lock()
	n := len(s.moves.arriving)
	s.moves.mu.Unlock()
	s.rt.each(func(o *object) {
		if state := o.is(); state == objectCreating || state == objectClosing {
			n++
		}
	})
	return n
}

// SetPlacing says whether this node takes new objects: creations, takeovers and arrivals. While it does not, these are
// refused with Unavailable and NotAccepted; what it owns goes on. It does when it starts.
func (s *Service) SetPlacing(on bool) { s.closedToNew.Store(!on) }

// Settled returns once nothing that has moved away is followed any more, and no answer of moved work is owed to a caller of
// this process. The error is the cause of ctx.
func (s *Service) Settled(ctx context.Context) error {
	if err := s.follows.live.wait(ctx); err != nil {
		return fmt.Errorf("%d moves are followed: %w", s.follows.live.now(), err)
	}
	if err := s.owed.wait(ctx); err != nil {
		return fmt.Errorf("%d answers of moved work are owed: %w", s.owed.now(), err)
	}
	return nil
}
