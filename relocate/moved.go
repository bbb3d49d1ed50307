package relocate

import (
	"errors"
	"time"

	"natsfabric/kvlocation"
)

// ErrShutdown is the cause with which a node that is asked to shut down cancels the context of Host; the Result is then
// Blocked with ShutdownRequested.
var ErrShutdown = errors.New("the node was asked to shut down")

// Moved is how one unit moved.
type Moved struct {
	Key  kvlocation.ObjectKey `json:"key"`
	Op   string               `json:"op"` // the move's operation ID
	From kvlocation.Owner     `json:"from"`
	To   kvlocation.Owner     `json:"to"`
	// Generation is the ObjectGeneration, which a move keeps; OwnerGeneration is the target's.
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	// Objects, Bytes, Work and Held are how many objects went, the bytes of their captured state, the messages that had been accepted, and those
	// that arrived meanwhile and were taken over by the commit (h).
	Objects int    `json:"objects"`
	Bytes   int    `json:"bytes"`
	Work    int    `json:"work"`
	Held    uint64 `json:"held"`
	// Fallback: the target committed without the cutover marker.
	Fallback bool   `json:"fallback,omitempty"`
	Phases   Phases `json:"phases"`
}

// Phases is how long the steps of a move took, in the order in which they follow each other, as the source saw them. Blackout is from the seal to the
// notice of the commit: what the senders of a busy object feel.
type Phases struct {
	Reserve  time.Duration `json:"reserve_ns"`  // the target's agreement
	Prepare  time.Duration `json:"prepare_ns"`  // the write of *preparing*
	Seal     time.Duration `json:"seal_ns"`     // until the running turns had ended
	Capture  time.Duration `json:"capture_ns"`  // from the seal
	Restore  time.Duration `json:"restore_ns"`  // until relay-ready
	Accept   time.Duration `json:"accept_ns"`   // the write of *accepted*
	Commit   time.Duration `json:"commit_ns"`   // until the target's notice
	Blackout time.Duration `json:"blackout_ns"` // from Capture to Commit together
}
