package conformance

import (
	"bytes"
	"fmt"
	"testing"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// scenario is one stretch of an object's life.
type scenario struct {
	name string
	// struck are the processes that a fault may strike. The first is the one that carries out the steps.
	struck []string
	// quick is the fault that a caller suffers with each change.
	quick string
	// first prepares the mesh before the acting member "a" is there, then prepares it afterwards.
	first, then func(t *testing.T, c *crash)
	// byActor is true when the acting member itself issues the operations.
	byActor bool
	// lapses is true when a lease ends in the preparation.
	lapses bool
	steps  []step
}

// step is a place at which an object stands when the fault strikes.
type step struct {
	name string
	// where: before a message has left, late (it arrives when the fault is over), after (its answer is on its way), or in
	// the middle of code.
	where string
	// class is the object's.
	class objects.Class
	// subject is that of the message; the record's when empty.
	subject string
	// nth is which of the acting process's writes it is.
	nth int
	// code is the event in whose code the object stands.
	code journal.What
	// answer is true for the answer to the caller.
	answer bool
	// owner is the node that owned the object before, if each step has its own.
	owner string
	// way is that of the operation, if the scenario has several.
	way history.Way
}

func (s step) String() string {
	if s.where == "" {
		return fmt.Sprintf("%s (%s)", s.name, s.class)
	}
	return fmt.Sprintf("%s, %s (%s)", s.name, s.where, s.class)
}

// The places of a message.
const (
	before = "lost before the server"
	late   = "late: it arrives at the end"
	after  = "arrived, its answer lost"
)

func write(name string, class objects.Class, nth int) (steps []step) {
	for _, where := range []string{before, late, after} {
		steps = append(steps, step{name: name, where: where, class: class, nth: nth})
	}
	return steps
}

func code(name string, class objects.Class, what journal.What) step {
	return step{name: name, class: class, code: what}
}

func answer(class objects.Class) step {
	return step{name: "the answer to the caller", class: class, answer: true}
}

func all(parts ...[]step) (steps []step) {
	for _, p := range parts {
		steps = append(steps, p...)
	}
	return steps
}

// scenarios are the rows of the crash matrix.
var scenarios = []scenario{
	{name: "creation", struck: []string{"creator", "caller", storeServer}, quick: killed, steps: all(
		write("Creating write", kvlocation.ClassActor, 1),
		[]step{code("factory", kvlocation.ClassActor, journal.Factory)},
		write("Ready write", kvlocation.ClassActor, 2),
		[]step{code("activation callback", kvlocation.ClassActor, journal.Activate), answer(kvlocation.ClassActor)},
		write("Creating write", kvlocation.ClassInstanceSpot, 1),
		[]step{code("factory", kvlocation.ClassInstanceSpot, journal.Factory)},
		write("Ready write", kvlocation.ClassInstanceSpot, 2),
		[]step{code("activation callback", kvlocation.ClassInstanceSpot, journal.Activate),
			code("first turn", kvlocation.ClassInstanceSpot, journal.Turn), answer(kvlocation.ClassInstanceSpot)},
	)},
	{name: "taking over", struck: []string{"taker-over", "caller"}, quick: cutOff, first: unfinished, steps: all(
		write("takeover write", kvlocation.ClassInstanceSpot, 1),
		[]step{code("factory", kvlocation.ClassInstanceSpot, journal.Factory)},
		write("Ready write", kvlocation.ClassInstanceSpot, 2),
		[]step{code("activation callback", kvlocation.ClassInstanceSpot, journal.Activate),
			code("first turn", kvlocation.ClassInstanceSpot, journal.Turn), answer(kvlocation.ClassInstanceSpot)},
		write("takeover write", kvlocation.ClassActor, 1),
		write("Ready write", kvlocation.ClassActor, 2),
	)},
	{name: "release", struck: []string{"releaser"}, byActor: true, first: abandoned, steps: all(
		write("release write", kvlocation.ClassActor, 1),
		write("release write", kvlocation.ClassInstanceSpot, 1),
		ofLease("proof that the owner is gone", "z1", before), ofLease("proof that the owner is gone", "z2", after),
		audited("audit entry"),
	)},
	{name: "membership", struck: []string{"owner", "caller", storeServer}, quick: killed, first: roomy, then: seated, steps: all(
		membership(history.Join), membership(history.Leave),
	)},
	{name: "coming back", struck: []string{"owner", "caller", storeServer}, quick: frozen, lapses: true, then: lapsed, steps: all(
		write("adoption write", kvlocation.ClassActor, 1),
		[]step{code("activation callback", kvlocation.ClassActor, journal.Activate),
			code("turn", kvlocation.ClassActor, journal.Turn), answer(kvlocation.ClassActor)},
		write("adoption write", kvlocation.ClassInstanceSpot, 1),
	)},
}

// ofLease is a write of the lease key of an owner who is proven gone.
func ofLease(name, owner, where string) []step {
	return []step{{name: name, where: where, class: kvlocation.ClassActor, nth: 1, owner: owner, subject: bed.LeaseSubject(owner)}}
}

// audited is the entry that says that an object was released.
func audited(name string) (steps []step) {
	for _, where := range []string{before, late, after} {
		steps = append(steps, step{name: name, where: where, class: kvlocation.ClassActor, nth: 1, subject: audits})
	}
	return steps
}

// membership is the write that says where an Actor has joined, or that it has left.
func membership(way history.Way) (steps []step) {
	for _, s := range write(string(way)+" write", kvlocation.ClassActor, 1) {
		s.way = way
		steps = append(steps, s)
	}
	return steps
}

// audits are the entries about releases.
const audits = "$KV.FABRIC_m_SUPERVISE.audit.>"

// pinned is an object that stands at a step, or is on its way there.
type pinned struct {
	step
	c    *crash
	i    int // its number
	act  bed.Act
	id   string // of the operation
	arms []*fabrictest.Armed
	open func()

	// was is how many events of the step's kind the object had before.
	was           int
	heard         bed.Result
	during, after string
	broken        []string
}

func (o *pinned) key() string { return o.act.Key() }

// mark stands in the payload of the object's operation.
func (o *pinned) mark() string { return fmt.Sprintf("#%d#", o.i) }

// object names the i-th step's object.
func (c *crash) object(i int) bed.Act {
	p := c.steps[i]
	a := bed.Act{Class: p.class, Object: fmt.Sprintf("object %d", i), Instance: p.class == kvlocation.ClassInstanceSpot}
	if a.Instance {
		a.Way = history.Request
	}
	return a
}

// arm prepares what stops the i-th object at its step.
func (c *crash) arm(t *testing.T, i int, p step) *pinned {
	t.Helper()
	o := &pinned{step: p, c: c, i: i, act: c.object(i), open: func() {}}
	if o.act.Way == "" {
		o.act.Way = history.Create
	}
	switch c.name {
	case "taking over", "coming back":
		o.act.Way = history.Request
	case "release":
		o.act = bed.Ref(history.Release, p.class, o.act.Object, c.Record(t, c.client.Store(), o.key()).Generation())
	case "membership":
		o.act = c.seat(t, i, p.way)
	}
	o.act.Timeout, o.act.Job.Mark = c.patience(), o.mark()
	tr := fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: p.subject, Nth: p.nth, Times: -1, Action: fabrictest.HoldAlone}
	ways := c.actor.Proxies
	switch {
	case p.code != "":
		if c.fault == messageLost {
			// What is lost is the answer to the caller, whose code ran.
			ways, tr = c.ways, o.answering(fabrictest.Drop)
			break
		}
		o.was = len(c.Noted(t, o.key(), p.code))
		o.open = c.Gate(t, o.key(), p.code)
		return o
	case p.answer:
		ways, tr = c.ways, o.answering(fabrictest.HoldAlone)
		if c.fault == messageLost {
			tr.Action = fabrictest.Drop
		}
	default:
		if tr.Subject == "" {
			tr.Subject = bed.RecordSubject(o.key())
		}
		if tr.Subject == audits {
			tr.Match = func(m fabrictest.Message) bool {
				return bytes.Contains(m.Payload, fmt.Appendf(nil, "%q", o.act.Object))
			}
		}
		tr.Answer = p.where == after
		if c.fault == messageLost {
			tr.Times = 1
			if p.where != late {
				tr.Action = fabrictest.Drop
			}
		}
	}
	for _, way := range ways {
		o.arms = append(o.arms, way.Arm(tr))
	}
	return o
}

