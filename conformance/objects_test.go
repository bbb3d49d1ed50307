package conformance

import (
	"errors"
	"fmt"
	"testing"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// scene is a mesh whose members host objects, with a client that calls them.
type scene struct {
	*bed.Bed
	client *fabric.Client
	user   *bed.User
	users  []*bed.User
}

// objectScene starts the members and waits until the client sees them.
func objectScene(t *testing.T, o bed.Options, rids ...string) *scene {
	t.Helper()
	s := &scene{Bed: bed.New(t, o)}
	s.WatchRecords(t)
	for _, rid := range rids {
		s.Member(t, rid)
	}
	s.client = s.Client(t)
	s.user = s.newUser(t, "user", s.client)
	s.hosts(t, rids...)
	return s
}

func (s *scene) hosts(t *testing.T, rids ...string) {
	t.Helper()
	bed.Hosts(t, s.client, rids...)
}

// newUser adds a user whose operations are judged, too.
func (s *scene) newUser(t *testing.T, name string, via *fabric.Client) *bed.User {
	u := bed.NewUser(t, name, via)
	s.users = append(s.users, u)
	return u
}

// another adds a user with a client of its own, and so with routes of its own.
func (s *scene) another(t *testing.T, name string) *bed.User {
	t.Helper()
	return s.newUser(t, name, s.Client(t))
}

// do carries out an operation that must succeed.
func (s *scene) do(t *testing.T, a bed.Act) bed.Result {
	t.Helper()
	r := s.user.Do(t, a)
	if r.Err != nil {
		t.Fatalf("%s %s: %v", r.Way, r.Object, r.Err)
	}
	return r
}

// made creates an object at a node and returns its generation.
func (s *scene) made(t *testing.T, a bed.Act, rid string) uint64 {
	t.Helper()
	a.Way, a.At, a.Instance = history.Create, rid, false
	g := s.do(t, a).Generation
	if e := s.Record(t, s.client.Store(), a.Key()); e.Generation() != g || e.Record.Owner.RID != rid {
		t.Fatalf("%s was made at %s as generation %d; the record says %+v", a.Key(), rid, g, e.Record)
	}
	return g
}

// killed kills a member and waits until its lease is gone.
func (s *scene) killed(t *testing.T, rid string) {
	t.Helper()
	s.Get(rid).Kill9()
	s.leaseGone(t, rid)
}

func (s *scene) leaseGone(t *testing.T, rid string) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "the lease of "+rid+" is gone", func() bool { return !s.Lease(t, s.client.Store(), rid).Live })
}

// judge fails the test for every broken promise, I1 to I6 among them.
func (s *scene) judge(t *testing.T, more ...*bed.User) *history.Evidence {
	t.Helper()
	return s.judgeAs(t, false, more...)
}

// judgeLapsed is judge in a scene where a living member's lease ended.
func (s *scene) judgeLapsed(t *testing.T, more ...*bed.User) *history.Evidence {
	t.Helper()
	return s.judgeAs(t, true, more...)
}

func (s *scene) judgeAs(t *testing.T, lapsed bool, more ...*bed.User) *history.Evidence {
	t.Helper()
	var ops []history.Op
	for _, u := range append(s.users, more...) {
		u.Wait()
		ops = append(ops, u.Ops()...)
	}
	if !lapsed {
		s.Settle(t, ops)
	}
	s.CatchUp(t, ops)
	e := s.Evidence(t, ops)
	e.Lapsed = lapsed
	bed.Judge(t, e, append([]history.Validator{history.OneOwner, history.InOrder}, always...)...)
	return e
}

// served checks that a turn of the given incarnation, at the given node, answered.
func served(t *testing.T, what string, r bed.Result, rid string, generation, owner uint64) {
	t.Helper()
	if r.Err != nil {
		t.Errorf("%s: %v, want an answer of %s", what, r.Err, rid)
		return
	}
	if st := r.State(t); st.RID != rid || st.Generation != generation || st.OwnerGeneration != owner {
		t.Errorf("%s: answered by %s, generation %d, owner generation %d; want %s, %d, %d",
			what, st.RID, st.Generation, st.OwnerGeneration, rid, generation, owner)
	}
}

// unavailable waits until an object whose owner is gone says so, which a call on its way just when the owner dies cannot,
// and then checks that it goes on saying so.
func (s *scene) unavailable(t *testing.T, what string, u *bed.User, a bed.Act) {
	t.Helper()
	is := func(err error) bool {
		return errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted)
	}
	fabrictest.Eventually(t, bed.Long, what+" is Unavailable", func() bool { return is(u.Do(t, a).Err) })
	for range 3 {
		want(t, what, u.Do(t, a).Op, outcome.Unavailable, outcome.NotAccepted)
	}
}

// missing waits until an ordinary message hears that there is no object. A route that was good until now is found out
// first; nothing answers.
func (s *scene) missing(t *testing.T, what string, a bed.Act) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, what+": it is not found", func() bool {
		r := s.user.Do(t, a)
		if r.Err == nil {
			t.Errorf("%s: it answered %q", what, r.Reply)
		}
		return errors.Is(r.Err, outcome.NotFound) && errors.Is(r.Err, outcome.NotAccepted)
	})
}

// answers waits until an object answers, and returns the state.
func (s *scene) answers(t *testing.T, what string, u *bed.User, a bed.Act) bed.Result {
	t.Helper()
	var r bed.Result
	defer func() {
		if r.Err != nil {
			t.Errorf("%s: the last answer was %v", what, r.Err)
		}
	}()
	fabrictest.Eventually(t, bed.Long, what, func() bool { r = u.Do(t, a); return r.Err == nil })
	return r
}

// unchanged fails the test unless the record is at the revision that it had.
func (s *scene) unchanged(t *testing.T, what string, was kvlocation.Entry) {
	t.Helper()
	object := fmt.Sprintf("%s/%s", was.Key.Kind, was.Key.ID)
	if now := s.Record(t, s.client.Store(), object); now.Revision != was.Revision {
		t.Errorf("%s: the record of %s was changed from %+v to %+v", what, object, was.Record, now.Record)
	}
}

// factories fails the test unless so many factory runs were begun for an object.
func (s *scene) factories(t *testing.T, object string, n int) {
	t.Helper()
	if got := s.Noted(t, object, journal.Factory); len(got) != n {
		t.Errorf("%s: %d factory runs, want %d: %+v", object, len(got), n, got)
	}
}

// stateOf reads the answer of a turn.
func stateOf(r bed.Result) (job.State, error) { return job.ParseState([]byte(r.Reply)) }

// kindOf is the kind and the acceptance of an error.
func kindOf(err error) (outcome.Kind, outcome.Acceptance) {
	return outcome.KindOf(err), outcome.AcceptanceOf(err)
}

// owned is the record of an object, which must be Ready.
func (s *scene) owned(t *testing.T, object string) kvlocation.Entry {
	t.Helper()
	e := s.Record(t, s.client.Store(), object)
	if e.Phase() != kvlocation.PhaseReady {
		t.Fatalf("%s is %s", object, e.Phase())
	}
	return e
}
