package objects

import (
	"errors"
	"fmt"
	"strconv"

	"natsfabric/outcome"
)

// why says why mail was not taken.
type why uint8

const (
	whyNot      why = iota
	whyFull         // the mailbox is full
	whyTooLarge     // the message alone is larger than the mailbox
	whyClosed       // the object is not here any more
	whyLapsed       // the node's lease has lapsed
	whyDraining     // the node stops
	whyPast         // the deadline had passed on arrival
	whyAborted      // it was held, and the object's creation, or its life, ended
	whyMoved        // the object has moved to another node
	whySealed       // a turn of the framework, and the object moves or closes
	whyHoldFull     // the hold of the object's move is full
	whys
)

// refusal returns the error of an offer that was refused. remote is true when the caller is another process: what is
// full here is Unavailable to it.
func (w why) refusal(op, target string, remote bool) *outcome.Error {
	kind, detail := outcome.Unavailable, ""
	switch w {
	case whyFull:
		detail = "the mailbox is full"
		if !remote {
			kind = outcome.CapacityExceeded
		}
	case whyTooLarge:
		kind, detail = outcome.CapacityExceeded, "the message is larger than the object's mailbox"
	case whyClosed:
		detail = "the object is not at this node any more"
	case whyMoved:
		return outcome.Wrap(op, kind, outcome.NotAccepted, target, "", errMoved)
	case whySealed:
		return outcome.Wrap(op, kind, outcome.NotAccepted, target, "", errSealed)
	case whyHoldFull:
		detail = "the object moves to another node, and what may wait for the end of that is there"
		if !remote {
			kind = outcome.CapacityExceeded
		}
	case whyLapsed:
		detail = "the node's lease has lapsed"
	case whyDraining:
		detail = "the node is shutting down"
		if !remote {
			kind = outcome.ShuttingDown
		}
	case whyPast:
		kind, detail = outcome.DeadlineExceeded, "the deadline had passed on arrival"
	default:
		panic("objects: no refusal: " + strconv.Itoa(int(w)))
	}
	return outcome.New(op, kind, outcome.NotAccepted, target, detail)
}

// errSealed is in the chain of the error of a framework's turn that was refused because its object is sealed.
var errSealed = errors.New("the object moves to another node")

// errMoved is why an object is closed that has moved.
var errMoved = outcome.New("turn", outcome.Unavailable, outcome.NotAccepted, "", "the object has moved to another node")

func quote(s string) string { return strconv.Quote(s) }

func errTwice(t Type) error {
	return fmt.Errorf("type %q: Name is registered twice for the class %s", t.Name, t.Class)
}

func errEntries(a, b string) error {
	return fmt.Errorf("type %q: Class entry_spot is taken by type %q: a node has one", b, a)
}

// errWithheld is the result of a turn that outlived its ownership.
func errWithheld(o *object, detail string) *outcome.Error {
	return outcome.New("turn", outcome.Unavailable, outcome.Accepted, o.target(), detail)
}
