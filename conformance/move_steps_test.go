package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// moveStep is a place at which a move stands when the fault strikes.
type moveStep struct {
	name string
	// by is who sends the message, or whose code it is: source or target.
	by string
	// where is that of the message.
	where string
	// One of these says what is meant: a write of the record, a question or a part of what is handed over
	// (docs/relocation.md; both for what goes one way or the other), or code.
	write, verb, part string
	code              journal.What
	// soon: the other side goes on by itself after a second or two, so the fault must follow at once.
	soon bool
	// held: a message is held when the move comes to its step.
	held bool
	// spoiled: the target cannot restore the state, so the source gives the move up.
	spoiled bool
	// what moves: an Actor, when empty.
	what what
}

// what is it that moves, if it is not a small Actor.
type what string

const (
	room  what = "SpotWide Spot with its members"
	bulky what = "Actor of 300 KiB"
)

// ballast is the size of the state of what is bulky: more than a message of the protocol takes along.
const ballast = 300 << 10

func (p moveStep) String() string {
	text := p.name
	if p.where != "" {
		text += ", " + p.where
	}
	if p.what != "" {
		text += string(" (" + p.what + ")")
	}
	return text
}

// The processes of a move.
const (
	source       = "source"
	target       = "target"
	sessionOwner = "session owner"
	storeLeader  = "store leader"
	// survivor is a target whose source has died before the boundary: it aborts the move by itself.
	survivor = "target, its source dead"
)

// The places of a message of a process that is not struck: it goes its way when the other one has been.
const (
	onItsWay       = "on its way"
	answerOnItsWay = "its answer on its way"
)

func moveWrite(name, by, write string, wheres ...string) (steps []moveStep) {
	for _, where := range wheres {
		steps = append(steps, moveStep{name: name, by: by, where: where, write: write})
	}
	return steps
}

func question(name, by, verb string, soon ...string) (steps []moveStep) {
	for _, where := range []string{before, after} {
		steps = append(steps, moveStep{name: name, by: by, where: where, verb: verb, soon: strings.Contains(strings.Join(soon, " "), where)})
	}
	return steps
}

// relayed is a part that the source hands over on the moves' stream, or, where a verb is given, the question about it as well.
func relayed(name, part, verb string, soon bool, wheres ...string) (steps []moveStep) {
	for _, where := range wheres {
		steps = append(steps, moveStep{name: name, by: source, where: where, part: part, verb: verb, soon: soon})
	}
	return steps
}

// held has a message held before the move comes to the steps.
func held(steps []moveStep) []moveStep {
	for i := range steps {
		steps[i].held = true
	}
	return steps
}

// moveSteps are all steps of a move, in their order.
var moveSteps = func() (all []moveStep) {
	for _, steps := range [][]moveStep{
		question("asking for a place", source, "reserve", before, after),
		moveWrite("preparing write", source, "preparing", before, late, after),
		{{name: "running turn at the seal", by: source, code: journal.Turn}, {name: "capture", by: source, code: journal.Capture}},
		relayed("cargo and asking for relay-ready", "cargo", "ready", false, before, late, after),
		{{name: "factory", by: target, code: journal.Factory}, {name: "restore", by: target, code: journal.Restore}},
		moveWrite("accepted write", source, "accepted", before, late, after),
		held(relayed("cutover marker with a held message", "cut", "", true, before, late)),
		relayed("cutover marker", "cut", "", true, before, late, after),
		moveWrite("commit write", target, "commit", before, late, after),
		{{name: "activation callback", by: target, code: journal.Activate}},
		question("telling of the commit", target, "committed", before),
		moveWrite("clearing write", target, "clearing", before, late, after),
	} {
		all = append(all, steps...)
	}
	for _, p := range moveWrite("abort write after a restore that fails", source, "abort", before, late, after) {
		p.spoiled = true
		all = append(all, p)
	}
	return all
}()

// unitSteps are those of what is more than a small Actor, where that makes a difference.
var unitSteps = func() (all []moveStep) {
	for _, of := range []struct {
		what  what
		steps [][]moveStep
	}{
		{room, [][]moveStep{
			{{name: "capture", by: source, code: journal.Capture}, {name: "restore", by: target, code: journal.Restore}},
			moveWrite("accepted write", source, "accepted", before, after), moveWrite("commit write", target, "commit", before, after),
			{{name: "activation callback", by: target, code: journal.Activate}},
		}},
		{bulky, [][]moveStep{
			relayed("first chunk of the state", "b0", "", false, before, after), {{name: "restore", by: target, code: journal.Restore}},
			moveWrite("accepted write", source, "accepted", before, after), moveWrite("commit write", target, "commit", before, after),
		}},
	} {
		for _, p := range slices.Concat(of.steps...) {
			p.what = of.what
			all = append(all, p)
		}
	}
	return all
}()

// survivorSteps are those of a target whose source has died.
var survivorSteps = moveWrite("abort write of the target", target, "abort", before, late, after)

