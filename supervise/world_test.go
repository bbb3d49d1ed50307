package supervise

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"natsfabric/internal/monotime"
)

// world is workers, monitors and their store in virtual time. One goroutine runs it all: a monitor that is slow or frozen
// is one in whose operation time passes, and in that time the others run.
type world struct {
	t       testing.TB
	rnd     *rand.Rand
	seed    uint64
	clock   time.Time
	events  eventHeap
	n       int
	store   *modelStore
	policy  Policy
	workers []*modelWorker
	cast    []*modelMonitor
	stack   []*modelMonitor // those in whose operations time passes, the innermost last
	faults  faultRates
	calm    bool

	restarts  map[string][]restartSeen
	told      map[string]int // alerts by kind and incident or attempt
	incidents map[string]bool
	paused    bool
	counts    map[string]int
	broken    []string
	notifyOff bool
}

// faultRates are how often what goes wrong, per chance.
type faultRates struct {
	freeze, die, lost, stale, outage float64
	commandFails                     float64
}

type restartSeen struct {
	at      time.Time
	attempt string
	by      string
}

type timed struct {
	at time.Time
	n  int
	f  func()
}

type eventHeap []timed

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].n < h[j].n
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(timed)) }
func (h *eventHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (w *world) after(d time.Duration, f func()) {
	w.n++
	heap.Push(&w.events, timed{w.clock.Add(d), w.n, f})
}

// pass lets time pass and runs what happens in it.
func (w *world) pass(d time.Duration) {
	end := w.clock.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		e := heap.Pop(&w.events).(timed)
		if e.at.After(w.clock) {
			w.clock = e.at
		}
		e.f()
	}
	if end.After(w.clock) {
		w.clock = end
	}
}

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rnd.Int64N(int64(b-a)+1))
}
func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

