package relocate

// successors calls visit with every world that may follow w. death marks the steps that the search for stuck sides
// must not rely on.
func (m *machine) successors(w world, visit func(next world, fault bool)) {
	m.messages(w, visit)
	m.clocks(w, visit)
	m.work(w, visit)
	m.writes(w, visit, true)
	m.writes(w, visit, false)
	m.faults(w, visit)
	m.mail(w, visit)
}

// source and target deliver an event.
func (m *machine) source(w world, e event, visit func(world, bool)) {
	m.apply(&w.s, &w, e, true)
	visit(w, false)
}

func (m *machine) target(w world, e event, visit func(world, bool)) {
	m.apply(&w.t, &w, e, false)
	visit(w, false)
}

// revisionOf is the revision that a kind of record had first; 0 for never.
func (w *world) revisionOf(k recKind) uint8 {
	for i := uint8(0); i <= w.last; i++ {
		if w.recs[i].kind == k {
			return i
		}
	}
	return 0
}

func (m *machine) messages(w world, visit func(world, bool)) {
	if w.s.alive && !w.s.unit.state.terminal() {
		for _, d := range []struct {
			msg net
			e   event
		}{{msgReserved, event{kind: evReserved}}, {msgRefused, event{kind: evFailed}}, {msgReady, event{kind: evReady}}, {msgFailed, event{kind: evFailed}}} {
			if w.net&d.msg != 0 {
				m.source(w, d.e, visit)
			}
		}
		if !w.t.alive {
			m.source(w, event{kind: evFailed}, visit) // nobody answers
		}
	}
	if w.s.alive && w.net&msgCommitted != 0 {
		n := w
		m.apply(&n.s, &n, event{kind: evCommitted, h: uint64(n.recs[n.revisionOf(recTarget)].h)}, true)
		if n.s.unit.state.terminal() {
			n.net |= msgAck
		}
		visit(n, false)
	}
	if !w.t.alive {
		return
	}
	if w.t.unit.state == 0 {
		n := w
		n.t.unit = newTarget()
		n.net |= msgReserved
		visit(n, false)
		n = w
		n.net |= msgRefused
		visit(n, false)
		return
	}
	for _, d := range []struct {
		msg net
		e   event
	}{
		{msgCargo, event{kind: evCargo, revision: uint64(w.revisionOf(recPreparing))}}, {msgCut, event{kind: evCut}},
		{msgCancel, event{kind: evCancel}}, {msgAck, event{kind: evAcked}},
	} {
		if w.net&d.msg != 0 {
			m.target(w, d.e, visit)
		}
	}
	for i := range w.pub {
		if w.t.unit.state != dstDropped && !w.open {
			n := w
			n.got |= 1 << i
			visit(n, false)
		}
	}
}

func (m *machine) clocks(w world, visit func(world, bool)) {
	if u := w.s.unit; w.s.alive && !u.state.terminal() {
		m.source(w, event{kind: evGiveUp}, visit)
		m.source(w, event{kind: evSilent}, visit)
		m.source(w, event{kind: evTick}, visit)
		m.reads(w, u, m.source, visit)
	}
	if u := w.t.unit; w.t.alive && u.state != 0 && !u.state.terminal() {
		m.target(w, event{kind: evGiveUp}, visit)
		m.target(w, event{kind: evSilent}, visit)
		m.target(w, event{kind: evTick}, visit)
		if u.state == dstReady && !u.late {
			m.target(w, event{kind: evFallback}, visit)
		}
		m.reads(w, u, m.target, visit)
	}
}

// reads answers a read from any replica, however far behind.
func (m *machine) reads(w world, u unit, to func(world, event, func(world, bool)), visit func(world, bool)) {
	if !u.asking {
		return
	}
	to(w, event{kind: evReadFailed}, visit)
	for i := uint8(0); i <= w.last; i++ {
		to(w, event{kind: evRecord, view: w.recs[i].view(), revision: uint64(i), h: uint64(w.recs[i].h)}, visit)
	}
}

// work completes what takes time inside a process.
func (m *machine) work(w world, visit func(world, bool)) {
	if w.s.alive && w.s.busy == doSeal {
		n := w
		n.s.busy, n.sealed = 0, true
		n.cargo = n.box
		m.source(n, event{kind: evCaptured}, visit)
		n.cargo = queue{}
		m.source(n, event{kind: evCaptureFailed}, visit)
	}
	if !w.t.alive {
		return
	}
	n := w
	n.t.busy = 0
	switch w.t.busy {
	case doLoad:
		m.target(n, event{kind: evLoaded}, visit)
		m.target(n, event{kind: evLoadFailed}, visit)
	case doOpen:
		if w.openFails < m.sc.opens {
			f := n
			f.openFails++
			m.target(f, event{kind: evOpenFailed, h: uint64(w.t.openH)}, visit)
		}
		m.opened(&n)
		m.target(n, event{kind: evOpened}, visit)
	}
}

