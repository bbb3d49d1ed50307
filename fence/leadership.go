package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"natsfabric/internal/jsonkeep"
)

// Phase is where a leadership stands. Every change is a compare-and-set of its one record (see Leadership.apply).
type Phase string

// The phases of a leadership.
const (
	// PhaseVacant: nobody leads; the last holder resigned. A leadership that never was has no phase (""). To led, by whoever grants itself first.
	PhaseVacant Phase = "vacant"
	// PhaseLed: the holder leads while it renews. To led by its renewal; to vacant when it resigns; when it was silent for
	// its TTL, to fencing, or to fenced by a person's word, or, if no fencing is wanted, to led by another holder.
	PhaseLed Phase = "led"
	// PhaseFencing: the holder leads no more, and the claimant has the right to fence it. To fencing by each step and by a
	// claimant that takes over from a silent one; to fenced by a confirmation; to vacant when the holder itself says that
	// it has stopped. Never to led: that is invariant I8.
	PhaseFencing Phase = "fencing"
	// PhaseFenced: it is confirmed that the holder can do no more harm. To led, by whoever grants itself first.
	PhaseFenced Phase = "fenced"
)

// Candidate is a process that leads or would like to.
type Candidate struct {
	// Node is the name under which fence devices know it, a node's RID.
	Node string `json:"node"`
	// Lifecycle tells apart process runs of one node, 0 when there is no such number.
	Lifecycle uint64 `json:"lifecycle,omitempty"`
	// Run is one Election of a process.
	Run string `json:"run"`
	// Labels are what fence devices need to know besides: a process ID, an address, a user of the database.
	Labels map[string]string `json:"labels,omitempty"`
}

// Claim is the right to fence, held by one candidate at a time.
type Claim struct {
	By Candidate `json:"by"`
	// Attempt counts the passes through the levels, from 1.
	Attempt int `json:"attempt"`
	// Level is the level under way, from 0, and Device the device that was told to act; "" between two devices.
	Level  int    `json:"level"`
	Device string `json:"device,omitempty"`
}

// Try is what became of one device's attempt.
type Try struct {
	Attempt int       `json:"attempt"`
	Level   int       `json:"level"`
	Device  string    `json:"device"`
	Answer  Answer    `json:"answer"`
	Detail  string    `json:"detail,omitempty"`
	By      string    `json:"by"` // the claimant's node
	At      time.Time `json:"at"` // on the claimant's clock
}

// How a fence came to be confirmed.
const (
	ByDevice = "device" // every device of a level said fenced, and an independent check agreed
	ByPerson = "person" // a person vouches for it
	ByHolder = "holder" // the holder itself says that it has stopped: it resigned
)

// Confirmation says why the last holder can do no more harm.
type Confirmation struct {
	// How is ByDevice, ByPerson or ByHolder.
	How string `json:"how"`
	// By is the claimant's node, or the person.
	By string `json:"by"`
	// Reason is what the person gave.
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // on the confirming program's clock
}

// maxTries bounds the tries that a record keeps, the last ones, and maxDetail what each says, in bytes.
const (
	maxTries  = 24
	maxDetail = 400
)

// Leadership is the record of a leadership, JSON under the key leader.<name> of the bucket FENCE. It never expires on the
// server: that a holder is silent is something that candidates see, not something that deletes what was known.
type Leadership struct {
	V     int    `json:"v"`
	Name  string `json:"name"`
	Phase Phase  `json:"phase"`
	// Holder leads, or led last; nil before the first term.
	Holder *Candidate `json:"holder,omitempty"`
	// Term is the revision of the holder's grant. 0 means the entry's own revision: it is the grant.
	Term uint64 `json:"term,omitempty"`
	// TTLMillis is for how long nobody else may write unless the record changes, in milliseconds, counted from when the
	// other one has read it: the lease of the holder in led, that of the claim in fencing.
	TTLMillis int64 `json:"ttl_ms,omitempty"`
	// MustFence is true when the holder's leadership is taken over after fencing only.
	MustFence bool `json:"must_fence,omitempty"`
	// Claim is the right to fence, in fencing.
	Claim *Claim `json:"claim,omitempty"`
	// Tries are the last attempts of devices to fence Holder, the oldest first.
	Tries []Try `json:"tries,omitempty"`
	// Confirmed says why the holder can do no more harm, in vacant (after a term) and fenced.
	Confirmed *Confirmation `json:"confirmed,omitempty"`

	unknown map[string]json.RawMessage // the fields that this version does not know
}

// leadershipVersion is the newest schema version that this program understands; a record of a newer one is a ProtocolError.
const leadershipVersion = 1

var leadershipFields = jsonkeep.Names(reflect.TypeFor[Leadership]())

// TTL is TTLMillis.
func (l Leadership) TTL() time.Duration { return time.Duration(l.TTLMillis) * time.Millisecond }

// What a leadership refuses.
var (
	errHeld      = errors.New("it is held")
	errMustFence = errors.New("its holder has to be fenced first")
	errNotYours  = errors.New("it is not this candidate's")
	errNotFenced = errors.New("not every device has said fenced")
	errPhase     = errors.New("its phase does not allow it")
	errItself    = errors.New("a node does not fence itself")
)

// event is something that a candidate or a person wants written.
type event interface{ isEvent() }

