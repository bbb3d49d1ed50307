package kvlocation

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"natsfabric/outcome"
)

// testMove is the move in the tables: from n1 to n2.
func testMove(accepted bool, h uint64) *Move {
	return &Move{Op: "move1", Target: Owner{RID: "n2", Lifecycle: 6, Lease: 6}, Accepted: accepted, H: h}
}

// Who may act in the tables: the source S, the target T and a bystander, under the lease generation that is known of
// them, an older and a newer one, and as another process run of the same RID.
var writers = map[string]Owner{
	"S": n1, "S older": {RID: "n1", Lifecycle: 5, Lease: 4}, "S newer": n1later, "S again": n1again,
	"T": n2, "T older": {RID: "n2", Lifecycle: 6, Lease: 4}, "T newer": {RID: "n2", Lifecycle: 6, Lease: 9}, "T again": {RID: "n2", Lifecycle: 12, Lease: 12},
	"X": {RID: "n3", Lifecycle: 7, Lease: 7},
}

// moveStates are the states of a record in which a move plays a role, and those around it.
func moveStates() map[string]Entry {
	with := func(p Phase, owner Owner, ownerGeneration uint64, m *Move) Entry {
		e := entries()[PhaseReady]
		e.Record.Phase, e.Record.Owner, e.Record.OwnerGeneration, e.Record.Move = p, owner, ownerGeneration, m
		return e
	}
	return map[string]Entry{
		"missing": entries()[PhaseMissing], "creating": entries()[PhaseCreating], "ready": entries()[PhaseReady],
		"preparing": with(PhaseMoving, n1, 1, testMove(false, 0)),
		"accepted":  with(PhaseMoving, n1, 1, testMove(true, 0)),
		"moved":     with(PhaseReady, n2, 2, testMove(true, 3)), // and not cleared yet
		"unknown":   with("dreaming", n1, 1, testMove(false, 0)),
	}
}

// TestMoveTable has every verb by every writer in every state: the ones that are named may, and nobody else.
func TestMoveTable(t *testing.T) {
	t.Parallel()
	may := map[string]map[Verb]string{
		"missing": {VerbCreate: "S, S older, S newer, S again, T, T older, T newer, T again, X"},
		"creating": {
			VerbReady: "S, S newer", VerbCancel: "S, S older, S newer",
		},
		"ready": {
			VerbAdopt: "S newer", VerbWith: "S", VerbClose: "S, S newer", VerbPrepare: "S",
		},
		"preparing": {
			VerbAdopt: "S newer", VerbAccept: "S, S newer", VerbAbort: "S, S newer, T, T older, T newer",
		},
		"accepted": {VerbCommit: "T, T newer"},
		"moved": {
			VerbAdopt: "T newer", VerbWith: "T", VerbClose: "T, T newer", VerbPrepare: "T", VerbClearMove: "T, T newer",
		},
		"unknown": {},
	}
	verbs := []Verb{
		VerbCreate, VerbReady, VerbTakeover, VerbCancel, VerbAdopt, VerbWith, VerbClose, VerbRelease, VerbPrepare, VerbAccept, VerbAbort,
		VerbCommit, VerbClearMove, VerbJoin, VerbLeave, "explode",
	}
	for state, at := range moveStates() {
		for _, verb := range verbs {
			allowed := strings.Split(may[state][verb], ", ")
			for name, by := range writers {
				a := Action{
					Verb: verb, OpID: "new", Now: testTime, Owner: by, Generation: 20, OwnerGeneration: at.Record.OwnerGeneration,
					Class: ClassActor, Type: "room", Move: Move{Op: "move1", H: 7},
				}
				if verb == VerbPrepare {
					a.Move = Move{Op: "move2", Target: Owner{RID: "n9", Lifecycle: 9, Lease: 9}}
				}
				_, err := Transition(at, a)
				if want := slices.Contains(allowed, name); (err == nil) != want {
					t.Errorf("%s by %s while %s: %v, want allowed = %v", verb, name, state, err, want)
				}
			}
		}
	}
}

