package bed

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/conformance/internal/act"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/session/client"
)

// User issues operations at objects, from the test's process or from a member's, and records each of them.
type User struct {
	*history.Recorder
	via    act.Via
	member *Member
	bound  *client.Binding // of a session
	wg     sync.WaitGroup

	mu      sync.Mutex
	results map[string]*act.Result
}

// NewUser returns a user that goes through via, a client or a node of the test's process. The test waits for its
// operations at its end.
func NewUser(t testing.TB, name string, via act.Via) *User {
	u := &User{Recorder: history.NewRecorder(name), via: via, results: map[string]*act.Result{}}
	t.Cleanup(u.wg.Wait)
	return u
}

// User returns a user inside the member's process. An operation of which the process never tells the end, because it was
// killed, ends as unknown.
func (m *Member) User(t testing.TB, name string) *User {
	u := NewUser(t, name, nil)
	u.member = m
	return u
}

// Act is one operation; its identity is made when it is issued.
type Act = act.Act

// Result is what a user knows of an operation.
type Result struct {
	history.Op
	// Generation is that of the reference that a creation returned, and Created whether it made the object.
	Generation uint64
	Created    bool
	// Location is the answer of a Find.
	Location objects.Location
	// Moved is the answer of a Move.
	Moved relocate.Moved
}

// State is the answer of a turn.
func (r Result) State(t testing.TB) job.State {
	t.Helper()
	if r.Err != nil || r.Ends == 0 {
		t.Fatalf("%s %s: ended %d times, %v", r.Way, r.Object, r.Ends, r.Err)
	}
	s, err := job.ParseState([]byte(r.Reply))
	if err != nil {
		t.Fatalf("answer %q: %v", r.Reply, err)
	}
	return s
}

// Do carries an operation out to its end.
func (u *User) Do(t testing.TB, a Act) Result {
	t.Helper()
	return u.Of(u.run(context.Background(), u.begin(a)))
}

// DoWithin is Do under a caller's context.
func (u *User) DoWithin(ctx context.Context, a Act) Result {
	return u.Of(u.run(ctx, u.begin(a)))
}

// Begin carries the operation out beside the test and returns its identity; Wait waits for it.
func (u *User) Begin(a Act) string {
	a = u.begin(a)
	u.wg.Go(func() { u.run(context.Background(), a) })
	return a.ID
}

// Wait waits for everything that Begin began.
func (u *User) Wait() { u.wg.Wait() }

// Of returns what is known of an operation now.
func (u *User) Of(id string) Result {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := Result{Op: u.Get(id)}
	if got := u.results[id]; got != nil {
		r.Generation, r.Created, r.Location, r.Moved = got.Generation, got.Created, got.Location, got.Moved
	}
	return r
}

// Ended waits until an operation has ended, and returns it.
func (u *User) Ended(t testing.TB, id string) Result {
	t.Helper()
	fabrictest.Eventually(t, Long, "operation "+id+" ends", func() bool { return u.Of(id).Ends > 0 })
	return u.Of(id)
}

func (u *User) begin(a Act) Act {
	if a.Timeout == 0 {
		a.Timeout = 10 * time.Second
	}
	if a.Class == "" {
		a.Class = "actor"
	}
	a.ID = u.BeginAt(a.Way, a.Key(), time.Now().Add(a.Timeout))
	if u.bound != nil {
		u.Relayed(a.ID)
	}
	return a
}

func (u *User) run(ctx context.Context, a Act) string {
	var r *act.Result
	switch {
	case u.member != nil:
		r = u.elsewhere(&a)
	case u.bound != nil:
		r = u.relayed(ctx, &a)
	default:
		r = act.Run(ctx, u.via, &a)
	}
	u.mu.Lock()
	u.results[a.ID] = r
	u.mu.Unlock()
	u.End(a.ID, r.Reply, r.Err(), channels.Trace{})
	return a.ID
}

// elsewhere hands the operation to the member's process and waits for the end that it tells.
func (u *User) elsewhere(a *Act) *act.Result {
	p, ended := u.member.Process, u.member.acted.await(a.ID)
	gone := func(why string) *act.Result {
		return &act.Result{ID: a.ID, Failure: &act.Failure{Text: why, Kind: outcome.Unavailable, Acceptance: outcome.Unknown}}
	}
	text, err := json.Marshal(a)
	if err != nil {
		return gone(err.Error())
	}
	if _, err := fmt.Fprintln(u.member.input, "act", string(text)); err != nil {
		return gone("the caller's process is gone: " + err.Error())
	}
	select {
	case r := <-ended:
		return r
	case <-p.Done():
	}
	select {
	case r := <-ended: // its last words
		return r
	default:
		return gone("the caller's process has died")
	}
}

// Actor names an Actor in an Act.
func Actor(way history.Way, id string) Act { return Act{Way: way, Class: "actor", Object: id} }

// UserSpot names a User Spot in an Act.
func UserSpot(way history.Way, id string) Act { return Act{Way: way, Class: "user_spot", Object: id} }

// InstanceSpot names an Instance Spot in an Act, which may make it.
func InstanceSpot(way history.Way, id string) Act {
	return Act{Way: way, Class: "instance_spot", Object: id, Instance: true}
}

// Ref returns the act again as one at an exact reference.
func Ref(way history.Way, class objects.Class, id string, generation uint64) Act {
	return Act{Way: way, Class: class, Object: id, Generation: generation}
}

// Steady issues one operation after the other from some workers, pause apart, until the returned function is called,
// which waits for the last ones. The operations are chosen by next, by number.
func (u *User) Steady(workers int, pause time.Duration, next func(n int) Act) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := w; ; n += workers {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				u.run(context.Background(), u.begin(next(n)))
			}
		})
	}
	return sync.OnceFunc(func() { close(done); wg.Wait() })
}
