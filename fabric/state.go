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
	// evShutdown: Shutdown was called.
	evShutdown
	// evStopped: everything accepted has ended and the lease was given back.
	evStopped
	// evFatal: the node may not go on.
	evFatal
)

func (e event) String() string {
	return [...]string{"verified", "doubt", "shutdown", "stopped", "fatal"}[e]
}

// next is the host's life cycle: the one function that knows which state follows which. An event that changes
// nothing returns the same state; an event that is not allowed is an error that names both.
func next(s kvlocation.NodeState, e event) (kvlocation.NodeState, error) {
	switch s {
	case kvlocation.StatePreparing:
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
	case kvlocation.StateServing:
		switch e {
		case evVerified:
			return s, nil
		case evDoubt:
			return kvlocation.StatePreparing, nil
		case evShutdown:
			return kvlocation.StateDraining, nil
		case evFatal:
			return kvlocation.StateError, nil
		}
	case kvlocation.StateDraining:
		switch e {
		case evVerified, evDoubt, evShutdown:
			return s, nil // a drain goes on, whatever the connection does
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
