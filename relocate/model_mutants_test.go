package relocate

import (
	"strings"
	"testing"
)

// broken makes a transition function that differs from step where f says so.
func broken(f func(u unit, e event) (unit, []action, bool)) func(unit, event) (unit, []action, error) {
	return func(u unit, e event) (unit, []action, error) {
		if next, acts, ok := f(u, e); ok {
			return next, acts, nil
		}
		return step(u, e)
	}
}

// on makes a mutation of one event in one state.
func on(s state, k eventKind, f func(u unit, e event) (unit, []action, bool)) func(unit, event) (unit, []action, error) {
	return broken(func(u unit, e event) (unit, []action, bool) {
		if u.state == s && e.kind == k {
			return f(u, e)
		}
		return u, nil, false
	})
}

// goes always leads to one state.
func goes(s state, acts ...actionKind) func(unit, event) (unit, []action, bool) {
	return func(u unit, _ event) (unit, []action, bool) { return u.to(s), do(acts...), true }
}

// TestModelFindsBugs plants one bug after the other, in the transition function or in what its driver does, and wants the
// exploration to find each, for the right reason.
func TestModelFindsBugs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mutant
		want string
	}{
		{mutant{name: "S unseals after an abort of unknown result", step: on(srcAborting, evWrote, func(u unit, e event) (unit, []action, bool) {
			return u.to(srcKept), do(doKeep), e.fate == unknown
		})}, "S keeps the object"},
		{mutant{name: "S unseals at its deadline while accepted is of unknown result", step: on(srcAccepting, evGiveUp, goes(srcKept, doKeep))}, ""},
		{mutant{name: "S unseals on T's word, without an abort", step: on(srcHanding, evFailed, goes(srcKept, doKeep))}, "S keeps the object"},
		{mutant{name: "S unseals behind the boundary", step: on(srcPassed, evSilent, goes(srcKept, doKeep))}, "FO-5b"},
		{mutant{name: "S takes an aborted move for accepted", step: on(srcAccepting, evWrote, func(u unit, e event) (unit, []action, bool) {
			return u.to(srcPassed), do(doFree, doCutover), e.fate == refused && e.view == viewSource
		})}, ""},
		{mutant{name: "S takes accepted for granted", step: on(srcHanding, evReady, goes(srcPassed, doFree, doCutover))}, ""},
		{mutant{name: "S accepts without relay-ready", step: on(srcSealing, evCaptured, func(u unit, _ event) (unit, []action, bool) {
			return u.to(srcAccepting), []action{{kind: doHand}, {kind: doWrite, verb: wrAccept}}, true
		})}, "never said"},
		{mutant{name: "S never asks again for a lost answer", step: on(srcAccepting, evWrote, func(u unit, e event) (unit, []action, bool) {
			return u, nil, e.fate == unknown
		})}, "stuck"},
		{mutant{name: "S waits for ever behind the boundary", step: on(srcPassed, evSilent, func(u unit, _ event) (unit, []action, bool) {
			return u, nil, true
		})}, ""},
		{mutant{name: "S guesses h when it cannot read it", step: on(srcParting, evReadFailed, func(u unit, _ event) (unit, []action, bool) {
			return u.to(srcDone), []action{{kind: doFinish}}, true
		})}, "ran twice"},
		{mutant{name: "S believes a stale record behind the boundary", step: on(srcPassed, evRecord, func(u unit, e event) (unit, []action, bool) {
			return u.to(srcKept), do(doKeep), e.view == viewSource
		})}, "FO-5b"},
		{mutant{name: "T opens before its commit is known", step: on(dstCommitting, evWrote, func(u unit, e event) (unit, []action, bool) {
			return u.to(dstOpening), []action{{kind: doOpen, h: e.h}, {kind: doNotify}}, e.fate == unknown
		})}, "FO-7e"},
		{mutant{name: "T opens at the marker, without a commit", step: on(dstReady, evCut, goes(dstOpening, doOpen, doNotify))}, "FO-7e"},
		{mutant{name: "T commits without accepted", commitsEarly: true, step: on(dstReady, evFallback, func(u unit, _ event) (unit, []action, bool) {
			return u.to(dstCommitting), write(wrCommit), true
		})}, "never accepted"},
		{mutant{name: "T drops at its deadline, without an abort", step: on(dstReady, evGiveUp, goes(dstDropped, doDrop))}, "the object is lost"},
		{mutant{name: "T drops on a stale record", step: on(dstReady, evRecord, func(u unit, e event) (unit, []action, bool) {
			return u.to(dstDropped), do(doDrop), e.view == viewSource
		})}, "the object is lost"},
		{mutant{name: "T drops when its abort loses", step: on(dstAborting, evWrote, func(u unit, e event) (unit, []action, bool) {
			return u.to(dstDropped), do(doDrop), e.fate == refused
		})}, "the object is lost"},
		{mutant{name: "T gives a commit up", step: on(dstCommitting, evGiveUp, goes(dstDropped, doDrop))}, ""},
		{mutant{name: "T runs all held messages that it has, whatever h says", runsAll: true}, "ran twice"},
		{mutant{name: "S sends again from what it published, whatever h says", resends: true}, ""},
		{mutant{name: "S reports what it holds accepted", heldAccepted: true}, ""},
		{mutant{name: "the hold goes before the captured work", holdFirst: true}, "I4"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			for _, sc := range scenarios {
				if r := explore(sc, c.mutant); r.bug != "" {
					if !strings.Contains(r.bug, c.want) {
						t.Errorf("found by %q, but for another reason: %s", sc.name, r.report())
					}
					t.Logf("found by %q after %d states: %s", sc.name, r.states, r.bug)
					return
				}
			}
			t.Error("not found")
		})
	}
}
