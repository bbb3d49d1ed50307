package conformance

import (
	"errors"
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

// FO-4.3: many callers at several programs create one ID at the same time: one factory runs, one caller is told that it
// created, all others that it exists, all name the same generation. Then the creator dies in its factory: the next
// operation continues the same generation at another node with the stored input, or, where that factory fails, cancels
// exactly that record.
func oneFactoryRuns(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a", "b", "c")
	users := []*bed.User{s.user, s.another(t, "second"), s.another(t, "third")}
	for _, class := range []bed.Act{bed.Actor("", "crowd"), bed.UserSpot("", "crowd")} {
		var ids []string
		const each = 40
		for n := range each {
			for _, u := range users {
				class.Way = history.Create
				if n%2 == 1 {
					class.Way = history.GetOrCreate
				}
				class.Timeout = bed.Long
				ids = append(ids, u.Begin(class))
			}
		}
		made, generation := 0, uint64(0)
		for i, id := range ids {
			r := users[i%len(users)].Ended(t, id)
			switch {
			case r.Err != nil && (r.Way != history.Create || !errors.Is(r.Err, outcome.AlreadyExists) || !errors.Is(r.Err, outcome.NotAccepted)):
				t.Errorf("%s: %v", r.Way, r.Err)
			case r.Err == nil && generation != 0 && r.Generation != generation:
				t.Errorf("generations %d and %d", r.Generation, generation)
			case r.Err == nil:
				generation = r.Generation
			}
			if r.Created {
				made++
			}
		}
		if made != 1 {
			t.Errorf("%d of %d callers were told that they created %s", made, len(ids), class.Key())
		}
		s.factories(t, class.Key(), 1)
	}

	s.killedInTheFactory(t, "a", bed.Actor("", "orphan"), bed.UserSpot("", "orphan"))
	for _, object := range []bed.Act{bed.Actor(history.Request, "orphan"), bed.UserSpot(history.Request, "orphan")} {
		was := s.Record(t, s.client.Store(), object.Key())
		r := s.do(t, object)
		st := r.State(t)
		if st.Generation != was.Generation() || st.OwnerGeneration != 2 || st.RID == "a" {
			t.Errorf("continued as %+v, was %+v", st, was.Record)
		}
		runs := s.Noted(t, object.Key(), journal.Factory)
		if len(runs) != 2 || runs[1].Op != runs[0].Op || st.Input != runs[0].Op {
			t.Errorf("the factory's runs: %+v, its input by the object: %q", runs, st.Input)
		}
	}
	s.judge(t)
}

// killedInTheFactory has a member create objects, and kills it when all of their factories run, and waits until its lease
// is gone. The creators are told nothing, and hear so at the end of their patience.
func (s *scene) killedInTheFactory(t *testing.T, rid string, all ...bed.Act) {
	t.Helper()
	var ids []string
	var opens []func()
	for _, object := range all {
		opens = append(opens, s.Gate(t, object.Key(), journal.Factory))
		object.Way, object.At, object.Timeout = history.Create, rid, 8*time.Second
		ids = append(ids, s.user.Begin(object))
		s.AwaitNoted(t, object.Key(), journal.Factory, 1)
	}
	s.killed(t, rid)
	for _, open := range opens {
		open()
	}
	for _, id := range ids {
		r := s.user.Ended(t, id)
		if r.Err == nil || !errors.Is(r.Err, outcome.Unknown) {
			t.Errorf("creating %s, whose creator died in its factory: %v, want Unknown", r.Object, r.Err)
		}
	}
}

// FO-10.6: the creator of several objects dies in its factory, and many callers at several programs then come at once:
// for each object one other node runs the factory, under the same generation; the creator of a record that still lives is
// waited for; a creation that is on its way when its creator has lost the record is refused by the store.
func recoveryContinuesOneGeneration(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a", "b", "c")
	users := []*bed.User{s.user, s.another(t, "second"), s.another(t, "third")}
	var all []bed.Act
	for i := range 4 {
		all = append(all, bed.Actor(history.Request, fmt.Sprint("orphan ", i)))
	}
	s.killedInTheFactory(t, "a", all...)
	for i, object := range all {
		was := s.Record(t, s.client.Store(), object.Key())
		object.Timeout = bed.Long
		var ids []string
		for range 20 {
			for n, u := range users {
				o := object
				if n == 1 && i%2 == 1 {
					o.Way = history.GetOrCreate
				}
				ids = append(ids, u.Begin(o))
			}
		}
		for n, id := range ids {
			r := users[n%len(users)].Ended(t, id)
			switch {
			case r.Err != nil:
				t.Errorf("%s: %v", r.Way, r.Err)
			case r.Way == history.GetOrCreate && r.Generation != was.Generation():
				t.Errorf("get-or-create named generation %d, the record had %d", r.Generation, was.Generation())
			case r.Way == history.Request && r.State(t).Generation != was.Generation():
				t.Errorf("answered by %+v, the record had generation %d", r.State(t), was.Generation())
			}
		}
		s.factories(t, object.Key(), 2)
		if now := s.owned(t, object.Key()); now.Record.OwnerGeneration != 2 {
			t.Errorf("%s: owner generation %d", object.Key(), now.Record.OwnerGeneration)
		}
	}

	// A creator that lives is waited for, however long its factory takes.
	slow := bed.Actor(history.Request, "slow")
	open := s.Gate(t, slow.Key(), journal.Factory)
	create := slow
	create.Way, create.At, create.Timeout = history.Create, "b", bed.Long
	id := s.user.Begin(create)
	s.AwaitNoted(t, slow.Key(), journal.Factory, 1)
	slow.Timeout = bed.Long
	waits := users[1].Begin(slow)
	short := slow
	short.Timeout = 500 * time.Millisecond
	if r := users[2].Do(t, short); r.Err == nil || !errors.Is(r.Err, outcome.DeadlineExceeded) {
		t.Errorf("a call to an object that is being made: %v", r.Err)
	}
	open()
	if r := s.user.Ended(t, id); r.Err != nil {
		t.Error(r.Err)
	}
	served(t, "it was waited for", users[1].Ended(t, waits), "b", s.owned(t, slow.Key()).Generation(), 1)
	s.factories(t, slow.Key(), 1)
	s.judge(t)
}

// FO-10.12: the recovery of a first activation is that of an Instance Spot that was never Ready. Callers with instance
// intent bring back no Actor, no User Spot, whether Ready or left in its creation, and no Ready Instance Spot.
func activationServesNothingElse(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	visit, room := bed.InstanceSpot(history.Request, "visit"), bed.UserSpot(history.Request, "room")
	first := s.do(t, visit)
	s.made(t, room, "a")
	s.made(t, bed.Actor("", "alice"), "a")
	unmade := bed.UserSpot("", "unmade")
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	// A name that one of these has is taken for the class that it has.
	intent := func(id string) bed.Act { return bed.InstanceSpot(history.Request, id) }
	want(t, "instance intent at a living User Spot", s.user.Do(t, intent("room")).Op, outcome.TypeMismatch, outcome.NotAccepted)
	s.killedInTheFactory(t, "a", unmade)
	was := map[string]kvlocation.Entry{}
	for _, object := range []string{"spot/visit", "spot/room", "actor/alice", "spot/unmade"} {
		was[object] = s.Record(t, s.client.Store(), object)
	}
	for range 3 {
		s.unavailable(t, "a Ready Instance Spot whose owner is dead", s.user, visit)
		want(t, "instance intent at a dead User Spot", s.user.Do(t, intent("room")).Op, outcome.TypeMismatch, outcome.NotAccepted)
		want(t, "instance intent at an unmade User Spot", s.user.Do(t, intent("unmade")).Op, outcome.TypeMismatch, outcome.NotAccepted)
		s.unavailable(t, "a dead Actor", s.user, bed.Actor(history.Request, "alice"))
	}
	for object, e := range was {
		s.unchanged(t, "instance intent", e)
		s.factories(t, object, 1)
	}
	if n, where := s.Evidence(t, nil).Runs(first.ID); n != 1 {
		t.Errorf("the first message of the Instance Spot ran at %v", where)
	}
	s.judge(t)
}

// FE-11: a turn that outlives its ownership cannot write through a guard that has seen the newer token. Its node cannot
// reach the store until its lease is gone; the Actor is released and made again at the same node, whose activation
// callback raises the guard; then the old turn writes, with the token that it took when it began, and with that of its
// context.
func outlivedOwnershipCannotWrite(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a", "b")
	alice := bed.Actor(history.Request, "alice")
	first := s.made(t, alice, "a")
	write := func(verb job.Verb) bed.Act {
		a := alice
		a.Job, a.Timeout = job.Job{Do: verb}, bed.Long
		return a
	}
	if st := s.do(t, write(job.Guard)).State(t); st.Said != "written" || st.Token == "" {
		t.Errorf("with a present token: %+v", st)
	}
	for i, verb := range []job.Verb{job.GuardToken, job.Guard} {
		open := s.Gate(t, alice.Key(), journal.Turn)
		old := write(verb)
		old.Timeout = 4 * time.Second
		id := s.user.Begin(old)
		s.AwaitNoted(t, alice.Key(), journal.Turn, 1)
		fabrictest.Eventually(t, bed.Long, "the turn has begun", func() bool { n, _ := s.Evidence(t, nil).Runs(id); return n == 1 })
		cut := s.Get("a").CutStore()
		s.leaseGone(t, "a")
		release := bed.Ref(history.Release, "actor", "alice", first)
		release.Timeout = bed.Long
		s.do(t, release)
		cut.Restore()
		s.Get("a").Became(t, "Serving")
		create := alice
		create.Way, create.At, create.Timeout = history.Create, "a", 3*time.Second
		second := s.answers(t, "it is made again", s.user, create).Generation
		s.AwaitNoted(t, alice.Key(), journal.ActivateEnd, i+2)
		open()
		fabrictest.Eventually(t, bed.Long, "the old turn writes", func() bool {
			for _, e := range s.Noted(t, alice.Key(), journal.Guard) {
				if e.Op == id {
					if e.How == "written" {
						t.Fatalf("a turn under generation %d wrote after generation %d had raised the guard", first, second)
					}
					return true
				}
			}
			return false
		})
		if r := s.user.Ended(t, id); r.Err == nil || !errors.Is(r.Err, outcome.Accepted) && !errors.Is(r.Err, outcome.Unknown) {
			t.Errorf("the caller of a turn that outlived its ownership heard %v", r.Err)
		}
		if st := s.do(t, write(job.Guard)).State(t); st.Said != "written" || st.Generation != second {
			t.Errorf("the present owner's write: %+v", st)
		}
		first = second
	}
	s.judgeLapsed(t)
}
