package fence

import (
	"fmt"

	"natsfabric/outcome"
)

// The barriers that stop a stale write (FE-10), as they stand in StaleError.StoppedBy.
const (
	// ByToken: the resource had seen a higher token.
	ByToken = "token"
	// ByLease: the writer itself knew that its ownership was lost.
	ByLease = "lease"
)

// StaleError says that a guarded write came from a holder that was overtaken or has lost its ownership. Nothing was
// written. It counts as outcome.Rejected with outcome.NotAccepted.
type StaleError struct {
	// Resource is the guard's name.
	Resource string
	// Presented is the token that the write carried.
	Presented Token
	// Seen is the highest token that the resource has seen; zero when it has seen none.
	Seen Token
	// StoppedBy is ByToken or ByLease.
	StoppedBy string
	// Cause is the holder's error with ByLease, else nil.
	Cause error
}

// Error names the resource, the barrier and the tokens.
func (e *StaleError) Error() string { return e.outcome().Error() }

// Unwrap returns the refusal as an *outcome.Error, and the cause if there is one.
func (e *StaleError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.outcome()}
	}
	return []error{e.outcome(), e.Cause}
}

func (e *StaleError) outcome() *outcome.Error {
	if e.StoppedBy == ByLease {
		return refused(e.Resource, outcome.Rejected, fmt.Sprintf("stopped by the lease: the holder of %s has lost its ownership", e.Presented), e.Cause)
	}
	return refused(e.Resource, outcome.Rejected, fmt.Sprintf("stopped by the token: %s is lower than %s, which the resource has seen", e.Presented, e.Seen), nil)
}

// SourceError says that a guarded write carried a token of another source than the one the resource is bound to.
// Nothing was written. It counts as outcome.InvalidOperation with outcome.NotAccepted.
type SourceError struct {
	// Resource is the guard's name.
	Resource string
	// Bound is the source that the resource is bound to.
	Bound string
	// Presented is the token that the write carried.
	Presented Token
}

// Error names the resource and both sources.
func (e *SourceError) Error() string { return e.outcome().Error() }

// Unwrap returns the refusal as an *outcome.Error.
func (e *SourceError) Unwrap() error { return e.outcome() }

func (e *SourceError) outcome() *outcome.Error {
	return refused(e.Resource, outcome.InvalidOperation,
		fmt.Sprintf("the resource takes tokens of %q only, not of %q", e.Bound, e.Presented.Source), nil)
}

func refused(resource string, kind outcome.Kind, detail string, cause error) *outcome.Error {
	return outcome.Wrap("guarded write", kind, outcome.NotAccepted, fmt.Sprintf("resource %q", resource), detail, cause)
}
