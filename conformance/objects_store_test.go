package conformance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// FO-7a/objects: the answer to each write of an object's life is lost once: Creating, Ready, Close. The node sends the same
// write again, with the same operation ID over the same revision; the caller notices nothing, one factory runs, and the
// record was written as often as without the loss.
func objectWritesAreSentAgain(t *testing.T) {
	s := objectScene(t, bed.Options{Lease: bed.Lease{TTL: 12 * time.Second, Renew: time.Second, Margin: time.Second}}, "a")
	for i, name := range []string{"first", "second", "third"} {
		alice := bed.Actor(history.Request, name)
		alice.Timeout = bed.Long
		m := s.Get("a")
		sent := bed.Watch(m.Proxies, bed.RecordSubject(alice.Key()))
		lost := m.Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(alice.Key()), Answer: true,
			Nth: i + 1, Action: fabrictest.Drop})
		g := s.made(t, alice, "a")
		served(t, "with a lost answer", s.user.Do(t, alice), "a", g, 1)
		s.do(t, bed.Ref(history.Destroy, "actor", name, g))
		if lost.Count() != 1 {
			t.Fatalf("write %d was not met", i+1)
		}
		var ids []string
		again := 0
		for _, msg := range sent.Messages() {
			h := msg.Headers()
			id := h.Get(nats.MsgIdHdr) + " over " + h.Get(nats.ExpectedLastSubjSeqHdr)
			if len(ids) > 0 && id == ids[len(ids)-1] {
				again++
			}
			ids = append(ids, id)
		}
		if again == 0 {
			t.Errorf("the write whose answer was lost was not sent again as it was: %q", ids)
		}
		if got := s.Records(alice.Key()); len(got) != 3 {
			t.Errorf("%d writes of the record, want 3: Creating, Ready and a marker", len(got))
		}
		s.factories(t, alice.Key(), 1)
	}
	s.judge(t)
}

// FO-7c/objects: a node cannot renew its lease. At its admission deadline its objects' messages, timers and factories
// stop; the turn that runs is cancelled with OwnershipLost, and its result is not told as a success although its handler
// ignores that. With the store back each object serves again after its record has the new lease generation; the one
// that another program released meanwhile does not.
func objectsStopWithTheLease(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	idle, busy, timed, lost := bed.Actor(history.Request, "idle"), bed.Actor(history.Request, "busy"),
		bed.Actor(history.Request, "timed"), bed.Actor(history.Request, "lost")
	g := map[string]uint64{}
	for _, object := range []bed.Act{idle, busy, timed, lost} {
		g[object.Object] = s.made(t, object, "a")
	}
	was := s.owned(t, idle.Key())
	m := s.Get("a")

	blocked := busy
	blocked.Job, blocked.Timeout = job.Job{Do: job.Block}, bed.Long
	running := s.user.Begin(blocked)
	open := s.Gate(t, lost.Key(), journal.Turn)
	stubborn := lost
	stubborn.Timeout = bed.Long
	deaf := s.user.Begin(stubborn)
	s.AwaitNoted(t, busy.Key(), journal.Turn, 1)
	s.AwaitNoted(t, lost.Key(), journal.Turn, 1)

	cut := m.CutStore()
	timer := timed
	timer.Job = job.Job{Do: job.Timer, Millis: 6000} // behind the admission deadline
	s.do(t, timer)
	s.do(t, idle)
	m.Became(t, "Preparing")
	lapsed := len(s.Journal(t))
	for range 5 {
		want(t, "past the admission deadline", s.user.Do(t, idle).Op, outcome.Unavailable, outcome.NotAccepted)
	}
	create := bed.Actor(history.Create, "late")
	create.At = "a"
	if r := s.user.Do(t, create); r.Err == nil || !errors.Is(r.Err, outcome.NotAccepted) {
		t.Errorf("a creation past the admission deadline: %v", r.Err)
	}
	r := s.user.Ended(t, running)
	if r.Err == nil || !errors.Is(r.Err, outcome.Accepted) {
		t.Errorf("the caller of the turn that ran at the lapse heard %v", r.Err)
	}
	for _, e := range s.Noted(t, busy.Key(), journal.TurnEnd) {
		if !strings.Contains(e.How, kvlocation.ErrOwnershipLost.Error()) {
			t.Errorf("the turn that ran at the lapse ended with %q", e.How)
		}
	}
	s.leaseGone(t, "a")
	release := bed.Ref(history.Release, "actor", "lost", g["lost"])
	release.Timeout = bed.Long
	s.do(t, release)
	for _, e := range s.Journal(t)[lapsed:] {
		if e.What == journal.Turn || e.What == journal.Factory || e.What == journal.Activate {
			t.Errorf("past the admission deadline: %s of %s", e.What, e.Object)
		}
	}
	open() // the handler that ignores its context returns now, long after the lapse

	cut.Restore()
	m.Became(t, "Serving")
	r = s.user.Ended(t, deaf)
	if r.Err == nil {
		t.Errorf("the success of a turn was told, of an object that its node had lost: %q", r.Reply)
	}
	served(t, "the owner is back", s.answers(t, "it answers", s.user, idle), "a", g["idle"], 1)
	now := s.owned(t, idle.Key())
	if now.Record.Owner.Lease <= was.Record.Owner.Lease || now.Record.Owner.Lifecycle != was.Record.Owner.Lifecycle {
		t.Errorf("served under %+v, was %+v", now.Record.Owner, was.Record.Owner)
	}
	s.missing(t, "released meanwhile", lost)
	s.do(t, timed)
	fabrictest.Eventually(t, bed.Long, "the timer runs after the adoption", func() bool {
		return len(s.Noted(t, timed.Key(), journal.Turn)) >= 3
	})
	s.factories(t, idle.Key(), 1)
	s.judgeLapsed(t)
}