// TestMoveSteps has what each step of a move writes.
func TestMoveSteps(t *testing.T) {
	t.Parallel()
	states := moveStates()
	act := func(v Verb, by Owner) Action {
		return Action{Verb: v, OpID: "new", Now: testTime, Owner: by, Generation: 20, OwnerGeneration: 1, Move: Move{Op: "move1"}}
	}
	with := func(a Action, f func(*Action)) Action { f(&a); return a }
	unknown := map[string]json.RawMessage{"future": json.RawMessage(`1`)}
	keep := func(e Entry) Entry {
		m := *e.Record.Move
		m.Unknown = unknown
		e.Record.Move = &m
		return e
	}
	n2later := Owner{RID: "n2", Lifecycle: 6, Lease: 9}
	moved := testMove(true, 41)
	moved.Unknown = unknown
	for _, c := range []struct {
		name     string
		at       Entry
		do       Action
		phase    Phase
		owner    Owner
		ownerGen uint64
		move     *Move
	}{
		{"prepare", states["ready"], with(act(VerbPrepare, n1), func(a *Action) { a.Move.Target = n2 }), PhaseMoving, n1, 1, testMove(false, 0)},
		{
			"prepare over the last move", states["moved"],
			with(act(VerbPrepare, n2), func(a *Action) { a.OwnerGeneration, a.Move = 2, Move{Op: "move2", Target: n1again} }),
			PhaseMoving, n2, 2, &Move{Op: "move2", Target: n1again},
		},
		{"adopt while preparing", states["preparing"], act(VerbAdopt, n1later), PhaseMoving, n1later, 1, testMove(false, 0)},
		{"adopt after the move", states["moved"], with(act(VerbAdopt, n2later), func(a *Action) { a.OwnerGeneration = 2 }), PhaseReady, n2later, 2, testMove(true, 3)},
		{"set with after the move", states["moved"], with(act(VerbWith, n2), func(a *Action) { a.OwnerGeneration = 2 }), PhaseReady, n2, 2, testMove(true, 3)},
		{"give up while preparing", states["preparing"], act(VerbGiveUp, Owner{}), PhaseMoving, n1, 1, testMove(false, 0)},
		{"give up while accepted", states["accepted"], act(VerbGiveUp, Owner{}), PhaseMoving, n1, 1, testMove(true, 0)},
		{"accept", states["preparing"], act(VerbAccept, n1), PhaseMoving, n1, 1, testMove(true, 0)},
		{"accept under a newer lease", states["preparing"], act(VerbAccept, n1later), PhaseMoving, n1later, 1, testMove(true, 0)},
		{"abort by the source", states["preparing"], act(VerbAbort, n1), PhaseReady, n1, 1, nil},
		{"abort by the source under a newer lease", states["preparing"], act(VerbAbort, n1later), PhaseReady, n1later, 1, nil},
		{"abort by the target", states["preparing"], act(VerbAbort, n2later), PhaseReady, n1, 1, nil},
		{"commit", keep(states["accepted"]), with(act(VerbCommit, n2), func(a *Action) { a.Move.H = 41 }), PhaseReady, n2, 2, moved},
		{"commit under a newer lease", keep(states["accepted"]), with(act(VerbCommit, n2later), func(a *Action) { a.Move.H = 41 }), PhaseReady, n2later, 2, moved},
		{"clear the move", states["moved"], with(act(VerbClearMove, n2later), func(a *Action) { a.OwnerGeneration = 2 }), PhaseReady, n2, 2, nil},
		{"close after the move", states["moved"], with(act(VerbClose, n2), func(a *Action) { a.OwnerGeneration = 2 }), PhaseMissing, Owner{}, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := fmt.Sprintf("%+v %+v", c.at, c.at.Record.Move)
			r, err := Transition(c.at, c.do)
			if err != nil {
				t.Fatal(err)
			}
			if r.Phase != c.phase || !reflect.DeepEqual(r.Owner, c.owner) || r.OwnerGeneration != c.ownerGen || !reflect.DeepEqual(r.Move, c.move) || r.Generation != 20 {
				t.Errorf("got %+v, move %+v", r, r.Move)
			}
			if now := fmt.Sprintf("%+v %+v", c.at, c.at.Record.Move); now != before {
				t.Errorf("it changed the entry that it was given from %s to %s", before, now)
			}
		})
	}
}

