package kvlocation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// The model is what a record is for those who use it, written apart from Transition: the present incarnation (named
// by the operation that created it, since an unknown create has no known revision), its phase and its owner.

// modelState is one object's state. The zero value is Missing.
type modelState struct {
	incarnation string
	phase       Phase // "" is Missing
	owner       string
	ownerGen    uint64
	lease       uint64
	with        string // "" until it is set
	move        string // the operation of the move that the record tells of
	target      string
	accepted    bool
	member      bool // located by the Spot of its owner
}

// modelInput is one call.
type modelInput struct {
	key         string
	verb        Verb // "" is a read
	by          string
	lease       uint64
	incarnation string // that a create makes, or that another verb means
	ownerGen    uint64 // that the caller holds
	with        string // what is set
	evidence    string // the owner against whom there is evidence
	move        string // the operation that a move's verb means
	target      string // to whom a prepare moves it
	member      bool   // the caller shows the Spot that it is located by
}

// modelOutput is how a call ended.
type modelOutput struct {
	end   modelEnd
	state modelState // what a read saw
}

type modelEnd string

const (
	endApplied modelEnd = "applied"
	endRefused modelEnd = "refused" // for what the record was during the call
	endNothing modelEnd = "nothing" // certainly not applied, for whatever reason
	endUnknown modelEnd = "unknown"
	endSaw     modelEnd = "saw"
)

// spotLease is the lease generation under which every Spot of these tests is held.
const spotLease = 1

// after returns the state after in was applied to s, and whether it may be.
func (s modelState) after(in modelInput) (modelState, bool) {
	if in.verb == VerbCreate {
		return modelState{incarnation: in.incarnation, phase: PhaseCreating, owner: in.by, ownerGen: 1, lease: in.lease}, s.phase == ""
	}
	if s.phase == "" || s.incarnation != in.incarnation {
		return s, false
	}
	mine := s.owner == in.by
	held := mine && s.ownerGen == in.ownerGen
	if s.member && !in.member { // it moves and ends with its Spot
		return s, false
	}
	switch in.verb {
	case VerbJoin, VerbLeave:
		s2 := s
		s2.member, s2.lease, s2.with = in.verb == VerbJoin, spotLease, ""
		s2.ownerGen++
		return s2, s.phase == PhaseReady && s.member != s2.member && held && in.lease == s.lease
	case VerbReady:
		s2 := s
		s2.phase, s2.lease = PhaseReady, in.lease
		return s2, s.phase == PhaseCreating && held && in.lease >= s.lease
	case VerbTakeover:
		s2 := s
		s2.owner, s2.lease, s2.ownerGen = in.by, in.lease, s.ownerGen+1
		return s2, s.phase == PhaseCreating && !mine && in.evidence == s.owner
	case VerbCancel:
		return modelState{}, s.phase == PhaseCreating && (mine || in.evidence == s.owner)
	case VerbAdopt:
		s2 := s
		s2.lease = in.lease
		return s2, (s.phase == PhaseReady || s.phase == PhaseMoving && !s.accepted) && held && in.lease > s.lease
	case VerbWith:
		s2 := s
		s2.with = in.with
		return s2, s.phase == PhaseReady && held && in.lease == s.lease
	case VerbClose:
		return modelState{}, s.phase == PhaseReady && held && in.lease >= s.lease
	}
	return s.afterMove(in, held)
}

// afterMove is after for the verbs of a move.
func (s modelState) afterMove(in modelInput, held bool) (modelState, bool) {
	s2, same := s, s.move != "" && s.move == in.move
	switch in.verb {
	case VerbPrepare:
		s2.phase, s2.move, s2.target, s2.accepted = PhaseMoving, in.move, in.target, false
		return s2, s.phase == PhaseReady && held && in.lease == s.lease && in.target != s.owner
	case VerbAccept:
		s2.accepted, s2.lease = true, in.lease
		return s2, s.phase == PhaseMoving && !s.accepted && same && held && in.lease >= s.lease
	case VerbAbort:
		s2.phase, s2.move, s2.target = PhaseReady, "", ""
		if held {
			s2.lease = in.lease
		}
		return s2, s.phase == PhaseMoving && !s.accepted && same && (held && in.lease >= s.lease || in.by == s.target)
	case VerbCommit:
		s2.phase, s2.owner, s2.ownerGen, s2.lease = PhaseReady, in.by, s.ownerGen+1, in.lease
		return s2, s.phase == PhaseMoving && s.accepted && same && in.by == s.target && in.ownerGen == s.ownerGen
	case VerbClearMove:
		s2.move, s2.target, s2.accepted = "", "", false
		return s2, s.phase == PhaseReady && same && held && in.lease >= s.lease
	}
	return s, false
}

