package outcome

import "fmt"

// Kind is what went wrong. It is a closed set, and each value is an error of its own, so that
// errors.Is(err, outcome.NotFound) works. The zero Kind is invalid.
type Kind uint8

// The kinds of failure.
const (
	// NotFound: the named target does not exist (no member lists the channel, no such node or object).
	NotFound Kind = iota + 1
	// AlreadyExists: what was to be created is there already.
	AlreadyExists
	// TypeMismatch: the target exists but is of another kind or type than the caller said.
	TypeMismatch
	// NotConfigured: this program was not set up for what was asked of it.
	NotConfigured
	// Rejected: the target's application code or policy declined the operation.
	Rejected
	// Unavailable: the target exists but cannot take the operation now, or contact to it was lost.
	Unavailable
	// CapacityExceeded: a bound that the caller's own process owns is reached (a full queue on another node
	// is Unavailable with NotAccepted), or a payload is above its limit.
	CapacityExceeded
	// DeadlineExceeded: the operation's deadline passed, or its context was cancelled.
	DeadlineExceeded
	// ShuttingDown: the node that should act is stopping.
	ShuttingDown
	// ProtocolError: a message or record could not be understood.
	ProtocolError
	// InvalidOperation: the call is not allowed in this state, or its arguments are wrong.
	InvalidOperation
	// DataLost: what is needed to go on is gone.
	DataLost
	// InternalFailure: a defect or an unclassified failure, a handler's plain error or panic included.
	InternalFailure
)

var kindNames = [...]string{
	NotFound: "NotFound", AlreadyExists: "AlreadyExists", TypeMismatch: "TypeMismatch",
	NotConfigured: "NotConfigured", Rejected: "Rejected", Unavailable: "Unavailable",
	CapacityExceeded: "CapacityExceeded", DeadlineExceeded: "DeadlineExceeded", ShuttingDown: "ShuttingDown",
	ProtocolError: "ProtocolError", InvalidOperation: "InvalidOperation", DataLost: "DataLost",
	InternalFailure: "InternalFailure",
}

// Kinds returns every valid kind, in the order of declaration.
func Kinds() []Kind {
	ks := make([]Kind, 0, len(kindNames)-1)
	for k := NotFound; k.Valid(); k++ {
		ks = append(ks, k)
	}
	return ks
}

// Valid reports whether k is one of the declared kinds.
func (k Kind) Valid() bool { return k >= NotFound && int(k) < len(kindNames) }

// String returns the kind's name as it stands in the header Fabric-Kind.
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Error makes a Kind usable as a target of errors.Is.
func (k Kind) Error() string { return k.String() }

// Code returns the HTTP-like number that goes into Nats-Service-Error-Code.
func (k Kind) Code() int {
	switch k {
	case NotFound:
		return 404
	case AlreadyExists, TypeMismatch, InvalidOperation:
		return 409
	case Rejected:
		return 403
	case CapacityExceeded:
		return 429
	case Unavailable, ShuttingDown:
		return 503
	case DeadlineExceeded:
		return 504
	case ProtocolError:
		return 400
	case NotConfigured:
		return 501
	default:
		return 500
	}
}

// ParseKind is the inverse of String.
func ParseKind(s string) (Kind, bool) {
	for k, n := range kindNames {
		if n != "" && n == s {
			return Kind(k), true
		}
	}
	return 0, false
}

// Acceptance is what is known about whether the target took the operation. Each value is an error of its own,
// so that errors.Is(err, outcome.NotAccepted) works. The zero value is Unknown.
type Acceptance uint8

// What may be known about acceptance.
const (
	// Unknown: the operation was published and neither a reply nor a refusal came.
	Unknown Acceptance = iota
	// NotAccepted: no target ran the operation and none will.
	NotAccepted
	// Accepted: the target's queue took the operation; it ran, runs, or ended by a stated cause.
	Accepted
)

var acceptanceNames = [...]string{Unknown: "Unknown", NotAccepted: "NotAccepted", Accepted: "Accepted"}

// String returns the name as it stands in the header Fabric-Acceptance.
func (a Acceptance) String() string {
	if int(a) >= len(acceptanceNames) {
		return fmt.Sprintf("Acceptance(%d)", uint8(a))
	}
	return acceptanceNames[a]
}

// Error makes an Acceptance usable as a target of errors.Is.
func (a Acceptance) Error() string { return a.String() }

// ParseAcceptance is the inverse of String.
func ParseAcceptance(s string) (Acceptance, bool) {
	for a, n := range acceptanceNames {
		if n == s {
			return Acceptance(a), true
		}
	}
	return Unknown, false
}
