package kvlocation

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"natsfabric/outcome"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the scripts in testdata")

var (
	testKey  = ObjectKey{Kind: KindActor, ID: "alice"}
	testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n1       = Owner{RID: "n1", Lifecycle: 5, Lease: 5}
	n1later  = Owner{RID: "n1", Lifecycle: 5, Lease: 9}
	n1again  = Owner{RID: "n1", Lifecycle: 11, Lease: 11} // the same RID, another process run
	n2       = Owner{RID: "n2", Lifecycle: 6, Lease: 6}
)

// entries returns an entry in each phase, the last one of a planned move.
func entries() map[Phase]Entry {
	rec := func(p Phase) Record {
		return Record{V: 1, Phase: p, Kind: ClassActor, Type: "room", Owner: n1, OwnerGeneration: 1, Write: 3, Ops: []string{"a", "b", "c"}}
	}
	missing, creating, ready, moving := rec(PhaseMissing), rec(PhaseCreating), rec(PhaseReady), rec("moving")
	missing.Owner, missing.Generation = Owner{}, 4
	ready.Generation, moving.Generation = 20, 20
	at := func(r Record) Entry { return Entry{Key: testKey, Revision: 20, Record: r, read: true} }
	return map[Phase]Entry{PhaseMissing: at(missing), PhaseCreating: at(creating), PhaseReady: at(ready), "moving": at(moving)}
}

