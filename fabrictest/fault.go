package fabrictest

import (
	"fmt"
	"time"
)

// Fault is a way in which the network fails. Faults are plain values; a Proxy
// or Link applies any number of them at once, until it is healed.
type Fault struct {
	kind  faultKind
	delay time.Duration
}

type faultKind uint8

const (
	faultCut faultKind = iota
	faultHang
	faultDropToServer
	faultDropToClient
	faultHalfOpen
	faultRefuse
	faultDelay
)

var (
	// Cut closes connections once, so that both ends notice at once. New ones
	// may be made: combine it with RefuseReconnect to keep them apart.
	Cut = Fault{kind: faultCut}

	// HalfOpen lets every byte vanish in both directions, and the end of the
	// connection too, while both ends see it open. On a connection that carries
	// the NATS client protocol whole operations vanish, so that it works again
	// once healed; the PONGs that the client then misses are made up for, since
	// clients count them. Any other connection that has lost bytes is closed
	// when healed.
	HalfOpen = Fault{kind: faultHalfOpen}

	// Hang keeps back every byte in both directions and delivers them once
	// healed, as TCP does when packets were lost for a while.
	Hang = Fault{kind: faultHang}

	// DropToServer is HalfOpen in the direction to the server only.
	DropToServer = Fault{kind: faultDropToServer}

	// DropToClient is HalfOpen in the direction to the client only.
	DropToClient = Fault{kind: faultDropToClient}

	// RefuseReconnect closes new connections as soon as they are made. Present
	// ones stay.
	RefuseReconnect = Fault{kind: faultRefuse}
)

// Delay makes everything arrive later by d in each direction, in order, without
// limiting the throughput (up to the proxy's bound on waiting bytes).
func Delay(d time.Duration) Fault { return Fault{kind: faultDelay, delay: d} }

func (f Fault) String() string {
	switch f.kind {
	case faultCut:
		return "Cut"
	case faultHang:
		return "Hang"
	case faultDropToServer:
		return "DropToServer"
	case faultDropToClient:
		return "DropToClient"
	case faultHalfOpen:
		return "HalfOpen"
	case faultRefuse:
		return "RefuseReconnect"
	case faultDelay:
		return fmt.Sprintf("Delay(%v)", f.delay)
	}
	return fmt.Sprintf("Fault(%d)", f.kind)
}

// faults is what holds for a connection: the sum of the faults applied.
type faults struct {
	hang   bool
	drop   [2]bool // by Direction
	refuse bool
	delay  time.Duration
}

func (fs faults) with(f Fault) faults {
	switch f.kind {
	case faultHang:
		fs.hang = true
	case faultDropToServer:
		fs.drop[ToServer] = true
	case faultDropToClient:
		fs.drop[ToClient] = true
	case faultHalfOpen:
		fs.drop = [2]bool{true, true}
	case faultRefuse:
		fs.refuse = true
	case faultDelay:
		fs.delay = f.delay
	}
	return fs
}

func (fs faults) plus(other faults) faults {
	return faults{
		hang:   fs.hang || other.hang,
		drop:   [2]bool{fs.drop[0] || other.drop[0], fs.drop[1] || other.drop[1]},
		refuse: fs.refuse || other.refuse,
		delay:  max(fs.delay, other.delay),
	}
}
