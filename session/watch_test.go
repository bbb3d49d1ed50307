package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// A session's node that was taken for gone, and was not: the Actors have let its sessions go and could tell nobody. It finds out, and
// the client is told, though that asks for nothing.
func TestTakenForGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1", heartbeat(2*time.Second)), b.node("n2")
	alice, bob := n2.actor("alice"), n2.actor("bob")
	l := n1.dial("ann")
	bound := l.bind(alice.String())
	n2.nodeGone(n1.here, nil)
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonLost) {
		t.Fatalf("got %v, want the end of the binding to alice", g)
	}
	bound = l.bind(bob.String())
	before := n1.stats.confirms.Load()
	compared := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n2.*.ses.compare", Nth: 3})
	compared.Wait(t)
	if g := l.call(frame.Request, bound.Token, "add"); g.Type != frame.OK || n1.stats.confirms.Load() != before {
		t.Fatalf("a binding that is there was asked for %d times: %v", n1.stats.confirms.Load()-before, g)
	}
}

// TestSilentStore: while nobody answers, the look after thousands of bindings ends after some of them, so that a round of
// comparisons is not held up; while somebody does, all are looked after.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	s := &Service{ctx: t.Context()}
	for _, c := range []struct {
		err    error
		atMost int64
	}{
		{nil, 5000}, {errGone(objectsRef{ID: "a"}), 5000},
		{outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "silent"), 200}, {context.DeadlineExceeded, 200},
	} {
		var asked atomic.Int64
		s.eachTie(make([]*tie, 5000), func(context.Context, *tie) error {
			asked.Add(1)
			return c.err
		})
		if n := asked.Load(); n > c.atMost || n < min(c.atMost, 64) {
			t.Errorf("%v: %d were looked after, want at most %d", c.err, n, c.atMost)
		}
	}
}

// TestIsGone: a process run is gone when nobody holds its lease, or a later run does; while the store does not answer nothing is
// concluded.
func TestIsGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lease kvlocation.LeaseState
		err   error
		want  bool
	}{
		{kvlocation.LeaseState{Live: true, Lifecycle: 7}, nil, false},
		{kvlocation.LeaseState{Live: true, Lifecycle: 8}, nil, true},
		{kvlocation.LeaseState{}, nil, true},
		{kvlocation.LeaseState{}, errors.New("silent"), false},
	} {
		s := &Service{here: run{"n1", 1}, cfg: Config{LeaseOf: func(context.Context, string) (kvlocation.LeaseState, error) { return c.lease, c.err }}}
		if got := s.isGone(t.Context(), run{"n2", 7}); got != c.want {
			t.Errorf("%+v, %v: %v", c.lease, c.err, got)
		}
		if s.isGone(t.Context(), s.here) {
			t.Error("this run takes itself for gone")
		}
	}
}
