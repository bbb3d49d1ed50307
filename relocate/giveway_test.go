package relocate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Bulk state stands back while a unit without any is under way here, until that has ended or half of its own time is spent. One that has
// bulk state itself is nothing to wait for.
func TestGiveWay(t *testing.T) {
	t.Parallel()
	// waits is how long one look takes, after so much of the transfer's time.
	waits := func(s *Service, g *giveWay, after time.Duration) time.Duration {
		<-time.After(after)
		at := time.Now()
		g.wait(context.Background())
		return time.Since(at)
	}
	service := func() *Service {
		s := &Service{}
		s.departures.most, s.arrivals.most = 2, 2
		return s
	}
	synctest.Test(t, func(t *testing.T) {
		s := service()
		g := s.giveWay()
		if d := waits(s, g, time.Second); d != 0 {
			t.Errorf("alone: %v", d)
		}
		s.arrivals.add("large", nil)
		s.bulky.Add(1)
		if d := waits(s, g, time.Second); d != 0 {
			t.Errorf("beside another one with bulk state: %v", d)
		}
		s.departures.add("small", nil)
		time.AfterFunc(5*time.Millisecond, func() { s.departures.remove("small") })
		if d := waits(s, g, 0); d < 5*time.Millisecond || d > 5*time.Millisecond+wayLook {
			t.Errorf("beside a small unit of 5 ms: %v", d)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := service()
		s.arrivals.add("small", nil)
		g, begun := s.giveWay(), time.Now()
		var waited time.Duration
		for range 100 {
			waited += waits(s, g, time.Millisecond)
		}
		if all := time.Since(begun); waited < all/3 || waited > firstWay+all/2+wayLook {
			t.Errorf("beside small units without end: %v of %v", waited, all)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.giveWay().wait(ctx)
	})
}
