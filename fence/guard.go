package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"natsfabric/outcome"
)

// Guard lets only the newest holder write to a resource inside this process (FE-3). It runs one write at a time,
// because a check and a write that can be parted would let an older write land after a newer one.
//
// Concurrency: any number of goroutines may use a Guard.
type Guard struct {
	resource string
	// turn holds one element while nobody writes.
	turn chan struct{}

	mu      sync.Mutex
	source  string // guarded by mu; "" until the first token when none was named
	highest Token  // guarded by mu; written only by whoever has taken turn

	passed, byToken, byLease, otherSource, withoutToken atomic.Uint64
}

// Stats counts what a guard has decided since it was made.
type Stats struct {
	Passed         uint64 // writes that were called, whether they succeeded or not
	StoppedByToken uint64 // refused: a higher token had been seen (ByToken)
	StoppedByLease uint64 // refused: the writer's own ownership was lost (ByLease)
	OtherSource    uint64 // refused: a token of another source
	WithoutToken   uint64 // refused: no token, or none yet
}

// NewGuard returns a guard for the resource, whose name stands in errors. It takes tokens of the given source only;
// with "" it is bound by the first token that it sees.
func NewGuard(resource, source string) *Guard {
	g := &Guard{resource: resource, source: source, turn: make(chan struct{}, 1)}
	g.turn <- struct{}{}
	return g
}

// Do calls write under the token of ctx and returns its error. It waits for a write that runs, until ctx ends
// (DeadlineExceeded, NotAccepted). Refusals, all before anything is called: *StaleError for a token lower than the
// highest seen, and for a turn whose ownership was lost; *SourceError for one of another source; InvalidOperation for
// a context without a token. The write must not use the same guard, and should end soon: the next holder waits for it.
func (g *Guard) Do(ctx context.Context, write func() error) error {
	return g.run(ctx, FromContext, write)
}

// DoToken is Do with a token that the caller holds otherwise. ctx bounds the waiting only.
func (g *Guard) DoToken(ctx context.Context, t Token, write func() error) error {
	return g.run(ctx, func(context.Context) (Token, error) { return t, nil }, write)
}

// Raise makes the token of ctx the highest seen without writing, so that from its return on no older holder writes
// (FE-11). It waits and refuses as Do does.
func (g *Guard) Raise(ctx context.Context) error { return g.run(ctx, FromContext, nil) }

// RaiseToken is Raise with a token that the caller holds otherwise. ctx bounds the waiting only.
func (g *Guard) RaiseToken(ctx context.Context, t Token) error { return g.DoToken(ctx, t, nil) }

// Highest returns the highest token seen, and false when there was none.
func (g *Guard) Highest() (Token, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.highest, !g.highest.IsZero()
}

// Stats returns the counters.
func (g *Guard) Stats() Stats {
	return Stats{
		Passed:         g.passed.Load(),
		StoppedByToken: g.byToken.Load(),
		StoppedByLease: g.byLease.Load(),
		OtherSource:    g.otherSource.Load(),
		WithoutToken:   g.withoutToken.Load(),
	}
}

func (g *Guard) run(ctx context.Context, token func(context.Context) (Token, error), write func() error) error {
	waited := g.wait(ctx)
	if waited == nil {
		defer func() { g.turn <- struct{}{} }()
	}
	// Asked after the waiting: what was held before may be lost by now, and says more than a context that ended for it.
	t, err := token(ctx)
	if err != nil {
		return g.refuse(t, err)
	}
	if waited != nil {
		return waited
	}
	if ctx.Err() != nil {
		return outcome.FromContext(ctx, "guarded write", outcome.NotAccepted, fmt.Sprintf("resource %q", g.resource), "the context had ended before")
	}
	if err := g.see(t); err != nil {
		return err
	}
	if write == nil {
		return nil
	}
	g.passed.Add(1)
	return write()
}

// wait takes the turn. Only a guard that is busy asks the context for its channel, which costs some contexts an
// allocation.
func (g *Guard) wait(ctx context.Context) error {
	select {
	case <-g.turn:
		return nil
	default:
	}
	select {
	case <-g.turn:
		return nil
	case <-ctx.Done():
		return outcome.FromContext(ctx, "guarded write", outcome.NotAccepted, fmt.Sprintf("resource %q", g.resource), "another write held the guard")
	}
}

// refuse turns a holder's error into the guard's, and counts it.
func (g *Guard) refuse(held Token, err error) error {
	if errors.Is(err, outcome.InvalidOperation) {
		g.withoutToken.Add(1)
		return refused(g.resource, outcome.InvalidOperation, "no token", err)
	}
	g.byLease.Add(1)
	seen, _ := g.Highest()
	return &StaleError{Resource: g.resource, Presented: held, Seen: seen, StoppedBy: ByLease, Cause: err}
}

// see compares t with the highest token and keeps the higher one. It decides in the turn of a write.
func (g *Guard) see(t Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !validSource(t.Source):
		g.withoutToken.Add(1)
		return refused(g.resource, outcome.InvalidOperation, fmt.Sprintf("the token %q has no valid source", t), nil)
	case g.source != "" && t.Source != g.source:
		g.otherSource.Add(1)
		return &SourceError{Resource: g.resource, Bound: g.source, Presented: t}
	case !g.highest.IsZero() && t.Compare(g.highest) < 0:
		g.byToken.Add(1)
		return &StaleError{Resource: g.resource, Presented: t, Seen: g.highest, StoppedBy: ByToken}
	}
	g.source, g.highest = t.Source, t
	return nil
}