func (w *world) violated(format string, args ...any) {
	w.broken = append(w.broken, w.clock.Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
}

// modelWorker is a worker process: it beats while it is well, and may hang, come back by itself, or be restarted.
type modelWorker struct {
	w      *world
	id     string
	key    string
	run    int // process runs so far; beats of an earlier run come to nothing
	hung   bool
	rec    Record
	marker time.Time // until when a planned action holds
	beats  []time.Time
}

func (m *modelWorker) boot(after time.Duration, run int) {
	m.w.after(after, func() {
		if m.run != run {
			return
		}
		m.hung = false
		m.rec = Record{V: 1, Worker: m.id, State: Starting, StateSince: m.w.clock, Booted: m.w.clock, Instance: strconv.Itoa(run)}
		m.beat(run)
		m.mishap(run)
	})
}

// mishap makes the worker hang, some day.
func (m *modelWorker) mishap(run int) {
	m.w.after(m.w.between(time.Minute, 12*time.Minute), func() {
		if m.run != run || m.w.calm {
			return
		}
		m.hung = true
		if m.w.chance(0.6) { // it comes back by itself, maybe at the last moment
			m.w.after(m.w.between(time.Second, 9*time.Minute), func() {
				if m.run == run && m.hung {
					m.hung = false
					m.beat(run)
					m.mishap(run)
				}
			})
		}
	})
}

func (m *modelWorker) beat(run int) {
	if m.run != run || m.hung {
		return
	}
	if m.rec.State == Starting && m.w.chance(0.5) || m.rec.State != Starting {
		m.rec.State = Processing
	}
	m.rec.Beats++
	m.rec.Progress, m.rec.ProgressAt = fmt.Sprint(m.rec.Beats), m.w.clock
	have := m.w.store.read(m.key, m.w.clock)
	if _, err := m.w.store.set(have, encode(m.rec), 24*time.Hour); err == nil {
		m.beats = append(m.beats[max(0, len(m.beats)-50):], m.w.clock)
	}
	m.w.after(m.w.between(8*time.Second, 12*time.Second), func() { m.beat(run) })
}

// fresh reports whether the worker's heartbeat was fresh at a time.
func (m *modelWorker) fresh(at time.Time) bool {
	for i := len(m.beats) - 1; i >= 0; i-- {
		if !m.beats[i].After(at) {
			return at.Sub(m.beats[i]) < m.w.policy.HungAfter
		}
	}
	return false
}

// Restart is the restart command of every monitor.
func (w *world) Restart(_ context.Context, o Order) Result {
	var m *modelWorker
	for _, x := range w.workers {
		if x.id == o.Worker {
			m = x
		}
	}
	w.counts["commands"]++
	w.checkIntent(o)
	kind := w.rnd.Float64()
	if w.calm {
		kind = 1
	}
	switch {
	case kind < w.faults.commandFails/2: // it can't be run, or fails at once
		w.counts["commands failed"]++
		w.pass(w.between(0, 2*time.Second))
		return Result{Broken, "exit status 1"}
	case kind < w.faults.commandFails*0.75: // it says that it worked, and nothing has happened
		w.counts["commands without effect"]++
		w.touch(m, o, false)
		return Result{Done, "exit status 0"}
	case kind < w.faults.commandFails: // it hangs until it is killed; it may have worked
		w.counts["commands that hang"]++
		w.touch(m, o, w.chance(0.5))
		w.pass(w.policy.CommandLimit)
		return Result{Unknown, "killed"}
	}
	w.touch(m, o, true)
	w.mortal(true)
	w.pass(w.between(0, 20*time.Second))
	w.mortal(true)
	return Result{Done, "exit status 0"}
}

// touch is the moment at which a command may restart the worker: here every rule is checked (SV-15).
func (w *world) touch(m *modelWorker, o Order, works bool) {
	p := &w.policy
	seen := w.restarts[m.id]
	if n := len(seen); n > 0 {
		if gap := w.clock.Sub(seen[n-1].at); gap < p.Cooldown {
			w.violated("%s restarted again %v after the last restart, by %s (%s), before by %s (%s)", m.id, gap, o.Attempt, w.by(), seen[n-1].attempt, seen[n-1].by)
		}
	}
	w.restarts[m.id] = append(seen, restartSeen{w.clock, o.Attempt, w.by()})
	day := 0
	for _, s := range w.restarts[m.id] {
		if w.clock.Sub(s.at) < p.BreakerWindow {
			day++
		}
	}
	if day > p.Breaker {
		w.violated("%s restarted %d times within %v", m.id, day, p.BreakerWindow)
	}
	look := w.clock.Add(-maxLook)
	if m.fresh(look) {
		w.violated("%s restarted while its heartbeat was fresh", m.id)
	}
	if m.marker.After(w.clock) {
		w.violated("%s restarted during a planned action", m.id)
	}
	if w.paused {
		w.violated("%s restarted while paused", m.id)
	}
	hour := 0
	for _, all := range w.restarts {
		for _, s := range all {
			if w.clock.Sub(s.at) < p.FleetWindow {
				hour++
			}
		}
	}
	if hour > p.FleetBudget {
		w.violated("%d restarts of the fleet within %v", hour, p.FleetWindow)
	}
	w.counts["restarts"]++
	if works {
		m.run++
		m.hung = false
		m.boot(w.between(5*time.Second, 15*time.Minute), m.run)
		if w.chance(0.1) && !w.calm {
			m.run++ // it never comes up
			m.hung = true
		}
	}
}

// checkIntent: what is about to run stands in the store, as this monitor's.
func (w *world) checkIntent(o Order) {
	token, _ := escape(o.Worker)
	c := factOf[Incident](w.store.read(incidentPrefix+token+".case", w.clock))
	if c == nil || c.value.running() == nil || c.value.running().ID != o.Attempt || c.value.running().By != w.by() {
		w.violated("%s: command of %s without its intent in the store", o.Worker, o.Attempt)
	}
}

// modelMonitor is one monitor process; it lives until it dies, and then another one starts.
type modelMonitor struct {
	w      *world
	m      *Monitor
	offset time.Duration // of its monotonic clock, which began some time
	busy   bool
	doomed bool // it dies at its next operation
}

// inner is the monitor in whose operation time passes now.
func (w *world) inner() *modelMonitor {
	if len(w.stack) == 0 {
		return nil
	}
	return w.stack[len(w.stack)-1]
}

func (w *world) by() string {
	if m := w.inner(); m != nil {
		return m.m.run.self
	}
	return ""
}

// dead ends a monitor wherever it is.
type dead struct{}

// mortal is a point at which a monitor may freeze for a while, or die. In a command, a collector or a notifier, which
// run on goroutines of their own, it dies without another operation after.
func (w *world) mortal(inEffect bool) {
	mm := w.inner()
	if mm == nil {
		return
	}
	if mm.doomed && !inEffect {
		panic(dead{})
	}
	switch {
	case w.calm:
	case w.chance(w.faults.die):
		w.counts["monitors died"]++
		if mm.doomed = true; !inEffect {
			panic(dead{})
		}
	case w.chance(w.faults.freeze):
		w.counts["monitors frozen"]++
		d := w.between(0, 20*time.Second)
		if w.chance(0.5) {
			d = w.between(0, 40*time.Minute)
		}
		w.pass(d)
	}
}

func (w *world) newMonitor() *modelMonitor {
	mm := &modelMonitor{w: w, offset: w.between(0, 1000*time.Hour)}
	m, err := newMonitor(w.store, "model", Config{
		Policy: w.policy, Notifiers: []Notifier{modelNotifier{w}},
		Targets: []Target{{Match: "*", Restarter: RestartFunc(w.Restart), Collector: CollectFunc(w.Collect)}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	m.run.mono = func() monotime.Time { return monotime.Time(w.clock.Sub(epoch) + mm.offset) }
	m.run.before = func(step) { w.mortal(false) }
	m.run.record = func(e Event) {
		if e.Kind == Confirmed && !w.incidents[e.Worker+e.Incident] {
			w.incidents[e.Worker+e.Incident] = true
		}
	}
	m.run.told = func(string) {}
	mm.m = m
	mm.next(w.between(0, w.policy.CheckInterval))
	return mm
}

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// Collect is the log collector of every monitor: it fails, or takes its time.
func (w *world) Collect(context.Context, string) (string, error) {
	w.mortal(true)
	if w.chance(0.3) {
		w.pass(w.between(0, w.policy.CollectLimit))
		return "", errors.New("no logs")
	}
	w.pass(w.between(0, time.Second))
	return "logs", nil
}

type modelNotifier struct{ w *world }

func (modelNotifier) Name() string { return "model" }

func (n modelNotifier) Notify(_ context.Context, a Alert) error {
	if n.w.notifyOff && n.w.chance(0.8) {
		return errors.New("nobody there")
	}
	id := a.Attempt
	if id == "" {
		id = a.Incident
	}
	n.w.told[a.Kind+" "+id]++
	if a.Kind == AlertConfirmed && a.Severity == Page {
		n.w.told["page "+a.Incident]++
	}
	return nil
}

// next has the monitor look again.
func (mm *modelMonitor) next(after time.Duration) {
	mm.w.after(after, func() {
		if mm.w.cast == nil || !slices.Contains(mm.w.cast, mm) {
			return
		}
		if !mm.busy {
			mm.look()
		}
		mm.next(mm.w.policy.CheckInterval)
	})
}

// look is one check, as Monitor.check does it, on this goroutine.
func (mm *modelMonitor) look() {
	w := mm.w
	mm.busy = true
	w.stack = append(w.stack, mm)
	depth := len(w.stack)
	defer func() {
		mm.busy = false
		w.stack = w.stack[:depth-1]
		if p := recover(); p != nil {
			if _, ok := p.(dead); !ok {
				panic(p)
			}
			i := slices.Index(w.cast, mm)
			w.cast[i] = w.newMonitor()
		}
	}()
	ctx := context.Background()
	s, err := mm.m.scan(ctx)
	if err != nil {
		return
	}
	for _, worker := range s.alerts {
		_ = mm.m.run.tell(ctx, s.clock, worker)
	}
	for _, a := range mm.m.fleetDue(&s) {
		_ = mm.m.tellFleet(ctx, &s, a)
	}
	for _, v := range s.due {
		_ = mm.m.run.work(ctx, s.clock, v.worker, s.fleet, false)
		_ = mm.m.run.tell(ctx, s.clock, v.worker)
	}
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), clock: epoch, policy: DefaultPolicy(),
		restarts: map[string][]restartSeen{}, told: map[string]int{}, incidents: map[string]bool{}, counts: map[string]int{},
	}
	w.store = newModelStore()
	w.store.now = func() time.Time { return w.clock }
	w.store.rnd = w.rnd
	w.store.later = w.after
	w.store.pause = func() {
		if w.inner() != nil {
			w.pass(w.between(0, 5*time.Millisecond))
			w.mortal(false)
		}
	}
	w.faults = faultRates{
		freeze: 0.004 * w.rnd.Float64(), die: 0.004 * w.rnd.Float64(), lost: 0.05 * w.rnd.Float64(), stale: 0.1 * w.rnd.Float64(),
		outage: w.rnd.Float64(), commandFails: 0.6 * w.rnd.Float64(),
	}
	if w.chance(0.1) {
		w.faults.die, w.faults.freeze = 0.03, 0.03
	}
	w.store.lost, w.store.stale = w.faults.lost, w.faults.stale
	w.policy.Breaker = 1 + w.rnd.IntN(6)
	w.policy.BreakerWindow = w.between(time.Hour, 6*time.Hour)
	w.policy.FleetShare, w.policy.FleetBudget = 1, 4+w.rnd.IntN(40)
	if w.chance(0.3) {
		w.policy.Persistence = w.between(time.Second, 3*time.Minute)
		w.policy.Cooldown = w.between(time.Minute, 10*time.Minute)
	}
	for i := range 2 + w.rnd.IntN(5) {
		m := &modelWorker{w: w, id: fmt.Sprintf("w%d", i)}
		m.key = workerPrefix + m.id
		w.workers = append(w.workers, m)
		m.boot(w.between(0, time.Minute), 0)
	}
	for range 1 + w.rnd.IntN(5) {
		w.cast = append(w.cast, w.newMonitor())
	}
	w.after(w.between(0, time.Hour), w.disturb)
	return w
}

// disturb is what people and the network do now and then.
func (w *world) disturb() {
	if w.calm {
		return
	}
	switch w.rnd.IntN(4) {
	case 0:
		if w.chance(w.faults.outage) {
			w.store.down = w.clock.Add(w.between(0, 5*time.Minute))
		}
	case 1:
		m := w.workers[w.rnd.IntN(len(w.workers))]
		until := w.clock.Add(w.between(time.Minute, 20*time.Minute))
		key := markerPrefix + m.id
		if _, err := w.store.set(w.store.read(key, w.clock), encode(Marker{V: 1, Worker: m.id, Action: ActionUpgrade, By: "test", Since: w.clock, Until: until}), seconds(until.Sub(w.clock))); err == nil {
			// A restart whose last look came before the marker may still be on its way, for as long as a look is good.
			w.after(maxLook, func() { m.marker = until })
		}
	case 2:
		until := w.clock.Add(w.between(time.Minute, 10*time.Minute))
		if _, err := w.store.set(w.store.read(controlKey, w.clock), encode(Control{V: 1, Mode: Paused, By: "test", Reason: "test", Since: w.clock, Until: until}), seconds(until.Sub(w.clock))); err == nil {
			w.after(maxLook, func() { w.paused = true })
			w.after(until.Sub(w.clock)-time.Millisecond, func() { w.paused = false })
		}
	case 3:
		w.notifyOff = !w.notifyOff
	}
	w.after(w.between(time.Minute, time.Hour), w.disturb)
}

// settle ends all faults, lets some hours pass, and asks that nothing was left in silence.
func (w *world) settle() {
	w.calm, w.notifyOff = true, false
	w.store.lost, w.store.stale, w.store.down = 0, 0, time.Time{}
	w.pass(90 * time.Minute)
	for _, m := range w.workers {
		token, _ := escape(m.id)
		c := factOf[Incident](w.store.read(incidentPrefix+token+".case", w.clock))
		if m.hung && (c == nil || c.value.State != IncidentOpen) {
			w.violated("%s hangs, and no incident is open", m.id)
		}
		if c == nil {
			continue
		}
		if a := c.value.running(); a != nil {
			w.violated("%s: attempt %s was never settled", m.id, a.ID)
		}
		for i := range c.value.Attempts {
			a := &c.value.Attempts[i]
			kind := map[Outcome]string{Unknown: AlertUnknown, Broken: AlertFailed}[a.Outcome]
			// With its page due while nobody could be reached, and over since, only those of the last hour have to be there.
			if kind != "" && w.clock.Sub(a.Finished) < 90*time.Minute+w.policy.horizon()/2 && w.told[kind+" "+a.ID] == 0 {
				w.violated("%s: attempt %s ended as %s, and nobody was paged", m.id, a.ID, a.Outcome)
			}
		}
		if m.hung && c.value.State == IncidentOpen && w.told["page "+c.value.ID]+w.told[AlertBreaker+" "+c.value.ID]+w.told[AlertFleetBudget+" "]+w.told[AlertFleetGuard+" "] == 0 {
			escalated := false
			for k := range w.told {
				escalated = escalated || strings.HasPrefix(k, AlertUnrecovered+" "+c.value.ID)
			}
			if !escalated {
				w.violated("%s hangs for hours, and nobody was paged", m.id)
			}
		}
	}
}
