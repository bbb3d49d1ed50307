package relocate

// The model: one move of one object between two processes and a store, as a graph of all its states. The two sides are
// driven by step itself; everything around them (the store, the network, the objects, the senders) is modelled as the
// worst that it may do. model_check_test.go explores it.

const (
	modelMessages = 3  // at most, that senders send to the object
	modelWrites   = 10 // record writes in one life
)

// recKind is what the record says in the model.
type recKind uint8

const (
	recSource recKind = iota // Ready(S)
	recPreparing
	recAccepted
	recTarget  // Ready(T) with the move's h
	recCleared // Ready(T) without
	recGone    // a marker
)

// rec is one revision of the record.
type rec struct {
	kind  recKind
	h     uint8
	lease uint8 // S's lease generation in it
}

func (r rec) view() view {
	return [...]view{viewSource, viewPreparing, viewAccepted, viewCommitted, viewOther, viewOther}[r.kind]
}

// stage is where a record write is.
type stage uint8

const (
	noWrite    stage = iota
	wanted           // to be decided and sent
	flying           // sent; the store may apply it at any time, however late
	unanswered       // applied, and the writer does not know
)

// flight is one side's record write.
type flight struct {
	verb    verb
	stage   stage
	resolve bool // the writer asks again
	expect  uint8
	own     uint8 // the revision that it got
	next    rec
}

// net is the set of messages that were sent. One that was sent may arrive at any time, any number of times, or never.
type net uint16

const (
	msgReserve net = 1 << iota
	msgReserved
	msgRefused
	msgCancel
	msgCargo
	msgReady
	msgFailed
	msgCut
	msgCommitted
	msgAck
)

// outcomeKind is what a sender was told.
type outcomeKind uint8

const (
	untold outcomeKind = iota
	toldAccepted
	toldNot
	toldUnknown
)

// mail is one application message.
type mail struct {
	sent  bool
	told  outcomeKind
	ran   uint8
	ended bool // the process that had it died, or the object was released: it need not run any more
}

// queue is an ordered list of messages: number + 1, 0 ends it.
type queue [modelMessages]uint8

func (q *queue) push(m int) {
	for i := range q {
		if q[i] == 0 {
			q[i] = uint8(m + 1)
			return
		}
	}
}

func (q *queue) pop() int {
	m := int(q[0]) - 1
	copy(q[:], q[1:])
	q[len(q)-1] = 0
	return m
}

func (q *queue) len() int {
	n := 0
	for n < len(q) && q[n] != 0 {
		n++
	}
	return n
}

// process is what both sides have.
type process struct {
	unit   unit
	alive  bool
	lapsed bool
	lease  uint8
	write  flight
	busy   actionKind // the local work whose result is awaited: doSeal, doLoad, doOpen
	openH  uint8
}

// world is one state of everything.
type world struct {
	s, t   process
	recs   [modelWrites + 1]rec
	last   uint8 // index of the newest
	net    net
	mails  [modelMessages]mail
	order  queue // in which messages ran
	box    queue // S's mailbox; what is captured stays in it until S is freed or unseals
	cargo  queue // what was captured
	hold   queue // held at S, numbered from 1; it stands in R too, as far as it was published
	inst   bool  // S has an instance
	sealed bool
	follow bool
	pub    uint8 // how many held messages were published
	got    uint8 // bits of the held messages that T has
	work   queue // T's mailbox once it is open
	temp   queue // T's temporary queue
	open   bool
	ready  bool // T has said relay-ready
	passed bool // the record has said *accepted* once

	// budgets of the faults
	deaths, lapses, refusals, openFails, late uint8
}

func (w *world) rec() rec { return w.recs[w.last] }

// put writes a new revision.
func (w *world) put(r rec) bool {
	if int(w.last) == modelWrites {
		return false
	}
	w.last++
	w.recs[w.last] = r
	w.passed = w.passed || r.kind == recAccepted
	return true
}

// legal is the record after a verb, as kvlocation's Transition decides it.
func (m *machine) legal(v verb, at rec, lease, h uint8) (rec, bool) {
	switch {
	case m.mut.commitsEarly && v == wrCommit && at.kind == recPreparing:
		return rec{recTarget, h, 0}, true
	case v == wrPrepare && at.kind == recSource && at.lease == lease:
		return rec{recPreparing, 0, at.lease}, true
	case v == wrAccept && at.kind == recPreparing:
		return rec{recAccepted, 0, lease}, true
	case v == wrAbort && at.kind == recPreparing:
		return rec{recSource, 0, at.lease}, true
	case v == wrCommit && at.kind == recAccepted:
		return rec{recTarget, h, 0}, true
	case v == wrClear && at.kind == recTarget:
		return rec{recCleared, at.h, 0}, true
	}
	return at, false
}

// prefix is the number of the last held message up to which T has all.
func (w *world) prefix() uint8 {
	n := uint8(0)
	for n < modelMessages && w.got&(1<<n) != 0 {
		n++
	}
	return n
}

// scenario is what an exploration may do.
type scenario struct {
	name     string
	senders  []int // for each message the one whose acceptance its sender has seen before, or -1
	deaths   uint8
	lapses   uint8
	refusals uint8 // writes that are certain not to have been applied
	late     uint8 // writes that the store applies, or whose answers it loses
	release  bool
	opens    uint8 // attempts to open that fail
}

