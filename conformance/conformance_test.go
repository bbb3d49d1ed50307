package conformance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestConformance has one sub-test per rule, named by its ID.
func TestConformance(t *testing.T) {
	for _, rule := range []struct {
		id   string
		test func(*testing.T)
	}{
		{"FO-2.1", anotherTargetWhileNobodyAccepted},
		{"FO-2.2", namedIdentityIsKept},
		{"FO-2.3", acceptedIsNeverRunElsewhere},
		{"FO-2.4", unknownIsNeverSubmittedElsewhere},
		{"FO-2.5", oneTerminalResult},
		{"FO-2.6", orderOfJudgement},
		{"FO-3.1a", candidates},
		{"FO-3.1b", reselectionUntilAcceptance},
		{"FO-3.1c", nodeDirect},
		{"FO-3.2a", failuresShow},
		{"FO-3.2b", othersGoOn},
		{"FO-3.2c", handshakeIsRepeated},
		{"FO-3.2d", lostConnectionIsUnknown},
		{"FO-7a", sameWriteAgain},
		{"FO-7b", lastListIsKept},
		{"FO-7c", graceExtendsNoLease},
		{"FO-7d", everythingIsCheckedFirst},
		{"FO-7e", nothingOpensOnUnknown},
		{"FO-8", errorsTellKindAndAcceptance},
		{"FO-10.1", selectionEndsWithAcceptance},
		{"FO-10.2", directKeepsIdentity},
		{"FO-10.3", nothingIsResubmitted},
		{"FO-10.4", hostsStayServing},
		{"FO-10.5", reconnectIsANewEpoch},
		{"FO-4.1", messagesReachTheReadyObject},
		{"FO-4.2a", routesAreLookedUpAgain},
		{"FO-4.2c", deathRestoresNothing},
		{"FO-4.3", oneFactoryRuns},
		{"FO-4.4a", missingIsActivated},
		{"FO-4.4b", activationIsContinued},
		{"FO-4.4c", readyIsNotActivated},
		{"FO-4.4d", deadOwnerIsNotMissing},
		{"FO-4.4e", closedIsMissing},
		{"FO-4.5", recoveryDataServesTheFirstActivationOnly},
		{"FO-7a/objects", objectWritesAreSentAgain},
		{"FO-7c/objects", objectsStopWithTheLease},
		{"FO-7e/objects", noTurnOnUnknown},
		{"FO-10.2/objects", objectsKeepIdentity},
		{"FO-10.6", recoveryContinuesOneGeneration},
		{"FO-10.7", generationRefusesNoMessage},
		{"FO-10.8", exactReferencesAreChecked},
		{"FO-10.9", nothingPassesToANewIncarnation},
		{"FO-10.10", onlyMissingIsActivated},
		{"FO-10.11", leftoverPointerServesNobody},
		{"FO-10.12", activationServesNothingElse},
		{"FO-4.2b", oldOwnersFollowTheMove},
		{"FO-5e", deadTargetKeepsTheObject},
		{"FO-5f", deathEndsTheMove},
		{"FO-6d", sessionsDieWithTheirOwner},
		{"FO-10.13", onlyAnEarlyFailureKeepsTheSource},
		{"FO-10.14", nobodyTakesAMoveOver},
		{"FO-10.15", nothingOfASessionIsRestored},
		{"FE-11", outlivedOwnershipCannotWrite},
		{"CA-3", queueGroups},
		{"CA-6", fabricHoldsTheBoundaries},
	} {
		t.Run(rule.id, func(t *testing.T) {
			t.Parallel()
			rule.test(t)
		})
	}
}

// always are the promises that no test may break, whatever it does.
var always = []history.Validator{
	history.AtMostOnce, history.NoLoss, history.OneTerminal, history.Monotonic, history.Identity,
	history.Reselection, history.NoAdvice,
}

// judge collects the evidence of a caller and fails the test for every broken promise. It waits for the caller's
// operations.
func judge(t *testing.T, b *bed.Bed, callers ...*bed.Caller) *history.Evidence {
	t.Helper()
	var ops []history.Op
	for _, c := range callers {
		c.Wait()
		ops = append(ops, c.Ops()...)
	}
	b.Settle(t, ops)
	e := b.Evidence(t, ops)
	bed.Judge(t, e, always...)
	return e
}

// want fails the test unless the operation failed with this kind and acceptance.
func want(t *testing.T, what string, op history.Op, kind outcome.Kind, acc outcome.Acceptance) {
	t.Helper()
	if op.Err == nil || !errors.Is(op.Err, kind) || !errors.Is(op.Err, acc) {
		t.Errorf("%s: %v (reply %q), want %v and %v", what, op.Err, op.Reply, kind, acc)
	}
}

// refusedByAll runs an operation that nobody takes several times. Each must end as Unavailable and NotAccepted, except that
// an attempt may be on its way when the deadline comes: then nobody can know, and it must not have run.
func refusedByAll(t *testing.T, what string, b *bed.Bed, c *bed.Caller, d bed.Do) {
	t.Helper()
	certain := 0
	for range 5 {
		op := c.Call(t, d) // for as long as its Timeout
		onItsWay := op.Trace.Attempts > len(op.Trace.Refused)+op.Trace.NoResponders
		if n, where := b.Evidence(t, nil).Runs(op.ID); n > 0 {
			t.Errorf("%s: it ran at %v", what, where)
		}
		if errors.Is(op.Err, outcome.DeadlineExceeded) && errors.Is(op.Err, outcome.Unknown) && onItsWay {
			continue
		}
		certain++
		want(t, what, op, outcome.Unavailable, outcome.NotAccepted)
	}
	if certain == 0 {
		t.Errorf("%s: no operation was told that nobody took it", what)
	}
}

// goneWithin waits until it shows that a named node is not connected. A request that the server had given to the node's
// connection just before it saw that end is unknown, as it must be; the next ones are not.
func goneWithin(t *testing.T, c *bed.Caller, rid string, within time.Duration) {
	t.Helper()
	fabrictest.Eventually(t, within, rid+" is known to be gone", func() bool {
		op := c.Call(t, bed.Do{RID: rid, Timeout: time.Second})
		return errors.Is(op.Err, outcome.Unavailable) && errors.Is(op.Err, outcome.NotAccepted)
	})
}

// repliedBy fails the test unless the member replied to the operation.
func repliedBy(t *testing.T, what string, op history.Op, rid string) {
	t.Helper()
	if op.Err != nil || !strings.HasPrefix(op.Reply, rid+" ") {
		t.Errorf("%s: reply %q, %v, want a reply of %s", what, op.Reply, op.Err, rid)
	}
}

// ranAt returns how often the operation ran at the member.
func ranAt(e *history.Evidence, rid, id string) int {
	for _, l := range e.Ledgers {
		if l.RID == rid {
			return l.Ran[id]
		}
	}
	return 0
}

// runner waits until the operation runs and returns the member that runs it.
func runner(t *testing.T, b *bed.Bed, c *bed.Caller, id string) *bed.Member {
	t.Helper()
	var rid string
	fabrictest.Eventually(t, bed.Long, "the operation runs", func() bool {
		for _, l := range b.Evidence(t, nil).Ledgers {
			if l.Ran[id] > 0 {
				rid = l.RID
			}
		}
		if op := c.Get(id); rid == "" && op.Ends > 0 {
			t.Fatalf("operation %s ended before it ran: %v", id, op.Err)
		}
		return rid != ""
	})
	return b.Get(rid)
}
