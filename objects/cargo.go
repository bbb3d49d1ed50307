package objects

import "natsfabric/kvlocation"

// Cargo is what a unit takes along: states, timers, companions, and the work that was accepted and has not run, with the
// reply routes of its callers. Its binary form is versioned; ParseCargo refuses a version that it does not know.
type Cargo struct {
	objects []cargoObject
}

// cargoObject is what one object takes along.
type cargoObject struct {
	key             kvlocation.ObjectKey
	class           Class
	typ             string
	generation      uint64
	ownerGeneration uint64
	state           *State
	timers          []cargoTimer
	companion       []byte
	hasCompanion    bool
	members         []byte // of a Spot; belongs to membership.go
	work            []parcel
}

// cargoTimer is one timer.
type cargoTimer struct {
	name string
	data []byte
	left int64 // nanoseconds until it is due, at the capture
}

// Counts says how much the cargo holds: bytes of captured state, pieces of accepted work, timers, objects.
func (c *Cargo) Counts() (stateBytes, work, timers, objects int) {
	for i := range c.objects {
		o := &c.objects[i]
		if o.state != nil {
			stateBytes += len(o.state.Data)
		}
		work += len(o.work)
		timers += len(o.timers)
	}
	return stateBytes, work, timers, len(c.objects)
}

// Held is one message that the source held, with its number in the unit.
type Held struct {
	number uint64
	object kvlocation.ObjectKey
	parcel parcel
}

// Number is the message's place in the unit's hold, from 1.
func (h Held) Number() uint64 { return h.number }

// Size is about how many bytes the message has.
func (h Held) Size() int { return h.parcel.bytes() }

// MarshalBinary returns the binary form; it does not fail.
func (c *Cargo) MarshalBinary() ([]byte, error) { return c.encode(), nil }

// MarshalBinary returns the binary form; it does not fail.
func (h Held) MarshalBinary() ([]byte, error) { return h.encode(), nil }

// ParseCargo reads the binary form of a Cargo. Its error is an *outcome.Error, ProtocolError and NotAccepted. The Cargo
// keeps slices of data.
func ParseCargo(data []byte) (*Cargo, error) { return decodeCargo(data) }

// ParseHeld reads the binary form of a Held. Its error is an *outcome.Error, ProtocolError and NotAccepted. It keeps slices
// of data.
func ParseHeld(data []byte) (Held, error) { return decodeHeld(data) }
