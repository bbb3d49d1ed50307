package supervise

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"natsfabric/internal/monotime"
)

// A monitor that sees nothing pages when a worker may have been silent for too long, not before, and again while it lasts.
func TestBlindForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &alerts{}
		m, err := newMonitor(newModelStore(), "m", config(DefaultPolicy(), &journal{}, a))
		if err != nil {
			t.Fatal(err)
		}
		defer m.cancel()
		p, begin := &m.cfg.Policy, monotime.Time(time.Hour)
		for _, c := range []struct {
			dark  time.Duration
			pages int
		}{{0, 0}, {p.HungAfter - 1, 0}, {p.HungAfter, 1}, {p.HungAfter + p.Remind - 1, 1}, {p.HungAfter + p.Remind, 2}} {
			m.tellBlind(t.Context(), begin.Add(c.dark), errors.New("away"))
			synctest.Wait()
			if n := len(a.of(AlertBlind)); n != c.pages {
				t.Errorf("after %v it has paged %d times, want %d", c.dark, n, c.pages)
			}
		}
		for range 2 {
			m.tellSees(t.Context())
			synctest.Wait()
		}
		if n := len(a.of(AlertSees)); n != 1 {
			t.Errorf("it said %d times that it sees again", n)
		}
	})
}
