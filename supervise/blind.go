package supervise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"natsfabric/internal/monotime"
)

// blind is what a monitor knows of not seeing the workers. What it tells of that goes past the store, so each monitor speaks
// for itself.
type blind struct {
	since monotime.Time // of the first look that failed; used by the monitor's loop only
	is    bool          // used by the monitor's loop only

	mu    sync.Mutex
	told  map[string]monotime.Time // guarded by mu; when each notifier has taken the page last
	sees  map[string]bool          // guarded by mu; the notifiers that have yet to hear that it is over
	spell string                   // guarded by mu; how the page names this time
}

// tellBlind pages when no look has succeeded for as long as a worker may be silent, and again every Policy.Remind: while no
// monitor sees anything, nothing is restarted and nobody is told of any worker.
func (m *Monitor) tellBlind(ctx context.Context, now monotime.Time, why error) {
	b, p := &m.blind, &m.cfg.Policy
	if !b.is {
		b.is, b.since = true, now
	}
	dark := now.Sub(b.since)
	if dark < p.HungAfter || ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spell == "" {
		at, _ := m.storeTime()
		b.spell = "blind-" + stamp(at.Add(-dark))
		b.told, b.sees = map[string]monotime.Time{}, map[string]bool{}
	}
	m.pass(ctx, Alert{
		Kind: AlertBlind, Severity: Page, Incident: b.spell,
		Text: fmt.Sprintf("monitor %s of mesh %s has seen no worker for %v: it restarts nothing and tells of nothing: %s",
			m.run.self, m.run.mesh, dark.Round(time.Second), clip(why.Error(), maxDetail)),
	}, func(name string) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		at, ok := b.told[name]
		return !ok || now.Sub(at) >= p.Remind
	}, func(name string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.told[name], b.sees[name] = now, true
	})
}

// tellSees tells who was paged that the workers are seen again.
func (m *Monitor) tellSees(ctx context.Context) {
	b := &m.blind
	b.is = false
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sees) == 0 {
		b.spell = ""
		return
	}
	m.pass(ctx, Alert{
		Kind: AlertSees, Severity: Info, Incident: b.spell, Text: fmt.Sprintf("monitor %s of mesh %s sees the workers again", m.run.self, m.run.mesh),
	}, func(name string) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.sees[name]
	}, func(name string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.sees, name)
	})
}

// pass sends an alert of the monitor's own to the notifiers that want it, beside what else is told. A notifier that fails is
// tried again at the next look.
func (m *Monitor) pass(ctx context.Context, a Alert, wants func(name string) bool, took func(name string)) {
	at, _ := m.storeTime()
	a.V, a.Mesh, a.By, a.Time = schemaVersion, m.run.mesh, m.run.self, ceil(at)
	m.tell.try("monitor", func() {
		var errs []error
		for _, n := range m.cfg.Notifiers {
			if !wants(n.Name()) {
				continue
			}
			err := m.run.tellOne(ctx, n, a)
			if err == nil {
				took(n.Name())
			}
			errs = append(errs, err)
		}
		m.failed(ctx, "alert", a.Kind, errors.Join(errs...))
	})
}

// storeTime is the store's time as it was read last, carried on.
func (m *Monitor) storeTime() (time.Time, time.Duration) {
	m.mu.Lock()
	c := m.last.clock
	m.mu.Unlock()
	if c.mono == nil { // a monitor of a test that has not looked yet
		return time.Time{}, 0
	}
	return c.at()
}
