package session

import (
	"context"
	"slices"
	"sync"
)

// turnOrder has what asks for a turn of an Actor, in order to bind, unbind or confirm, wait for what asked before: while
// the Actor moves they all wait, and would go on in any order. So a bind that its client has given up does not take the
// place of a later one.
type turnOrder struct {
	mu sync.Mutex
	by map[string][]*turnPlace // by Actor: the first has its turn now
}

// turnPlace is one place in an Actor's line.
type turnPlace struct {
	in    *turnOrder
	actor string
	first chan struct{} // closed once it is the first
}

// join takes a place at the end of an Actor's line; leave gives it back.
func (o *turnOrder) join(actor string) *turnPlace {
	p := &turnPlace{in: o, actor: actor, first: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil {
		o.by = make(map[string][]*turnPlace)
	}
	o.by[actor] = append(o.by[actor], p)
	if len(o.by[actor]) == 1 {
		close(p.first)
	}
	return p
}

// wait returns once those before have left, or ctx has ended, whose error it returns.
func (p *turnPlace) wait(ctx context.Context) error {
	select {
	case <-p.first:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *turnPlace) leave() {
	o := p.in
	o.mu.Lock()
	defer o.mu.Unlock()
	line := o.by[p.actor]
	i := slices.Index(line, p)
	line = slices.Delete(line, i, i+1)
	switch {
	case len(line) == 0:
		delete(o.by, p.actor)
		return
	case i == 0:
		close(line[0].first)
	}
	o.by[p.actor] = line
}
