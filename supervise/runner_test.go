package supervise

import (
	"context"
	"testing"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
)

// The command begins in its launch window and within a second of the last look, or not at all: whoever was frozen in between has
// the worker looked at again.
func TestCommandBeginsInTime(t *testing.T) {
	p := DefaultPolicy()
	const now = monotime.Time(time.Hour)
	for _, c := range []struct {
		looked, late time.Duration // since the last look, and since the end of the launch window
		runs         bool
	}{
		{0, -time.Second, true}, {maxLook, -time.Second, true}, {maxLook + 1, -time.Second, false}, {0, 0, true}, {0, 1, false},
	} {
		j := &journal{}
		r := &runner{keys: newModelStore(), policy: &p, mesh: "m", mono: func() monotime.Time { return now }}
		v := &view{worker: "w", began: now.Add(-c.looked), incident: &fact[Incident]{at: kvlocation.SharedEntry{Revision: 9}}}
		res := r.run(context.Background(), v, step{attempt: Attempt{ID: "i-1"}}, &hand{until: now.Add(-c.late)}, j)
		if ran := len(j.list()) == 1; ran != c.runs || (res != nil) != c.runs {
			t.Errorf("%v after the last look, %v after the end of its window: %+v", c.looked, c.late, res)
		}
	}
}