// TestMoveRefusals has what no writer may do.
func TestMoveRefusals(t *testing.T) {
	t.Parallel()
	states := moveStates()
	base := func(v Verb, by Owner) Action {
		return Action{Verb: v, OpID: "new", Now: testTime, Owner: by, Generation: 20, OwnerGeneration: 1, Move: Move{Op: "move1", Target: n2}}
	}
	change := func(a Action, f func(*Action)) Action { f(&a); return a }
	gone := func(o Owner, before uint64) func(*Action) {
		return func(a *Action) { a.Gone = GoneProof{rid: o.RID, lifecycle: o.Lifecycle, before: before} }
	}
	ready := states["ready"]
	ready.Record.Activation = json.RawMessage(`{"input":1}`)
	for _, c := range []struct {
		name string
		at   Entry
		do   Action
		want outcome.Kind // 0: allowed
		says string
	}{
		{"prepare of another incarnation", states["ready"], change(base(VerbPrepare, n1), func(a *Action) { a.Generation = 19 }), outcome.NotFound, "generation"},
		{"prepare under another owner generation", states["ready"], change(base(VerbPrepare, n1), func(a *Action) { a.OwnerGeneration = 2 }), outcome.InvalidOperation, "owner generation"},
		{"prepare before the adoption", states["ready"], base(VerbPrepare, n1later), outcome.InvalidOperation, "adopted"},
		{"prepare to oneself", states["ready"], change(base(VerbPrepare, n1), func(a *Action) { a.Move.Target = n1again }), outcome.InvalidOperation, "the node that the object is on"},
		{"prepare to no process run", states["ready"], change(base(VerbPrepare, n1), func(a *Action) { a.Move.Target = Owner{RID: "n2"} }), outcome.InvalidOperation, "no process run"},
		{"prepare without an operation", states["ready"], change(base(VerbPrepare, n1), func(a *Action) { a.Move.Op = "" }), outcome.InvalidOperation, "operation ID"},
		{"prepare while a creation's input stands there", ready, base(VerbPrepare, n1), outcome.InvalidOperation, "input"},
		{"accept of another move", states["preparing"], change(base(VerbAccept, n1), func(a *Action) { a.Move.Op = "move0" }), outcome.InvalidOperation, `"move1", not of "move0"`},
		{"abort of another move by the target", states["preparing"], change(base(VerbAbort, n2), func(a *Action) { a.Move.Op = "move0" }), outcome.InvalidOperation, "move0"},
		{"abort behind the boundary", states["accepted"], base(VerbAbort, n1), outcome.InvalidOperation, "moving (accepted)"},
		{"commit before the boundary", states["preparing"], base(VerbCommit, n2), outcome.InvalidOperation, "moving (preparing)"},
		{"commit of another move", states["accepted"], change(base(VerbCommit, n2), func(a *Action) { a.Move.Op = "move0" }), outcome.InvalidOperation, "move0"},
		{"commit of another incarnation", states["accepted"], change(base(VerbCommit, n2), func(a *Action) { a.Generation = 21 }), outcome.NotFound, "generation"},
		{"commit from another owner generation", states["accepted"], change(base(VerbCommit, n2), func(a *Action) { a.OwnerGeneration = 2 }), outcome.InvalidOperation, "owner generation"},
		{"clear of no move", states["ready"], base(VerbClearMove, n1), outcome.InvalidOperation, "no move"},
		{"clear of another move", states["moved"], change(base(VerbClearMove, n2), func(a *Action) { a.OwnerGeneration, a.Move.Op = 2, "move0" }), outcome.InvalidOperation, "move0"},

		{"release while preparing, source gone", states["preparing"], change(base(VerbRelease, Owner{}), gone(n1, 9)), 0, ""},
		{"release while preparing, target gone", states["preparing"], change(base(VerbRelease, Owner{}), gone(n2, 9)), outcome.InvalidOperation, "the owner, node n1"},
		{"release while accepted, target gone", states["accepted"], change(base(VerbRelease, Owner{}), gone(n2, 9)), 0, ""},
		{"release while accepted, source gone", states["accepted"], change(base(VerbRelease, Owner{}), gone(n1, 9)), outcome.InvalidOperation, "the target of its move, node n2"},
		{"release while accepted, an earlier target gone", states["accepted"], change(base(VerbRelease, Owner{}), gone(n2, 6)), outcome.InvalidOperation, "target"},
		{"release after the move, target gone", states["moved"], change(base(VerbRelease, Owner{}), gone(n2, 9)), 0, ""},
		{"release after the move, source gone", states["moved"], change(base(VerbRelease, Owner{}), gone(n1, 9)), outcome.InvalidOperation, "the owner, node n2"},
		{"takeover in a move", states["accepted"], change(base(VerbTakeover, n2), func(a *Action) { a.Absent = Absence{rid: "n1", lifecycle: 5} }), outcome.InvalidOperation, "moving"},
		{"create over a move", states["accepted"], change(base(VerbCreate, n2), func(a *Action) { a.Class, a.Type = ClassActor, "room" }), outcome.AlreadyExists, "exists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := Transition(c.at, c.do)
			if c.want == 0 {
				if err != nil || r.Phase != PhaseMissing || r.Move != nil || r.Owner.RID != "" {
					t.Fatalf("got %+v, %v", r, err)
				}
				return
			}
			illegal, ok := err.(*IllegalMove)
			if !ok || illegal.Kind != c.want || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
}
