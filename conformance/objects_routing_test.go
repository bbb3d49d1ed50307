package conformance

import (
	"fmt"
	"strings"
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

// calls are the messages that go to objects, and looks the readings of their records, as a client's proxies see them.
const (
	calls = "fab.m.node.*.*.obj.>"
	looks = "$JS.API.DIRECT.GET.KV_FABRIC_m_LOCATION.>"
)

// FO-4.1: a caller that knows an Actor's or a Spot's former incarnation reaches the present one, at the same node at once,
// at another one by its next call; with the owner gone it hears Unavailable.
func messagesReachTheReadyObject(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a", "b")
	other := s.another(t, "other")
	for _, object := range []bed.Act{bed.Actor(history.Request, "alice"), bed.UserSpot(history.Request, "room 1")} {
		first := s.made(t, object, "a")
		served(t, "the first incarnation", other.Do(t, object), "a", first, 1)
		renew := func(g uint64, rid string) uint64 {
			s.do(t, bed.Ref(history.Destroy, object.Class, object.Object, g))
			return s.made(t, object, rid)
		}
		second := renew(first, "a")
		if second <= first {
			t.Errorf("generation %d after %d", second, first)
		}
		served(t, "created again at the same node", other.Do(t, object), "a", second, 1)
		third := renew(second, "b")
		want(t, "created again at another node, by the old route", other.Do(t, object).Op, outcome.Unavailable, outcome.NotAccepted)
		served(t, "the next call", other.Do(t, object), "b", third, 1)
		served(t, "of another caller", s.user.Do(t, object), "b", third, 1)
	}
	s.Get("b").Kill9()
	for _, object := range []bed.Act{bed.Actor(history.Request, "alice"), bed.UserSpot(history.Send, "room 1")} {
		s.unavailable(t, "its owner is lost: "+object.Object, s.user, object)
	}
	s.judge(t)
}

// FO-4.2a: as long as the route is good no call asks the store. When it is not, the call that finds out ends, having been
// sent once and run nowhere, and the next one asks the store. A route to a dead owner is dropped in the same way.
func routesAreLookedUpAgain(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"b"}}, "a", "b")
	ps, url := s.Proxies(t)
	user := s.newUser(t, "far", s.ClientAt(t, url))
	object := bed.Actor(history.Request, "alice")
	g := s.made(t, object, "a")
	asked, sent := bed.Watch(ps, looks), bed.Watch(ps, calls)
	served(t, "without a route", user.Do(t, object), "a", g, 1)
	if len(asked.Messages()) == 0 {
		t.Error("the owner was found without asking the store: the test sees nothing")
	}
	n := len(asked.Messages())
	for range 20 {
		served(t, "with a route", user.Do(t, object), "a", g, 1)
	}
	if more := len(asked.Messages()) - n; more > 0 {
		t.Errorf("20 calls with a good route asked the store %d times", more)
	}

	s.do(t, bed.Ref(history.Destroy, object.Class, object.Object, g))
	g = s.made(t, object, "b")
	before := len(sent.Messages())
	stale := user.Do(t, object)
	want(t, "with a stale route", stale.Op, outcome.Unavailable, outcome.NotAccepted)
	if n := len(sent.Messages()) - before; n != 1 {
		t.Errorf("a call with a stale route was sent %d times", n)
	}
	n = len(asked.Messages())
	served(t, "the next call", user.Do(t, object), "b", g, 1)
	if len(asked.Messages()) == n {
		t.Error("the call after a stale route did not ask the store")
	}

	s.killed(t, "b")
	s.unavailable(t, "its owner is dead", user, object)
	// A call that its own connection kept from being sent says nothing about the route.
	fabrictest.Eventually(t, bed.Long, "a call to an object whose owner is dead asks the store: its route was dropped", func() bool {
		n := len(asked.Messages())
		want(t, "its owner is dead", user.Do(t, object).Op, outcome.Unavailable, outcome.NotAccepted)
		return len(asked.Messages()) > n
	})
	s.judge(t)
}

