package supervise

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"natsfabric/internal/monotime"
)

// What is told of an open incident follows from what holds now.
func TestWhatIsDue(t *testing.T) {
	p, now := DefaultPolicy(), time.Now().UTC()
	const bound = time.Second
	restarted := func(v *view, over time.Duration) {
		end := now.Add(-p.EscalateAfter - over)
		v.incident.value.Attempts = []Attempt{{ID: "i-1", Incident: "i", Outcome: Done, At: end.Add(-time.Second), Finished: end}}
	}
	for _, c := range []struct {
		name   string
		change func(v *view)
		want   string
	}{
		{"it lasts", func(*view) {}, "[confirmed]"},
		{"a marker", func(v *view) { v.marker = &fact[Marker]{value: Marker{Until: now.Add(time.Hour)}} }, "[]"},
		{"maintenance", func(v *view) {
			v.control = &fact[Control]{value: Control{Mode: UnderMaintenance, Until: now.Add(time.Hour)}}
		}, "[]"},
		{"a pause", func(v *view) { v.control = &fact[Control]{value: Control{Mode: Paused}} }, "[confirmed]"},
		{"it is well", func(v *view) { v.record = recordAt(Processing, time.Second, now) }, "[]"},
		{"another verdict", func(v *view) { v.record = recordAt(Failed, time.Hour, now) }, "[]"},
		{"no restarter", func(v *view) { v.hands = false }, "[confirmed no-restarter]"},
		{"restarted long enough ago", func(v *view) { restarted(v, 2*bound) }, "[restarted confirmed restart-did-not-recover]"},
		{"perhaps not long enough ago", func(v *view) { restarted(v, bound/2) }, "[restarted confirmed]"},
	} {
		v := ready(&p, now)
		v.bound = bound
		c.change(v)
		kinds := []string{}
		for _, a := range p.due(v) {
			kinds = append(kinds, a.Kind)
		}
		if got := fmt.Sprint(kinds); got != c.want {
			t.Errorf("%s: %s are told, want %s", c.name, got, c.want)
		}
	}
}

// An alert that nobody takes is tried so often, and no more.
func TestTellingsAreBounded(t *testing.T) {
	now := epoch
	store := newModelStore()
	store.now = func() time.Time { return now }
	tried := 0
	m, err := newMonitor(store, "m", config(DefaultPolicy(), &journal{}, notifyFunc(func(Alert) error { tried++; return errors.New("nobody there") })))
	if err != nil {
		t.Fatal(err)
	}
	defer m.cancel()
	const key = fleetPrefix + "alert.test"
	for range 3 * maxTellings {
		d := factOf[delivery](store.read(key, now))
		if d != nil && d.value.waits(now) {
			if d.value.Done {
				break
			}
			now = d.value.Until
		}
		c, err := readClock(t.Context(), store, func() monotime.Time { return monotime.Time(now.Sub(epoch)) })
		if err != nil {
			t.Fatal(err)
		}
		if err := m.run.deliver(t.Context(), c, key, d, Alert{Kind: "test", ttl: 1000 * time.Hour}, nil); err == nil {
			t.Fatal("a notifier that fails is not told of")
		}
	}
	if tried != maxTellings {
		t.Errorf("tried %d times, want %d", tried, maxTellings)
	}
}

type notifyFunc func(Alert) error

func (notifyFunc) Name() string                              { return "func" }
func (f notifyFunc) Notify(_ context.Context, a Alert) error { return f(a) }
