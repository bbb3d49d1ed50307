package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/journal"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// settling is how long an object may take to do what the table says: an owner comes back, a route is found to be stale.
const settling = 30 * time.Second

// unfinished leaves every step's object Creating, with its input or first message, by a node that is dead.
func unfinished(t *testing.T, c *crash) {
	z := c.Member(t, "z")
	c.hosts(t, "z")
	var opens []func()
	for i := range c.steps {
		a := c.object(i)
		opens = append(opens, c.Gate(t, a.Key(), journal.Factory))
		a.Timeout = 25 * time.Second // a first message waits for whoever takes over
		if a.Way == "" {
			a.Way, a.Timeout = history.Create, 5*time.Second
		}
		c.next.Begin(a)
		c.AwaitNoted(t, a.Key(), journal.Factory, 1)
	}
	c.killed(t, z.RID)
	for _, open := range opens {
		open()
	}
}

// abandoned leaves every step's object Ready, at owners that are dead.
func abandoned(t *testing.T, c *crash) {
	owners := map[string]bool{"z": true}
	c.Member(t, "z")
	c.hosts(t, "z")
	for i, p := range c.steps {
		a := c.object(i)
		if p.owner != "" && !owners[p.owner] {
			c.Member(t, p.owner)
			c.hosts(t, p.owner)
			owners[p.owner] = true
		}
		if a.At = p.owner; a.Instance {
			a.At = ""
		} else {
			a.Way = history.Create
			if a.At == "" {
				a.At = "z"
			}
		}
		c.do(t, a)
	}
	for rid := range owners {
		c.Get(rid).Kill9()
	}
	for rid := range owners {
		c.leaseGone(t, rid)
	}
}

// roomy starts the node of the Spots that Actors join and leave.
func roomy(t *testing.T, c *crash) {
	c.Member(t, "z")
	c.hosts(t, "z")
}

// seated makes an Actor at the member "a" and a Spot at "z" for each step, and has those join that will leave.
func seated(t *testing.T, c *crash) {
	for i, p := range c.steps {
		a, spot := c.object(i), bed.UserSpot(history.Create, fmt.Sprint("room ", i))
		a.Way, a.At, spot.At = history.Create, "a", "z"
		c.do(t, a)
		c.do(t, spot)
		if p.way == history.Leave {
			c.do(t, c.seat(t, i, history.Join))
		}
	}
}

// seat is a join or leave of the i-th step's Actor, at its Spot.
func (c *crash) seat(t *testing.T, i int, way history.Way) bed.Act {
	a, spot := c.object(i), bed.UserSpot("", fmt.Sprint("room ", i))
	a = bed.Ref(way, a.Class, a.Object, c.Record(t, c.client.Store(), a.Key()).Generation())
	a.Spot, a.SpotGeneration = spot.Object, c.Record(t, c.client.Store(), spot.Key()).Generation()
	return a
}

// judgeSeat compares what the caller of a join or leave heard with the Actor's record, and does it again: then it is so.
func (c *crash) judgeSeat(t *testing.T, o *pinned) {
	say := func(format string, args ...any) { o.broken = append(o.broken, fmt.Sprintf(format, args...)) }
	is := func() bool {
		var with struct{ Spot string }
		text := c.Record(t, c.client.Store(), o.key()).Record.With
		return len(text) > 0 && json.Unmarshal(text, &with) == nil && with.Spot == o.act.Spot
	}
	joins := o.way == history.Join
	if now := c.Record(t, c.client.Store(), o.key()).Generation(); now != o.act.Generation {
		if is() { // what came late was meant for the former one
			say("generation %d is a member, which generation %d was to become", now, o.act.Generation)
		}
		return
	}
	switch kind, acceptance := kindOf(o.heard.Err); {
	case o.heard.Err == nil && is() != joins:
		say("its caller heard that it is done, and by its record it is a member: %t", is())
	case o.heard.Err != nil && acceptance == outcome.NotAccepted && is() == joins:
		say("its caller heard %s, %s, and by its record it is done", kind, acceptance)
	}
	again := o.act
	again.Timeout = bed.Long
	c.until(o, "the same again", func() error {
		err := c.next.Do(t, again).Err
		if !joins && errors.Is(err, outcome.InvalidOperation) {
			return nil // it is no member
		}
		return err
	})
	if is() != joins {
		say("done again, and by its record it is a member: %t", is())
	}
	o.after += "; " + string(o.way) + " again: done"
}

// lapsed leaves every step's object Ready at the member "a", whose lease ended and was created anew: each object has to be
// adopted.
func lapsed(t *testing.T, c *crash) {
	for i := range c.steps {
		a := c.object(i)
		if a.Way == "" {
			a.Way = history.Create
		}
		c.do(t, a)
	}
	cut := c.actor.CutStore()
	c.leaseGone(t, c.actor.RID)
	cut.Restore()
	c.actor.Became(t, "Serving")
}