// step returns the states in which a record may be after a call ended so.
func (s modelState) step(in modelInput, out modelOutput) []modelState {
	next, legal := s.after(in)
	switch out.end {
	case endApplied:
		if legal {
			return []modelState{next}
		}
	case endRefused:
		if !legal {
			return []modelState{s}
		}
	case endNothing:
		return []modelState{s}
	case endUnknown:
		if legal {
			return []modelState{s, next}
		}
		return []modelState{s}
	case endSaw:
		if s == out.state {
			return []modelState{s}
		}
	}
	return nil
}

var recordModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			k := op.Input.(modelInput).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() []any { return []any{modelState{}} },
	Step: func(state, input, output any) []any {
		var out []any
		for _, s := range state.(modelState).step(input.(modelInput), output.(modelOutput)) {
			out = append(out, s)
		}
		return out
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(modelInput), output.(modelOutput)
		if in.verb == "" {
			return fmt.Sprintf("read -> %+v", out.state)
		}
		return fmt.Sprintf("%s %s by %s/%d (owner generation %d, evidence %q) -> %s",
			in.verb, in.incarnation, in.by, in.lease, in.ownerGen, in.evidence, out.end)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// op is one operation of a history, unknown ones with an infinite return time.
func op(client int, call, ret int64, in modelInput, out modelOutput) porcupine.Operation {
	if out.end == endUnknown {
		ret = math.MaxInt64
	}
	return porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret}
}

// TestModel checks the checker: histories that must pass, and ones that must fail.
func TestModel(t *testing.T) {
	t.Parallel()
	create := func(inc string) modelInput {
		return modelInput{key: "k", verb: VerbCreate, by: "a", lease: 1, incarnation: inc}
	}
	verb := func(v Verb, by, inc string, ownerGen uint64) modelInput {
		return modelInput{key: "k", verb: v, by: by, lease: 1, incarnation: inc, ownerGen: ownerGen, evidence: "a"}
	}
	setWith := func(inc, with string) modelInput {
		in := verb(VerbWith, "a", inc, 1)
		in.with = with
		return in
	}
	moving := func(v Verb, by string, ownerGen uint64) modelInput {
		in := verb(v, by, "x", ownerGen)
		in.move, in.target = "m", "b"
		return in
	}
	read := modelInput{key: "k"}
	saw := func(inc string, phase Phase) modelOutput {
		if phase == "" {
			return modelOutput{end: endSaw}
		}
		return modelOutput{end: endSaw, state: modelState{incarnation: inc, phase: phase, owner: "a", ownerGen: 1, lease: 1}}
	}
	applied, refused, unknown, nothing := modelOutput{end: endApplied}, modelOutput{end: endRefused}, modelOutput{end: endUnknown}, modelOutput{end: endNothing}
	type h = []porcupine.Operation
	for _, c := range []struct {
		name string
		ok   bool
		h    h
	}{
		{"a life", true, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied),
			op(1, 4, 5, read, saw("x", PhaseReady)), op(0, 6, 7, verb(VerbClose, "a", "x", 1), applied), op(1, 8, 9, read, saw("", "")),
		}},
		{"an unknown create, seen", true, h{op(0, 0, 1, create("x"), unknown), op(1, 5, 6, read, saw("", "")), op(1, 7, 8, read, saw("x", PhaseCreating))}},
		{"an unknown create, never seen", true, h{op(0, 0, 1, create("x"), unknown), op(1, 5, 6, create("y"), applied), op(1, 7, 8, read, saw("y", PhaseCreating))}},
		{"two creates won", false, h{op(0, 0, 1, create("x"), applied), op(1, 2, 3, create("y"), applied)}},
		{"a stale read", false, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied), op(1, 4, 5, read, saw("x", PhaseCreating)),
		}},
		{"missing, though it was there all the time", false, h{op(0, 0, 1, create("x"), applied), op(1, 2, 3, read, saw("", ""))}},
		{"an unknown create seen, and gone without a close", false, h{
			op(0, 0, 1, create("x"), unknown), op(1, 2, 3, read, saw("x", PhaseCreating)), op(1, 4, 5, read, saw("", "")),
		}},
		{"a write reported as not applied is seen", false, h{op(0, 0, 1, create("x"), nothing), op(1, 2, 3, read, saw("x", PhaseCreating))}},
		{"the taken over creator wins", false, h{
			op(0, 0, 1, create("x"), applied), op(1, 2, 3, verb(VerbTakeover, "b", "x", 0), applied), op(0, 4, 5, verb(VerbReady, "a", "x", 1), applied),
		}},
		{"what was set is lost", false, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied),
			op(0, 4, 5, setWith("x", "s"), applied), op(1, 6, 7, read, saw("x", PhaseReady)),
		}},
		{"a move", true, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied), op(0, 4, 5, moving(VerbPrepare, "a", 1), applied),
			op(0, 6, 7, moving(VerbAccept, "a", 1), applied), op(1, 8, 9, moving(VerbCommit, "b", 1), applied), op(1, 10, 11, verb(VerbClose, "b", "x", 2), applied),
		}},
		{"an abort and the boundary both won", false, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied), op(0, 4, 5, moving(VerbPrepare, "a", 1), applied),
			op(0, 6, 9, moving(VerbAccept, "a", 1), applied), op(1, 6, 9, moving(VerbAbort, "b", 1), applied),
		}},
		{"an unknown accept, and the source goes on as if it were not applied", true, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied), op(0, 4, 5, moving(VerbPrepare, "a", 1), applied),
			op(0, 6, 7, moving(VerbAccept, "a", 1), unknown), op(0, 8, 9, moving(VerbAbort, "a", 1), applied),
		}},
		{"the source has it back behind the boundary", false, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied), op(0, 4, 5, moving(VerbPrepare, "a", 1), applied),
			op(0, 6, 7, moving(VerbAccept, "a", 1), applied), op(0, 8, 9, verb(VerbClose, "a", "x", 1), applied),
		}},
		{"a refusal without a reason", false, h{op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), refused)}},
		{"a late create behind a close", false, h{
			op(0, 0, 1, create("x"), applied), op(0, 2, 3, verb(VerbReady, "a", "x", 1), applied),
			op(0, 4, 5, verb(VerbClose, "a", "x", 1), applied), op(1, 6, 7, read, saw("x", PhaseCreating)),
		}},
	} {
		if got := porcupine.CheckOperations(recordModel, c.h); got != c.ok {
			t.Errorf("%s: linearizable = %v, want %v", c.name, got, c.ok)
		}
	}
}

