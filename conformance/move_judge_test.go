package conformance

import (
	"fmt"
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

// alive reports whether the process run that a record names holds its lease key: the owner, or the target of a move for
// which the owner has given the object up.
func (c *moveCrash) alive(t *testing.T, e kvlocation.Entry) bool {
	if e.Phase() == kvlocation.PhaseMissing {
		return false
	}
	holder := e.Record.Holder()
	l := c.Lease(t, c.client.Store(), holder.RID)
	return l.Live && l.Lifecycle == holder.Lifecycle
}

// judgeNext has the next operation issued at the object until it does what the rules say of the object's record, and
// returns both in words.
func (o *standing) judgeNext(t *testing.T) string {
	c := o.c
	a := o.act(history.Request)
	a.Timeout = 5 * time.Second
	deadline := time.Now().Add(settling)
	for {
		e := c.Record(t, c.client.Store(), o.key())
		alive := c.alive(t, e)
		r := c.next.Do(t, a)
		e2 := c.Record(t, c.client.Store(), o.key())
		stable := e2.Revision == e.Revision && c.alive(t, e2) == alive
		done, wrong := saysOfMove(e, alive, r)
		switch {
		case done && wrong == "":
			return movePhrase(e, alive) + ": " + heard(r)
		case wrong != "" && stable, time.Now().After(deadline):
			o.broken = append(o.broken, fmt.Sprintf("next operation: %s, but it heard %v %q (%s)", movePhrase(e, alive), r.Err, r.Reply, wrong))
			return movePhrase(e, alive) + ": " + heard(r)
		}
		lasts(t, pace)
	}
}

// pace is the pause between two tries of one operation.
const pace = 200 * time.Millisecond

// saysOfMove compares the result of a message with what the rules say of a record: done when it is that, wrong when it can
// never become that. A move that is under way at living processes comes to its end first.
func saysOfMove(e kvlocation.Entry, alive bool, r bed.Result) (done bool, wrong string) {
	switch {
	case e.Phase() != kvlocation.PhaseMoving:
		return says(e, alive, false, r)
	case alive:
		return false, ""
	case r.Err == nil:
		return true, "whoever could answer is gone, and it is not released"
	}
	kind, acceptance := kindOf(r.Err)
	return kind == outcome.Unavailable && acceptance == outcome.NotAccepted, ""
}

// movePhrase is a record in words.
func movePhrase(e kvlocation.Entry, alive bool) string {
	if e.Phase() != kvlocation.PhaseMoving {
		return phrase(e, alive)
	}
	step, state := "preparing", "alive"
	if e.Accepted() {
		step = "accepted"
	}
	if !alive {
		state = "its lease gone"
	}
	return fmt.Sprintf("Moving, %s, %s to %s (%d), %s %s", step, e.Record.Owner.RID, e.Record.Move.Target.RID, e.Record.OwnerGeneration, e.Record.Holder().RID, state)
}

// judgeMove compares what came of the move with FO-5.
func (o *standing) judgeMove(t *testing.T) {
	c := o.c
	say := func(format string, args ...any) { o.broken = append(o.broken, fmt.Sprintf(format, args...)) }
	final := c.Record(t, c.client.Store(), o.key())
	committed := final.Record.OwnerGeneration == 2
	accepted := committed || final.Accepted()
	fabrictest.Eventually(t, bed.Long, "the writes are noted", func() bool {
		ws := c.Records(o.key())
		if !c.blind() && (len(ws) == 0 || ws[len(ws)-1].Revision < final.Revision) {
			return false
		}
		for _, w := range ws {
			accepted = accepted || w.Record.Phase == kvlocation.PhaseMoving && w.Record.Move.Accepted
			committed = committed || w.Record.OwnerGeneration == 2
		}
		return true
	})
	dead := c.dead
	at := func(phase kvlocation.Phase, rid string, generation uint64) bool {
		return final.Phase() == phase && final.Record.Owner.RID == rid && final.Record.OwnerGeneration == generation
	}
	if final.Generation() != o.first.Generation() {
		say("its generation was %d and is %d", o.first.Generation(), final.Generation())
	}
	switch {
	case committed && !accepted:
		say("it was committed and never given up")
	case !accepted && dead(source):
		o.verdict = "Unavailable until released, no other target (FO-5f)"
		if final.Record.Owner.RID != "s" || final.Record.OwnerGeneration != 1 {
			say("its source is dead; it is %s", movePhrase(final, false))
		}
		if c.victim == survivor && !dead(target) {
			fabrictest.Eventually(t, settling, "the target has aborted the move of "+o.object, func() bool {
				e := c.Record(t, c.client.Store(), o.key())
				return e.Phase() == kvlocation.PhaseReady && e.Record.Move == nil
			})
		}
	case !accepted:
		o.verdict = "kept at the source (FO-5a)"
		if !at(kvlocation.PhaseReady, "s", 1) {
			say("it was never given up; it is %s", movePhrase(final, true))
		}
	case dead(target) && committed:
		o.verdict = "with the target, Unavailable until released (FO-5e)"
		if final.Record.Owner.RID != "t" || final.Record.OwnerGeneration != 2 {
			say("it was committed; it is %s", movePhrase(final, false))
		}
	case dead(target):
		o.verdict = "given up to the target, Unavailable until released (FO-5f)"
		if !final.Accepted() || final.Record.OwnerGeneration != 1 {
			say("it was given up to a target that is dead; it is %s", movePhrase(final, false))
		}
	default:
		o.verdict = "with the target (FO-5b, FO-5d)"
		if !at(kvlocation.PhaseReady, "t", 2) {
			say("it was given up to a target that lives; it is %s", movePhrase(final, true))
		}
	}
	acceptance := outcome.AcceptanceOf(o.heard.Err)
	switch {
	case o.heard.Err == nil && !committed:
		say("the mover heard that it has moved, and it was not committed")
	case o.heard.Err != nil && acceptance == outcome.NotAccepted && accepted:
		say("the mover heard %v, and the object was given up", o.heard.Err)
	case o.heard.Err != nil && c.fault == slow && !o.spoiled:
		say("on a slow path the mover heard %v", o.heard.Err)
	}
}

// judgeParts: what the object brought along is there, or gone with it.
func (o *standing) judgeParts(t *testing.T) {
	c := o.c
	e := c.Record(t, c.client.Store(), o.key())
	if !c.alive(t, e) {
		return
	}
	say := func(format string, args ...any) { o.broken = append(o.broken, fmt.Sprintf(format, args...)) }
	a := o.act(history.Request)
	if r := o.until(t, func() bed.Result { return c.next.Do(t, a) }); o.what == bulky && (r.Err != nil || r.State(t).Ballast != ballast) {
		say("of %d bytes it has, %v: %q", ballast, r.Err, r.Reply)
	}
	for i, id := range o.members() {
		r := o.until(t, func() bed.Result { return c.next.Do(t, bed.Actor(history.Request, id)) })
		if st, err := stateOf(r); r.Err != nil || err != nil || st.RID != e.Record.Owner.RID || st.Generation != o.seats[i] {
			say("the object is %s, its member %s of generation %d answers %v %q", movePhrase(e, true), id, o.seats[i], r.Err, r.Reply)
		}
	}
}

// judgeSession: the session's owner was killed, so the Actor was told that the binding is over, wherever it is.
func (o *standing) judgeSession(t *testing.T) {
	id, _ := o.bound()
	for _, e := range o.c.AwaitNoted(t, job.Object("actor", id), journal.Unbound, 1) {
		if e.How != "node gone" {
			o.broken = append(o.broken, "the binding to a dead node is over because: "+e.How)
		}
	}
}

// reborn releases an object whose holder is dead, and has it made again, by a higher generation.
func (o *standing) reborn(t *testing.T) {
	c := o.c
	e := c.Record(t, c.client.Store(), o.key())
	if c.alive(t, e) {
		o.again = "served"
		return
	}
	say := func(format string, args ...any) { o.broken = append(o.broken, fmt.Sprintf(format, args...)) }
	o.again = "never"
	release := o.act(history.Release)
	release.Generation, release.Timeout = e.Generation(), bed.Long
	if r := o.until(t, func() bed.Result { return c.next.Do(t, release) }); r.Err != nil {
		say("the release did not succeed: %v", r.Err)
		return
	}
	create := o.act(history.GetOrCreate)
	if create.Timeout = 5 * time.Second; o.what == room {
		create.Type = job.Room
	}
	switch r := o.until(t, func() bed.Result { return c.next.Do(t, create) }); {
	case r.Err != nil:
		say("it was not made again: %v", r.Err)
	case r.Generation <= e.Generation():
		say("made again as generation %d after %d", r.Generation, e.Generation())
	default:
		o.again = "released and made again"
	}
}

// moveAgain has the owner move the object to the other one of source and target: nothing of the first move stands in the way.
func (o *standing) moveAgain(t *testing.T) {
	c := o.c
	if o.spoiled {
		o.again = "served"
		return
	}
	a, u := o.act(history.Move), c.mover
	a.To, a.Timeout = "t", bed.Long
	if c.Record(t, c.client.Store(), o.key()).Record.Owner.RID == "t" {
		a.To, u = "s", c.back
	}
	o.again = "never"
	if r := o.until(t, func() bed.Result { return u.Do(t, a) }); r.Err != nil {
		o.broken = append(o.broken, fmt.Sprintf("it did not move again: %v", r.Err))
		return
	}
	e := c.Record(t, c.client.Store(), o.key())
	if e.Record.Owner.RID != a.To {
		o.broken = append(o.broken, "it moved again and is "+movePhrase(e, true))
		return
	}
	o.again = "moved to " + a.To
	o.after += "; " + o.judgeNext(t)
}

// until repeats an operation until it succeeds, or the time to settle is over.
func (o *standing) until(t *testing.T, f func() bed.Result) (r bed.Result) {
	for deadline := time.Now().Add(settling); ; {
		if r = f(); r.Err == nil || time.Now().After(deadline) {
			return r
		}
		lasts(t, pace)
	}
}
