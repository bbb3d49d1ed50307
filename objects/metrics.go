package objects

import (
	"sync/atomic"
	"time"
)

// BlockedAfter is for how long a turn has run when it counts as blocked.
const BlockedAfter = 10 * time.Second

// countShards is over how many cache lines a type's busiest counters are spread.
const countShards = 8

// typeCounts are the counters of a part of a type's objects.
type typeCounts struct {
	accepted atomic.Uint64
	_        [56]byte // the caller writes the one, the worker the other
	run      atomic.Uint64
	expired  atomic.Uint64
	dropped  atomic.Uint64
	failed   atomic.Uint64
	panics   atomic.Uint64
	withheld atomic.Uint64
	timers   atomic.Uint64
	movedOut atomic.Uint64
	refused  [whys]atomic.Uint64
}

func (t *regType) count(o *object) *typeCounts { return &t.counts[o.shard%countShards] }

func (o *object) countAccepted(e *envelope) {
	if e.kind == mailMessage {
		o.reg.count(o).accepted.Add(1)
	}
}

// TypeSnapshot counts what the objects of one type were given at this node, since it started.
//
// Invariant, once nothing waits or runs: Accepted = Run + Expired + Dropped + MovedOut (I3).
type TypeSnapshot struct {
	Name  string
	Class Class
	// Owned is how many objects there are, those that are being created included; Capacity how many there may be.
	Owned, Capacity int
	// Accepted counts the messages that mailboxes took. Run counts the turns begun for them; Expired those whose
	// deadline passed before their turn; Dropped those that ended because their object was closed, lost or not ready.
	Accepted, Run, Expired, Dropped uint64
	// MovedOut counts the messages that went to another node with their object, where they count as accepted too.
	MovedOut uint64
	// RefusedHold counts the messages that were not accepted because the object was moving, and its hold full.
	RefusedHold uint64
	// Failed counts the turns that ended with an error, panics included; Panics those that did not return; Withheld
	// the results that were not given because ownership ended before the turn did; Timers the turns of timers.
	Failed, Panics, Withheld, Timers uint64
	// RefusedFull and the rest count the messages that were not accepted, by reason: the mailbox was full; the
	// message was larger than it; the object was not here any more; the lease had lapsed; the node was stopping; the
	// deadline had passed; the creation for which it waited failed, or the object was closed.
	RefusedFull, RefusedTooLarge, RefusedClosed, RefusedLapsed, RefusedStopping, RefusedPast, RefusedAborted uint64
	// Running is how many turns run now, Blocked those of them that have run for longer than BlockedAfter, Oldest for
	// how long the oldest has run.
	Running, Blocked int
	Oldest           time.Duration
}

// RuntimeSnapshot counts what the turns of a node's objects cost.
type RuntimeSnapshot struct {
	// Types has an entry for each registered type.
	Types []TypeSnapshot
	// Workers is how many goroutines run turns or wait for work, MaxTurns how many turns may run at once; Queued is
	// how many objects have mail and wait for a worker: more than 0 for long means that MaxTurns is reached, or that
	// the lease has lapsed.
	Workers, MaxTurns, Queued int
	// Timers is how many timers are set, those with which the runtime looks for idle objects included.
	Timers int
	// Lapsed is true while the node's lease has lapsed, so that nothing runs.
	Lapsed bool
}

// snapshot returns the present counters.
func (rt *runtime) snapshot() RuntimeSnapshot {
	s := RuntimeSnapshot{MaxTurns: rt.sched.max, Queued: rt.sched.queued(), Lapsed: rt.sched.lapsed.Load(), Timers: rt.clock.count()}
	type gauge struct {
		running, blocked int
		oldest           time.Duration
	}
	gauges := make(map[*regType]*gauge)
	objects, workers := rt.sched.busy()
	s.Workers = workers
	for _, o := range objects {
		age, ok := o.running()
		if !ok {
			continue
		}
		g := gauges[o.reg]
		if g == nil {
			g = &gauge{}
			gauges[o.reg] = g
		}
		g.running++
		g.oldest = max(g.oldest, age)
		if age >= BlockedAfter {
			g.blocked++
		}
	}
	for _, reg := range rt.order {
		t := TypeSnapshot{Name: reg.Name, Class: reg.Class, Owned: int(reg.owned.Load()), Capacity: reg.Capacity}
		for i := range reg.counts {
			c := &reg.counts[i]
			t.Run += c.run.Load()
			t.Expired += c.expired.Load()
			t.Dropped += c.dropped.Load()
			t.Failed += c.failed.Load()
			t.Panics += c.panics.Load()
			t.Withheld += c.withheld.Load()
			t.Timers += c.timers.Load()
			t.MovedOut += c.movedOut.Load()
			t.RefusedHold += c.refused[whyHoldFull].Load()
			t.RefusedFull += c.refused[whyFull].Load()
			t.RefusedTooLarge += c.refused[whyTooLarge].Load()
			t.RefusedClosed += c.refused[whyClosed].Load()
			t.RefusedLapsed += c.refused[whyLapsed].Load()
			t.RefusedStopping += c.refused[whyDraining].Load()
			t.RefusedPast += c.refused[whyPast].Load()
			t.RefusedAborted += c.refused[whyAborted].Load()
			t.Accepted += c.accepted.Load() // last, so that it is never behind what it became
		}
		if g := gauges[reg]; g != nil {
			t.Running, t.Blocked, t.Oldest = g.running, g.blocked, g.oldest
		}
		s.Types = append(s.Types, t)
	}
	return s
}