// TestTransitionTable has every verb in every phase: allowed moves and refusals, with who may make them.
func TestTransitionTable(t *testing.T) {
	t.Parallel()
	act := func(v Verb, by Owner) Action {
		return Action{Verb: v, OpID: "new", Now: testTime, Owner: by, Generation: 20, OwnerGeneration: 1, Class: ClassActor, Type: "room"}
	}
	with := func(a Action, f func(*Action)) Action { f(&a); return a }
	absent := func(a *Action) { a.Absent = Absence{rid: "n1", lifecycle: 5} }
	absentOther := func(a *Action) { a.Absent = Absence{rid: "n1", lifecycle: 11} }
	gone := func(a *Action) { a.Gone = GoneProof{rid: "n1", lifecycle: 5, before: 20} }
	goneEarlier := func(a *Action) { a.Gone = GoneProof{rid: "n1", lifecycle: 5, before: 5} }
	goneOther := func(a *Action) { a.Gone = GoneProof{rid: "n2", lifecycle: 5, before: 20} }
	generation := func(g uint64) func(*Action) { return func(a *Action) { a.Generation = g } }
	ownerGeneration := func(g uint64) func(*Action) { return func(a *Action) { a.OwnerGeneration = g } }
	class := func(c Class) func(*Action) { return func(a *Action) { a.Class = c } }
	const ok = outcome.Kind(0)
	for _, c := range []struct {
		name string
		from Phase
		do   Action
		want outcome.Kind // 0: allowed
		to   Phase
	}{
		{"create", PhaseMissing, act(VerbCreate, n1), ok, PhaseCreating},
		{"create over creating", PhaseCreating, act(VerbCreate, n2), outcome.AlreadyExists, ""},
		{"create over ready", PhaseReady, act(VerbCreate, n2), outcome.AlreadyExists, ""},
		{"create over a move", "moving", act(VerbCreate, n2), outcome.AlreadyExists, ""},
		{"create of another type", PhaseReady, with(act(VerbCreate, n2), func(a *Action) { a.Type = "hall" }), outcome.TypeMismatch, ""},
		{"create of a class that the key is not of", PhaseMissing, with(act(VerbCreate, n2), class(ClassUserSpot)), outcome.InvalidOperation, ""},
		{"create of an entry spot", PhaseMissing, with(act(VerbCreate, n2), class(ClassEntrySpot)), outcome.InvalidOperation, ""},
		{"create of no class", PhaseMissing, with(act(VerbCreate, n2), class("")), outcome.InvalidOperation, ""},
		{"create of no type", PhaseMissing, with(act(VerbCreate, n2), func(a *Action) { a.Type = "" }), outcome.InvalidOperation, ""},
		{"create without a lease", PhaseMissing, act(VerbCreate, Owner{RID: "n1", Lifecycle: 5}), outcome.InvalidOperation, ""},

		{"ready", PhaseCreating, act(VerbReady, n1), ok, PhaseReady},
		{"ready under a newer lease", PhaseCreating, act(VerbReady, n1later), ok, PhaseReady},
		{"ready under an older lease", PhaseCreating, act(VerbReady, Owner{RID: "n1", Lifecycle: 5, Lease: 4}), outcome.InvalidOperation, ""},
		{"ready by another", PhaseCreating, act(VerbReady, n2), outcome.InvalidOperation, ""},
		{"ready by another run", PhaseCreating, act(VerbReady, n1again), outcome.InvalidOperation, ""},
		{"ready after a takeover", PhaseCreating, with(act(VerbReady, n1), ownerGeneration(2)), outcome.InvalidOperation, ""},
		{"ready of another incarnation", PhaseCreating, with(act(VerbReady, n1), generation(19)), outcome.NotFound, ""},
		{"ready of nothing", PhaseMissing, act(VerbReady, n1), outcome.NotFound, ""},
		{"ready again", PhaseReady, act(VerbReady, n1), outcome.InvalidOperation, ""},
		{"ready in a move", "moving", act(VerbReady, n1), outcome.InvalidOperation, ""},

		{"takeover", PhaseCreating, with(act(VerbTakeover, n2), absent), ok, PhaseCreating},
		{"takeover by a new run of the RID", PhaseCreating, with(act(VerbTakeover, n1again), absent), ok, PhaseCreating},
		{"takeover without evidence", PhaseCreating, act(VerbTakeover, n2), outcome.InvalidOperation, ""},
		{"takeover with evidence of another run", PhaseCreating, with(act(VerbTakeover, n2), absentOther), outcome.InvalidOperation, ""},
		{"takeover from oneself", PhaseCreating, with(act(VerbTakeover, n1), absent), outcome.InvalidOperation, ""},
		{"takeover without a lease", PhaseCreating, with(act(VerbTakeover, Owner{RID: "n2"}), absent), outcome.InvalidOperation, ""},
		{"takeover of another incarnation", PhaseCreating, with(with(act(VerbTakeover, n2), absent), generation(21)), outcome.NotFound, ""},
		{"takeover of ready", PhaseReady, with(act(VerbTakeover, n2), absent), outcome.InvalidOperation, ""},
		{"takeover of nothing", PhaseMissing, with(act(VerbTakeover, n2), absent), outcome.NotFound, ""},

		{"cancel", PhaseCreating, act(VerbCancel, n1), ok, PhaseMissing},
		{"cancel by another", PhaseCreating, act(VerbCancel, n2), outcome.InvalidOperation, ""},
		{"cancel by another with evidence", PhaseCreating, with(act(VerbCancel, n2), absent), ok, PhaseMissing},
		{"cancel of ready", PhaseReady, act(VerbCancel, n1), outcome.InvalidOperation, ""},
		{"cancel of nothing", PhaseMissing, act(VerbCancel, n1), outcome.NotFound, ""},
		{"cancel of another incarnation", PhaseCreating, with(act(VerbCancel, n1), generation(3)), outcome.NotFound, ""},

		{"adopt", PhaseReady, act(VerbAdopt, n1later), ok, PhaseReady},
		{"adopt under the same lease", PhaseReady, act(VerbAdopt, n1), outcome.InvalidOperation, ""},
		{"adopt by another run", PhaseReady, act(VerbAdopt, n1again), outcome.InvalidOperation, ""},
		{"adopt by another", PhaseReady, act(VerbAdopt, n2), outcome.InvalidOperation, ""},
		{"adopt of another incarnation", PhaseReady, with(act(VerbAdopt, n1later), generation(7)), outcome.NotFound, ""},
		{"adopt of another owner generation", PhaseReady, with(act(VerbAdopt, n1later), ownerGeneration(2)), outcome.InvalidOperation, ""},
		{"adopt of creating", PhaseCreating, act(VerbAdopt, n1later), outcome.InvalidOperation, ""},
		{"adopt of nothing", PhaseMissing, act(VerbAdopt, n1later), outcome.NotFound, ""},

		{"set with", PhaseReady, act(VerbWith, n1), ok, PhaseReady},
		{"set with by another", PhaseReady, act(VerbWith, n2), outcome.InvalidOperation, ""},
		{"set with by another run", PhaseReady, act(VerbWith, n1again), outcome.InvalidOperation, ""},
		{"set with before the adoption", PhaseReady, act(VerbWith, n1later), outcome.InvalidOperation, ""},
		{"set with under an older lease", PhaseReady, act(VerbWith, Owner{RID: "n1", Lifecycle: 5, Lease: 4}), outcome.InvalidOperation, ""},
		{"set with of another incarnation", PhaseReady, with(act(VerbWith, n1), generation(19)), outcome.NotFound, ""},
		{"set with of another owner generation", PhaseReady, with(act(VerbWith, n1), ownerGeneration(2)), outcome.InvalidOperation, ""},
		{"set with of creating", PhaseCreating, act(VerbWith, n1), outcome.InvalidOperation, ""},
		{"set with in a move", "moving", act(VerbWith, n1), outcome.InvalidOperation, ""},
		{"set with of nothing", PhaseMissing, act(VerbWith, n1), outcome.NotFound, ""},

		{"close", PhaseReady, act(VerbClose, n1), ok, PhaseMissing},
		{"close by another", PhaseReady, act(VerbClose, n2), outcome.InvalidOperation, ""},
		{"close of another incarnation", PhaseReady, with(act(VerbClose, n1), generation(21)), outcome.NotFound, ""},
		{"close of creating", PhaseCreating, act(VerbClose, n1), outcome.InvalidOperation, ""},
		{"close of nothing", PhaseMissing, act(VerbClose, n1), outcome.NotFound, ""},
		{"close in a move", "moving", act(VerbClose, n1), outcome.InvalidOperation, ""},

		{"release", PhaseReady, with(act(VerbRelease, Owner{}), gone), ok, PhaseMissing},
		{"release without proof", PhaseReady, act(VerbRelease, Owner{}), outcome.InvalidOperation, ""},
		{"release of what was adopted after the proof", PhaseReady, with(act(VerbRelease, Owner{}), goneEarlier), outcome.InvalidOperation, ""},
		{"release with another's proof", PhaseReady, with(act(VerbRelease, Owner{}), goneOther), outcome.InvalidOperation, ""},
		{"release of another incarnation", PhaseReady, with(with(act(VerbRelease, Owner{}), gone), generation(1)), outcome.NotFound, ""},
		{"release of creating", PhaseCreating, with(act(VerbRelease, Owner{}), gone), outcome.InvalidOperation, ""},
		{"release of nothing", PhaseMissing, with(act(VerbRelease, Owner{}), gone), outcome.NotFound, ""},

		{"give up on nothing", PhaseMissing, act(VerbGiveUp, Owner{}), ok, PhaseMissing},
		{"give up on creating", PhaseCreating, act(VerbGiveUp, Owner{}), ok, PhaseCreating},
		{"give up on ready", PhaseReady, act(VerbGiveUp, Owner{}), ok, PhaseReady},
		{"give up in a move", "moving", act(VerbGiveUp, Owner{}), ok, "moving"},

		{"no verb", PhaseReady, act("explode", n1), outcome.InvalidOperation, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := Transition(entries()[c.from], c.do)
			if c.want == ok {
				if err != nil {
					t.Fatal(err)
				}
				if r.Phase != c.to || r.Write != 4 || !slices.Equal(r.Ops, []string{"a", "b", "c", "new"}) {
					t.Fatalf("got %+v", r)
				}
				return
			}
			var illegal *IllegalMove
			if !errors.As(err, &illegal) || illegal.Kind != c.want || illegal.From != c.from {
				t.Fatalf("got %v (%+v), want an illegal move from %s of kind %v", err, illegal, c.from, c.want)
			}
			for _, state := range []Phase{illegal.From, illegal.To} {
				if state == "" || !strings.Contains(err.Error(), string(state)) {
					t.Errorf("error %q does not name the state %q", err, state)
				}
			}
		})
	}
}

