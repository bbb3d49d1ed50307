package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/journal"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

var visit = bed.InstanceSpot(history.Request, "visit")

// FO-4.4a: the first messages for an Instance Spot that does not exist, from several programs at once: one node activates
// it, one factory runs, the message for which it was made is its first turn, and every message runs once. A message
// without the intent makes nothing.
func missingIsActivated(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a", "b", "c")
	users := []*bed.User{s.user, s.another(t, "second"), s.another(t, "third")}
	plain := visit
	plain.Instance = false
	want(t, "without the intent", s.user.Do(t, plain).Op, outcome.NotFound, outcome.NotAccepted)
	s.factories(t, visit.Key(), 0)
	var ids []string
	for n := range 40 {
		for _, u := range users {
			a := visit
			a.Timeout = bed.Long
			if n%2 == 1 {
				a.Way = history.Send
			}
			ids = append(ids, u.Begin(a))
		}
	}
	generations := map[uint64]bool{}
	for i, id := range ids {
		r := users[i%len(users)].Ended(t, id)
		if r.Err != nil {
			t.Errorf("%s: %v", r.Way, r.Err)
		} else if r.Way == history.Request {
			generations[r.State(t).Generation] = true
		}
	}
	if len(generations) != 1 {
		t.Errorf("generations %v answered", generations)
	}
	s.factories(t, visit.Key(), 1)
	s.judge(t)
	e := s.owned(t, visit.Key())
	if !generations[e.Generation()] || len(e.Record.Activation) > 0 {
		t.Errorf("the record %+v", e.Record)
	}
}

// FO-4.4b: the node that activates dies in its factory. The next message continues the same generation elsewhere: the
// stored first message runs first and its caller, who still waits, gets the answer; a first message whose deadline has
// passed is not run.
func activationIsContinued(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	late := bed.InstanceSpot(history.Request, "late")
	opens := []func(){s.Gate(t, visit.Key(), journal.Factory), s.Gate(t, late.Key(), journal.Factory)}
	waiting, expired := visit, late
	waiting.Timeout, expired.Timeout = bed.Long, 2*time.Second
	first, gaveUp := s.user.Begin(waiting), s.user.Begin(expired)
	s.AwaitNoted(t, visit.Key(), journal.Factory, 1)
	s.AwaitNoted(t, late.Key(), journal.Factory, 1)
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	s.killed(t, "a")
	for _, open := range opens {
		open()
	}
	if r := s.user.Ended(t, gaveUp); r.Err == nil || !errors.Is(r.Err, outcome.DeadlineExceeded) {
		t.Errorf("the first message that waited 2 s: %v", r.Err)
	}
	was := map[string]kvlocation.Entry{}
	for _, a := range []bed.Act{visit, late} {
		was[a.Key()] = s.Record(t, s.client.Store(), a.Key())
		if was[a.Key()].Phase() != kvlocation.PhaseCreating {
			t.Fatalf("%+v", was[a.Key()].Record)
		}
	}
	other := s.another(t, "other")
	second := other.Do(t, visit)
	served(t, "the second message", second, "b", was[visit.Key()].Generation(), 2)
	served(t, "the first message, taken over", s.user.Ended(t, first), "b", was[visit.Key()].Generation(), 2)
	if second.Err == nil && second.State(t).Turns != 2 {
		t.Errorf("the second message was turn %d", second.State(t).Turns)
	}
	then := other.Do(t, late)
	served(t, "behind a first message that is too late", then, "b", was[late.Key()].Generation(), 2)
	if then.Err == nil && then.State(t).Turns != 1 {
		t.Errorf("it was turn %d", then.State(t).Turns)
	}
	s.factories(t, visit.Key(), 2)
	e := s.judge(t)
	if n, where := e.Runs(gaveUp); n > 0 {
		t.Errorf("a first message ran at %v after its deadline", where)
	}
}