// stepsOf are the steps that make a difference under one fault of one victim. A quick choice has each step once, at one of its
// places, which the n-th fault chooses.
func stepsOf(all []moveStep, victim, fault string, quick bool, n int) (steps []moveStep) {
	defer func() {
		if !quick {
			return
		}
		places := map[string]int{}
		for _, p := range steps {
			places[p.name+string(p.what)]++
		}
		seen := map[string]int{}
		steps = slices.DeleteFunc(steps, func(p moveStep) bool {
			name := p.name + string(p.what)
			seen[name]++
			return (seen[name]-1-n)%places[name] != 0
		})
	}()
	for _, p := range all {
		switch {
		case fault == messageLost && (p.code != "" || p.where == late):
			continue
		case fault == messageLost || victim == p.by || victim == survivor || p.where == "":
		case p.where == before:
			p.where = onItsWay
		case p.where == after:
			p.where = answerOnItsWay
		default:
			continue
		}
		steps = append(steps, p)
	}
	return steps
}

// standing is an object whose move stands at a step, or is on its way there.
type standing struct {
	moveStep
	c      *moveCrash
	i      int
	object string // its logical ID
	id     string // of the move
	arms   []*fabrictest.Armed
	open   func()
	was    int // events of the step's kind before
	first  kvlocation.Entry
	seats  []uint64 // the members' generations

	heard         bed.Result
	during, after string
	verdict       string
	settled       time.Duration
	again         string
	broken        []string
}

func (o *standing) key() string {
	a := o.act("")
	return a.Key()
}

func (o *standing) act(way history.Way) bed.Act {
	if o.what == room {
		return bed.UserSpot(way, o.object)
	}
	return bed.Actor(way, o.object)
}

// members are the Actors that move with the object.
func (o *standing) members() (ids []string) {
	if o.what == room {
		ids = []string{o.object + ", member 1", o.object + ", member 2"}
	}
	return ids
}

// bound is the Actor to which the object's session is bound, with its generation.
func (o *standing) bound() (id string, generation uint64) {
	if o.what == room {
		return o.members()[0], o.seats[0]
	}
	return o.object, o.first.Generation()
}

// ops knows which object a move's operation ID belongs to.
type ops struct {
	mu sync.Mutex
	of map[string]string
}

// watch notes the operation IDs of the moves that leave through ps, as their reservations name them.
func (o *ops) watch(ps bed.Proxies) {
	for _, p := range ps {
		p.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.*.*.mv.reserve.*", Times: -1, Action: fabrictest.Signal,
			Match: func(m fabrictest.Message) bool {
				var r struct {
					Unit struct {
						Key kvlocation.ObjectKey `json:"key"`
					} `json:"unit"`
				}
				if json.Unmarshal(m.Payload, &r) == nil {
					o.mu.Lock()
					defer o.mu.Unlock()
					o.of[opOf(m)] = job.Object(string(r.Unit.Key.Kind), r.Unit.Key.ID)
				}
				return false
			}})
	}
}

// is reports whether a message belongs to a move of the object.
func (o *ops) is(m fabrictest.Message, object string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[opOf(m)] == object
}

// opOf is the operation ID at the end of a subject.
func opOf(m fabrictest.Message) string { return m.Subject[strings.LastIndexByte(m.Subject, '.')+1:] }

// whichWrite names the step of a move that a write of a record is, by who writes it.
func whichWrite(m fabrictest.Message) string {
	var r kvlocation.Record
	if json.Unmarshal(m.Payload, &r) != nil {
		return ""
	}
	switch {
	case r.Phase == kvlocation.PhaseMoving && r.Move != nil && r.Move.Accepted:
		return "accepted"
	case r.Phase == kvlocation.PhaseMoving:
		return "preparing"
	case r.Phase == kvlocation.PhaseReady && r.Move != nil:
		return "commit"
	case r.Phase == kvlocation.PhaseReady && r.OwnerGeneration > 1:
		return "clearing"
	}
	return "abort"
}

// make creates the object at the source.
func (o *standing) make(t *testing.T) {
	c := o.c
	create := func(a bed.Act) uint64 {
		a.At, a.Timeout = "s", bed.Long
		r := c.next.Do(t, a)
		if r.Err != nil {
			t.Errorf("%s: %v", o, r.Err)
		}
		return r.Generation
	}
	a := o.act(history.Create)
	switch o.what {
	case room:
		a.Type = job.Room
	case bulky:
		a.Job.Size = ballast
	}
	g := create(a)
	for _, id := range o.members() {
		seat := create(bed.Actor(history.Create, id))
		o.seats = append(o.seats, seat)
		join := bed.Act{Way: history.Join, Class: kvlocation.ClassActor, Object: id, Generation: seat, Spot: o.object, SpotGeneration: g, Timeout: bed.Long}
		if r := c.next.Do(t, join); r.Err != nil {
			t.Errorf("%s: %v", o, r.Err)
		}
	}
	if o.spoiled {
		a := o.act(history.Request)
		a.Job.Do = job.Spoil
		c.next.Do(t, a)
	}
	o.first = c.Record(t, c.client.Store(), o.key())
}

