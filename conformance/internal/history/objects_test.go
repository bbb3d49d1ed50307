package history

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/conformance/internal/journal"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// forged is a history of actor/x, made line by line.
type forged struct{ e Evidence }

func tokenText(generation, owner uint64) string {
	return fence.Token{Source: "m/actor/x", Epoch: 1, Generation: generation, Sequence: owner}.String()
}

// by adds an event of node rid, whose lifecycle is 7, under a generation and owner generation, of the instance rid.
func (f *forged) by(rid string, what journal.What, generation, owner uint64, more ...func(*journal.Event)) *forged {
	e := journal.Event{What: what, Object: "actor/x", Generation: generation, OwnerGeneration: owner, RID: rid, Lifecycle: 7,
		Instance: fmt.Sprintf("%s-%d-%d", rid, generation, owner), Token: tokenText(generation, owner)}
	e.Run = fmt.Sprint("t", len(f.e.Events))
	for _, m := range more {
		m(&e)
	}
	f.e.Events = append(f.e.Events, e)
	return f
}

func (f *forged) turn(rid string, generation, owner uint64, ops ...string) *forged {
	op := strings.Join(ops, "")
	f.by(rid, journal.Turn, generation, owner, func(e *journal.Event) { e.Op = op })
	run := f.e.Events[len(f.e.Events)-1].Run
	return f.by(rid, journal.TurnEnd, generation, owner, func(e *journal.Event) { e.Run = run })
}

// write adds a record's write, one revision after the last one.
func (f *forged) write(phase kvlocation.Phase, rid string, generation, owner uint64, more ...func(*Write)) *forged {
	n := uint64(len(f.e.Writes)) + 1
	w := Write{Object: "actor/x", Revision: n, Record: kvlocation.Record{
		Phase: phase, Generation: generation, OwnerGeneration: owner, Write: n, Owner: kvlocation.Owner{RID: rid, Lifecycle: 7, Lease: 7}}}
	for _, m := range more {
		m(&w)
	}
	f.e.Writes = append(f.e.Writes, w)
	return f
}

func (f *forged) op(o Op) *forged {
	f.e.Ops = append(f.e.Ops, o)
	return f
}

func at(way Way, id string, err error) Op {
	o := op(id, way, err)
	o.Object, o.Sender = "actor/x", "s"
	return o
}

// from says when an operation was issued and ended, in milliseconds of one clock.
func from(o Op, start, end int) Op {
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o.Start, o.End = zero.Add(time.Duration(start)*time.Millisecond), zero.Add(time.Duration(end)*time.Millisecond)
	o.Deadline = o.End.Add(time.Second)
	return o
}

const (
	creating = kvlocation.PhaseCreating
	ready    = kvlocation.PhaseReady
	missing  = kvlocation.PhaseMissing
)

// A whole life: created by a, taken over by b, served, destroyed, created again by a, and served.
func life() *forged {
	f := &forged{}
	f.write(creating, "a", 0, 1).by("a", journal.Factory, 1, 1)
	f.write(creating, "b", 1, 2).by("b", journal.Factory, 1, 2, func(e *journal.Event) { e.Op = "made" })
	f.write(ready, "b", 1, 2).by("b", journal.Activate, 1, 2)
	f.op(from(at(Create, "made", nil), 0, 1))
	f.turn("b", 1, 2, "one").turn("b", 1, 2).turn("b", 1, 2, "two")
	f.op(from(at(Request, "one", nil), 1, 2)).op(from(at(Send, "two", nil), 3, 4))
	f.write(missing, "", 1, 2).op(at(Destroy, "gone", nil))
	f.write(creating, "a", 5, 1).by("a", journal.Factory, 5, 1)
	f.write(ready, "a", 5, 1).by("a", journal.Activate, 5, 1)
	return f.turn("a", 5, 1, "three").op(from(at(Request, "three", nil), 5, 6))
}

func wrongWrite(n uint64) func(*Write) { return func(w *Write) { w.Record.Write = n } }
func lease(n uint64) func(*Write)      { return func(w *Write) { w.Record.Owner.Lease = n } }
func instance(s string) func(*journal.Event) {
	return func(e *journal.Event) { e.Instance = s }
}
func token(s string) func(*journal.Event) { return func(e *journal.Event) { e.Token = s } }