// writes carries on a side's record write.
func (m *machine) writes(w world, visit func(world, bool), source bool) {
	side := func(w *world) *process {
		if source {
			return &w.s
		}
		return &w.t
	}
	deliver := func(w world, fa fate, v view, revision, h uint8) {
		e := event{kind: evWrote, verb: side(&w).write.verb, fate: fa, view: v, revision: uint64(revision), h: uint64(h)}
		if fa != unknown {
			side(&w).write = flight{}
		}
		m.apply(side(&w), &w, e, source)
		visit(w, false)
	}
	p := side(&w)
	f := p.write
	if f.stage == flying && w.last == f.expect { // the store applies it late, whether the writer lives or not
		n := w
		if n.put(f.next) {
			side(&n).write.stage, side(&n).write.own = unanswered, n.last
			visit(n, false)
		}
	}
	if !p.alive || f.stage == noWrite {
		return
	}
	switch {
	case f.stage == wanted && p.lapsed && (f.verb == wrPrepare || f.verb == wrAccept || f.verb == wrCommit):
		deliver(w, notApplied, viewNone, 0, 0)
	case f.stage == wanted:
		h := w.prefix()
		next, ok := m.legal(f.verb, w.rec(), p.lease, h)
		if !ok {
			deliver(w, refused, w.rec().view(), w.last, w.rec().h)
			return
		}
		if w.refusals < m.sc.refusals {
			n := w
			n.refusals++
			deliver(n, notApplied, viewNone, 0, 0)
		}
		if w.late < m.sc.late {
			n := w
			n.late++
			side(&n).write = flight{verb: f.verb, stage: flying, expect: n.last, next: next}
			deliver(n, unknown, viewNone, 0, 0)
		}
		n := w
		if n.put(next) {
			deliver(n, applied, viewNone, n.last, next.h)
		}
	case f.resolve && f.stage == unanswered:
		deliver(w, refused, w.rec().view(), w.last, w.rec().h) // the answers do not come through, and the record was read
		v := viewNone
		if w.last != f.own {
			v = w.rec().view()
		}
		h := f.next.h
		if v == viewCommitted {
			h = w.rec().h
		}
		deliver(w, applied, v, f.own, h)
	case f.resolve && w.last != f.expect: // lost: the record was read, or the same action is decided anew
		deliver(w, refused, w.rec().view(), w.last, w.rec().h)
		n := w
		side(&n).write = flight{verb: f.verb, stage: wanted}
		visit(n, false)
	}
}

func (m *machine) faults(w world, visit func(world, bool)) {
	if w.deaths < m.sc.deaths {
		n := w
		n.deaths++
		if w.s.alive && !w.s.unit.state.terminal() {
			d := n
			d.s.alive = false
			d.end(&d.box)
			visit(d, true)
		}
		if w.t.alive {
			d := n
			d.t.alive = false
			d.end(&d.work)
			if !d.inst {
				d.end(&d.cargo)
			}
			visit(d, true)
		}
	}
	for _, source := range []bool{true, false} {
		n := w
		p := &n.t
		if source {
			p = &n.s
		}
		switch {
		case p.alive && p.lapsed:
			p.lapsed = false
			p.lease++
			visit(n, false)
		case p.alive && w.lapses < m.sc.lapses:
			n.lapses++
			p.lapsed = true
			visit(n, true)
		}
	}
	if w.s.alive && w.inst && !w.sealed && !w.s.lapsed && w.rec().lease != w.s.lease { // the object is adopted at its next turn
		n := w
		if k := w.rec().kind; k == recSource || k == recPreparing {
			if n.put(rec{k, 0, w.s.lease}) {
				visit(n, false)
			}
		} else {
			n.inst = false
			n.end(&n.box)
			visit(n, false)
		}
	}
	if !m.sc.release {
		return
	}
	gone := func(p process) bool { return !p.alive || p.lapsed }
	k := w.rec().kind
	if n := w; (k == recSource || k == recPreparing) && gone(w.s) || (k == recAccepted || k == recTarget || k == recCleared) && gone(w.t) {
		if n.put(rec{kind: recGone}) {
			n.end(&n.box)
			n.end(&n.cargo)
			n.end(&n.work)
			visit(n, true)
		}
	}
}

// mail lets senders send and objects run.
func (m *machine) mail(w world, visit func(world, bool)) {
	if w.servesS() && w.box[0] != 0 {
		n := w
		i := n.box.pop()
		n.mails[i].ran++
		n.order.push(i)
		visit(n, false)
	}
	if w.servesT() && w.work[0] != 0 {
		n := w
		i := n.work.pop()
		n.mails[i].ran++
		n.order.push(i)
		visit(n, false)
	}
	for i, after := range m.sc.senders {
		if w.mails[i].sent || after >= 0 && w.mails[after].told != toldAccepted {
			continue
		}
		n := w
		n.mails[i].sent = true
		if w.t.alive && w.t.unit.state != 0 {
			d := n
			d.toTarget(i)
			visit(d, false)
		}
		switch {
		case !w.s.alive:
			n.tell(i, toldNot)
		case w.inst && !w.sealed && w.servesS():
			n.tell(i, toldAccepted)
			n.box.push(i)
		case w.follow:
			n.toTarget(i)
		case w.sealed && !w.s.unit.state.terminal():
			n.hold.push(i)
			if m.mut.heldAccepted {
				n.tell(i, toldAccepted)
			}
		default:
			n.tell(i, toldNot)
		}
		visit(n, false)
	}
}
