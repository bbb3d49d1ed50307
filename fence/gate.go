package fence

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"natsfabric/outcome"
)

// Gate is the part that all guards share: it takes the token out of a context, judges it against the highest token that
// the resource has seen, says so in one kind of error, and counts. Guards for other resources are built on it: the
// resource must keep the highest token beside the data and compare in the same step that writes.
//
// Concurrency: any number of goroutines may use a Gate.
type Gate struct {
	resource string
	source   string

	passed, byToken, byLease, otherSource, withoutToken atomic.Uint64
}

// Stats counts what a guard has decided since it was made (FE-10).
type Stats struct {
	Passed         uint64 // writes that the guard let in, whether they succeeded or not
	StoppedByToken uint64 // refused: a higher token had been seen (ByToken)
	StoppedByLease uint64 // refused: the writer's own ownership was lost (ByLease)
	OtherSource    uint64 // refused: a token of another source
	WithoutToken   uint64 // refused: no token, or none yet
}

// NewGate returns the gate of a resource, whose name stands in errors. With a source, tokens of any other are refused;
// with "" the resource itself decides to which source it is bound (see Judge).
func NewGate(resource, source string) *Gate { return &Gate{resource: resource, source: source} }

// Resource returns the name.
func (g *Gate) Resource() string { return g.resource }

// Source returns the source that the gate was made for, "" for any.
func (g *Gate) Source() string { return g.source }

// Token returns the token under which ctx runs, for a write that is about to be sent. Refusals: InvalidOperation when
// there is no token, or none yet; *StaleError with ByLease when ownership was lost; *SourceError for a token of another
// source than the gate's.
func (g *Gate) Token(ctx context.Context) (Token, error) {
	t, err := FromContext(ctx)
	if err != nil {
		return t, g.refuse(t, Token{}, err)
	}
	return t, g.Check(t)
}

// Check refuses a token that has no valid source, or another one than the gate's.
func (g *Gate) Check(t Token) error {
	switch {
	case !validSource(t.Source):
		g.withoutToken.Add(1)
		return refused(g.resource, outcome.InvalidOperation, fmt.Sprintf("the token %q has no valid source", t), nil)
	case g.source != "" && t.Source != g.source:
		return g.other(g.source, t)
	}
	return nil
}

// Judge compares the presented token with the highest that the resource has seen (the zero Token for none) and returns
// nil for a token that may write, a *StaleError with ByToken for a lower one, and a *SourceError for one of another
// source. A refusal is counted. Judge decides nothing that the resource did not decide: a resource that changes between
// Judge and the write must judge again.
func (g *Gate) Judge(presented, seen Token) error {
	switch {
	case seen.IsZero():
		return nil
	case presented.Source != seen.Source:
		return g.other(seen.Source, presented)
	case presented.Compare(seen) < 0:
		g.byToken.Add(1)
		return &StaleError{Resource: g.resource, Presented: presented, Seen: seen, StoppedBy: ByToken}
	}
	return nil
}

// Pass counts a write that was let in.
func (g *Gate) Pass() { g.passed.Add(1) }

// Stats returns the counters.
func (g *Gate) Stats() Stats {
	return Stats{
		Passed:         g.passed.Load(),
		StoppedByToken: g.byToken.Load(),
		StoppedByLease: g.byLease.Load(),
		OtherSource:    g.otherSource.Load(),
		WithoutToken:   g.withoutToken.Load(),
	}
}

// refuse turns a holder's error into the guard's, and counts it.
func (g *Gate) refuse(held, seen Token, err error) error {
	if errors.Is(err, outcome.InvalidOperation) {
		g.withoutToken.Add(1)
		return refused(g.resource, outcome.InvalidOperation, "no token", err)
	}
	g.byLease.Add(1)
	return &StaleError{Resource: g.resource, Presented: held, Seen: seen, StoppedBy: ByLease, Cause: err}
}

func (g *Gate) other(bound string, t Token) error {
	g.otherSource.Add(1)
	return &SourceError{Resource: g.resource, Bound: bound, Presented: t}
}