func TestObjectValidators(t *testing.T) {
	whole := life()
	if broken := Judge(&whole.e, All()...); len(broken) > 0 {
		t.Fatalf("a whole life: %q", broken)
	}
	refused := fails(outcome.NotAccepted, true)
	for _, c := range []struct {
		name string
		v    Validator
		bad  *forged
		want string
	}{
		{"two nodes under one owner generation", OneOwner, life().turn("b", 5, 1), "b (lifecycle 7)"},
		{"the same node after a restart", OneOwner,
			life().by("a", journal.Turn, 5, 1, func(e *journal.Event) { e.Lifecycle = 8 }), "a worked on it, and a (lifecycle 8)"},
		{"a turn of nobody the store knows", OneOwner, life().turn("c", 9, 1), "was never its owner by the store"},
		{"a creator that works before Ready", OneOwner,
			(&forged{}).write(creating, "a", 0, 1).turn("a", 1, 1), "was never its owner by the store"},
		{"two factories under one owner generation", OneOwner, life().by("c", journal.Factory, 5, 1), "the factory ran twice"},
		{"two results in use", OneOwner, life().by("a", journal.Turn, 5, 1, instance("another")), "two factory runs' results are in use"},
		{"two turns at a time", OneOwner, life().by("a", journal.Turn, 5, 1).by("a", journal.Turn, 5, 1), "began while turn"},
		{"run twice by one", AtMostOnce, life().turn("a", 5, 1, "three"), "operation three ran 2 times"},
		{"run by two incarnations", AtMostOnce, life().turn("a", 5, 1, "one"), "operation one ran 2 times, at [b a]"},
		{"accepted send lost", NoLoss, (&forged{}).op(at(Send, "lost", nil)), "ran nowhere although no member died"},
		{"replied and not run", NoLoss, life().op(at(Request, "lost", nil)), "told replied, but it ran 0 times"},
		{"refused and run", NoLoss, life().turn("a", 5, 1, "four").op(at(Request, "four", refused)), "it ran at [a]"},
		{"accepted, no cause", NoLoss, (&forged{}).op(at(Request, "lost", fails(outcome.Accepted, false))), "without a cause"},
		{"run and sent by nobody", NoLoss, life().turn("a", 5, 1, "ghost"), "a ran ghost, which nobody sent"},
		{"created and never Ready", NoLoss,
			(&forged{}).write(creating, "a", 0, 1).by("a", journal.Factory, 1, 1).op(at(Create, "made", nil)), "nothing that it made became Ready"},
		{"refused creation that is Ready", NoLoss, func() *forged {
			f := life()
			for i := range f.e.Ops {
				if f.e.Ops[i].ID == "made" {
					f.e.Ops[i].Err = refused
				}
			}
			return f
		}(), "became Ready as actor/x, generation 1, owner generation 2"},
		{"destroyed and still there", NoLoss,
			(&forged{}).write(creating, "a", 0, 1).write(ready, "a", 1, 1).op(at(Destroy, "gone", nil)), "no incarnation of the object ended"},
		{"out of order", InOrder, life().
			op(from(at(Send, "later", nil), 20, 21)).turn("a", 5, 1, "later").
			op(from(at(Send, "sooner", nil), 10, 11)).turn("a", 5, 1, "sooner"), "ran sooner of sender s after later"},
		{"turn of an older incarnation", Monotonic, life().turn("b", 1, 2), "after one by a (lifecycle 7) under 5, 1"},
		{"turn of an older owner", Monotonic, life().turn("a", 5, 2).turn("a", 5, 1), "under generation 5, owner generation 1, after one"},
		{"factory of an older owner", Monotonic, life().by("a", journal.Factory, 5, 2).by("b", journal.Factory, 5, 1), "factory by b"},
		{"turn without a token", Monotonic, life().by("a", journal.Turn, 5, 1, token("ownership lost")), "had no token: ownership lost"},
		{"token of another generation", Monotonic, life().by("a", journal.Turn, 5, 1, token(tokenText(4, 1))), "under generation 5"},
		{"token of another source", Monotonic, life().by("a", journal.Turn, 5, 1,
			token(strings.Replace(tokenText(5, 1), "x", "a", 1))), "after m/actor/x"},
		{"a write left out", Monotonic, life().write(ready, "a", 5, 1, wrongWrite(99)), "write 99 follows write 6"},
		{"generation back in a new incarnation", Monotonic, life().write(missing, "", 5, 1).write(creating, "a", 4, 1),
			"a new incarnation has generation 4, the former had 5"},
		{"generation within an incarnation", Monotonic, life().write(ready, "a", 6, 1), "generation 6 follows 5"},
		{"Ready and then Creating", Monotonic, life().write(creating, "b", 5, 2), "it was Ready and is Creating again"},
		{"another owner, same number", Monotonic, life().write(ready, "b", 5, 1), "another owner has owner generation 1 after 1"},
		{"owner generation back", Monotonic, life().write(ready, "a", 5, 0), "owner generation 0 follows 1"},
		{"lease generation back", Monotonic, life().write(ready, "a", 5, 1, lease(6)), "lease generation 6 follows 7"},
		{"a send of a session that lives", NoLoss, (&forged{}).op(Op{ID: "s", Way: Send, Object: "actor/x", Sender: "s", Ends: 1, Relayed: true}), "ran nowhere"},
		{"turns that the target does not know", StateKept, moved().counted("b", 5, 2, 3), "turn 3 at b under owner generation 2 followed turn 1"},
		{"turns that the source has again", StateKept, moved().counted("b", 5, 2, 1), "turn 1 at b"},
		{"a token before the commit", Inert, moved().by("b", journal.Restore, 5, 2), "restore at b (lifecycle 7) had the token"},
		{"another target", Inert, moved().by("c", journal.Factory, 5, 2, arriving), "to which no record says that it moves"},
		{"made where its Spot does not go", Inert, riding().by("c", journal.Factory, 5, 3, arriving), "to which no record says that it moves"},
		{"a turn where its Spot never was", OneOwner, riding().turn("c", 5, 4), "c (lifecycle 7) worked on it and was never its owner by the store"},
		{"given up and taken back", Boundary, life().move("preparing").move("accepted").write(ready, "a", 5, 1), "it was given up to b, and is ready at a"},
		{"given up to somebody else", Boundary, life().move("preparing").move("accepted").write(ready, "c", 5, 2), "and is ready at c"},
		{"given up without a word", Boundary, life().move("accepted"), "in a move that was not prepared"},
		{"another owner without a move", Boundary, life().write(ready, "b", 5, 2), "it went from a to b without a move"},
		{"another owner of what is prepared", Boundary, life().move("preparing").write(ready, "b", 5, 2), "it was prepared at a, and is owned by b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := Judge(&c.bad.e, c.v)
			if len(broken) == 0 || !strings.Contains(strings.Join(broken, "\n"), c.want) || !strings.HasPrefix(broken[0], c.v.Name) {
				t.Errorf("a history that breaks %s: %q, want %q", c.v.Name, broken, c.want)
			}
		})
	}
}

