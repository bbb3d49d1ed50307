package history

import (
	"fmt"
	"slices"

	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Write is one write of an object's record, as the store published it.
type Write struct {
	Object   string // its kind and ID, as in a journal
	Revision uint64
	Record   kvlocation.Record
}

// Generation is the ObjectGeneration that the write means.
func (w *Write) Generation() uint64 {
	if w.Record.Generation == 0 && w.Record.Phase == kvlocation.PhaseCreating {
		return w.Revision
	}
	return w.Record.Generation
}

// incarnation is one owner's time with one object.
type incarnation struct {
	object     string
	generation uint64
	owner      uint64
}

func (i incarnation) String() string {
	return fmt.Sprintf("%s, generation %d, owner generation %d", i.object, i.generation, i.owner)
}

func of(e *journal.Event) incarnation { return incarnation{e.Object, e.Generation, e.OwnerGeneration} }

// run is a process run.
type run struct {
	rid       string
	lifecycle uint64
}

// before reports whether i is older than b, of the same object.
func (i incarnation) before(b incarnation) bool {
	return i.generation < b.generation || i.generation == b.generation && i.owner < b.owner
}

// written returns the records' writes, each once, in the order of revisions: a new leader may publish again what the old
// one had.
func (e *Evidence) written() []Write {
	ws := slices.Clone(e.Writes)
	slices.SortStableFunc(ws, func(a, b Write) int {
		switch {
		case a.Revision < b.Revision:
			return -1
		case a.Revision > b.Revision:
			return 1
		}
		return 0
	})
	return slices.CompactFunc(ws, func(a, b Write) bool { return a.Revision == b.Revision })
}

// index answers questions that are asked of every operation.
type index struct {
	ran   map[string][]string          // by operation, where its turns began
	made  map[string][]incarnation     // by operation, what factories made for it
	ready map[incarnation]map[run]bool // who was the owner of what is Ready, by the records
	ended map[string]bool              // objects of which an incarnation was closed, destroyed or released
	loose map[string]bool              // objects of which a binding came to its end
	spots map[string]map[string]bool   // by Actor, the Spots that it was located by
}

// index is made when it is first asked for: events and writes must be complete then.
func (e *Evidence) index() *index {
	if e.indexed != nil {
		return e.indexed
	}
	ix := &index{ran: map[string][]string{}, made: map[string][]incarnation{}, ready: map[incarnation]map[run]bool{}, ended: map[string]bool{}, loose: map[string]bool{},
		spots: map[string]map[string]bool{}}
	e.indexed = ix
	for i := range e.Events {
		switch ev := &e.Events[i]; {
		case ev.What == journal.Unbound:
			ix.loose[ev.Object] = true
		case ev.Op == "":
		case ev.What == journal.Turn:
			ix.ran[ev.Op] = append(ix.ran[ev.Op], ev.RID)
		case ev.What == journal.Factory:
			ix.made[ev.Op] = append(ix.made[ev.Op], of(ev))
		}
	}
	for i := range e.Writes {
		w := &e.Writes[i]
		switch w.Record.Phase {
		case kvlocation.PhaseMissing:
			ix.ended[w.Object] = true
		case kvlocation.PhaseReady:
			inc := incarnation{w.Object, w.Generation(), w.Record.OwnerGeneration}
			if ix.ready[inc] == nil {
				ix.ready[inc] = map[run]bool{}
			}
			ix.ready[inc][run{w.Record.Owner.RID, w.Record.Owner.Lifecycle}] = true
		}
	}
	ix.follow(e.Writes)
	return ix
}

// follow adds the owners of Actors that are located by reference: those of their Spots.
func (ix *index) follow(ws []Write) {
	for i := range ws {
		ref, ok := ws[i].Record.Reference()
		if !ok {
			continue
		}
		spot := job.Object(string(kvlocation.KindSpot), ref.Spot)
		if ix.spots[ws[i].Object] == nil {
			ix.spots[ws[i].Object] = map[string]bool{}
		}
		ix.spots[ws[i].Object][spot] = true
		for inc, owners := range ix.ready {
			if inc.object == spot && inc.generation == ref.Generation {
				ix.ready[incarnation{ws[i].Object, ws[i].Generation(), uint64(int64(inc.owner) + ref.Offset)}] = owners
			}
		}
	}
}

// Excused reports whether a message that an object's owner had accepted may have ended without a turn for a cause that is
// stated in public: its object came to its end, its deadline passed before its turn, its owner's lease ended, or it had come
// through a binding that was over before its turn (FO-6c).
func (e *Evidence) Excused(op *Op) bool {
	return op.Object != "" && (e.index().ended[op.Object] || op.Relayed && e.index().loose[op.Object] || e.Lapsed || outcome.KindOf(op.Err) == outcome.DeadlineExceeded)
}

// untrueOfLife says what contradicts that which the caller of an object's beginning or end was told; "" when nothing does.
func (e *Evidence) untrueOfLife(op *Op) string {
	if len(e.Writes) == 0 {
		return ""
	}
	made, ready := e.madeBy(op)
	switch {
	case op.Way == Create && op.Err == nil && !ready:
		return "nothing that it made became Ready"
	case (op.Way == Create || op.Way == GetOrCreate) && op.Err != nil && outcome.AcceptanceOf(op.Err) == outcome.NotAccepted && ready:
		return "what its factory made became Ready as " + made.String()
	case op.Way == Destroy && op.Err == nil && !e.index().ended[op.Object]:
		return "no incarnation of the object ended"
	}
	return ""
}

// madeBy returns the incarnation that became Ready of those for which a factory ran with the operation's input.
func (e *Evidence) madeBy(op *Op) (made incarnation, ready bool) {
	for _, made = range e.index().made[op.ID] {
		if e.index().ready[made] != nil {
			return made, true
		}
	}
	return made, false
}

// oneOwner is I1. Per owner generation of one incarnation: one process run works on it, on what one factory run made,
// one turn at a time, and the store says that it is the owner.
func oneOwner(e *Evidence) (broken []string) {
	owners := map[incarnation]run{}
	instances := map[incarnation]string{}
	factories := map[incarnation]string{}
	running := map[string]string{} // instance to turn
	told := map[string]bool{}
	say := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !told[s] {
			told[s] = true
			broken = append(broken, s)
		}
	}
	ready := e.index().ready
	for i := range e.Events {
		ev := &e.Events[i]
		inc, by := of(ev), run{ev.RID, ev.Lifecycle}
		switch ev.What {
		case journal.Factory:
			if ev.Moved {
				break // a move that came to nothing may be tried again
			}
			if first, again := factories[inc]; again {
				say("%s: the factory ran twice, %s and %s", inc, first, ev.Instance)
			}
			factories[inc] = ev.Instance
		case journal.Activate, journal.Turn:
			if was, known := owners[inc]; known && was != by {
				say("%s: %s worked on it, and %s", inc, was.rid, ev.Owner())
			}
			owners[inc] = by
			if was, known := instances[inc]; known && was != ev.Instance {
				say("%s: two factory runs' results are in use, %s and %s", inc, was, ev.Instance)
			}
			instances[inc] = ev.Instance
			if len(e.Writes) > 0 && !ready[inc][by] {
				say("%s: %s worked on it and was never its owner by the store", inc, ev.Owner())
			}
		}
		switch ev.What {
		case journal.Turn:
			if other := running[ev.Instance]; other != "" {
				say("%s: turn %s began while turn %s ran", inc, ev.Run, other)
			}
			running[ev.Instance] = ev.Run
		case journal.TurnEnd:
			delete(running, ev.Instance)
		}
	}
	return broken
}