// TestCreateOfAnotherClass shows that class and type are one name: a Spot's ID is taken for every other class.
func TestCreateOfAnotherClass(t *testing.T) {
	t.Parallel()
	at := entries()[PhaseReady]
	at.Key.Kind, at.Record.Kind = KindSpot, ClassInstanceSpot
	for _, c := range []struct {
		class Class
		typ   string
		want  outcome.Kind
	}{
		{ClassInstanceSpot, "room", outcome.AlreadyExists},
		{ClassInstanceSpot, "hall", outcome.TypeMismatch},
		{ClassUserSpot, "room", outcome.TypeMismatch},
	} {
		_, err := Transition(at, Action{Verb: VerbCreate, OpID: "new", Owner: n2, Class: c.class, Type: c.typ})
		var illegal *IllegalMove
		if !errors.As(err, &illegal) || illegal.Kind != c.want {
			t.Errorf("create of %s of type %q: %v, want %v", c.class, c.typ, err, c.want)
		}
	}
}

// TestTransitionKeeps shows what each rewrite carries on and what it drops.
func TestTransitionKeeps(t *testing.T) {
	t.Parallel()
	at := entries()[PhaseCreating]
	at.Record.With = json.RawMessage(`{"spot":"s"}`)
	at.Record.Activation = json.RawMessage(`{"input":"<&>"}`)
	at.Record.Unknown = map[string]json.RawMessage{"future": json.RawMessage(`[1]`)}
	at.Record.Owner.Unknown = map[string]json.RawMessage{"zone": json.RawMessage(`"z1"`)}
	do := func(a Action) Record {
		t.Helper()
		a.Generation, a.OwnerGeneration, a.OpID = 20, 1, "new"
		r, err := Transition(at, a)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ready := do(Action{Verb: VerbReady, Owner: n1later})
	if string(ready.With) != `{"spot":"s"}` || ready.Activation != nil || ready.Unknown == nil ||
		ready.Owner.Unknown == nil || ready.Generation != 20 || ready.OwnerGeneration != 1 || ready.Owner.Lease != 9 {
		t.Errorf("ready: %+v", ready)
	}
	taken := do(Action{Verb: VerbTakeover, Owner: n2, Absent: Absence{rid: "n1", lifecycle: 5}})
	if string(taken.Activation) != `{"input":"<&>"}` || taken.Unknown == nil || taken.Owner.Unknown != nil ||
		!taken.Owner.Is("n2", 6) || taken.Generation != 20 || taken.OwnerGeneration != 2 {
		t.Errorf("takeover: %+v", taken)
	}
	marker := do(Action{Verb: VerbCancel, Owner: n1})
	if marker.Activation != nil || marker.With != nil || marker.Owner.RID != "" || marker.Unknown == nil || marker.Generation != 20 {
		t.Errorf("cancel: %+v", marker)
	}
	created, err := Transition(Entry{Key: testKey, Revision: 21, Record: marker}, Action{Verb: VerbCreate, OpID: "c2", Owner: n2, Class: ClassActor, Type: "room"})
	if err != nil {
		t.Fatal(err)
	}
	if created.Move != nil || created.Unknown != nil || created.Generation != 0 || created.OwnerGeneration != 1 || created.Write != marker.Write+1 {
		t.Errorf("create over a marker: %+v", created)
	}
}

// TestTransitionProperties drives random actions through a model store and checks the invariants of every step.
func TestTransitionProperties(t *testing.T) {
	t.Parallel()
	owners := []Owner{n1, n1later, n1again, n2}
	verbs := []Verb{VerbCreate, VerbReady, VerbTakeover, VerbCancel, VerbAdopt, VerbWith, VerbClose, VerbRelease, VerbGiveUp,
		VerbPrepare, VerbAccept, VerbAbort, VerbCommit, VerbClearMove}
	rapid.Check(t, func(t *rapid.T) {
		at := Entry{Key: testKey, Record: Record{Phase: PhaseMissing}, read: true}
		var (
			revision  uint64
			all       []string
			highest   uint64 // ObjectGeneration
			createdBy = map[uint64]int{}
		)
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			revision += rapid.Uint64Range(1, 3).Draw(t, "other writes")
			if at.Phase() == PhaseMissing && at.Revision > 0 && rapid.IntRange(0, 9).Draw(t, "expire") == 0 {
				at = Entry{Key: testKey, Record: Record{Phase: PhaseMissing}, read: true} // the marker expired
				all = nil
			}
			// Mostly what fits, now and then what does not.
			pick := func(name string, fits uint64) uint64 {
				if rapid.IntRange(0, 5).Draw(t, name) == 0 {
					return rapid.Uint64Range(0, revision+1).Draw(t, name+" other")
				}
				return fits
			}
			a := Action{
				Verb: rapid.SampledFrom(verbs).Draw(t, "verb"), OpID: "op" + strconv.Itoa(i), Now: testTime, Class: ClassActor, Type: "room",
				Owner:      rapid.SampledFrom(owners).Draw(t, "owner"),
				Generation: pick("generation", at.Generation()), OwnerGeneration: pick("owner generation", at.Record.OwnerGeneration),
			}
			suspect := rapid.SampledFrom(owners).Draw(t, "suspect")
			a.Absent = Absence{rid: suspect.RID, lifecycle: suspect.Lifecycle}
			a.Gone = GoneProof{rid: suspect.RID, lifecycle: suspect.Lifecycle, before: 1 << 40}
			a.Move = Move{Op: "move" + strconv.Itoa(i), Target: rapid.SampledFrom(owners).Draw(t, "target"), H: uint64(i)}
			if m := at.Record.Move; m != nil && a.Verb != VerbPrepare && rapid.IntRange(0, 9).Draw(t, "move") > 0 {
				a.Move.Op = m.Op
			}
			before, beforeJSON := at, mustJSON(t, at.Record)
			next, err := Transition(at, a)
			if !bytes.Equal(beforeJSON, mustJSON(t, before.Record)) {
				t.Fatalf("%s changed the entry that it was given", a.Verb)
			}
			if err != nil {
				continue
			}
			at = Entry{Key: testKey, Revision: revision, Record: next, read: true}
			all = append(all, a.OpID)
			if want := all[max(0, len(all)-maxOps):]; !slices.Equal(next.Ops, want) {
				t.Fatalf("ops %v, want %v", next.Ops, want)
			}
			if next.Write != before.writes()+1 {
				t.Fatalf("write %d after %d", next.Write, before.writes())
			}
			if next.judge(a.OpID, before.writes()) != wasApplied || next.judge("never", before.writes()) != wasLost {
				t.Fatalf("the record does not tell what became of its write and of a rival: %+v", next)
			}
			switch {
			case before.Phase() == PhaseMissing && at.Phase() == PhaseCreating: // a new incarnation (I6)
				if at.Generation() <= highest {
					t.Fatalf("generation %d after %d", at.Generation(), highest)
				}
				highest = at.Generation()
				createdBy[highest]++
			case before.Phase() != PhaseMissing:
				if at.Record.Generation != before.Generation() {
					t.Fatalf("%s changed the generation from %d to %d", a.Verb, before.Generation(), at.Record.Generation)
				}
				if g := at.Record.OwnerGeneration; g < before.Record.OwnerGeneration {
					t.Fatalf("%s lowered the owner generation", a.Verb)
				}
				ownerChanged := at.Phase() != PhaseMissing && !at.Record.Owner.Is(before.Record.Owner.RID, before.Record.Owner.Lifecycle)
				if ownerChanged != (at.Record.OwnerGeneration == before.Record.OwnerGeneration+1) {
					t.Fatalf("%s: owner changed = %v, owner generation %d after %d", a.Verb, ownerChanged, at.Record.OwnerGeneration, before.Record.OwnerGeneration)
				}
			}
			// A move: the owner changes only where it was given up, and only to whom it was promised.
			if before.Phase() == PhaseMoving && at.Phase() != PhaseMissing {
				accepted, target := before.Accepted(), before.Record.Move.Target
				switch changed := at.Record.OwnerGeneration > before.Record.OwnerGeneration; {
				case changed && (!accepted || !at.Record.Owner.Is(target.RID, target.Lifecycle) || at.Record.Move == nil):
					t.Fatalf("%s moved it from %+v to %+v", a.Verb, before.Record, at.Record)
				case accepted && !changed && !at.Accepted():
					t.Fatalf("%s took it back from %+v to %+v", a.Verb, before.Record, at.Record)
				}
			}
			if at.Phase() == PhaseMoving && at.Record.Move == nil || at.Phase() == PhaseMissing && at.Record.Move != nil {
				t.Fatalf("%s leaves %+v", a.Verb, at.Record)
			}
			if at.Phase() == PhaseReady && before.Phase() == PhaseReady && at.Record.Owner.Lease < before.Record.Owner.Lease {
				t.Fatalf("%s lowered the lease generation", a.Verb)
			}
		}
		for g, n := range createdBy {
			if n != 1 {
				t.Fatalf("generation %d was created %d times", g, n)
			}
		}
	})
}

