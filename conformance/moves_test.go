package conformance

import (
	"errors"
	"strings"
	"testing"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// moveRules are what only processes show of moves.
var moveRules = []history.Validator{history.StateKept, history.Inert, history.Boundary}

// movers are the objects that the rules of moves are tried with: an Actor, and an Instance Spot, whose intent would
// activate it if anything did.
func movers() []bed.Act {
	return []bed.Act{bed.Actor(history.Request, "alice"), bed.InstanceSpot(history.Request, "table 1")}
}

// homed makes the objects at a node.
func (s *scene) homed(t *testing.T, rid string, objects ...bed.Act) {
	t.Helper()
	for _, a := range objects {
		if a.Instance {
			a.At = rid
			s.do(t, a)
		} else {
			s.made(t, a, rid)
		}
	}
}

// moveTo is the act of moving an object.
func moveTo(a bed.Act, rid string) bed.Act {
	a.Way, a.To, a.Instance, a.At, a.Timeout = history.Move, rid, false, "", bed.Long
	return a
}

// dead checks that objects whose holder is dead stay as their records say, whoever asks and with whatever intent, and that
// no other node has made anything of them.
func (s *scene) dead(t *testing.T, what string, objects ...bed.Act) {
	t.Helper()
	for _, a := range objects {
		was := s.Record(t, s.client.Store(), a.Key())
		s.unavailable(t, what, s.user, a)
		s.unchanged(t, what, was)
		for _, e := range s.Noted(t, a.Key(), journal.Factory) {
			if e.Moved && e.RID != "t" {
				t.Errorf("%s: %s was taken over by %s", what, a.Key(), e.RID)
			}
		}
	}
}

// releasedAndMade releases an object and has it made again.
func (s *scene) releasedAndMade(t *testing.T, a bed.Act) {
	t.Helper()
	was := s.Record(t, s.client.Store(), a.Key())
	release := bed.Ref(history.Release, a.Class, a.Object, was.Generation())
	release.Timeout = bed.Long
	fabrictest.Eventually(t, bed.Long, a.Key()+" is released", func() bool { return s.user.Do(t, release).Err == nil })
	if !a.Instance {
		a.Way = history.Create
	}
	s.answers(t, a.Key()+" is made again", s.user, a)
	if e := s.owned(t, a.Key()); e.Generation() <= was.Generation() {
		t.Errorf("%s: generation %d after %d", a.Key(), e.Generation(), was.Generation())
	}
}

// judgeMoves is judge, with what moves promise.
func (s *scene) judgeMoves(t *testing.T, more ...*bed.User) {
	t.Helper()
	bed.Judge(t, s.judge(t, more...), moveRules...)
}

// FO-5e: the target dies after the commit, here before its first turn. The record keeps it as the owner, and the object is
// Unavailable; nobody takes over, the source included, although others have room and intents ask for it.
func deadTargetKeepsTheObject(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"t"}}, "s", "t", "b")
	mover := s.Get("s").User(t, "move")
	s.homed(t, "s", movers()...)
	var opens []func()
	for _, a := range movers() {
		opens = append(opens, s.Gate(t, a.Key(), journal.Activate))
		mover.Begin(moveTo(a, "t"))
		s.AwaitNoted(t, a.Key(), journal.Activate, 2) // of its creation, and of its move
	}
	s.killed(t, "t")
	for i, a := range movers() {
		opens[i]()
		if e := s.owned(t, a.Key()); e.Record.Owner.RID != "t" || e.Record.OwnerGeneration != 2 {
			t.Errorf("%s: the record says %+v", a.Key(), e.Record)
		}
	}
	s.dead(t, "its target is dead", movers()...)
	s.Get("t").Start(t)
	s.hosts(t, "s", "t", "b")
	s.dead(t, "its target has been started again", movers()...)
	for _, a := range movers() {
		s.releasedAndMade(t, a)
	}
	s.judgeMoves(t, mover)
}