type (
	// grant makes a candidate the holder. Idle says that the candidate has read the record and found it unchanged for its
	// TTL, on its own clock.
	grant struct {
		to        Candidate
		ttl       time.Duration
		mustFence bool
		idle      bool
	}
	// renew prolongs a term.
	renew struct {
		run  string
		term uint64
		ttl  time.Duration
	}
	// resign ends a term: its holder has stopped.
	resign struct {
		run  string
		term uint64
		at   time.Time
	}
	// suspect takes the right to fence, or goes on to the next attempt.
	suspect struct {
		by   Candidate
		ttl  time.Duration
		idle bool
	}
	// intend says, before it is done, that a device is told to act.
	intend struct {
		run    string
		level  int
		device string
		ttl    time.Duration
	}
	// answered records what became of it.
	answered struct {
		run string
		try Try
	}
	// confirm ends fencing because every device of a level has said fenced.
	confirm struct {
		run     string
		level   int
		devices []string
		at      time.Time
	}
	// vouch ends fencing because a person says so, or makes it needless: of a holder that was silent for its TTL (idle) too, for
	// nobody else may be there to fence it.
	vouch struct {
		node, by, reason string
		at               time.Time
		idle             bool
	}
)

func (grant) isEvent()    {}
func (renew) isEvent()    {}
func (resign) isEvent()   {}
func (suspect) isEvent()  {}
func (intend) isEvent()   {}
func (answered) isEvent() {}
func (confirm) isEvent()  {}
func (vouch) isEvent()    {}

// apply is the one transition function of leaderships: what the record at a revision becomes by an event, or why the event
// is refused. It is pure; whoever calls it writes the result by compare-and-set at that revision. The zero Leadership is
// one that never was.
func (l Leadership) apply(revision uint64, e event) (Leadership, error) {
	term := l.Term
	if term == 0 {
		term = revision
	}
	next := l
	next.V = leadershipVersion
	claims := func(run string) bool { return l.Phase == PhaseFencing && l.Claim.By.Run == run }
	switch e := e.(type) {
	case grant:
		switch {
		case l.Phase == "", l.Phase == PhaseVacant, l.Phase == PhaseFenced && l.Confirmed != nil:
		case l.Phase == PhaseLed && !e.idle:
			return l, errHeld
		case l.Phase == PhaseLed && !l.MustFence && !e.mustFence:
		default:
			return l, errMustFence
		}
		next.Phase, next.Holder, next.Term, next.MustFence = PhaseLed, &e.to, 0, e.mustFence
		next.TTLMillis, next.Claim, next.Tries, next.Confirmed = e.ttl.Milliseconds(), nil, nil, nil
	case renew:
		if l.Phase != PhaseLed || l.Holder.Run != e.run || term != e.term {
			return l, errNotYours
		}
		next.Term, next.TTLMillis = term, e.ttl.Milliseconds()
	case resign:
		if l.Phase != PhaseLed && l.Phase != PhaseFencing || l.Holder.Run != e.run || term != e.term {
			return l, errNotYours
		}
		next.Phase, next.Term, next.TTLMillis, next.Claim = PhaseVacant, term, 0, nil
		next.Confirmed = &Confirmation{How: ByHolder, By: l.Holder.Node, At: e.at}
	case suspect:
		switch {
		case l.Phase != PhaseLed && l.Phase != PhaseFencing:
			return l, errPhase
		case l.Holder.Node == e.by.Node:
			return l, errItself
		case !e.idle && !claims(e.by.Run):
			return l, errHeld
		}
		attempt := 1
		if l.Claim != nil {
			attempt = l.Claim.Attempt + 1
		}
		next.Phase, next.Term, next.TTLMillis = PhaseFencing, term, e.ttl.Milliseconds()
		next.Claim = &Claim{By: e.by, Attempt: attempt}
	case intend:
		if !claims(e.run) {
			return l, errNotYours
		}
		claim := *l.Claim
		claim.Level, claim.Device = e.level, e.device
		next.Claim, next.TTLMillis = &claim, e.ttl.Milliseconds()
	case answered:
		if !claims(e.run) || e.try.Attempt != l.Claim.Attempt {
			return l, errNotYours
		}
		claim := *l.Claim
		claim.Device = ""
		next.Claim = &claim
		next.Tries = append(append([]Try(nil), l.Tries[max(0, len(l.Tries)-maxTries+1):]...), e.try)
	case confirm:
		if !claims(e.run) {
			return l, errNotYours
		}
		for _, d := range e.devices {
			if !l.saidFenced(l.Claim.Attempt, e.level, d) {
				return l, fmt.Errorf("%w: %s of level %d", errNotFenced, d, e.level)
			}
		}
		if len(e.devices) == 0 {
			return l, errNotFenced
		}
		next.Phase, next.TTLMillis, next.Claim = PhaseFenced, 0, nil
		next.Confirmed = &Confirmation{How: ByDevice, By: l.Claim.By.Node, At: e.at}
	case vouch:
		switch {
		case l.Phase != PhaseFencing && (l.Phase != PhaseLed || !e.idle):
			return l, fmt.Errorf("%w: it is %q, and only of a holder that is being fenced, or has been silent for its TTL, can it be confirmed", errPhase, l.Phase)
		case l.Holder.Node != e.node:
			return l, fmt.Errorf("%w: node %q is being fenced, not %q", errPhase, l.Holder.Node, e.node)
		}
		next.Phase, next.Term, next.TTLMillis, next.Claim = PhaseFenced, term, 0, nil
		next.Confirmed = &Confirmation{How: ByPerson, By: e.by, Reason: e.reason, At: e.at}
	default:
		panic(fmt.Sprintf("fence: unknown event %T", e))
	}
	return next, nil
}

// saidFenced reports whether the device's last word of the attempt at the level was fenced.
func (l Leadership) saidFenced(attempt, level int, device string) bool {
	for i := len(l.Tries) - 1; i >= 0; i-- {
		if t := l.Tries[i]; t.Attempt == attempt && t.Level == level && t.Device == device {
			return t.Answer == Fenced
		}
	}
	return false
}
