package supervise

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Snapshot is a monitor's numbers. What counts counts since the monitor was made, and only what this monitor did.
type Snapshot struct {
	Monitor string `json:"monitor"`
	// Workers counts the workers by verdict, as the last scan found them, Planned those of them that a marker or a
	// maintenance speaks for, Incidents the open ones.
	Workers   map[Verdict]int `json:"workers"`
	Planned   int             `json:"planned"`
	Incidents int             `json:"incidents"`
	// Decisions counts events by kind: what was acted on, skipped, cancelled, refused, escalated.
	Decisions map[EventKind]uint64 `json:"decisions"`
	// Scans counts the scans, ScansFailed those that the store did not let be done; ScanTook is the time of the last
	// one that was done, ScanAge how long ago that ended by this process's monotonic clock; both are 0 before there is one.
	Scans       uint64        `json:"scans"`
	ScansFailed uint64        `json:"scans_failed"`
	ScanTook    time.Duration `json:"scan_took_ns"`
	ScanAge     time.Duration `json:"scan_age_ns"`
	// Commands counts the restart commands that were run, by outcome.
	Commands map[Outcome]uint64 `json:"commands"`
	// Told counts notifications delivered, NotifyFailed those that were not, CollectFailed failed log collections,
	// StoreErrors what the store did not do, Races the decisions that another monitor was faster with, Deferred the
	// workers that had to wait for the next scan, EventsLost the events that could not be written.
	Told          uint64 `json:"told"`
	NotifyFailed  uint64 `json:"notify_failed"`
	CollectFailed uint64 `json:"collect_failed"`
	StoreErrors   uint64 `json:"store_errors"`
	Races         uint64 `json:"races"`
	Deferred      uint64 `json:"deferred"`
	EventsLost    uint64 `json:"events_lost"`
	// Out is how many calls of notifiers, collectors and restarters were given up and have not returned. A notifier is not
	// called meanwhile, nor are a worker's own collector and restarter.
	Out int `json:"out"`
	// Mode is what stops the automation, empty when nothing does.
	Mode ControlMode `json:"mode,omitempty"`
}

// stats is what a monitor counts.
type stats struct {
	told, notifyFailed, collectFailed, storeErrors, races, deferred, eventsLost atomic.Uint64

	mu        sync.Mutex
	decisions map[EventKind]uint64 // guarded by mu
	commands  map[Outcome]uint64   // guarded by mu
}

func newStats() *stats {
	return &stats{decisions: map[EventKind]uint64{}, commands: map[Outcome]uint64{}}
}

// event counts an event that was recorded for the first time.
func (s *stats) event(k EventKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decisions[k]++
}

// command counts a restart command.
func (s *stats) command(o Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands[o]++
}

// fill puts the numbers into a snapshot.
func (s *stats) fill(out *Snapshot) {
	out.Told, out.NotifyFailed, out.CollectFailed = s.told.Load(), s.notifyFailed.Load(), s.collectFailed.Load()
	out.StoreErrors, out.Races, out.Deferred, out.EventsLost = s.storeErrors.Load(), s.races.Load(), s.deferred.Load(), s.eventsLost.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Decisions, out.Commands = maps.Clone(s.decisions), maps.Clone(s.commands)
}
