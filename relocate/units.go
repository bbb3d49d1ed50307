package relocate

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// units are those of one side that are under way, by operation ID.
type units[U any] struct {
	most int

	mu sync.Mutex
	by map[string]U
}

// add reports false when there are too many.
func (us *units[U]) add(op string, u U) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	if len(us.by) >= us.most {
		return false
	}
	if us.by == nil {
		us.by = map[string]U{}
	}
	us.by[op] = u
	return true
}

func (us *units[U]) get(op string) (U, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.by[op]
	return u, ok
}

func (us *units[U]) remove(op string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.by, op)
}

// each calls f for every unit.
func (us *units[U]) each(f func(U)) {
	us.mu.Lock()
	all := slices.Collect(maps.Values(us.by))
	us.mu.Unlock()
	for _, u := range all {
		f(u)
	}
}

func (us *units[U]) count() int {
	us.mu.Lock()
	defer us.mu.Unlock()
	return len(us.by)
}

// maxVerdicts is how many failed arrivals a target remembers, so that their sources hear why.
const maxVerdicts = 256

// verdicts are the answers of arrivals that have failed, the latest ones.
type verdicts struct {
	mu   sync.Mutex
	by   map[string]answer
	ring [maxVerdicts]string
	next int
}

func (v *verdicts) keep(op string, a answer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.by == nil {
		v.by = map[string]answer{}
	}
	delete(v.by, v.ring[v.next])
	v.by[op], v.ring[v.next] = a, op
	v.next = (v.next + 1) % maxVerdicts
}

func (v *verdicts) of(op string) answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a, ok := v.by[op]; ok {
		return a
	}
	return answer{V: version, Reason: RelocationFailed, Detail: "the move is not known (any more)"}
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
