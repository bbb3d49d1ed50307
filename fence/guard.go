package fence

import (
	"context"
	"fmt"
	"sync"

	"natsfabric/outcome"
)

// Guard lets only the newest holder write to a resource inside this process (FE-3). It runs one write at a time,
// because a check and a write that can be parted would let an older write land after a newer one.
//
// Concurrency: any number of goroutines may use a Guard.
type Guard struct {
	gate *Gate
	// turn holds one element while nobody writes.
	turn chan struct{}

	mu      sync.Mutex
	highest Token // guarded by mu; written only by whoever has taken turn
}

// NewGuard returns a guard for the resource, whose name stands in errors. It takes tokens of the given source only;
// with "" it is bound by the first token that it sees.
func NewGuard(resource, source string) *Guard {
	g := &Guard{gate: NewGate(resource, source), turn: make(chan struct{}, 1)}
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
func (g *Guard) Stats() Stats { return g.gate.Stats() }

func (g *Guard) run(ctx context.Context, token func(context.Context) (Token, error), write func() error) error {
	waited := g.wait(ctx)
	if waited == nil {
		defer func() { g.turn <- struct{}{} }()
	}
	// Asked after the waiting: what was held before may be lost by now, and says more than a context that ended for it.
	t, err := token(ctx)
	if err != nil {
		seen, _ := g.Highest()
		return g.gate.refuse(t, seen, err)
	}
	if waited != nil {
		return waited
	}
	if ctx.Err() != nil {
		return outcome.FromContext(ctx, "guarded write", outcome.NotAccepted, fmt.Sprintf("resource %q", g.gate.resource), "the context had ended before")
	}
	if err := g.see(t); err != nil {
		return err
	}
	if write == nil {
		return nil
	}
	g.gate.Pass()
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
		return outcome.FromContext(ctx, "guarded write", outcome.NotAccepted, fmt.Sprintf("resource %q", g.gate.resource), "another write held the guard")
	}
}

// see compares t with the highest token and keeps the higher one. It decides in the turn of a write.
func (g *Guard) see(t Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.gate.Check(t); err != nil {
		return err
	}
	if err := g.gate.Judge(t, g.highest); err != nil {
		return err
	}
	g.highest = t
	return nil
}
