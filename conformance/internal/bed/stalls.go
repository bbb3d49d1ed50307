package bed

import (
	"testing"
	"time"
)

// stallTick is how often watchStalls looks at the clock.
const stallTick = 20 * time.Millisecond

// watchStalls notes for the evidence, until the test ends, how late this process woke up at most: so much later may all
// that has a deadline end, without anything being wrong with it.
func (b *Bed) watchStalls(t testing.TB) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTimer(stallTick)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-b.ctx.Done():
				return
			case <-tick.C:
			}
			late := time.Since(last) - stallTick
			b.mu.Lock()
			b.stalled = max(b.stalled, late)
			b.mu.Unlock()
			last = time.Now()
			tick.Reset(stallTick)
		}
	}()
	t.Cleanup(func() { <-done })
}
