package relocate

import "fmt"

// state is where one side of a move stands. S is the source, T the target, L the Location Store. Only step changes it.
type state uint8

// The states of S.
const (
	// srcReserving: T was asked to reserve. Nothing is written. Next: srcPreparing, srcKept.
	srcReserving state = iota + 1
	// srcPreparing: the write of *preparing* is under way. S serves on, since both outcomes name S.
	// Next: srcSealing, srcAborting, srcKept.
	srcPreparing
	// srcSealing: the record says *preparing*; the running turns end, the mailbox is sealed, the state captured.
	// Next: srcHanding, srcAborting.
	srcSealing
	// srcHanding: what was captured goes to T, whose relay-ready is awaited; arrivals are held. Next: srcAccepting,
	// srcAborting.
	srcHanding
	// srcAccepting: the write of *accepted* is under way: S neither unseals nor hands over before its result is known
	// (FO-7e). Next: srcPassed, srcDone (T has committed already), srcAborting, srcKept (T's abort was first), srcLost.
	srcAccepting
	// srcAborting: the abort's write is under way; S stays sealed until its result is known. Next: srcKept, srcPassed,
	// srcDone, srcLost.
	srcAborting
	// srcPassed: *accepted* is written, the irreversible boundary (FO-5b): the instance is freed, the hold goes over, and S
	// waits for the commit's h. Next: srcDone, srcParting, srcForsaken.
	srcPassed
	// srcParting: T has been silent for too long; L is asked once more whether T has committed. Next: srcDone, srcForsaken.
	srcParting
	// srcDone is terminal: T has committed, the rest of the hold goes to it, and S follows.
	srcDone
	// srcKept is terminal: S owns and serves, as if nothing had been (FO-5a).
	srcKept
	// srcLost is terminal: before the boundary, L says that the object is not this S's any more: it was released. The object ends here.
	srcLost
	// srcForsaken is terminal: after the boundary h cannot be learned. What was published is Unknown, the rest
	// NotAccepted. S never comes back to the object.
	srcForsaken
)

// The states of T.
const (
	// dstReserved: a place is kept. Next: dstLoading, dstDropped.
	dstReserved state = iota + 32
	// dstLoading: what was captured is restored; relay-ready was not said, so S cannot accept. Next: dstReady, dstDropped.
	dstLoading
	// dstReady: relay-ready was said. T drops its instance only on what L says. Next: dstCommitting, dstAborting,
	// dstDropped.
	dstReady
	// dstAborting: T's abort is under way, since S is silent or time is up. Next: dstDropped, dstCommitting (it lost to
	// *accepted*).
	dstAborting
	// dstCommitting: the commit's write is under way; dispatch stays closed until its result is known (FO-7e).
	// Next: dstOpening, dstDropped (L says that another has the object, or nobody), dstReady (S has not accepted).
	dstCommitting
	// dstOpening: T owns the object, and switches to normal dispatch (FO-5d); S is told h meanwhile. Next: dstOpen,
	// dstClearing (S has acknowledged already).
	dstOpening
	// dstOpen: T serves; S is told h until it acknowledges. Next: dstClearing, dstDone.
	dstOpen
	// dstClearing: S knows h, so the record's move is cleared. Next: dstDone.
	dstClearing
	// dstDone is terminal: T owns the object.
	dstDone
	// dstDropped is terminal: T has no part in the object.
	dstDropped
)

var stateNames = map[state]string{
	srcReserving: "reserving", srcPreparing: "preparing", srcSealing: "sealing", srcHanding: "handing", srcAccepting: "accepting",
	srcAborting: "aborting", srcPassed: "passed", srcParting: "parting", srcDone: "done", srcKept: "kept", srcLost: "lost",
	srcForsaken: "forsaken",
	dstReserved: "reserved", dstLoading: "loading", dstReady: "ready", dstAborting: "target aborting", dstCommitting: "committing", dstOpening: "opening",
	dstOpen: "open", dstClearing: "clearing", dstDone: "target done", dstDropped: "dropped",
}

