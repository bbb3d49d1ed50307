package supervise

import "sync"

// pool runs at most so many functions at the same time, and one for each name.
type pool struct {
	slots chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	busy   map[string]bool // guarded by mu
	closed bool            // guarded by mu
}

func newPool(n int) *pool { return &pool{slots: make(chan struct{}, n), busy: map[string]bool{}} }

// try runs f on a goroutine of its own, unless one for the name runs already, every slot is taken, or the pool is closed.
func (p *pool) try(name string, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.busy[name] {
		return false
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return false
	}
	p.busy[name] = true
	p.wg.Go(func() {
		defer func() {
			p.mu.Lock()
			delete(p.busy, name)
			p.mu.Unlock()
			<-p.slots
		}()
		f()
	})
	return true
}

// wait lets nothing begin any more, and waits for what runs.
func (p *pool) wait() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
}
