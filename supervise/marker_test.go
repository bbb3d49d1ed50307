package supervise

import (
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// SV-16. A marker says who means what, and ends by itself; the store removes it soon after.
func TestMarkersEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ctx, now := testContext(t), b.now(t)
	good := Marker{Worker: "w", Action: ActionDrain, By: "test", Until: now.Add(time.Hour)}
	for field, change := range map[string]func(m *Marker){
		"Worker":        func(m *Marker) { m.Worker = "" },
		"Action":        func(m *Marker) { m.Action = "" },
		"By":            func(m *Marker) { m.By = strings.Repeat("x", 257) },
		"Reason":        func(m *Marker) { m.Reason = strings.Repeat("x", maxReason+1) },
		"Until":         func(m *Marker) { m.Until = now.Add(-time.Second) },
		"by at most":    func(m *Marker) { m.Until = now.Add(MaxMarker + time.Hour) },
		"1 to 64 bytes": func(m *Marker) { m.Action = strings.Repeat("x", 65) },
	} {
		m := good
		change(&m)
		if err := PutMarker(ctx, b.sh, m); !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), field) {
			t.Errorf("a wrong %s got %v", field, err)
		}
	}
	for _, until := range []time.Time{now.Add(-time.Second), now.Add(MaxMaintenance + time.Hour)} {
		if err := SetControl(ctx, b.sh, Control{Mode: Paused, By: "test", Reason: "test", Until: until}); !errors.Is(err, outcome.InvalidOperation) {
			t.Errorf("a pause until %v got %v", until, err)
		}
	}
	other := openStore(t, connect(t, b.url), "other").Shared(kvlocation.BucketSupervise)
	for _, sh := range []*kvlocation.Shared{b.sh, other, b.sh} { // who writes last wins
		if err := PutMarker(ctx, sh, good); err != nil {
			t.Fatal(err)
		}
	}
	e, err := b.sh.Confirm(ctx, markerPrefix+"w")
	if err != nil || e.Expires.Before(good.Until) || e.Expires.After(good.Until.Add(time.Minute)) {
		t.Errorf("the store removes it at %v, it ends at %v: %v", e.Expires, good.Until, err)
	}
	for range 2 {
		if err := ClearMarker(ctx, b.sh, "w"); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := MarkerOf(ctx, b.sh, "w"); ok || err != nil {
			t.Errorf("after it was cleared: %t, %v", ok, err)
		}
	}
}
