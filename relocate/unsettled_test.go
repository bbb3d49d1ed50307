package relocate

import (
	"testing"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// What the caller of a move hears when the unit's time is over before the store has spoken: once the boundary was asked for, nobody can say that the
// object stays, not even when an abort was asked for since.
func TestUnsettled(t *testing.T) {
	for _, c := range []struct {
		now   state
		asked bool
		want  outcome.Acceptance
		waits bool
	}{
		{now: srcPreparing, want: outcome.NotAccepted},
		{now: srcAborting, want: outcome.NotAccepted},
		{now: srcAccepting, asked: true, want: outcome.Unknown},
		{now: srcAborting, asked: true, want: outcome.Unknown},
		{now: srcPassed, asked: true, waits: true},
		{now: srcParting, asked: true, waits: true},
	} {
		d := &departure{now: c.now, asked: c.asked, unit: objects.Unit{Key: kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "a"}}}
		err := d.unsettled()
		if c.waits != (err == nil) || err != nil && (outcome.AcceptanceOf(err) != c.want || ReasonOf(err) != StoreUnavailable) {
			t.Errorf("%v, asked %v: %v", c.now, c.asked, err)
		}
	}
}