// move writes a move of generation 5 from a to b: preparing or accepted.
func (f *forged) move(how string) *forged {
	return f.write(kvlocation.PhaseMoving, "a", 5, 1, func(w *Write) {
		w.Record.Move = &kvlocation.Move{Op: "op", Target: kvlocation.Owner{RID: "b", Lifecycle: 7}, Accepted: how == "accepted"}
	})
}

func (f *forged) counted(rid string, generation, owner uint64, turns int) *forged {
	return f.by(rid, journal.Turn, generation, owner, func(e *journal.Event) { e.Turns = turns }).by(rid, journal.TurnEnd, generation, owner)
}

func arriving(e *journal.Event) { e.Moved, e.Token = true, "none" }

// moved is a life whose last incarnation went from a, where it had one turn, to b.
func moved() *forged {
	f := life().counted("a", 5, 1, 1).move("preparing").by("b", journal.Factory, 5, 2, arriving).
		by("b", journal.Restore, 5, 2, token("none")).move("accepted")
	return f.write(ready, "b", 5, 2, func(w *Write) {
		w.Record.Move = &kvlocation.Move{Op: "op", Target: w.Record.Owner, Accepted: true}
	}).by("b", journal.Activate, 5, 2)
}

// riding is a life whose last incarnation has joined spot/y, which takes it along from a to b.
func riding() *forged {
	f := life().counted("a", 5, 1, 1)
	f.write(ready, "", 5, 0, func(w *Write) {
		w.Record.With = json.RawMessage(`{"spot":"y","generation":3,"by":"reference","offset":1}`)
	})
	spot := func(n uint64, phase kvlocation.Phase, rid string, owner uint64, move bool) {
		f.write(phase, rid, 3, owner, func(w *Write) {
			if w.Object, w.Record.Write = "spot/y", n; move {
				w.Record.Move = &kvlocation.Move{Op: "op", Target: kvlocation.Owner{RID: "b", Lifecycle: 7}, Accepted: n > 2}
			}
		})
	}
	spot(1, ready, "a", 1, false)
	f.counted("a", 5, 2, 2)
	spot(2, kvlocation.PhaseMoving, "a", 1, true)
	f.by("b", journal.Factory, 5, 3, arriving).by("b", journal.Restore, 5, 3, token("none"))
	spot(3, kvlocation.PhaseMoving, "a", 1, true)
	spot(4, ready, "b", 2, true)
	return f.by("b", journal.Activate, 5, 3).counted("b", 5, 3, 3)
}

