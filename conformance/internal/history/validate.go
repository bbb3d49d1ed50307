package history

import (
	"fmt"
	"slices"
	"time"

	"natsfabric/conformance/internal/journal"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Evidence is all that a test has collected.
type Evidence struct {
	Ops     []Op
	Ledgers []Ledger
	// Stalled is how long the callers' process itself stood still at most: so much later than it should may an operation
	// end.
	Stalled time.Duration
	// Leases are the leases that were read from the store, in any order.
	Leases []kvlocation.LeaseState
	// Undisturbed and Disturbed are the times of operations on healthy nodes, without and with a fault elsewhere.
	Undisturbed, Disturbed []time.Duration
	// Before and After are counts around many repetitions, and Allowed how much each may have grown.
	Before, After map[string]int
	Allowed       map[string]int
	// Events are what objects did, in the order in which their members noted it.
	Events []journal.Event
	// Writes are the writes of object records, in any order.
	Writes []Write
	// Lapsed is true when a member's lease ended while it lived: mail that it had accepted may have come to its end
	// without a turn.
	Lapsed bool

	indexed *index
}

// Runs returns how often and where an operation ran.
func (e *Evidence) Runs(id string) (n int, where []string) {
	for _, l := range e.Ledgers {
		if l.Ran[id] > 0 {
			n += l.Ran[id]
			where = append(where, l.RID)
		}
	}
	at := e.index().ran[id]
	return n + len(at), append(where, at...)
}

// AnyKilled reports whether a member died with what it had accepted.
func (e *Evidence) AnyKilled() bool {
	return slices.ContainsFunc(e.Ledgers, func(l Ledger) bool { return l.Killed })
}

// Unexplained returns the operations at a channel that were accepted and ran nowhere, unless a member died or as many, by
// the members' own count, had no turn because a lease ended or, of requests that their callers gave up, because their
// deadlines passed. (The deadline of a Send ends with its acceptance.)
func (e *Evidence) Unexplained() (ids []string) {
	if e.AnyKilled() {
		return nil
	}
	lapsed, expired := 0, 0
	for _, l := range e.Ledgers {
		lapsed, expired = lapsed+l.Lapsed, expired+l.Expired
	}
	var sends, late []string
	for i := range e.Ops {
		op := &e.Ops[i]
		n, _ := e.Runs(op.ID)
		switch {
		case n > 0 || op.Object != "" || !op.accepted():
		case op.Way == Send:
			sends = append(sends, op.ID)
		case op.tooLate():
			late = append(late, op.ID)
		}
	}
	if len(sends) > lapsed {
		ids = sends
	}
	if len(late) > lapsed+expired {
		ids = append(ids, late...)
	}
	return ids
}

// Validator is one promise and what breaks it.
type Validator struct {
	Name, Promise string
	// Check returns what breaks the promise, one line each.
	Check func(*Evidence) []string
}

// The validators, by the invariants of the design that they judge.
var (
	OneOwner = Validator{"I1", "one owner works on an object at a time, the one that the store names, one turn after the other, " +
		"on what one factory run made", oneOwner}
	AtMostOnce = Validator{"I2", "one operation runs at most once, whatever happens to it", atMostOnce}
	NoLoss     = Validator{"I3", "what a caller was told is true: sent = replied + refused + failed + unknown, " +
		"and the ledgers agree", noLoss}
	InOrder     = Validator{"I4", "what one sender saw accepted runs before what it sent later to the same object", inOrder}
	OneTerminal = Validator{"I5", "every operation ends exactly once, by its deadline", oneTerminal}
	Monotonic   = Validator{"I6", "lifecycles, lease generations, object generations, owner generations and tokens never go back", monotonic}
	Isolation   = Validator{"I9", "one slow or dead node does not slow the others down", isolation}
	Bounded     = Validator{"I10", "goroutines, subscriptions, connections, consumers and records stay bounded", bounded}
	// StateKept, Inert and Boundary are the rules of moves, FO-4.4f, FO-5 and FO-10.13.
	StateKept = Validator{"FO-4.4f", "a moved object is the same one, with its state", stateKept}
	Inert     = Validator{"FO-5", "a move's target has no token before its commit, and no other target is tried", inert}
	Boundary  = Validator{"FO-10.13", "an object that was given up goes to that target or to nobody, and changes its owner by moves alone", boundary}
	// Identity is no invariant of its own but the rule FO-2.2.
	Identity = Validator{"FO-2.2", "an operation at a named node runs there or nowhere", identity}
	// Reselection is the rule FO-10.1: of an operation's attempts, only the last may have been taken.
	Reselection = Validator{"FO-10.1", "a selection is repeated only after a refusal", reselection}
	// NoAdvice is the rule FO-8 for every error that callers saw.
	NoAdvice = Validator{"FO-8", "an error says its kind and acceptance and never advises to retry", noAdvice}
)

// All returns every validator.
func All() []Validator {
	return []Validator{OneOwner, AtMostOnce, NoLoss, InOrder, OneTerminal, Monotonic, StateKept, Inert, Boundary, Isolation, Bounded,
		Identity, Reselection, NoAdvice}
}

// maxListed bounds how many breaches of one promise are listed.
const maxListed = 10

// Judge returns the broken promises, one text each; none when all hold.
func Judge(e *Evidence, vs ...Validator) []string {
	var out []string
	for _, v := range vs {
		broken := v.Check(e)
		for i, b := range broken {
			if i == maxListed {
				out = append(out, fmt.Sprintf("%s and %d more", v.Name, len(broken)-maxListed))
				break
			}
			out = append(out, fmt.Sprintf("%s broken (%s): %s", v.Name, v.Promise, b))
		}
	}
	return out
}

func atMostOnce(e *Evidence) (broken []string) {
	for id := range e.everRan() {
		if n, where := e.Runs(id); n > 1 {
			broken = append(broken, fmt.Sprintf("operation %s ran %d times, at %v", id, n, where))
		}
	}
	slices.Sort(broken)
	return broken
}

// everRan returns every operation that ran, and a member that ran it.
func (e *Evidence) everRan() map[string]string {
	all := map[string]string{}
	for _, l := range e.Ledgers {
		for id := range l.Ran {
			all[id] = l.RID
		}
	}
	for id, where := range e.index().ran {
		all[id] = where[0]
	}
	return all
}

func noLoss(e *Evidence) (broken []string) {
	known := map[string]bool{}
	sum := Sum(e.Ops)
	if told := sum.Replied + sum.Refused + sum.FailedAccepted + sum.Unknown; told != sum.Sent {
		broken = append(broken, fmt.Sprintf("%d sent, %d told how they ended", sum.Sent, told))
	}
	for i := range e.Ops {
		op := &e.Ops[i]
		known[op.ID] = true
		if why := e.untrue(op); why != "" {
			broken = append(broken, fmt.Sprintf("operation %s (%s): its caller was told %s, but %s", op.ID, op.Way, op.told(), why))
		}
	}
	if ids := e.Unexplained(); ids != nil {
		broken = append(broken, fmt.Sprintf("operations %v were accepted and ran nowhere, although no member died or counted as many that had no turn", ids))
	}
	for id, rid := range e.everRan() {
		if !known[id] {
			broken = append(broken, fmt.Sprintf("%s ran %s, which nobody sent", rid, id))
		}
	}
	slices.Sort(broken)
	return broken
}

// untrue says what contradicts that which the caller was told; "" when nothing does.
func (e *Evidence) untrue(op *Op) string {
	n, where := e.Runs(op.ID)
	switch {
	case op.Ends == 0:
		return "" // counted above
	case op.Way.Lifecycle():
		return e.untrueOfLife(op)
	case op.Err == nil && op.Way == Send:
		if n == 0 && op.Object != "" && !e.AnyKilled() && !e.Excused(op) { // those to a channel: Unexplained
			return "it ran nowhere although no member died"
		}
	case op.Err == nil:
		if n != 1 {
			return fmt.Sprintf("it ran %d times", n)
		}
	case outcome.AcceptanceOf(op.Err) == outcome.NotAccepted:
		if n > 0 {
			return fmt.Sprintf("it ran at %v", where)
		}
	case outcome.AcceptanceOf(op.Err) == outcome.Accepted:
		// Either it ran, or the member itself says why it did not, or the member died with it.
		if n == 0 && !remote(op.Err) && !e.AnyKilled() && !e.Excused(op) && (op.Object != "" || !op.tooLate()) { // too late at a channel: Unexplained
			return "it ran nowhere, without a cause stated by a member"
		}
	}
	return ""
}

// remote reports whether a peer said so.
func remote(err error) bool {
	e, ok := asOutcome(err)
	return ok && e.Remote
}

// slack is how much later than its deadline an operation may end on a slow machine.
const slack = 5 * time.Second

func oneTerminal(e *Evidence) (broken []string) {
	for i := range e.Ops {
		op := &e.Ops[i]
		switch late := op.End.Sub(op.Deadline); {
		case op.Ends != 1:
			broken = append(broken, fmt.Sprintf("operation %s (%s) ended %d times", op.ID, op.Way, op.Ends))
		case late > slack+e.Stalled:
			broken = append(broken, fmt.Sprintf("operation %s (%s) ended %v after its deadline", op.ID, op.Way, late))
		}
	}
	return broken
}

// monotonic orders what was read by the revisions of the key: replicas answer with different delays.
func monotonic(e *Evidence) (broken []string) {
	leases := slices.Clone(e.Leases)
	slices.SortStableFunc(leases, func(a, b kvlocation.LeaseState) int {
		switch {
		case a.Revision < b.Revision:
			return -1
		case a.Revision > b.Revision:
			return 1
		}
		return 0
	})
	last := map[string]kvlocation.LeaseState{}
	for _, l := range leases {
		if !l.Live {
			continue
		}
		was := last[l.RID]
		if l.Lifecycle < was.Lifecycle || l.Generation < was.Generation {
			broken = append(broken, fmt.Sprintf("node %s: lifecycle %d, generation %d at revision %d after lifecycle %d, generation %d at revision %d",
				l.RID, l.Lifecycle, l.Generation, l.Revision, was.Lifecycle, was.Generation, was.Revision))
		}
		if l.Generation < l.Lifecycle {
			broken = append(broken, fmt.Sprintf("node %s: lease generation %d before the lifecycle %d", l.RID, l.Generation, l.Lifecycle))
		}
		last[l.RID] = l
	}
	return append(broken, objectsMonotonic(e)...)
}

// The 99th percentile of what is undisturbed may grow by this factor, and is never judged below the floor: the tests'
// machines are small and shared.
const (
	isolationFactor = 20
	isolationFloor  = time.Second
)

func isolation(e *Evidence) []string {
	if len(e.Disturbed) == 0 {
		return nil
	}
	before, under := percentile(e.Undisturbed, 99), percentile(e.Disturbed, 99)
	if limit := max(isolationFloor, isolationFactor*before) + e.Stalled; under > limit {
		return []string{fmt.Sprintf("p99 of healthy nodes was %v without the fault and %v with it (limit %v)", before, under, limit)}
	}
	return nil
}

// percentile returns the p-th percentile, or 0 of nothing.
func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return d[(len(d)-1)*p/100]
}