// arm prepares what stops the object's move at its step.
func (o *standing) arm(t *testing.T) {
	t.Helper()
	o.open = func() {}
	if o.c.victim == survivor { // no move gets to the boundary before the source dies
		for _, way := range o.c.Get("s").Proxies {
			way.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(o.key()), Times: -1, Action: fabrictest.Drop,
				Match: func(m fabrictest.Message) bool { return whichWrite(m) == "accepted" }})
		}
	}
	if o.code != "" {
		o.was = len(o.c.Noted(t, o.key(), o.code))
		o.open = o.c.Gate(t, o.key(), o.code)
		return
	}
	tr := fabrictest.Trigger{Dir: fabrictest.ToServer, Times: -1, Action: fabrictest.HoldAlone, Answer: o.where == after || o.where == answerOnItsWay}
	if o.c.fault == messageLost {
		tr.Times, tr.Action = 1, fabrictest.Drop
	}
	switch {
	case o.write != "":
		tr.Subject = bed.RecordSubject(o.key())
		tr.Match = func(m fabrictest.Message) bool { return whichWrite(m) == o.write }
	default:
		tr.Subject = "fab.m.>"
		tr.Match = func(m fabrictest.Message) bool {
			asks := o.verb != "" && strings.Contains(m.Subject, ".mv."+o.verb+".")
			return o.c.moves.is(m, o.key()) && (asks || o.part != "" && m.Headers().Get("Fabric-Part") == o.part)
		}
	}
	for _, way := range o.c.Get(o.c.rid(o.by)).Proxies {
		o.arms = append(o.arms, way.Arm(tr))
	}
}

// begin has the source move the object. What has to be there for the step is there before.
func (o *standing) begin(t *testing.T) {
	t.Helper()
	if o.code == journal.Turn {
		o.c.AwaitNoted(t, o.key(), journal.Turn, o.was+1) // a sender's message is in its turn
	}
	var open func()
	if o.held {
		open = o.c.Gate(t, o.key(), journal.Restore)
	}
	o.move()
	if open != nil {
		o.hold(t)
		open()
	}
}

func (o *standing) move() {
	a := o.act(history.Move)
	a.To, a.Timeout = o.c.rid(target), bed.Long
	o.id = o.c.mover.Begin(a)
}

// hold sends the object a message while its move is between seal and cutover, and waits until the source has it.
func (o *standing) hold(t *testing.T) {
	t.Helper()
	o.noted(t, journal.Restore)
	mark := fmt.Sprintf("#held %d#", o.i)
	var seen []*fabrictest.Armed
	for _, way := range o.c.Get(o.c.rid(source)).Proxies {
		seen = append(seen, way.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Action: fabrictest.Signal,
			Match: func(m fabrictest.Message) bool { return strings.Contains(string(m.Payload), mark) }}))
	}
	a := o.act(history.Request)
	a.Job.Mark = mark
	o.c.next.Begin(a)
	fabrictest.Eventually(t, bed.Long, o.String()+": a message is held", func() bool {
		return slices.ContainsFunc(seen, func(a *fabrictest.Armed) bool { return a.Count() > 0 })
	})
	for _, a := range seen {
		a.Disarm()
	}
}

// arrive waits until the move stands at its step.
func (o *standing) arrive(t *testing.T) {
	t.Helper()
	o.await(t, "the step is reached", func() bool {
		switch {
		case o.code == journal.Turn: // the seal waits for it
			ws := o.c.Records(o.key())
			return ws[len(ws)-1].Record.Phase == kvlocation.PhaseMoving
		case o.code != "":
			return len(o.c.Noted(t, o.key(), o.code)) > o.was
		}
		return o.reached()
	})
}

// await waits until the move has come as far as there says. On a machine that is too slow for the time of one unit, or for
// the target to answer, the object stays where it is, and is moved again.
func (o *standing) await(t *testing.T, what string, there func() bool) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, o.String()+": "+what, func() bool {
		if there() {
			return true
		}
		if r := o.c.mover.Of(o.id); r.Ends > 0 && errors.Is(r.Err, outcome.NotAccepted) {
			o.move()
		}
		return false
	})
}

// noted is await for what a member notes.
func (o *standing) noted(t *testing.T, what journal.What) {
	t.Helper()
	o.await(t, string(what), func() bool { return len(o.c.Noted(t, o.key(), what)) > 0 })
}

// reached reports whether a message of the step was seen.
func (o *standing) reached() bool {
	return o.code != "" || slices.ContainsFunc(o.arms, func(a *fabrictest.Armed) bool { return a.Count() > 0 })
}

// struck ends what keeps the move at its step, when the fault has struck. What the victim had sent is lost or late; what
// the other one had sent goes its way.
func (o *standing) struck() {
	o.open()
	for _, a := range o.arms {
		if o.where == onItsWay || o.where == answerOnItsWay || o.c.fault == slow {
			a.Release()
		} else {
			a.Disarm()
		}
	}
}

// late lets through what arrives when the fault is over.
func (o *standing) late() {
	if o.where != late {
		return
	}
	for _, a := range o.arms {
		a.Release()
	}
}