// FO-4.2c: the owner of an Actor, a User Spot and an Instance Spot is killed. Nothing brings them back: not the end of
// its lease, not a call, not a call with instance intent, not a creation under the same ID, not the same node's next
// process run. The records stay as they were.
func deathRestoresNothing(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	all := []bed.Act{bed.Actor(history.Request, "alice"), bed.UserSpot(history.Request, "room"), bed.InstanceSpot(history.Request, "visit")}
	var was []kvlocation.Entry
	for _, object := range all {
		if object.Instance {
			s.do(t, object)
		} else {
			s.made(t, object, "a")
		}
		was = append(was, s.owned(t, object.Key()))
	}
	s.Member(t, "b")
	s.hosts(t, "a", "b")
	s.killed(t, "a")
	other := s.another(t, "other")
	gone := func(when string) {
		t.Helper()
		for i, object := range all {
			for _, u := range []*bed.User{s.user, other} {
				s.unavailable(t, when+": "+object.Key(), u, object)
			}
			if !object.Instance {
				object.Way = history.Create
				want(t, when+": creating "+object.Key(), s.user.Do(t, object).Op, outcome.AlreadyExists, outcome.NotAccepted)
				object.Way = history.GetOrCreate
				if r := s.user.Do(t, object); r.Err == nil && r.Created {
					t.Errorf("%s: get-or-create made %s anew", when, object.Key())
				}
			}
			s.unchanged(t, when, was[i])
			s.factories(t, object.Key(), 1)
		}
	}
	gone("the owner is dead")
	s.Get("a").Start(t)
	bed.Hosts(t, s.client, "a", "b")
	gone("the node's next process run serves")
	s.judge(t)
}

// FO-10.2/objects: steady operations at named Actors and Spots of three nodes, while one is killed and one is frozen and
// thawed. Each runs at its object's owner or nowhere, whatever else could take it.
func objectsKeepIdentity(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a", "b", "c")
	var all []bed.Act
	owners := map[string]string{}
	for _, rid := range []string{"a", "b", "c"} {
		for _, object := range []bed.Act{bed.Actor(history.Request, "of "+rid), bed.UserSpot(history.Request, "of "+rid)} {
			s.made(t, object, rid)
			owners[object.Key()] = rid
			all = append(all, object)
		}
	}
	stop := s.steady(6, func(n int) bed.Act {
		a := all[n%len(all)]
		a.Timeout = time.Second
		if n%3 == 1 {
			a.Way = history.Send
		}
		a.Early = n%3 == 2
		return a
	})
	s.passes(t, 60)
	s.Get("b").Freeze(t)
	s.Get("a").Kill9()
	s.passes(t, 60)
	s.Get("b").Thaw(t)
	s.answers(t, "b's objects answer again", s.user, bed.Actor(history.Request, "of b"))
	s.passes(t, 60)
	stop()
	s.Member(t, "d") // somebody who could take them
	s.unavailable(t, "of a node that was killed", s.user, bed.Actor(history.Request, "of a"))
	e := s.judge(t)
	for _, ev := range e.Events {
		if ev.What == journal.Turn && ev.RID != owners[ev.Object] {
			t.Errorf("%s of %s ran at %s", ev.Object, owners[ev.Object], ev.RID)
		}
	}
}

// steady issues one operation after the other from some workers until the returned function is called.
func (s *scene) steady(workers int, next func(n int) bed.Act) (stop func()) {
	return s.user.Steady(workers, 10*time.Millisecond, next)
}

// passes waits until n more operations have succeeded.
func (s *scene) passes(t *testing.T, n int) {
	t.Helper()
	good := func() int { return history.Sum(s.user.Ops()).Replied }
	from := good()
	fabrictest.Eventually(t, bed.Long, fmt.Sprintf("%d operations succeed", n), func() bool { return good() >= from+n })
}

// FO-10.7: an ordinary message carries no generation. Callers whose routes, references and messages on the way speak of an
// earlier incarnation are served by the present one.
func generationRefusesNoMessage(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a")
	ps, url := s.Proxies(t)
	far := s.newUser(t, "far", s.ClientAt(t, url))
	for _, object := range []bed.Act{bed.Actor(history.Request, "alice"), bed.UserSpot(history.Request, "room")} {
		g := s.made(t, object, "a")
		served(t, "the first incarnation", far.Do(t, object), "a", g, 1)
		// On its way while the object is destroyed and created again.
		held := ps[0].Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: calls, Action: fabrictest.HoldAlone})
		object.Timeout = bed.Long
		id := far.Begin(object)
		held.Wait(t)
		s.do(t, bed.Ref(history.Destroy, object.Class, object.Object, g))
		g = s.made(t, object, "a")
		held.Release()
		served(t, "on its way while the generation changed", far.Ended(t, id), "a", g, 1)
		for range 5 {
			g2 := g
			s.do(t, bed.Ref(history.Destroy, object.Class, object.Object, g))
			if g = s.made(t, object, "a"); g <= g2 {
				t.Errorf("generation %d after %d", g, g2)
			}
			served(t, "by a route of an earlier generation", far.Do(t, object), "a", g, 1)
		}
	}
	s.judge(t)
}