// FO-4.4c: messages with instance intent to a Ready Instance Spot whose owner lives go to its owner, from callers that
// never met it, too, while other nodes have room: no factory runs.
func readyIsNotActivated(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a")
	g := s.do(t, visit).State(t).Generation
	s.Member(t, "b")
	s.Member(t, "c")
	s.hosts(t, "a", "b", "c")
	was := s.owned(t, visit.Key())
	for _, u := range []*bed.User{s.user, s.another(t, "second"), s.another(t, "third")} {
		for range 5 {
			served(t, "a message with the intent", u.Do(t, visit), "a", g, 1)
		}
	}
	s.unchanged(t, "a message with the intent", was)
	s.factories(t, visit.Key(), 1)
	s.judge(t)
}

// FO-4.4d: the owner of a Ready Instance Spot is frozen until its lease is gone, and another one's is killed. Messages with
// instance intent are Unavailable and make nothing, although a node has room. The frozen one thaws, comes back under a
// new lease generation, and serves its Spot as before.
func deadOwnerIsNotMissing(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	g := s.do(t, visit).State(t).Generation
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	was := s.owned(t, visit.Key())
	s.Get("a").Freeze(t)
	s.leaseGone(t, "a")
	short := visit
	short.Timeout = 5 * time.Second // beyond the time in which it shows that the owner is silent
	for _, u := range []*bed.User{s.user, s.another(t, "second")} {
		for range 3 {
			if r := u.Do(t, short); r.Err == nil || errors.Is(r.Err, outcome.Accepted) || errors.Is(r.Err, outcome.NotFound) {
				t.Errorf("its owner's lease is gone: %v", r.Err)
			}
		}
		s.unavailable(t, "its owner's lease is gone", u, short)
	}
	s.unchanged(t, "a frozen owner", was)
	s.Get("a").Thaw(t)
	served(t, "the owner is back", s.answers(t, "it answers", s.user, short), "a", g, 1)
	if now := s.owned(t, visit.Key()); now.Record.Owner.Lease <= was.Record.Owner.Lease || now.Record.Owner.Lifecycle != was.Record.Owner.Lifecycle {
		t.Errorf("served under %+v, was %+v", now.Record.Owner, was.Record.Owner)
	}
	s.factories(t, visit.Key(), 1)

	was = s.owned(t, visit.Key())
	s.killed(t, "a")
	s.unavailable(t, "its owner is dead", s.user, visit)
	s.unchanged(t, "a dead owner", was)
	s.factories(t, visit.Key(), 1)
	s.judgeLapsed(t)
}

// FO-4.4e: after a Close, and after a Release, the Instance Spot is Missing: a message without the intent hears NotFound,
// the next one with it activates a new generation.
func closedIsMissing(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a", "b"}}, "a", "b")
	g := s.do(t, visit).State(t).Generation
	plain := visit
	plain.Instance = false
	again := func(what string, end bed.Act) {
		t.Helper()
		end.Timeout = bed.Long
		s.do(t, end)
		if e := s.Record(t, s.client.Store(), visit.Key()); e.Phase() != kvlocation.PhaseMissing {
			t.Errorf("%s: the record is %s", what, e.Phase())
		}
		s.missing(t, what, plain)
		st := s.do(t, visit).State(t)
		if st.Generation <= g || st.OwnerGeneration != 1 || st.Turns != 1 {
			t.Errorf("%s: activated as %+v, was generation %d", what, st, g)
		}
		g = st.Generation
	}
	again("closed", bed.Ref(history.Destroy, "instance_spot", visit.Object, g))
	s.killed(t, s.owned(t, visit.Key()).Record.Owner.RID)
	again("released", bed.Ref(history.Release, "instance_spot", visit.Object, g))
	s.judge(t)
}

// FO-4.5: the recovery data of a first activation is gone once the Spot is Ready, and serves nobody after that. Its owner
// dies right after, also before the first message has run, and is started again under its name: neither the next process
// run nor another node runs the message.
func recoveryDataServesTheFirstActivationOnly(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	// The owner dies when the store has its Ready record and before its activation callback has ended.
	open := s.Gate(t, visit.Key(), journal.Activate)
	first := visit
	first.Timeout = 10 * time.Second
	id := s.user.Begin(first)
	s.AwaitNoted(t, visit.Key(), journal.Activate, 1)
	was := s.owned(t, visit.Key())
	if len(was.Record.Activation) > 0 {
		t.Errorf("a Ready record keeps %s", was.Record.Activation)
	}
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	s.killed(t, "a")
	open()
	s.user.Ended(t, id)
	s.unavailable(t, "Ready, its owner is dead", s.user, visit)
	s.Get("a").Start(t)
	s.hosts(t, "a", "b")
	s.unavailable(t, "the same name, another process run", s.user, visit)
	s.unchanged(t, "a Ready Spot whose owner is dead", was)
	s.factories(t, visit.Key(), 1)
	if n, where := s.Evidence(t, nil).Runs(id); n > 0 {
		t.Errorf("the first message ran at %v", where)
	}
	s.judge(t)
}

