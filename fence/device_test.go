package fence

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// mute is a device that knows nothing.
type mute string

func (s mute) Name() string                       { return string(s) }
func (mute) Fence(context.Context, Target) Report { return Report{} }
func (mute) Check(context.Context, Target) Report { return Report{} }

// slow is a device that says fenced when its time is up, and counts its calls.
type slow struct{ calls int }

func (*slow) Name() string { return "slow" }

func (s *slow) Fence(ctx context.Context, t Target) Report { return s.Check(ctx, t) }

func (s *slow) Check(ctx context.Context, _ Target) Report {
	s.calls++
	<-ctx.Done()
	return Report{Answer: Fenced}
}

// A device has its own time, and is not called when that of whoever calls it is over.
func TestDevicesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slow{}
		cut := Cut{Device: d, Timeout: 3 * time.Second}
		begin := time.Now()
		if r := cut.Run(context.Background(), Target{}); r.Answer != Fenced || time.Since(begin) != 6*time.Second {
			t.Errorf("after %v: %+v", time.Since(begin), r)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		d.calls = 0
		for _, r := range []Report{cut.Run(ended, Target{}), cut.Look(ended, Target{})} {
			if r.Answer != Unknown || !strings.Contains(r.Detail, "not tried") || d.calls > 0 {
				t.Errorf("%d calls beyond its time: %+v", d.calls, r)
			}
		}
	})
}
