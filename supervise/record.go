package supervise

import "time"

// State is what a worker does, in its own word. The known ones have a meaning for verdicts; every other text is
// allowed and is taken as Idle is.
type State string

// The states with a meaning.
const (
	// Starting: the process is up and not yet ready for work.
	Starting State = "starting"
	// Idle: ready, and without work.
	Idle State = "idle"
	// Processing: at work on a job. Only here does a heartbeat that grows old mean hung.
	Processing State = "processing"
	// Failed: the worker itself says that it can't go on. Its JSON is "error".
	Failed State = "error"
	// Stopped: ended in order; nothing is expected of it until it writes again.
	Stopped State = "stopped"
)

// The greatest sizes of a record's texts, in bytes; what is longer is cut.
const (
	MaxState    = 64
	MaxJob      = 256
	MaxProgress = 256
)

// Record is what a worker says of itself, under worker.<id>. Its age is never told by what stands in it but by the time at
// which the store took it: the entry's time stamp is the heartbeat. The times inside are on the store's clock too, as
// the worker knew it, and say only since when something is so.
type Record struct {
	V      int    `json:"v"`
	Worker string `json:"worker"`
	State  State  `json:"state"`
	// StateSince is when State became what it is.
	StateSince time.Time `json:"state_since"`
	// Heartbeat is when the record was written, by the worker's own estimate: for people who read the value alone.
	Heartbeat time.Time `json:"heartbeat"`
	// Job names what is being worked on; empty between jobs.
	Job string `json:"job,omitempty"`
	// Progress is any text that changes while the work goes on. ProgressAt is when it last changed, or when State
	// did.
	Progress   string    `json:"progress,omitempty"`
	ProgressAt time.Time `json:"progress_at,omitzero"`
	// Booted is when the process began to report, Instance names that process run.
	Booted   time.Time `json:"booted"`
	Instance string    `json:"instance"`
	// Beats counts the records that this process run has written.
	Beats uint64 `json:"beats"`
	// Node and Lifecycle are there when the worker is a node of the mesh.
	Node      string `json:"node,omitempty"`
	Lifecycle uint64 `json:"lifecycle,omitempty"`
}
