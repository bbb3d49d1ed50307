package fabric

import (
	"fmt"

	"natsfabric/kvlocation"
)

// event is what moves a node from one host state to another.
type event int

const (
	// evVerified: identity, lease and store were checked (again) and the descriptor says so.
	evVerified event = iota
	// evDoubt: the connection was lost, the lease lapsed, or a stream of the store is missing.
	evDoubt
	// evRelocate: the relocation of every object here begins.
	evRelocate
	// evBlocked: it ended with objects still here, and the node is as verified as it was before.
	evBlocked
	// evBlockedInDoubt: it ended with objects still here, and the node has to be verified first.
	evBlockedInDoubt
	// evRelocated: it ended with no object left here.
	evRelocated
	// evShutdown: Shutdown was called.
	evShutdown
	// evStopped: everything accepted has ended and the lease was given back.
	evStopped
	// evFatal: the node may not go on.
	evFatal
)

func (e event) String() string {
	return [...]string{"verified", "doubt", "relocate", "blocked", "blocked in doubt", "relocated", "shutdown", "stopped", "fatal"}[e]
}

// next is the host's life cycle: the one function that knows which state follows which. An event that changes
// nothing returns the same state; an event that is not allowed is an error that names both.
func next(s kvlocation.NodeState, e event) (kvlocation.NodeState, error) {
	switch s {
	case kvlocation.StatePreparing: // to Serving, Draining, Error
		switch e {
		case evVerified:
			return kvlocation.StateServing, nil
		case evDoubt:
			return s, nil
		case evShutdown:
			return kvlocation.StateDraining, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateServing: // to Preparing, Relocating, Draining, Error
		switch e {
		case evVerified:
			return s, nil
		case evDoubt:
			return kvlocation.StatePreparing, nil
		case evRelocate:
			return kvlocation.StateRelocating, nil
		case evShutdown:
			return kvlocation.StateDraining, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateRelocating: // to Relocated, Serving, Preparing, Draining, Error
		switch e {
		case evVerified, evDoubt:
			return s, nil // each move in progress ends by its own rules; what may not begin is refused by the lease
		case evBlocked:
			return kvlocation.StateServing, nil
		case evBlockedInDoubt:
			return kvlocation.StatePreparing, nil
		case evRelocated:
			return kvlocation.StateRelocated, nil
		case evShutdown:
			return kvlocation.StateDraining, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateRelocated: // to Draining, Error
		switch e {
		case evVerified, evDoubt:
			return s, nil
		case evShutdown:
			return kvlocation.StateDraining, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateDraining: // to Stopped, Error
		switch e {
		case evVerified, evDoubt, evBlocked, evBlockedInDoubt, evRelocated, evShutdown:
			return s, nil // a drain goes on, whatever the connection and a relocation do
		case evStopped:
			return kvlocation.StateStopped, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateStopped, kvlocation.StateError:
		return s, nil // terminal: nothing moves it
	}
	return s, fmt.Errorf("host state %s does not allow the event %q", s, e)
}

// terminal reports whether s is an end.
func terminal(s kvlocation.NodeState) bool {
	return s == kvlocation.StateStopped || s == kvlocation.StateError
}