// answering is the trigger of the answer to the object's operation, at its caller.
func (o *pinned) answering(action fabrictest.Action) fabrictest.Trigger {
	return fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: calls, Answer: true, Times: -1, Action: action,
		Match: func(m fabrictest.Message) bool { return bytes.Contains(m.Payload, []byte(o.mark())) }}
}

// begin issues the operation.
func (o *pinned) begin(t *testing.T) { o.id = o.c.user.Begin(o.act) }

// arrive waits until the object stands at its step.
func (o *pinned) arrive(t *testing.T) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, o.String()+" is reached", func() bool {
		if o.code != "" {
			return len(o.c.Noted(t, o.key(), o.code)) > o.was // its operation may have ended: an Actor is activated once it is Ready
		}
		for _, a := range o.arms {
			if a.Count() > 0 {
				return true
			}
		}
		if r := o.c.user.Of(o.id); r.Ends > 0 {
			t.Fatalf("%s: the operation ended before: %v", o, r.Err)
		}
		return false
	})
}

// struck ends what keeps the object at its step, when the fault has struck. What the victim had sent is lost or late; when
// the victim is the caller, what the other one had sent goes its way.
func (o *pinned) struck(caller bool) {
	o.open()
	for _, a := range o.arms {
		switch {
		case caller && !o.answer, !caller && o.answer:
			a.Release()
		default:
			a.Disarm()
		}
	}
}

// late lets through what arrives when the fault is over.
func (o *pinned) late() {
	if o.where != late {
		return
	}
	for _, a := range o.arms {
		a.Release()
	}
}
