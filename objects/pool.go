package objects

import "time"

// poolIdle is how long a goroutine of the pool waits for the next piece of work.
const poolIdle = 2 * time.Second

// pool runs functions, each at once, in goroutines that are kept for a while: a new one for every creation would spend a
// good part of its time growing its stack.
type pool struct {
	jobs chan func()
	end  <-chan struct{} // idle goroutines end
}

func newPool(end <-chan struct{}) pool { return pool{jobs: make(chan func()), end: end} }

func (p *pool) run(f func()) {
	select {
	case p.jobs <- f:
	default:
		go p.work(f)
	}
}

func (p *pool) work(f func()) {
	idle := time.NewTimer(poolIdle)
	defer idle.Stop()
	for {
		f()
		idle.Reset(poolIdle)
		select {
		case f = <-p.jobs:
		case <-idle.C:
			return
		case <-p.end:
			return
		}
	}
}
