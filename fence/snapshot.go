package fence

import (
	"sync"
	"time"
)

// Snapshot is what an Election sees and has done, for status pages and metrics. Counters count since it was made.
type Snapshot struct {
	Name string
	// Leading is true while this candidate leads by its own clock.
	Leading bool
	// Token is that of its present or last term.
	Token Token
	// Status is the record as it was read or written last.
	Status Status
	// Problem is what keeps this candidate from leading or from fencing, "" when nothing does.
	Problem string
	// NextTry is when fencing is tried again, on this machine's clock; zero when it is not waiting for that.
	NextTry time.Time

	Grants        uint64 // terms that this candidate got
	Renewals      uint64 // acknowledged
	TermsLost     uint64 // ended otherwise than by Resign
	FenceAttempts uint64 // passes through the levels
	FenceFailures uint64 // passes in which no level fenced the holder
	Fenced        uint64 // passes that ended with a confirmation
	DeviceLied    uint64 // devices that said fenced while their check said otherwise

	// DevicesOut is how many devices' calls were given up and have not returned: at most one of each device of the plan. Such
	// a device is not called, and counts as Unknown, until it has returned.
	DevicesOut int
}

// tracker keeps what Snapshot shows.
type tracker struct {
	mu   sync.Mutex
	snap Snapshot
}

func (t *tracker) do(f func(s *Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.snap)
}

// see keeps the newest record that was seen.
func (t *tracker) see(v Status) {
	t.do(func(s *Snapshot) {
		if v.Revision >= s.Status.Revision {
			s.Status = v
		}
	})
}

func (t *tracker) note(err error) { t.do(func(s *Snapshot) { s.Problem = err.Error() }) }

func (t *tracker) granted(v Status) {
	t.see(v)
	t.do(func(s *Snapshot) { s.Grants++; s.Problem, s.NextTry = "", time.Time{} })
}

func (t *tracker) renewed(v Status) {
	t.see(v)
	t.do(func(s *Snapshot) { s.Renewals++; s.Problem = "" })
}

func (t *tracker) ended(why error) {
	t.do(func(s *Snapshot) {
		if why != ErrResigned {
			s.TermsLost++
			s.Problem = why.Error()
		}
	})
}

func (t *tracker) why() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snap.Problem
}

// Snapshot returns what the election sees and has done.
func (e *Election) Snapshot() Snapshot {
	e.mu.Lock()
	term := e.term
	e.mu.Unlock()
	e.track.mu.Lock()
	s := e.track.snap
	e.track.mu.Unlock()
	s.Name, s.DevicesOut = e.cfg.Name, e.devices.Out()
	if term != nil {
		s.Leading, s.Token = term.held(), term.token
	}
	return s
}