// FO-5f: the source dies before the boundary, or the target behind it: no other target, nothing resumed after a restart,
// the source not rolled back. The target that loses its source is freed and revives nothing.
func deathEndsTheMove(t *testing.T) {
	for _, victim := range []string{"s", "t"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			s := &scene{Bed: bed.New(t, bed.Options{Brief: []string{victim}})}
			s.WatchRecords(t)
			for _, rid := range []string{"s", "t", "b"} {
				s.Member(t, rid, "-unit=10s")
			}
			s.client = s.Client(t)
			s.user = s.newUser(t, "user", s.client)
			s.hosts(t, "s", "t", "b")
			mover := s.Get("s").User(t, "move")
			s.homed(t, "s", movers()...)
			var opens []func()
			for i, a := range movers() {
				opens = append(opens, func() {})
				if victim == "s" {
					opens[i] = s.Gate(t, a.Key(), journal.Restore)
				} else {
					s.Get("t").Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(a.Key()), Times: -1,
						Action: fabrictest.Drop}) // its commit
				}
				mover.Begin(moveTo(a, "t"))
				s.stands(t, a, victim == "t")
				s.AwaitNoted(t, a.Key(), journal.Restore, 1)
			}
			s.Get(victim).Kill9()
			for _, open := range opens { // a target whose time is over while it restores drops the move without a word
				open()
			}
			s.leaseGone(t, victim)
			if victim == "s" {
				for _, a := range movers() {
					var e kvlocation.Entry
					defer func() {
						if t.Failed() {
							t.Logf("%s is %s", a.Key(), movePhrase(e, false))
						}
					}()
					fabrictest.Eventually(t, bed.Long, a.Key()+": the target has aborted", func() bool {
						e = s.Record(t, s.client.Store(), a.Key())
						return e.Phase() == kvlocation.PhaseReady && e.Record.Move == nil
					})
				}
			}
			s.dead(t, victim+" is dead", movers()...)
			s.Get(victim).Start(t)
			s.hosts(t, "s", "t", "b")
			s.dead(t, victim+" has been started again", movers()...)
			for _, a := range movers() {
				s.releasedAndMade(t, a)
			}
			s.judgeMoves(t, mover)
		})
	}
}

// stands waits until an object's record says that it is moving: accepted, or being prepared.
func (s *scene) stands(t *testing.T, a bed.Act, accepted bool) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, a.Key()+" is moving", func() bool {
		e := s.Record(t, s.client.Store(), a.Key())
		return accepted && e.Accepted() || !accepted && e.Preparing()
	})
}

// FO-10.13: a target that says before the boundary that it has failed leaves the object at its source, as it was. Behind
// the boundary the source never has it again, although it lives and the target is dead, and the source itself does not yet
// know that it has passed.
func onlyAnEarlyFailureKeepsTheSource(t *testing.T) {
	s := &scene{Bed: bed.New(t, bed.Options{Brief: []string{"t"}})}
	s.WatchRecords(t)
	for _, rid := range []string{"s", "t", "b"} {
		s.Member(t, rid, "-unit=10s")
	}
	s.client = s.Client(t)
	s.user = s.newUser(t, "user", s.client)
	s.hosts(t, "s", "t", "b")
	mover := s.Get("s").User(t, "move")
	early, later := bed.Actor(history.Request, "early"), bed.Actor(history.Request, "later")
	g := s.made(t, early, "s")
	s.made(t, later, "s")

	spoil := early
	spoil.Job.Do = job.Spoil
	turns := s.do(t, spoil).State(t).Turns
	r := mover.Do(t, moveTo(early, "t"))
	want(t, "a restore that fails", r.Op, outcome.Unavailable, outcome.NotAccepted)
	served(t, "kept at the source", s.do(t, early), "s", g, 1)
	if st := s.do(t, early).State(t); st.Turns != turns+2 {
		t.Errorf("%d turns after %d and two more", st.Turns, turns)
	}

	hold := func(rid string, answer bool) *fabrictest.Armed {
		return s.Get(rid).Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(later.Key()), Times: -1, Answer: answer,
			Action: fabrictest.HoldAlone, Match: func(m fabrictest.Message) bool { return whichWrite(m) != "preparing" }})
	}
	acks, commit := hold("s", true), hold("t", false)
	id := mover.Begin(moveTo(later, "t"))
	acks.Wait(t)
	commit.Wait(t)
	s.killed(t, "t")
	acks.Release()
	s.dead(t, "given up to a dead target", later)
	if r := mover.Ended(t, id); r.Err == nil || !errors.Is(r.Err, outcome.Unknown) {
		t.Errorf("the mover heard %v", r.Err)
	}
	if e := s.Record(t, s.client.Store(), later.Key()); !e.Accepted() {
		t.Errorf("the record says %+v", e.Record)
	}
	s.releasedAndMade(t, later)
	s.judgeMoves(t, mover)
}

