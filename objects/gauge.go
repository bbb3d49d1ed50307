package objects

import (
	"context"
	"sync"
)

// gauge counts what is under way, for those who wait until nothing is.
type gauge struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n becomes 0; nil while nobody waits
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n += n; g.n == 0 && g.zero != nil {
		close(g.zero)
		g.zero = nil
	}
}

func (g *gauge) now() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// wait returns nil once nothing is under way, and else the cause of ctx.
func (g *gauge) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.zero == nil {
		g.zero = make(chan struct{})
	}
	zero := g.zero
	g.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