// What comes close to a breach and is none.
func TestObjectValidatorsLetPass(t *testing.T) {
	killed := life()
	killed.e.Ledgers = []Ledger{{RID: "a", Killed: true}}
	lapsed := (&forged{}).op(at(Send, "lost", nil))
	lapsed.e.Lapsed = true
	late := at(Request, "late", outcome.New("request", outcome.DeadlineExceeded, outcome.Accepted, "", ""))
	again := life()
	again.e.Writes = append(again.e.Writes, again.e.Writes[2]) // published again by a new leader
	for name, f := range map[string]*forged{
		"a send that died with its object":        life().op(at(Send, "lost", nil)),
		"a send that died with its owner":         killed.op(at(Send, "lost", nil)),
		"a send that died with its owner's lease": lapsed,
		"a deadline before the turn":              (&forged{}).op(late),
		"unknown and run":                         life().turn("a", 5, 1, "u").op(at(Request, "u", fails(outcome.Unknown, false))),
		"an adoption":                             life().write(ready, "a", 5, 1, lease(9)),
		"a turn that outlives its owner": life().by("a", journal.Turn, 5, 1).
			write(missing, "", 5, 1).write(creating, "b", 9, 1).write(ready, "b", 9, 1).by("b", journal.Turn, 9, 1),
		"issued at the same time, run in any order": life().
			op(from(at(Send, "p", nil), 20, 25)).turn("a", 5, 1, "p").op(from(at(Send, "q", nil), 19, 24)).turn("a", 5, 1, "q"),
		"not seen accepted": life().op(from(at(Send, "p", nil), 20, 21)).turn("a", 5, 1, "p").
			op(from(at(Request, "q", fails(outcome.Unknown, false)), 10, 11)).turn("a", 5, 1, "q"),
		"a send of a session that is over": life().by("a", journal.Unbound, 5, 1).op(Op{ID: "s", Way: Send, Object: "actor/x", Sender: "s", Ends: 1, Relayed: true}),
		"a move":                           moved().counted("b", 5, 2, 2),
		"a move with its Spot":             riding(),
		"a move that was given up":         life().move("preparing").write(ready, "a", 5, 1).turn("a", 5, 1),
		"published again":                  again,
		"a creation refused, never Ready":  (&forged{}).write(creating, "a", 0, 1).by("a", journal.Factory, 1, 1).write(missing, "", 1, 1).op(at(Create, "made", fails(outcome.NotAccepted, true))),
		"records that nobody watched":      (&forged{}).turn("a", 5, 1, "one").op(at(Request, "one", nil)).op(at(Create, "made", nil)),
		"a lease generation of a new life": life().write(missing, "", 5, 1).write(creating, "c", 8, 1, lease(3)),
	} {
		if broken := Judge(&f.e, All()...); len(broken) > 0 {
			t.Errorf("%s: %q", name, broken)
		}
	}
}