// FO-10.14: source and target die together in the middle of moves, before the boundary and behind it. A third node with room,
// asked with and without intent, takes nothing over, and neither do they when they are started again.
func nobodyTakesAMoveOver(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"s", "t"}}, "s", "t", "b")
	mover := s.Get("s").User(t, "move")
	early, later := bed.InstanceSpot(history.Request, "early"), bed.InstanceSpot(history.Request, "later")
	s.homed(t, "s", early, later)
	s.Gate(t, early.Key(), journal.Restore)
	s.Get("t").Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(later.Key()), Times: -1, Action: fabrictest.Drop})
	for _, a := range []bed.Act{early, later} {
		mover.Begin(moveTo(a, "t"))
		s.AwaitNoted(t, a.Key(), journal.Restore, 1)
		s.stands(t, a, a.Object == "later")
	}
	s.Get("s").Kill9()
	s.killed(t, "t")
	s.leaseGone(t, "s")
	s.dead(t, "both are dead", early, later)
	for _, rid := range []string{"s", "t"} {
		s.Get(rid).Start(t)
	}
	s.hosts(t, "s", "t", "b")
	s.dead(t, "both have been started again", early, later)
	for _, a := range []bed.Act{early, later} {
		s.releasedAndMade(t, a)
	}
	s.judgeMoves(t, mover)
}

// FO-4.2b: what reaches the old owner by an old route after a planned move goes on to the target, once, and its answer
// brings the new route. With following turned off it is refused. After the target's death the old owner sends nothing to
// anybody else.
func oldOwnersFollowTheMove(t *testing.T) {
	s := &scene{Bed: bed.New(t, bed.Options{Brief: []string{"t"}})}
	s.WatchRecords(t)
	for rid, arg := range map[string]string{"s": "-nofollow=false", "t": "-nofollow=false", "off": "-nofollow"} {
		s.Member(t, rid, arg)
	}
	s.client = s.Client(t)
	s.user = s.newUser(t, "user", s.client)
	s.hosts(t, "s", "t", "off")
	ps, url := s.Proxies(t)
	far := s.newUser(t, "far", s.ClientAt(t, url))
	lookups, sent := bed.Watch(ps, looks), bed.Watch(ps, calls)
	mover, other := s.Get("s").User(t, "move"), s.Get("off").User(t, "move off")

	object, refused := bed.Actor(history.Request, "alice"), bed.Actor(history.Request, "bob")
	g := s.made(t, object, "s")
	served(t, "before the move", far.Do(t, object), "s", g, 1)
	if r := mover.Do(t, moveTo(object, "t")); r.Err != nil {
		t.Fatal(r.Err)
	}
	asked, calls := len(lookups.Messages()), len(sent.Messages())
	served(t, "by the old route", far.Do(t, object), "t", g, 2)
	served(t, "by the route that came with the answer", far.Do(t, object), "t", g, 2)
	ms := sent.Messages()[calls:]
	if len(ms) != 2 || !strings.Contains(ms[0].Subject, ".node.s.") || !strings.Contains(ms[1].Subject, ".node.t.") {
		t.Errorf("two calls made %d messages: %v", len(ms), ms)
	}
	if n := len(lookups.Messages()); n != asked {
		t.Errorf("following asked the store %d times", n-asked)
	}

	g2 := s.made(t, refused, "off")
	served(t, "before the move", far.Do(t, refused), "off", g2, 1)
	if r := other.Do(t, moveTo(refused, "t")); r.Err != nil {
		t.Fatal(r.Err)
	}
	want(t, "following is off", far.Do(t, refused).Op, outcome.Unavailable, outcome.NotAccepted)
	served(t, "the next call", far.Do(t, refused), "t", g2, 2)

	stale := s.another(t, "stale")
	served(t, "a caller of the target", stale.Do(t, object), "t", g, 2)
	s.Get("t").Kill9()
	s.leaseGone(t, "t")
	s.unavailable(t, "the target is dead", stale, object)
	s.unavailable(t, "the target is dead, by the old owner", s.user, object)
	if e := s.owned(t, object.Key()); e.Record.Owner.RID != "t" {
		t.Errorf("the record says %+v", e.Record)
	}
	s.judgeMoves(t, mover, other)
}

