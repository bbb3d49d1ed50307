package conformance

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/kvlocation"
)

// lives is how many objects of each kind TestBoundedObjects makes and ends with each change, wholeLives how many when
// scripts/faults runs it, and objectNames how many names they share.
const (
	lives       = 2_000
	wholeLives  = 10_000
	objectNames = 320
	atATime     = 32
)

// TestBoundedObjects (I10): thousands of Actors that are created and destroyed, and of Instance Spots that are
// activated and closed, under few names, leave nothing behind in the caller, the owner, or the server but one marker for
// each name; and every life keeps I1 to I6. It runs alone, so that goroutines can be counted.
func TestBoundedObjects(t *testing.T) {
	s := &scene{Bed: bed.New(t, bed.Options{})}
	s.WatchRecords(t)
	s.Member(t, "a")
	node := s.Node(t, "host", s.URL())
	bed.Hosts(t, node, "a")
	bed.Sees(t, node, bed.Channel, "a")
	s.client = s.Client(t)
	s.user = bed.NewUser(t, "user", node)
	s.users = append(s.users, s.user)

	actor := func(name string) error {
		r := s.user.Do(t, bed.Act{Way: history.Create, Class: kvlocation.ClassActor, Object: name, Timeout: bed.Long})
		if r.Err != nil {
			return r.Err
		}
		return s.user.Do(t, bed.Act{Way: history.Destroy, Class: kvlocation.ClassActor, Object: name, Generation: r.Generation, Timeout: bed.Long}).Err
	}
	spot := func(name string) error {
		r := s.user.Do(t, bed.Act{Way: history.Request, Class: kvlocation.ClassInstanceSpot, Object: name, Instance: true, Timeout: bed.Long})
		if r.Err != nil {
			return r.Err
		}
		return s.user.Do(t, bed.Act{Way: history.Destroy, Class: kvlocation.ClassInstanceSpot, Object: name, Generation: r.State(t).Generation, Timeout: bed.Long}).Err
	}
	round := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range atATime {
			wg.Go(func() {
				for i := w; i < n; i += atATime {
					name := fmt.Sprint("object ", i%objectNames) // a multiple of atATime: no two workers share a name
					if err := actor(name); err != nil {
						t.Errorf("actor, life %d: %v", i, err)
						return
					}
					if err := spot(name); err != nil {
						t.Errorf("instance spot, life %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	round(2 * objectNames) // whatever is made once is there, the markers included
	before := quiet(t, s.Bed, node)
	began, n := time.Now(), lives
	if *matrix == "whole" {
		n = wholeLives
	}
	round(n)
	t.Logf("%d lives of each kind in %v", n, time.Since(began))
	e := &history.Evidence{Before: before, Allowed: map[string]int{
		"caller's goroutines": 10, "member's goroutines": 10, "member's files": 4, "member's heap, MiB": 16,
		"server's subscriptions": 2, "server's connections": 0, "consumers": 0, "records": 2,
	}}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		if e.After = quiet(t, s.Bed, node); len(history.Judge(e, history.Bounded)) == 0 {
			break
		}
	}
	t.Logf("before %v, after %v", before, e.After)
	ev := s.judge(t)
	ev.Before, ev.After, ev.Allowed = e.Before, e.After, e.Allowed
	bed.Judge(t, ev, history.Bounded)
}