// FO-10.10: an Instance Spot is activated from Missing only. Steady messages with instance intent go on while its owner is
// frozen beyond its lease, thawed, cut off from the store, killed, and released: in every phase but the last no factory
// runs.
func onlyMissingIsActivated(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	g := s.do(t, visit).State(t).Generation
	s.Member(t, "b")
	s.Member(t, "c")
	s.hosts(t, "a", "b", "c")
	stop := s.steady(4, func(n int) bed.Act {
		a := visit
		a.Timeout = 700 * time.Millisecond
		if n%3 == 0 {
			a.Way = history.Send
		}
		return a
	})
	s.passes(t, 20)
	s.Get("a").Freeze(t)
	s.leaseGone(t, "a")
	s.Get("a").Thaw(t)
	s.passes(t, 20)
	cut := s.Get("a").CutStore()
	s.leaseGone(t, "a")
	cut.Restore()
	s.passes(t, 20)
	s.killed(t, "a")
	s.factories(t, visit.Key(), 1)
	release := bed.Ref(history.Release, "instance_spot", visit.Object, g)
	release.Timeout = bed.Long
	s.do(t, release)
	s.passes(t, 20)
	stop()
	s.factories(t, visit.Key(), 2)
	if e := s.owned(t, visit.Key()); e.Generation() <= g || e.Record.Owner.RID == "a" {
		t.Errorf("the record %+v", e.Record)
	}
	s.judgeLapsed(t)
}

// FO-10.11: a pointer to a first message that was left on a Ready record, as another version or a person may leave it. The
// message is not run by the owner that serves the Spot, nor by its next process run, nor by another node.
func leftoverPointerServesNobody(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	open := s.Gate(t, visit.Key(), journal.Factory)
	a := visit
	a.Timeout = bed.Long
	id := s.user.Begin(a)
	s.AwaitNoted(t, visit.Key(), journal.Factory, 1)
	pointer := s.Record(t, s.client.Store(), visit.Key()).Record.Activation
	if len(pointer) == 0 {
		t.Fatal("a Creating record holds no first message: the test proves nothing")
	}
	open()
	s.user.Ended(t, id)
	s.putBack(t, visit.Key(), pointer)
	was := s.owned(t, visit.Key())
	if string(was.Record.Activation) == "" {
		t.Fatal("the pointer was not left on the record")
	}
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	for _, u := range []*bed.User{s.user, s.another(t, "second")} {
		served(t, "the owner serves", u.Do(t, visit), "a", was.Generation(), 1)
	}
	s.killed(t, "a")
	s.unavailable(t, "its owner is dead", s.user, visit)
	s.Get("a").Start(t)
	s.hosts(t, "a", "b")
	s.unavailable(t, "the same name, another process run", s.user, visit)
	s.factories(t, visit.Key(), 1)
	if n, where := s.Evidence(t, nil).Runs(id); n != 1 {
		t.Errorf("the first message ran at %v", where)
	}
	// The record was written by another hand than the fabric's, so the chain of its writes is not judged.
	for _, u := range s.users {
		u.Wait()
	}
}

// putBack writes an activation into a Ready record, as a plain NATS client.
func (s *scene) putBack(t *testing.T, object string, activation json.RawMessage) {
	t.Helper()
	e := s.owned(t, object)
	r := e.Record
	r.Activation, r.Write = activation, r.Write+1
	r.Ops = append(slices.Clone(r.Ops), "by hand")
	data, err := r.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bed.Long)
	defer cancel()
	if _, err := s.Plain(t).RequestMsgWithContext(ctx, &nats.Msg{Subject: bed.RecordSubject(object), Data: data}); err != nil {
		t.Fatal(err)
	}
}