// mutant is a bug to be found: it wraps the transition function, or changes what the driver does.
type mutant struct {
	name string
	step func(unit, event) (unit, []action, error)
	// runsAll: T runs every held message that it has, whatever h says. resends: S sends again from what it has not
	// published, whatever h says. heldAccepted: S reports what it holds accepted. holdFirst: at an abort the hold goes
	// before the captured work.
	runsAll, resends, heldAccepted, holdFirst bool
	// commitsEarly: the store takes a commit of what S has not accepted.
	commitsEarly bool
}

// machine explores one scenario.
type machine struct {
	sc     scenario
	mut    mutant
	broken string // what a step did that must never be
}

func (m *machine) apply(p *process, w *world, e event, source bool) {
	f := m.mut.step
	if f == nil {
		f = step
	}
	next, acts, err := f(p.unit, e)
	if err != nil {
		m.broken = err.Error()
		return
	}
	p.unit = next
	for _, a := range acts {
		m.act(p, w, a, source)
	}
}

// act does what a side has to do. What takes time is only begun.
func (m *machine) act(p *process, w *world, a action, source bool) {
	switch a.kind {
	case doWrite:
		p.write = flight{verb: a.verb, stage: wanted}
	case doResolve:
		p.write.resolve = true
	case doRead: // unit.asking says it
	case doSeal, doLoad:
		p.busy = a.kind
	case doOpen:
		p.busy, p.openH = doOpen, uint8(a.h)
	case doHand:
		w.net |= msgCargo
	case doCancel:
		w.net |= msgCancel
	case doReady:
		w.net |= msgReady
		w.ready = true
	case doFail:
		w.net |= msgFailed
	case doNotify:
		w.net |= msgCommitted
	case doFree:
		w.inst, w.box = false, queue{}
		if !w.t.alive {
			w.end(&w.cargo)
		}
	case doCutover:
		w.pub = uint8(w.hold.len())
		w.net |= msgCut
	case doKeep:
		m.unseal(w)
	case doFinish:
		m.finish(w, uint8(a.h))
	case doForsake:
		for i := range w.hold.len() {
			if uint8(i) < w.pub {
				w.tell(int(w.hold[i])-1, toldUnknown)
			} else {
				w.tell(int(w.hold[i])-1, toldNot)
			}
		}
	case doLose:
		w.inst = false
		w.end(&w.box)
		for i := range w.hold.len() {
			w.tell(int(w.hold[i])-1, toldNot)
		}
	case doDrop:
		for w.temp[0] != 0 {
			w.tell(w.temp.pop(), toldNot)
		}
		for i := range w.hold.len() {
			if w.got&(1<<i) != 0 { // nobody answers: its sender's own deadline does
				w.tell(int(w.hold[i])-1, toldUnknown)
			}
		}
	}
}

// tell ends a message for its sender, once.
func (w *world) tell(i int, o outcomeKind) {
	if w.mails[i].told == untold {
		w.mails[i].told = o
	}
}

// end says of messages that they need not run any more.
func (w *world) end(q *queue) {
	for i := range q.len() {
		w.mails[q[i]-1].ended = true
	}
}

func (m *machine) unseal(w *world) {
	if !w.sealed {
		return
	}
	w.sealed = false
	held := w.hold
	w.hold = queue{}
	if m.mut.holdFirst {
		box := w.box
		w.box = queue{}
		defer func() {
			for box[0] != 0 {
				w.box.push(box.pop())
			}
		}()
	}
	for held[0] != 0 {
		i := held.pop()
		w.tell(i, toldAccepted)
		w.box.push(i)
	}
}

// finish is S's end of a committed move: what is above h goes to T, in order.
func (m *machine) finish(w *world, h uint8) {
	if m.mut.resends {
		h = w.pub
	}
	for i := range w.hold.len() {
		if uint8(i) >= h {
			w.toTarget(int(w.hold[i]) - 1)
		}
	}
	w.follow = true
}

// toTarget hands a message to T's process.
func (w *world) toTarget(i int) {
	switch {
	case w.mails[i].told != untold && w.mails[i].told != toldAccepted:
	case !w.t.alive:
		w.tell(i, toldNot)
	case w.open:
		w.tell(i, toldAccepted)
		w.work.push(i)
	case w.t.unit.state >= dstLoading && w.t.unit.state <= dstOpening:
		w.temp.push(i)
	default:
		w.tell(i, toldNot)
	}
}

// opened switches T to normal dispatch.
func (m *machine) opened(w *world) {
	w.open, w.work = true, w.cargo
	for i := range w.hold.len() {
		have := w.got&(1<<i) != 0
		if have && (uint8(i) < w.t.openH || m.mut.runsAll) {
			w.tell(int(w.hold[i])-1, toldAccepted)
			w.work.push(int(w.hold[i]) - 1)
		}
	}
	for w.temp[0] != 0 {
		i := w.temp.pop()
		w.tell(i, toldAccepted)
		w.work.push(i)
	}
}

// servesS and servesT report whether a side would run a turn now.
func (w *world) servesS() bool {
	return w.s.alive && w.inst && !w.sealed && !w.s.lapsed && w.rec().lease == w.s.lease
}

func (w *world) servesT() bool {
	return w.t.alive && w.open && !w.t.lapsed && (w.t.lease == 0 || w.rec().kind == recTarget || w.rec().kind == recCleared)
}