// TestJudge compares judge with a naive reader of the whole history.
func TestJudge(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Uint64Range(0, 5).Draw(t, "base")
		later := rapid.IntRange(1, 20).Draw(t, "writes since")
		var ops []string
		for i := range int(base) {
			ops = append(ops, fmt.Sprintf("old%d", i))
		}
		// The write in question would have been number base+1; it was, or another one was.
		won := rapid.Bool().Draw(t, "won")
		for i := range later {
			switch {
			case i == 0 && won:
				ops = append(ops, "mine")
			default:
				ops = append(ops, fmt.Sprintf("new%d", i))
			}
		}
		r := Record{Write: base + uint64(later), Ops: ops[max(0, len(ops)-maxOps):]}
		want := cannotTell
		if later <= maxOps {
			if want = wasLost; won {
				want = wasApplied
			}
		}
		if got := r.judge("mine", base); got != want {
			t.Fatalf("judged %v, want %v: %+v after %d writes", got, want, r, base)
		}
		// A count that starts anew, behind a purge, tells nothing.
		if got := (&Record{Write: base, Ops: r.Ops}).judge("none of them", base); got != cannotTell {
			t.Fatalf("judged %v from a record that is not newer", got)
		}
	})
}

func mustJSON(t *rapid.T, r Record) []byte {
	b, err := r.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTransitionScripts replays the scripts in testdata/transition. A line is a comment (#), an action
//
//	<verb> [owner=<rid>/<lifecycle>/<lease>] [target=<rid>/<lifecycle>/<lease>] [op=ID] [h=N] [gen=N] [ogen=N] [type=T] [absent=<rid>/<lifecycle>] [gone=<rid>/<lifecycle>/<the lease generation that followed>]
//
// or "skip N", N writes of other keys. gen and ogen default to those of the record. The line behind it, starting
// with "  ", is what comes out; -rewrite renews it.
func TestTransitionScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/transition/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(script))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(script) {
				t.Errorf("%s comes out as\n%s\nwant\n%s", file, got, script)
			}
		})
	}
}

