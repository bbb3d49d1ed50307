package history

import (
	"fmt"

	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fence"
	"natsfabric/kvlocation"
)

// stateKept: the turns of one incarnation of an object whose state moves along are counted without a step back or a gap,
// at whatever nodes they ran.
func stateKept(e *Evidence) (broken []string) {
	type life struct {
		object     string
		generation uint64
	}
	last := map[life]*journal.Event{}
	for i := range e.Events {
		ev := &e.Events[i]
		if ev.What != journal.Turn || ev.Turns == 0 || ev.Type == job.Other {
			continue
		}
		l := life{ev.Object, ev.Generation}
		if was := last[l]; was != nil && ev.Turns != was.Turns+1 {
			broken = append(broken, fmt.Sprintf("%s, generation %d: turn %d at %s under owner generation %d followed turn %d at %s under %d",
				ev.Object, ev.Generation, ev.Turns, ev.RID, ev.OwnerGeneration, was.Turns, was.RID, was.OwnerGeneration))
		}
		last[l] = ev
	}
	return broken
}

// inert: what a move makes at its target has no token before the move is certain, and is made nowhere but at the process
// run that the record names.
func inert(e *Evidence) (broken []string) {
	targets := map[string]map[run]bool{}
	for i := range e.Writes {
		if w := &e.Writes[i]; w.Record.Move != nil {
			if targets[w.Object] == nil {
				targets[w.Object] = map[run]bool{}
			}
			targets[w.Object][run{w.Record.Move.Target.RID, w.Record.Move.Target.Lifecycle}] = true
		}
	}
	for i := range e.Events {
		ev := &e.Events[i]
		if ev.What != journal.Restore && (ev.What != journal.Factory || !ev.Moved) {
			continue
		}
		if token, err := fence.ParseToken(ev.Token); err == nil {
			broken = append(broken, fmt.Sprintf("%s: %s at %s had the token %s before the move was certain", ev.Object, ev.What, ev.Owner(), token))
		}
		to := run{ev.RID, ev.Lifecycle}
		said := targets[ev.Object][to]
		for spot := range e.index().spots[ev.Object] {
			said = said || targets[spot][to]
		}
		if len(e.Writes) > 0 && !said {
			broken = append(broken, fmt.Sprintf("%s: %s at %s, to which no record says that it moves", ev.Object, ev.What, ev.Owner()))
		}
	}
	return broken
}

// boundary: what follows what in the record of an object that moves.
func boundary(e *Evidence) (broken []string) {
	last := map[string]*Write{}
	ws := e.written()
	for i := range ws {
		w := &ws[i]
		if was := last[w.Object]; was != nil {
			if why := crosses(&was.Record, &w.Record); why != "" {
				broken = append(broken, fmt.Sprintf("record of %s, revision %d after %d: %s", w.Object, w.Revision, was.Revision, why))
			}
		}
		last[w.Object] = w
	}
	return broken
}

// crosses says what two records that follow each other do that no move may; "" when nothing.
func crosses(was, now *kvlocation.Record) string {
	same := func(a, b kvlocation.Owner) bool { return a.RID == b.RID && a.Lifecycle == b.Lifecycle }
	accepted := func(r *kvlocation.Record) bool {
		return r.Phase == kvlocation.PhaseMoving && r.Move != nil && r.Move.Accepted
	}
	preparing := func(r *kvlocation.Record) bool {
		return r.Phase == kvlocation.PhaseMoving && r.Move != nil && !r.Move.Accepted
	}
	switch {
	case now.Phase == kvlocation.PhaseMissing:
		return ""
	case accepted(was) && (now.Phase != kvlocation.PhaseReady || now.Move == nil || now.Move.Op != was.Move.Op || !same(now.Owner, was.Move.Target)):
		return fmt.Sprintf("it was given up to %s, and is %s at %s", was.Move.Target.RID, now.Phase, now.Owner.RID)
	case accepted(now) && (!preparing(was) || was.Move.Op != now.Move.Op || !same(was.Move.Target, now.Move.Target)):
		return "it is given up in a move that was not prepared"
	case preparing(was) && !same(was.Owner, now.Owner):
		return fmt.Sprintf("it was prepared at %s, and is owned by %s", was.Owner.RID, now.Owner.RID)
	case was.Owner.RID == "" || now.Owner.RID == "":
		return "" // located by reference to its Spot
	case was.Phase == kvlocation.PhaseReady && now.Phase == kvlocation.PhaseReady && !same(was.Owner, now.Owner):
		return fmt.Sprintf("it went from %s to %s without a move", was.Owner.RID, now.Owner.RID)
	}
	return ""
}
