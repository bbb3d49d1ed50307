package relocate

import (
	"context"
	"time"
)

const (
	// firstWay is how long bulk state gives way before anything of it has gone; wayLook is how often it looks whether it still has to.
	firstWay = 20 * time.Millisecond
	wayLook  = time.Millisecond
)

// giveWay has a unit's bulk state stand back while units without any are under way at this node, because what these say to each other
// goes over the same connection and through the same stream. It waits for at most half of the time that the state takes, and firstWay,
// so that no number of small units keeps a large one from moving.
//
// Concurrency: one goroutine at a time.
type giveWay struct {
	s      *Service
	begun  time.Time
	waited time.Duration
}

func (s *Service) giveWay() *giveWay { return &giveWay{s: s, begun: time.Now()} }

// wait waits before the next piece of the state.
func (g *giveWay) wait(ctx context.Context) {
	for ctx.Err() == nil && g.waited < firstWay+time.Since(g.begun)/2 && g.s.small() > 0 {
		at := time.Now()
		wait(ctx, wayLook)
		g.waited += time.Since(at)
	}
}

// small is how many units are under way here that have no bulk state, as far as is known.
func (s *Service) small() int {
	return s.departures.count() + s.arrivals.count() - int(s.bulky.Load())
}
