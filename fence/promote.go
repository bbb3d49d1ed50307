package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"natsfabric/internal/monotime"
)

// errNotConfirmed says that no level could fence the holder: nobody is promoted, and it is tried again.
var errNotConfirmed = errors.New("no level of devices has confirmed that the holder is fenced: nobody is promoted until one does, or a person confirms it")

// fence takes the right to fence the silent holder and uses it: level by level, each device's step written before it is
// taken. It returns nil when the record says fenced, and also when another candidate has the right by now. Whoever loses a
// compare-and-set on the way does nothing more.
func (e *Election) fence(ctx context.Context, v view, idle bool) error {
	for failures := 0; ; {
		e.track.do(func(s *Snapshot) { s.NextTry = time.Time{} })
		c := &claimant{e: e}
		err := c.write(ctx, v, suspect{by: e.self, ttl: e.cfg.TTL, idle: idle}, e.cfg.TTL)
		if err != nil {
			return ignoreLost(err)
		}
		e.track.do(func(s *Snapshot) { s.FenceAttempts++ })
		e.cfg.Logger.Warn("fences a silent holder", zap.String("holder", c.at.rec.Holder.Node), zap.Int("attempt", c.at.rec.Claim.Attempt))
		for level := range e.cfg.Fencing.Levels {
			done, err := c.level(ctx, level)
			if err != nil {
				return ignoreLost(err)
			}
			if done {
				e.track.do(func(s *Snapshot) { s.Fenced++; s.Problem = "" })
				e.cfg.Logger.Warn("fenced", zap.String("holder", c.at.rec.Holder.Node), zap.Int("level", level))
				return nil
			}
		}
		e.track.do(func(s *Snapshot) {
			s.FenceFailures++
			s.Problem = errNotConfirmed.Error()
		})
		e.cfg.Logger.Error("not fenced", zap.String("holder", c.at.rec.Holder.Node), zap.Error(errNotConfirmed))
		// A pause that is longer than the right lasts gives it to whoever else is there.
		pause := min(e.cfg.Backoff<<min(failures, 16), e.cfg.MaxBackoff)
		failures++
		if v, err = c.pause(ctx, pause); err != nil {
			return ignoreLost(err)
		}
		if v.rec.Phase != PhaseFencing || v.rec.Claim.By.Run != e.self.Run {
			return nil // a person has confirmed it, or another one has the right
		}
		idle = false
	}
}

// ignoreLost turns a lost compare-and-set into nothing: the campaign looks at the record again.
func ignoreLost(err error) error {
	if errors.Is(err, errLost) {
		return nil
	}
	return err
}

// claimant is the holder of the right to fence while it uses it.
type claimant struct {
	e  *Election
	at view
	// until is when the right may be somebody else's, by this process's clock.
	until monotime.Time
}

// write makes one step of the record, which keeps the right for ttl.
func (c *claimant) write(ctx context.Context, at view, ev event, ttl time.Duration) error {
	sent := monotime.Now()
	v, err := c.e.change(ctx, at, ev)
	if err != nil {
		return err
	}
	c.at, c.until = v, sent.Add(ttl-c.e.cfg.Margin)
	c.e.track.see(c.e.status(v))
	return nil
}

// level runs all devices of a level and confirms the fence if every one of them was seen to have cut the holder off.
func (c *claimant) level(ctx context.Context, level int) (bool, error) {
	var names []string
	for _, cut := range c.e.cfg.Fencing.Levels[level] {
		// The right must last for the device's two calls and for the write of its answer.
		ttl := 2*(cut.timeout()+deviceGrace) + 2*c.e.cfg.TTL
		run, name := c.e.self.Run, cut.Device.Name()
		if err := c.write(ctx, c.at, intend{run: run, level: level, device: name, ttl: ttl}, ttl); err != nil {
			return false, err
		}
		dctx, cancel := context.WithTimeoutCause(ctx, c.until.Sub(monotime.Now()), errors.New("the right to fence has ended"))
		r := cut.run(dctx, &c.e.devices, fmt.Sprint(level, " ", name), c.target())
		cancel()
		if r.lied {
			c.e.track.do(func(s *Snapshot) { s.DeviceLied++ })
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		try := Try{
			Attempt: c.at.rec.Claim.Attempt, Level: level, Device: name, Answer: r.Answer, Detail: r.Detail,
			By: c.e.self.Node, At: time.Now().UTC(),
		}
		c.e.cfg.Logger.Info("a fence device has answered", zap.String("device", name), zap.Stringer("answer", r.Answer), zap.String("detail", r.Detail))
		if err := c.write(ctx, c.at, answered{run: run, try: try}, ttl); err != nil {
			return false, err
		}
		if r.Answer != Fenced {
			return false, nil
		}
		names = append(names, name)
	}
	err := c.write(ctx, c.at, confirm{run: c.e.self.Run, level: level, devices: names, at: time.Now().UTC()}, c.e.cfg.TTL)
	return err == nil, err
}

// target is the holder as devices know it.
func (c *claimant) target() Target {
	h := c.at.rec.Holder
	return Target{
		Node: h.Node, Lifecycle: h.Lifecycle, Labels: h.Labels,
		Token: Token{Source: c.e.mesh + "/leader/" + c.e.cfg.Name, Epoch: c.e.sh.Epoch(), Generation: c.at.rec.Term},
	}
}

// pause waits before the next attempt, and ends early when the record has changed: a person may have confirmed the fence.
func (c *claimant) pause(ctx context.Context, d time.Duration) (view, error) {
	end := monotime.Now().Add(d)
	c.e.track.do(func(s *Snapshot) { s.NextTry = time.Now().Add(d) })
	for {
		v, err := c.e.look(ctx)
		if err == nil && v.at.Revision > c.at.at.Revision {
			return v, nil
		}
		left := end.Sub(monotime.Now())
		if left <= 0 {
			return c.at, nil
		}
		select {
		case <-ctx.Done():
			return view{}, fmt.Errorf("waiting for the next attempt: %w", context.Cause(ctx))
		case <-time.After(min(left, c.e.cfg.Poll)):
		}
	}
}