// alive reports whether the process run that a record names holds its lease key.
func (c *crash) alive(t *testing.T, e kvlocation.Entry) bool {
	if e.Phase() == kvlocation.PhaseMissing {
		return false
	}
	l := c.Lease(t, c.client.Store(), e.Record.Owner.RID)
	return l.Live && l.Lifecycle == e.Record.Owner.Lifecycle
}

// judgeNext has the next operation issued at an object and compares what it does with what the table says of the object's
// record. It returns both in words.
func (c *crash) judgeNext(t *testing.T, o *pinned) string {
	a := c.object(o.i)
	a.Way, a.Timeout = history.Request, 5*time.Second
	deadline := time.Now().Add(settling)
	for {
		e := c.Record(t, c.client.Store(), o.key())
		alive := c.alive(t, e)
		r := c.next.Do(t, a)
		e2 := c.Record(t, c.client.Store(), o.key())
		stable := e2.Revision == e.Revision && c.alive(t, e2) == alive
		done, wrong := says(e, alive, a.Instance, r)
		switch {
		case done && wrong == "":
			return phrase(e, alive) + ": " + heard(r)
		case wrong != "" && stable, time.Now().After(deadline):
			o.broken = append(o.broken, fmt.Sprintf("next operation: %s, but it heard %v %q (%s)", phrase(e, alive), r.Err, r.Reply, wrong))
			return phrase(e, alive) + ": " + heard(r)
		}
	}
}

// says compares the result of an ordinary message, or of one with instance intent, with the table: done when it is what
// the table says, wrong when it can never become that.
func says(e kvlocation.Entry, alive, instance bool, r bed.Result) (done bool, wrong string) {
	refused := func(kind outcome.Kind) bool { return errors.Is(r.Err, kind) && errors.Is(r.Err, outcome.NotAccepted) }
	served := func(what string, generation, owner uint64) (bool, string) {
		st, err := stateOf(r)
		switch {
		case r.Err != nil || err != nil:
			return false, ""
		case st.Generation != generation || st.OwnerGeneration != owner:
			return true, fmt.Sprintf("%s, so generation %d and owner generation %d", what, generation, owner)
		}
		return true, ""
	}
	switch {
	case e.Phase() == kvlocation.PhaseMissing && instance:
		st, err := stateOf(r)
		if r.Err == nil && err == nil && (st.Generation <= e.Generation() || st.OwnerGeneration != 1) {
			return true, "it was Missing, so a new generation"
		}
		return r.Err == nil, ""
	case e.Phase() == kvlocation.PhaseMissing:
		if r.Err == nil {
			return true, "there was no object to answer"
		}
		return refused(outcome.NotFound), ""
	case e.Phase() == kvlocation.PhaseCreating && alive:
		return served("its creator lives", e.Generation(), e.Record.OwnerGeneration)
	case e.Phase() == kvlocation.PhaseCreating:
		return served("its creator is gone", e.Generation(), e.Record.OwnerGeneration+1)
	case alive:
		return served("its owner lives", e.Generation(), e.Record.OwnerGeneration)
	}
	if r.Err == nil {
		return true, "its owner is gone and it is not released"
	}
	return refused(outcome.Unavailable), ""
}

// reborn releases an object whose owner is gone and has it made again, by a new generation. It says so in told.
func (c *crash) reborn(t *testing.T, o *pinned, told *string) {
	e := c.Record(t, c.client.Store(), o.key())
	a := c.object(o.i)
	a.Timeout = 5 * time.Second // a node that is gone may still look alive, and swallow it
	if e.Phase() == kvlocation.PhaseReady && !c.alive(t, e) {
		release := bed.Ref(history.Release, a.Class, a.Object, e.Generation())
		release.Timeout = bed.Long
		c.until(o, "the release", func() error { return c.next.Do(t, release).Err })
		e = c.Record(t, c.client.Store(), o.key())
		if e.Phase() != kvlocation.PhaseMissing {
			o.broken = append(o.broken, "released, its record is "+phrase(e, false))
			return
		}
	}
	if e.Phase() != kvlocation.PhaseMissing {
		return // it was taken over, and served the next operation
	}
	var generation uint64
	c.until(o, "a new incarnation", func() error {
		if a.Instance {
			r := c.next.Do(t, a)
			if st, err := stateOf(r); err == nil {
				generation = st.Generation
			}
			return r.Err
		}
		a.Way = history.GetOrCreate
		r := c.next.Do(t, a)
		generation = r.Generation
		return r.Err
	})
	if generation <= e.Generation() {
		o.broken = append(o.broken, fmt.Sprintf("made again as generation %d after %d", generation, e.Generation()))
	}
	*told += "; made again: done"
}

// until repeats an operation until it succeeds, and says so when it does not.
func (c *crash) until(o *pinned, what string, f func() error) {
	deadline := time.Now().Add(settling)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			o.broken = append(o.broken, fmt.Sprintf("%s did not succeed: %v", what, err))
			return
		}
	}
}
