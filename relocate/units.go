package relocate

import (
	"context"
	"sync"
)

// units are those of one side that are under way, by operation ID, and those that have ended a moment ago.
type units[U any] struct {
	most int

	mu    sync.Mutex
	by    map[string]U
	ended int // of by
}

// add reports false when there are too many.
func (us *units[U]) add(op string, u U) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	if len(us.by)-us.ended >= us.most || len(us.by) >= us.most+maxEnded {
		return false
	}
	if us.by == nil {
		us.by = map[string]U{}
	}
	us.by[op] = u
	return true
}

// maxEnded bounds the units that have ended and are remembered.
const maxEnded = 100_000

func (us *units[U]) get(op string) (U, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.by[op]
	return u, ok
}

// over says that a unit has ended; it is remembered until it is removed.
func (us *units[U]) over() {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.ended++
}

// forget removes one that has ended, remove one that has not.
func (us *units[U]) forget(op string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.by, op)
	us.ended--
}

func (us *units[U]) remove(op string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.by, op)
}

// each calls f for every unit, ended ones too.
func (us *units[U]) each(f func(U)) {
	us.mu.Lock()
	all := make([]U, 0, len(us.by))
	for _, u := range us.by {
		all = append(all, u)
	}
	us.mu.Unlock()
	for _, u := range all {
		f(u)
	}
}

// count is how many are under way.
func (us *units[U]) count() int {
	us.mu.Lock()
	defer us.mu.Unlock()
	return len(us.by) - us.ended
}

// maxFetching bounds the bulk state that a target holds in memory before it is restored; one larger unit is fetched alone.
const maxFetching = 128 << 20

// budget is an amount that is lent. Whoever comes first is served first.
type budget struct {
	turn chan struct{}
	mu   sync.Mutex
	left int
	most int
	free chan struct{}
}

func (b *budget) init(most int) {
	b.left, b.most = most, most
	b.turn, b.free = make(chan struct{}, 1), make(chan struct{}, 1)
}

// enter waits for n, or for all there is.
func (b *budget) enter(ctx context.Context, n int) (release func(), err error) {
	n = min(n, b.most)
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		b.mu.Lock()
		ok := b.left >= n
		if ok {
			b.left -= n
		}
		b.mu.Unlock()
		if ok {
			return func() {
				b.mu.Lock()
				b.left += n
				b.mu.Unlock()
				select {
				case b.free <- struct{}{}:
				default:
				}
			}, nil
		}
		select {
		case <-b.free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
