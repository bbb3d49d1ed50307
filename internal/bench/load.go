package bench

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// load is work that runs at full speed beside what is measured, until it is stopped.
type load struct {
	begun time.Time
	end   atomic.Bool
	done  atomic.Int64
	wg    sync.WaitGroup
	errs  []error
}

func startLoad(callers int, w work) *load {
	l := &load{begun: time.Now(), errs: make([]error, callers)}
	for c := range callers {
		l.wg.Go(func() {
			var n int64
			defer func() { l.done.Add(n) }()
			for !l.end.Load() {
				if err := w.op(c); err != nil {
					l.errs[c] = fmt.Errorf("caller %d of the load: %w", c, err)
					return
				}
				n++
			}
		})
	}
	return l
}

// stop ends the load and returns its operations per second.
func (l *load) stop() (float64, error) {
	l.end.Store(true)
	l.wg.Wait()
	return float64(l.done.Load()) / time.Since(l.begun).Seconds(), errors.Join(l.errs...)
}