func (s state) String() string {
	if n := stateNames[s]; n != "" {
		return n
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// source reports whether the state is one of S.
func (s state) source() bool { return s <= srcForsaken }

// terminal reports whether nothing follows the state.
func (s state) terminal() bool {
	switch s {
	case srcDone, srcKept, srcLost, srcForsaken, dstDone, dstDropped:
		return true
	}
	return false
}

// unit is one side of one move. It is a value: two equal units behave alike.
type unit struct {
	state state
	// floor is the highest revision at which this side knows the record: S's own writes, T's the *preparing* that S tells
	// it. What L says from below it is stale and decides nothing, except that *accepted* is true however stale.
	floor uint64
	// giveUp (S): time is up, or the other side failed, while a write is under way. It counts once that is settled.
	giveUp bool
	// late (T): 1,000 ms have passed since relay-ready (FO-5b).
	late bool
	// acked (T): S has acknowledged h.
	acked bool
	// asking: L is being read; one read at a time.
	asking bool
}

// newSource and newTarget are the two beginnings.
func newSource() unit { return unit{state: srcReserving} }
func newTarget() unit { return unit{state: dstReserved} }

// view is what a record says to a side of the move with a given operation ID.
type view uint8

const (
	viewNone view = iota
	// viewSource: Ready, S's, under the owner generation with which the move began, and no such move.
	viewSource
	// viewPreparing and viewAccepted: Moving, with this operation ID.
	viewPreparing
	viewAccepted
	// viewCommitted: Ready, T's, with the move's h in it.
	viewCommitted
	// viewOther: another move, owner or incarnation, or none. Nothing of this move can be read from it any more.
	viewOther
)

var viewNames = map[view]string{viewNone: "none", viewSource: "source", viewPreparing: "preparing", viewAccepted: "accepted", viewCommitted: "committed", viewOther: "other"}

func (v view) String() string { return viewNames[v] }

// eventKind is what may happen to a side.
type eventKind uint8

// The events.
const (
	evReserved      eventKind = iota + 1 // S: T keeps a place
	evWrote                              // the result of a record write, see event
	evCaptured                           // S: sealed and captured
	evCaptureFailed                      // S
	evReady                              // S: T's relay-ready
	evFailed                             // S: T refuses, has failed, or does not know the move
	evGiveUp                             // before the boundary: time is up, or the caller has given up
	evSilent                             // behind it: the other side has said nothing for too long
	evRecord                             // a read of the record, see event
	evReadFailed                         // nothing could be read
	evTick                               // time to look again
	evCommitted                          // S: T's commit notice with h
	evCargo                              // T: what was captured is there whole
	evLoaded                             // T: the instance is restored
	evLoadFailed                         // T
	evCancel                             // T: S says that it has given the move up
	evCut                                // T: the cutover marker
	evFallback                           // T: 1,000 ms since relay-ready
	evOpened                             // T: dispatch is switched
	evOpenFailed                         // T: it could not be yet
	evAcked                              // T: S knows h
)

// verb is a record write of the move.
type verb uint8

const (
	noVerb verb = iota
	wrPrepare
	wrAccept
	wrAbort
	wrCommit
	wrClear
)

// fate is what is known of a record write.
type fate uint8

const (
	noFate     fate = iota
	applied         // view and h say what the record says now, when it was read; else viewNone
	refused         // not applied, or nobody can tell and nobody needs to: the record, read for certain, is as view says
	notApplied      // definitely not applied, and nothing is known of the record
	unknown         // sent, and nobody can tell yet
)

// event is one thing that happens to a side.
type event struct {
	kind eventKind
	verb verb // evWrote
	fate fate // evWrote
	view view // evWrote, evRecord
	// revision is the record's: of the write in evWrote, of what was read in evRecord; evCargo: that of *preparing*.
	revision uint64
	h        uint64 // evCommitted, and with viewCommitted
}

// actionKind is what a side has to do.
type actionKind uint8

// The actions. Those that end in a result say with which event it comes back.
const (
	doWrite   actionKind = iota + 1 // write the record: evWrote
	doResolve                       // send the write that is under way again until its result is known: evWrote
	doRead                          // read the record: evRecord or evReadFailed
	doSeal                          // S: seal and capture: evCaptured or evCaptureFailed
	doHand                          // S: relay what was captured and ask T for relay-ready: evReady or evFailed
	doCancel                        // S: tell T that the move is given up
	doFree                          // S: the boundary is passed: free the instance
	doCutover                       // S: publish what is held, numbered, then the marker
	doKeep                          // S: end the seal if there is one; the captured work first, then the hold
	doFinish                        // S: the hold above h to T, then follow
	doForsake                       // S: fail the hold: published is Unknown, the rest NotAccepted
	doLose                          // S: the object is over here
	doLoad                          // T: restore: evLoaded or evLoadFailed
	doReady                         // T: say relay-ready
	doFail                          // T: say that it failed
	doDrop                          // T: drop the instance and the temporary queue
	doOpen                          // T: run work, the held messages up to h, what waits; normal dispatch: evOpened or evOpenFailed
	doNotify                        // T: tell S h: evAcked
)

// action is one thing that a side has to do.
type action struct {
	kind actionKind
	verb verb   // doWrite, doResolve
	h    uint64 // doFinish, doOpen
}

// illegalEvent says that an event cannot come in a state: its driver is broken.
type illegalEvent struct {
	state state
	event event
}

func (e *illegalEvent) Error() string {
	return fmt.Sprintf("move: event %s cannot come while %s", e.event, e.state)
}

// step is the life of one unit at one of its sides: the one function that decides what follows what. It has no effects and
// reads no clock. Messages may come late, twice or never and are then ignored; the result of something that was never
// begun is an *illegalEvent.
//
// Invariants: S unseals only from srcKept, which is reached only on a record that names S or before anything was sealed;
// T opens only from dstCommitting, on a commit whose result is known; once L has said *accepted*, no state of S leads back.
func step(u unit, e event) (unit, []action, error) {
	if u.state.source() {
		return stepSource(u, e)
	}
	return stepTarget(u, e)
}

// to is the unit in another state.
func (u unit) to(s state) unit {
	u.state, u.asking = s, false
	return u
}

// seen raises the floor.
func (u unit) seen(revision uint64) unit {
	u.floor = max(u.floor, revision)
	return u
}

// do makes a list of actions.
func do(kinds ...actionKind) []action {
	as := make([]action, len(kinds))
	for i, k := range kinds {
		as[i] = action{kind: k}
	}
	return as
}

func write(v verb) []action   { return []action{{kind: doWrite, verb: v}} }
func resolve(v verb) []action { return []action{{kind: doResolve, verb: v}} }

// ask begins a read unless one is under way.
func (u unit) ask() (unit, []action, error) {
	if u.asking {
		return u, nil, nil
	}
	u.asking = true
	return u, do(doRead), nil
}

// underway is the write whose result a state waits for.
func (s state) underway() verb {
	switch s {
	case srcPreparing:
		return wrPrepare
	case srcAccepting:
		return wrAccept
	case srcAborting, dstAborting:
		return wrAbort
	case dstCommitting:
		return wrCommit
	case dstClearing:
		return wrClear
	}
	return noVerb
}

var eventNames = map[eventKind]string{
	evReserved: "reserved", evWrote: "wrote", evCaptured: "captured", evCaptureFailed: "capture-failed", evReady: "ready", evFailed: "failed",
	evGiveUp: "give-up", evSilent: "silent", evRecord: "record", evReadFailed: "read-failed", evTick: "tick", evCommitted: "committed", evCargo: "cargo",
	evLoaded: "loaded", evLoadFailed: "load-failed", evCancel: "cancel", evCut: "cut", evFallback: "fallback", evOpened: "opened",
	evOpenFailed: "open-failed", evAcked: "acked",
}

var (
	verbNames   = map[verb]string{wrPrepare: "prepare", wrAccept: "accept", wrAbort: "abort", wrCommit: "commit", wrClear: "clear"}
	fateNames   = map[fate]string{applied: "applied", refused: "refused", notApplied: "not-applied", unknown: "unknown"}
	actionNames = map[actionKind]string{
		doWrite: "write", doResolve: "resolve", doRead: "read", doSeal: "seal", doHand: "hand", doCancel: "cancel", doFree: "free",
		doCutover: "cutover", doKeep: "keep", doFinish: "finish", doForsake: "forsake", doLose: "lose", doLoad: "load", doReady: "say-ready",
		doFail: "say-failed", doDrop: "drop", doOpen: "open", doNotify: "notify",
	}
)

// String is the event as scripts write it: wrote accept applied rev=7.
func (e event) String() string {
	s := eventNames[e.kind]
	if e.kind == evWrote {
		s += " " + verbNames[e.verb] + " " + fateNames[e.fate]
	}
	if e.view != viewNone {
		s += " " + e.view.String()
	}
	if e.revision != 0 {
		s += fmt.Sprintf(" rev=%d", e.revision)
	}
	if e.kind == evCommitted || e.view == viewCommitted || e.h != 0 {
		s += fmt.Sprintf(" h=%d", e.h)
	}
	return s
}

// String is the action as scripts write it.
func (a action) String() string {
	s := actionNames[a.kind]
	if a.verb != noVerb {
		s += " " + verbNames[a.verb]
	}
	if a.kind == doFinish || a.kind == doOpen {
		s += fmt.Sprintf(" h=%d", a.h)
	}
	return s
}