// FO-7e/objects: the writes that prove ownership arrive and their answers do not. The store says that the node owns the
// object; the node, which does not know, runs no turn: neither after the Creating write, nor after the Ready write, nor
// after an adoption.
func noTurnOnUnknown(t *testing.T) {
	s := objectScene(t, bed.Options{Brief: []string{"a"}}, "a")
	m := s.Get("a")
	unanswered := func(object string, nth int) *fabrictest.Armed {
		return m.Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.RecordSubject(object), Answer: true,
			Nth: nth, Times: -1, Action: fabrictest.Drop})
	}
	silent := func(object string, whats ...journal.What) {
		t.Helper()
		for _, what := range whats {
			if got := s.Noted(t, object, what); len(got) > 0 {
				t.Errorf("%s while the result is unknown: %+v", what, got)
			}
		}
	}
	in := func(object string, phase kvlocation.Phase) {
		t.Helper()
		fabrictest.Eventually(t, bed.Long, object+" is "+string(phase), func() bool {
			return s.Record(t, s.client.Store(), object).Phase() == phase
		})
	}
	short := func(object bed.Act) {
		t.Helper()
		object.Timeout = time.Second
		for range 2 {
			if r := s.user.Do(t, object); r.Err == nil || errors.Is(r.Err, outcome.Accepted) {
				t.Errorf("a call while the result is unknown: %v", r.Err)
			}
		}
	}

	creating := bed.InstanceSpot(history.Request, "creating")
	creating.Timeout = bed.Long
	lost := unanswered(creating.Key(), 1)
	first := s.user.Begin(creating)
	in(creating.Key(), kvlocation.PhaseCreating)
	lost.Wait(t)
	short(creating)
	silent(creating.Key(), journal.Factory, journal.Turn)
	lost.Disarm()
	g := s.Record(t, s.client.Store(), creating.Key()).Generation()
	served(t, "with the answer to the Creating write", s.user.Ended(t, first), "a", g, 1)

	ready := bed.InstanceSpot(history.Request, "ready")
	ready.Timeout = bed.Long
	lost = unanswered(ready.Key(), 2)
	first = s.user.Begin(ready)
	in(ready.Key(), kvlocation.PhaseReady)
	lost.Wait(t)
	short(ready)
	silent(ready.Key(), journal.Activate, journal.Turn)
	lost.Disarm()
	served(t, "with the answer to the Ready write", s.user.Ended(t, first), "a", s.owned(t, ready.Key()).Generation(), 1)

	was := s.owned(t, ready.Key())
	turns := len(s.Noted(t, ready.Key(), journal.Turn))
	m.Freeze(t)
	s.leaseGone(t, "a")
	lost = unanswered(ready.Key(), 1)
	m.Thaw(t)
	call := ready
	call.Timeout = time.Second
	fabrictest.Eventually(t, bed.Long, "the adoption is on the record", func() bool {
		if r := s.user.Do(t, call); r.Err == nil {
			t.Errorf("answered while the adoption is unknown: %s", r.Reply)
		}
		return s.owned(t, ready.Key()).Record.Owner.Lease > was.Record.Owner.Lease
	})
	if n := len(s.Noted(t, ready.Key(), journal.Turn)); n != turns {
		t.Errorf("%d turns while the adoption is unknown", n-turns)
	}
	lost.Disarm()
	served(t, "with the answer to the adoption", s.answers(t, "it answers", s.user, call), "a", was.Generation(), 1)
	s.judgeLapsed(t)
}
