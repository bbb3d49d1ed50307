package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
)

// journeys is how many moves TestBoundedMoves makes with each change, wholeJourneys how many when scripts/faults runs it,
// and travellers how many objects share them.
const (
	journeys      = 600
	wholeJourneys = 10_000
	travellers    = 12
)

// TestBoundedMoves (I10, FO-4.2b): thousands of moves in a row, there and back, under callers whose routes are always old,
// fail no request, keep I1 to I6 and every state, and leave nothing behind in the nodes, the caller, or the server. It runs
// alone, so that goroutines can be counted.
func TestBoundedMoves(t *testing.T) {
	s := &scene{Bed: bed.New(t, bed.Options{})}
	s.WatchRecords(t)
	// What small moves hand over goes by its TTL: the unit's time and that of the follow.
	a, b := s.Member(t, "a", "-unit=10s"), s.Member(t, "b", "-unit=10s")
	node := s.Node(t, "host", s.URL())
	bed.Hosts(t, node, "a", "b")
	bed.Sees(t, node, bed.Channel, "a", "b")
	s.client = s.Client(t)
	s.user = s.newUser(t, "user", s.client)
	by := map[string]*bed.User{"a": a.User(t, "mover a"), "b": b.User(t, "mover b")}
	s.users = append(s.users, by["a"], by["b"])

	var objects []bed.Act
	for i := range travellers {
		o := bed.Actor(history.Request, fmt.Sprint("traveller ", i))
		s.made(t, o, "a")
		objects = append(objects, o)
	}
	// Each of these goes there and back, so that the counts are taken with every object at home.
	round := func(moves int) {
		t.Helper()
		var wg sync.WaitGroup
		for _, o := range objects {
			wg.Go(func() {
				for i := range (moves/travellers + 1) / 2 * 2 {
					from, to := "a", "b"
					if i%2 == 1 {
						from, to = to, from
					}
					if r := by[from].Do(t, moveTo(o, to)); r.Err != nil {
						t.Errorf("move %d of %s: %v", i, o.Object, r.Err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	senders := func() (stop func()) {
		var stops []func()
		for _, via := range []*bed.User{s.user, s.hosted(t, node)} {
			stops = append(stops, via.Steady(4, 5*time.Millisecond, func(n int) bed.Act {
				o := objects[n%travellers]
				if n%3 == 0 {
					o.Way = history.Send
				}
				o.Timeout = bed.Long
				return o
			}))
		}
		return func() {
			for _, stop := range stops {
				stop()
			}
		}
	}
	stop := senders()
	round(4 * travellers) // whatever is made once is there
	stop()
	var before map[string]int
	fabrictest.Eventually(t, bed.Long, "the relay is empty", func() bool {
		before = quietMoves(t, s.Bed, node)
		return before["relay messages"] == 0
	})
	began, n := time.Now(), journeys
	if *matrix == "whole" {
		n = wholeJourneys
	}
	stop = senders()
	round(n)
	stop()
	t.Logf("%d moves in %v", n, time.Since(began))

	e := &history.Evidence{Before: before, Allowed: map[string]int{
		"caller's goroutines": 10, "member's goroutines": 10, "member's files": 4, "member's heap, MiB": 16,
		"b's goroutines": 10, "b's files": 4, "b's heap, MiB": 16,
		"server's subscriptions": 2, "server's connections": 0, "consumers": 0, "records": 2, "relay messages": 0,
	}}
	for deadline := time.Now().Add(bed.Long); time.Now().Before(deadline); lasts(t, pace) {
		if e.After = quietMoves(t, s.Bed, node); len(history.Judge(e, history.Bounded)) == 0 {
			break
		}
	}
	t.Logf("before %v, after %v", before, e.After)
	ev := s.judge(t)
	ev.Before, ev.After, ev.Allowed = e.Before, e.After, e.Allowed
	bed.Judge(t, ev, append(moveRules, history.Bounded)...)
	failed, followed := 0, 0
	for i := range ev.Ops {
		if op := &ev.Ops[i]; op.Err != nil {
			if failed++; failed < 10 {
				t.Errorf("%s %s (%s): %v", op.Way, op.Object, op.ID, op.Err)
			}
		}
	}
	for i := range ev.Events {
		if e := &ev.Events[i]; e.What == journal.Turn && e.OwnerGeneration > 1 {
			followed++
		}
	}
	t.Logf("%d operations, %d failed; %d turns at later owners", len(ev.Ops), failed, followed)
	if followed < n {
		t.Errorf("%d turns at later owners in %d moves: the callers did not call", followed, n)
	}
}

// hosted adds a user whose calls go through a node of the test's process.
func (s *scene) hosted(t *testing.T, node *fabric.Node) *bed.User {
	u := bed.NewUser(t, fmt.Sprint("node ", len(s.users)), node)
	s.users = append(s.users, u)
	return u
}

// quietMoves counts what quiet does, the second node, and what is in the relay.
func quietMoves(t *testing.T, b *bed.Bed, node *fabric.Node) map[string]int {
	t.Helper()
	all := quiet(t, b, node)
	reply, err := node.Channel(bed.Channel).At("b").Request(t.Context(), job.Job{Do: job.Count}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	var counts job.Counts
	if err := json.Unmarshal(reply.Data, &counts); err != nil {
		t.Fatal(err)
	}
	maps.Copy(all, map[string]int{
		"b's goroutines": counts.Goroutines, "b's files": counts.Files, "b's heap, MiB": int(counts.HeapBytes >> 20),
		"relay messages": inRelay(t, b),
	})
	return all
}

// inRelay counts the messages in the stream of moves.
func inRelay(t *testing.T, b *bed.Bed) int {
	t.Helper()
	nc := fabrictest.Connect(t, b.URL())
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bed.Long)
	defer cancel()
	s, err := js.Stream(ctx, "FABRIC_"+bed.Mesh+"_MOVE")
	if err != nil {
		t.Fatal(err)
	}
	return int(s.CachedInfo().State.Msgs)
}
