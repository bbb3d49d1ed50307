package objects

import (
	"sync"
	"testing"
	"time"
)

// Whoever has read the clock before a tick, in whichever goroutine, finds the tick at most freshFor behind that: so no moment
// from before a freeze passes as the present one.
func TestTickIsFresh(t *testing.T) {
	t.Parallel()
	const most = freshFor * time.Nanosecond // of a counter at 1 GHz
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			last := instant(0)
			for range 100_000 {
				before := readTick()
				now := tick()
				if after := readTick(); now < before.add(-most) || now > after || now < last {
					t.Errorf("a tick of %v between %v and %v, after one of %v", now, before, after, last)
					return
				}
				last = now
			}
		})
	}
	wg.Wait()
}