// FO-10.8: what means one incarnation checks which one is there: Destroy, Close, Join, Leave and Release with a reference
// to a former incarnation are refused, name both, and change nothing.
func exactReferencesAreChecked(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a", "b")
	old := s.another(t, "old") // whose routes are those of the former incarnations, so that the owner is asked
	stale := map[string]uint64{}
	now := map[string]uint64{}
	for _, object := range []bed.Act{bed.Actor(history.Request, "alice"), bed.UserSpot(history.Request, "room"), bed.UserSpot(history.Request, "hall")} {
		stale[object.Key()] = s.made(t, object, "a")
		served(t, "the former incarnation", old.Do(t, object), "a", stale[object.Key()], 1)
		s.do(t, bed.Ref(history.Destroy, object.Class, object.Object, stale[object.Key()]))
		now[object.Key()] = s.made(t, object, "a")
	}
	const actor, room, hall = "actor/alice", "spot/room", "spot/hall"
	join := func(way history.Way, actorGen, spotGen uint64) bed.Act {
		return bed.Act{Way: way, Class: "actor", Object: "alice", Generation: actorGen, Spot: "room", SpotGeneration: spotGen}
	}
	refused := func(what string, acts ...bed.Act) {
		t.Helper()
		before := map[string]kvlocation.Entry{actor: s.owned(t, actor), room: s.owned(t, room), hall: s.owned(t, hall)}
		for i, a := range acts {
			for _, u := range []*bed.User{old, s.user} {
				want(t, fmt.Sprintf("%s %d: %s", what, i, a.Way), u.Do(t, a).Op, outcome.NotFound, outcome.NotAccepted)
			}
		}
		for _, was := range before {
			s.unchanged(t, what, was)
		}
	}
	refused("stale",
		bed.Ref(history.Destroy, "actor", "alice", stale[actor]),
		bed.Ref(history.Destroy, "user_spot", "room", stale[room]),
		join(history.Join, stale[actor], now[room]),
		join(history.Join, now[actor], stale[room]))
	s.do(t, join(history.Join, now[actor], now[room]))
	refused("stale, as a member",
		join(history.Leave, stale[actor], now[room]),
		join(history.Leave, now[actor], stale[room]),
		bed.Ref(history.Destroy, "actor", "alice", stale[actor]))
	served(t, "it lives", s.user.Do(t, bed.Actor(history.Request, "alice")), "a", now[actor], 1)
	s.do(t, join(history.Leave, now[actor], now[room]))

	s.killed(t, "a")
	release := func(g uint64) bed.Act {
		a := bed.Ref(history.Release, "actor", "alice", g)
		a.Timeout = bed.Long
		return a
	}
	refused("stale, of a dead owner", release(stale[actor]))
	s.do(t, release(now[actor]))
	s.missing(t, "released", bed.Actor(history.Request, "alice"))
	s.judge(t)
}

// FO-10.9, its object part: an Actor that is created again under its ID is a new one. Nothing of the former one comes to
// it: no timer, no membership, no mail that waited, no reference.
func nothingPassesToANewIncarnation(t *testing.T) {
	s := objectScene(t, bed.Options{}, "a", "b")
	room := bed.UserSpot(history.Request, "room")
	spot := s.made(t, room, "a")
	alice := bed.Actor(history.Request, "alice")
	first := s.made(t, alice, "a")
	s.do(t, bed.Act{Way: history.Join, Class: "actor", Object: "alice", Generation: first, Spot: "room", SpotGeneration: spot})
	timer := alice
	timer.Job = job.Job{Do: job.Timer, Millis: 8000} // the incarnation ends before
	set := s.do(t, timer)
	if st := set.State(t); st.Said != "written" {
		t.Fatalf("the timer: %s", st.Said)
	}
	s.do(t, bed.Ref(history.Destroy, "actor", "alice", first))
	second := s.made(t, alice, "b")
	served(t, "the new incarnation", s.answers(t, "it answers", s.user, alice), "b", second, 1)

	call := room
	call.Job = job.Job{Do: job.Broadcast}
	s.do(t, call)
	want(t, "the former membership", s.user.Do(t, bed.Act{Way: history.Leave, Class: "actor", Object: "alice", Generation: second,
		Spot: "room", SpotGeneration: spot}).Op, outcome.InvalidOperation, outcome.NotAccepted)
	want(t, "the former reference", s.user.Do(t, bed.Ref(history.Destroy, "actor", "alice", first)).Op, outcome.NotFound, outcome.NotAccepted)
	// Another timer, set later and so due later than the former one, runs: so that one had its time.
	s.do(t, timer)
	fabrictest.Eventually(t, bed.Long, "a timer of the new incarnation runs", func() bool {
		for _, e := range s.Noted(t, "actor/alice", journal.Turn) {
			if e.Op == "" && e.Generation == second {
				return true
			}
		}
		return false
	})
	for _, e := range s.Noted(t, "actor/alice", journal.Turn) {
		switch {
		case e.Detail == "timer "+set.ID:
			t.Errorf("a timer of the former incarnation ran: %+v", e)
		case strings.HasPrefix(e.Detail, "broadcast"):
			t.Errorf("a broadcast to the former member reached the new one: %+v", e)
		}
	}
	s.judge(t)
}