// inOrder is I4. Of two operations of one sender at one object, the one that was seen accepted before the other was
// issued ran first.
func inOrder(e *Evidence) (broken []string) {
	type pair struct {
		sender, object string
		generation     uint64
	}
	byID := map[string]*Op{}
	for i := range e.Ops {
		byID[e.Ops[i].ID] = &e.Ops[i]
	}
	latest := map[pair]*Op{} // of those that ran so far, the one that was issued last
	for i := range e.Events {
		ev := &e.Events[i]
		op := byID[ev.Op]
		if ev.What != journal.Turn || op == nil {
			continue
		}
		p := pair{op.Sender, ev.Object, ev.Generation}
		if l := latest[p]; l != nil && op.accepted() && op.End.Before(l.Start) {
			broken = append(broken, fmt.Sprintf("%s ran %s of sender %s after %s, which was issued when the first had been accepted",
				ev.Object, op.ID, op.Sender, l.ID))
		}
		if l := latest[p]; l == nil || op.Start.After(l.Start) {
			latest[p] = op
		}
	}
	return broken
}

// objectsMonotonic is I6 for objects: for records in the order of revisions, for turns in the order of the journal, and
// for the tokens of an object's turns.
func objectsMonotonic(e *Evidence) (broken []string) {
	last := map[string]*Write{}
	ws := e.written()
	for i := range ws {
		w := &ws[i]
		if was := last[w.Object]; was != nil {
			if why := backwards(was, w); why != "" {
				broken = append(broken, fmt.Sprintf("record of %s, revision %d after %d: %s", w.Object, w.Revision, was.Revision, why))
			}
		}
		last[w.Object] = w
	}
	turns := map[string]*journal.Event{}
	tokens := map[string]fence.Token{}
	for i := range e.Events {
		ev := &e.Events[i]
		if ev.What != journal.Turn && ev.What != journal.Activate && (ev.What != journal.Factory || ev.Moved) {
			continue
		}
		if was := turns[ev.Object]; was != nil && of(ev).before(of(was)) {
			broken = append(broken, fmt.Sprintf("%s: %s by %s under generation %d, owner generation %d, after one by %s under %d, %d",
				ev.Object, ev.What, ev.Owner(), ev.Generation, ev.OwnerGeneration, was.Owner(), was.Generation, was.OwnerGeneration))
		}
		turns[ev.Object] = ev
		if ev.What == journal.Factory {
			continue // nobody has a token before the object is Ready
		}
		token, err := fence.ParseToken(ev.Token)
		switch was, known := tokens[ev.Object]; {
		case err != nil:
			broken = append(broken, fmt.Sprintf("%s: %s %s had no token: %s", ev.Object, ev.What, ev.Run, ev.Token))
			continue
		case token.Generation != ev.Generation || token.Sequence != ev.OwnerGeneration:
			broken = append(broken, fmt.Sprintf("%s: token %s under generation %d, owner generation %d", ev.Object, token, ev.Generation, ev.OwnerGeneration))
		case known && (was.Source != token.Source || token.Compare(was) < 0):
			broken = append(broken, fmt.Sprintf("%s: token %s after %s", ev.Object, token, was))
		}
		tokens[ev.Object] = token
	}
	return broken
}