// validateGenerations is I6 for records: what the writes of one key returned, in the order of their revisions.
func validateGenerations(entries []Entry) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	var last Entry
	for _, e := range entries {
		if e.Revision == last.Revision && e.Revision != 0 {
			if fmt.Sprint(e.Record.Ops) != fmt.Sprint(last.Record.Ops) {
				return fmt.Errorf("two writes at revision %d: %v and %v", e.Revision, e.Record.Ops, last.Record.Ops)
			}
			continue
		}
		if e.Record.Write <= last.Record.Write {
			return fmt.Errorf("revision %d: write %d after %d", e.Revision, e.Record.Write, last.Record.Write)
		}
		if e.Generation() < last.Generation() {
			return fmt.Errorf("revision %d: generation %d after %d", e.Revision, e.Generation(), last.Generation())
		}
		if e.Generation() == last.Generation() && ownerGenerationOf(e) < ownerGenerationOf(last) {
			return fmt.Errorf("revision %d: owner generation %d after %d", e.Revision, ownerGenerationOf(e), ownerGenerationOf(last))
		}
		last = e
	}
	return nil
}

// ownerGenerationOf is that of an object; the Spots of these tests have 1.
func ownerGenerationOf(e Entry) uint64 {
	if ref, ok := e.Record.Reference(); ok {
		return uint64(1 + ref.Offset)
	}
	return e.Record.OwnerGeneration
}

func TestValidateGenerations(t *testing.T) {
	t.Parallel()
	e := func(revision, write, gen, ownerGen uint64) Entry {
		return Entry{Revision: revision, Record: Record{Phase: PhaseReady, Write: write, Generation: gen, OwnerGeneration: ownerGen, Ops: []string{fmt.Sprint(write)}}}
	}
	for _, c := range []struct {
		name string
		ok   bool
		es   []Entry
	}{
		{"in order", true, []Entry{e(9, 3, 9, 1), e(5, 1, 5, 1), e(7, 2, 5, 2), e(7, 2, 5, 2)}},
		{"two at one revision", false, []Entry{e(5, 1, 5, 1), e(5, 2, 5, 1)}},
		{"a write lost", false, []Entry{e(5, 2, 5, 1), e(6, 2, 5, 1)}},
		{"generation", false, []Entry{e(5, 1, 5, 1), e(6, 2, 4, 1)}},
		{"owner generation", false, []Entry{e(5, 1, 5, 2), e(6, 2, 5, 1)}},
	} {
		if err := validateGenerations(c.es); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