func replay(t *testing.T, script string) string {
	t.Helper()
	at := Entry{Key: testKey, Record: Record{Phase: PhaseMissing}, read: true}
	var (
		revision uint64
		actions  int
		out      strings.Builder
	)
	run := func(words string) (uint64, uint64, string) {
		parts := strings.Split(words, "/")
		n := func(i int) uint64 {
			if i >= len(parts) {
				return 0
			}
			v, err := strconv.ParseUint(parts[i], 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", words, err)
			}
			return v
		}
		return n(1), n(2), parts[0]
	}
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		verb, rest, _ := strings.Cut(strings.NewReplacer("give up", "give-up", "clear move", "clear-move").Replace(line), " ")
		if verb == "skip" {
			n, err := strconv.ParseUint(rest, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			revision += n
			continue
		}
		actions++
		a := Action{
			Verb: Verb(strings.ReplaceAll(verb, "-", " ")), OpID: fmt.Sprintf("a%d", actions), Now: testTime, Class: ClassActor, Type: "room",
			Generation: at.Generation(), OwnerGeneration: at.Record.OwnerGeneration,
		}
		for _, f := range strings.Fields(rest) {
			name, value, _ := strings.Cut(f, "=")
			lifecycle, lease, rid := uint64(0), uint64(0), value
			if name != "type" && name != "gen" && name != "ogen" && name != "op" && name != "h" {
				lifecycle, lease, rid = run(value)
			}
			number := func() uint64 {
				n, err := strconv.ParseUint(value, 10, 64)
				if err != nil {
					t.Fatalf("line %d: %v", i+1, err)
				}
				return n
			}
			switch name {
			case "owner":
				a.Owner = Owner{RID: rid, Lifecycle: lifecycle, Lease: lease}
			case "absent":
				a.Absent = Absence{rid: rid, lifecycle: lifecycle}
			case "gone":
				a.Gone = GoneProof{rid: rid, lifecycle: lifecycle, before: lease}
			case "target":
				a.Move.Target = Owner{RID: rid, Lifecycle: lifecycle, Lease: lease}
			case "op":
				a.Move.Op = value
			case "h":
				a.Move.H = number()
			case "type":
				a.Type = value
			case "gen":
				a.Generation = number()
			case "ogen":
				a.OwnerGeneration = number()
			default:
				t.Fatalf("line %d: unknown field %q", i+1, name)
			}
		}
		next, err := Transition(at, a)
		if err != nil {
			var illegal *IllegalMove
			errors.As(err, &illegal)
			fmt.Fprintf(&out, "  refused, %v: %v\n", illegal.Kind, err)
			continue
		}
		revision++
		at = Entry{Key: testKey, Revision: revision, Record: next, read: true}
		owner := "nobody"
		if r := next.Owner; r.RID != "" {
			owner = fmt.Sprintf("%s/%d/%d", r.RID, r.Lifecycle, r.Lease)
		}
		if m := next.Move; m != nil {
			owner += fmt.Sprintf(", move %s to %s/%d/%d (accepted %v, h %d)", m.Op, m.Target.RID, m.Target.Lifecycle, m.Target.Lease, m.Accepted, m.H)
		}
		fmt.Fprintf(&out, "  revision %d: %s of %s, generation %d, owner generation %d, write %d, ops %s\n",
			revision, at.Phase(), owner, at.Generation(), next.OwnerGeneration, next.Write, strings.Join(next.Ops, " "))
	}
	return out.String()
}