// backwards says what went back between two writes of one record that follow each other; "" when nothing did.
func backwards(was, now *Write) string {
	generation, before := now.Generation(), was.Generation()
	moved := now.Record.Owner.RID != was.Record.Owner.RID || now.Record.Owner.Lifecycle != was.Record.Owner.Lifecycle
	reborn := was.Record.Phase == kvlocation.PhaseMissing && now.Record.Phase == kvlocation.PhaseCreating
	switch {
	case now.Record.Write != was.Record.Write+1:
		return fmt.Sprintf("write %d follows write %d", now.Record.Write, was.Record.Write)
	case reborn && generation <= before:
		return fmt.Sprintf("a new incarnation has generation %d, the former had %d", generation, before)
	case reborn:
		return ""
	case generation != before:
		return fmt.Sprintf("generation %d follows %d within one incarnation", generation, before)
	case was.Record.Phase == kvlocation.PhaseReady && now.Record.Phase == kvlocation.PhaseCreating:
		return "it was Ready and is Creating again"
	case now.Record.Phase == kvlocation.PhaseMissing:
		return ""
	case was.Record.Owner.RID == "" || now.Record.Owner.RID == "":
		return "" // located by reference to its Spot: what its turns say is compared
	case moved && now.Record.OwnerGeneration != was.Record.OwnerGeneration+1:
		return fmt.Sprintf("another owner has owner generation %d after %d", now.Record.OwnerGeneration, was.Record.OwnerGeneration)
	case now.Record.OwnerGeneration < was.Record.OwnerGeneration:
		return fmt.Sprintf("owner generation %d follows %d", now.Record.OwnerGeneration, was.Record.OwnerGeneration)
	case !moved && now.Record.Owner.Lease < was.Record.Owner.Lease:
		return fmt.Sprintf("lease generation %d follows %d", now.Record.Owner.Lease, was.Record.Owner.Lease)
	}
	return ""
}