func bounded(e *Evidence) (broken []string) {
	for name, before := range e.Before {
		if after, limit := e.After[name], before+e.Allowed[name]; after > limit {
			broken = append(broken, fmt.Sprintf("%s: %d before, %d after, %d allowed", name, before, after, limit))
		}
	}
	slices.Sort(broken)
	return broken
}

func identity(e *Evidence) (broken []string) {
	for i := range e.Ops {
		op := &e.Ops[i]
		if op.Target == "" {
			continue
		}
		_, where := e.Runs(op.ID)
		for _, rid := range where {
			if rid != op.Target {
				broken = append(broken, fmt.Sprintf("operation %s named %s and ran at %s", op.ID, op.Target, rid))
			}
		}
	}
	return broken
}

// maxRefusers is how many refusers a trace names at most.
const maxRefusers = 64

func reselection(e *Evidence) (broken []string) {
	for i := range e.Ops {
		op := &e.Ops[i]
		certain := len(op.Trace.Refused) + op.Trace.NoResponders
		if op.Trace.Attempts > certain+1 && len(op.Trace.Refused) < maxRefusers {
			broken = append(broken, fmt.Sprintf("operation %s was sent %d times after %d refusals", op.ID, op.Trace.Attempts, certain))
		}
		if op.Target != "" && op.Trace.Attempts > 1 {
			broken = append(broken, fmt.Sprintf("operation %s, at %s, was sent %d times", op.ID, op.Target, op.Trace.Attempts))
		}
	}
	return broken
}