// boundScene is an Actor at "s", with nodes "w" and "x" that take sessions and another one, and a client that is bound to it
// through w.
func boundScene(t *testing.T) (s *scene, client *bed.Session, u *bed.User, object bed.Act) {
	t.Helper()
	s = &scene{Bed: bed.New(t, bed.Options{Brief: []string{"w"}})}
	s.WatchRecords(t)
	for _, rid := range []string{"s", "w", "x"} {
		s.Member(t, rid, "-sessions")
	}
	s.client = s.Client(t)
	s.user = s.newUser(t, "user", s.client)
	s.hosts(t, "s", "w", "x")
	object = bed.Actor(history.Request, "alice")
	g := s.made(t, object, "s")
	client = s.Session(t, "client", s.Get("w").SessionURL(t), s.Get("x").SessionURL(t))
	u = client.User(t, "bound", object.Object, g)
	s.users = append(s.users, u)
	return s, client, u, object
}

// FO-6d: the session's owner dies while a request is in its turn. The connection ends, the request is Unknown and its answer
// reaches nobody; the client has another session at another node, where it authenticates and binds again, and only that
// binding gets pushes.
func sessionsDieWithTheirOwner(t *testing.T) {
	s, client, u, object := boundScene(t)
	node, number, _ := client.Session()
	if node != "w" {
		t.Fatalf("the session is at %s", node)
	}
	first := u.Binding().Generation()
	served(t, "through the session", u.Do(t, object), "s", s.owned(t, object.Key()).Generation(), 1)
	open := s.Gate(t, object.Key(), journal.Turn)
	turns := len(s.Noted(t, object.Key(), journal.Turn))
	id := u.Begin(object)
	s.AwaitNoted(t, object.Key(), journal.Turn, turns+1)
	s.Get("w").Kill9()
	want(t, "a request in its turn", u.Ended(t, id).Op, outcome.Unavailable, outcome.Unknown)
	fabrictest.Eventually(t, bed.Long, "another session is open", func() bool {
		node, _, ok := client.Session()
		return ok && node == "x"
	})
	open()
	s.answers(t, "bound again", u, object)
	if again := u.Binding().Generation(); again <= first {
		t.Errorf("binding %d at the Actor after %d", again, first)
	}
	if node2, number2, _ := client.Session(); node2 == node && number2 == number {
		t.Error("the session is the old one")
	}
	push := object
	push.Job.Do = job.Push
	if st := s.do(t, push).State(t); st.Said != "written" {
		t.Errorf("a push: %s", st.Said)
	}
	fabrictest.Eventually(t, bed.Long, "the push comes", func() bool { return len(client.Pushes()) == 1 })
	if p := client.Pushes()[0]; p.Seq != 1 {
		t.Errorf("the new binding's first push has number %d", p.Seq)
	}
	if r := u.Of(id); r.Ends != 1 {
		t.Errorf("the request ended %d times", r.Ends)
	}
	s.judge(t)
}

// FO-10.15: the client is gone together with its session's owner, which is started again under its name. Nothing of the
// session is restored there or anywhere: the Actor is told that the binding is over, and has nobody to push to.
func nothingOfASessionIsRestored(t *testing.T) {
	s, client, u, object := boundScene(t)
	u.Do(t, object)
	bound := s.AwaitNoted(t, object.Key(), journal.Bound, 1)[0]
	s.Get("w").Kill9()
	client.Close()
	s.leaseGone(t, "w")
	s.Get("w").Start(t)
	over := s.AwaitNoted(t, object.Key(), journal.Unbound, 1)[0]
	if over.Detail != bound.Detail || over.How != "node gone" {
		t.Errorf("session %s was bound; the Actor was told that %s is over: %s", bound.Detail, over.Detail, over.How)
	}
	push := object
	push.Job.Do = job.Push
	if st := s.do(t, push).State(t); st.Said != "no session is bound" {
		t.Errorf("a push: %s", st.Said)
	}
	want(t, "the client is gone", u.Do(t, object).Op, outcome.ShuttingDown, outcome.NotAccepted)
	s.judge(t)
}
