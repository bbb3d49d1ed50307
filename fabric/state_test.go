package fabric

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"natsfabric/kvlocation"
)

// TestHostStateTable writes down the whole life cycle once more, as a table, so that a change of the transition
// function has to be meant.
func TestHostStateTable(t *testing.T) {
	const (
		p, s, d = kvlocation.StatePreparing, kvlocation.StateServing, kvlocation.StateDraining
		r, m    = kvlocation.StateRelocating, kvlocation.StateRelocated
		x, e    = kvlocation.StateStopped, kvlocation.StateError
		no      = kvlocation.NodeState("")
	)
	want := map[kvlocation.NodeState][9]kvlocation.NodeState{
		//  verified doubt relocate blocked in doubt relocated shutdown stopped fatal
		p: {s, p, no, no, no, no, d, no, e},
		s: {s, p, r, no, no, no, d, no, e},
		r: {r, r, no, s, p, m, d, no, e},
		m: {m, m, no, no, no, no, d, no, e},
		d: {d, d, no, d, d, d, d, x, e},
		x: {x, x, x, x, x, x, x, x, x},
		e: {e, e, e, e, e, e, e, e, e},
	}
	for from, row := range want {
		for i, to := range row {
			got, err := next(from, event(i))
			if to == no {
				if err == nil || !strings.Contains(err.Error(), string(from)) || !strings.Contains(err.Error(), event(i).String()) {
					t.Errorf("%s + %s = %s, %v: want an error naming both", from, event(i), got, err)
				}
				if got != from {
					t.Errorf("%s + %s moved to %s although it is not allowed", from, event(i), got)
				}
				continue
			}
			if err != nil || got != to {
				t.Errorf("%s + %s = %s, %v: want %s", from, event(i), got, err, to)
			}
		}
	}
}

// TestStateObserver: a slow observer loses the oldest changes, never the last one, and its channel ends with the
// terminal state.
func TestStateObserver(t *testing.T) {
	c := newStateCell()
	w := c.watch(t.Context())
	for range observerBuffer {
		c.apply(evVerified, "v", nil)
		c.apply(evDoubt, "d", nil)
	}
	c.apply(evShutdown, "end", nil)
	c.apply(evStopped, "end", nil)
	var got []StateChange
	for ch := range w {
		got = append(got, ch)
	}
	if len(got) != observerBuffer {
		t.Fatalf("observer saw %d changes, want the last %d", len(got), observerBuffer)
	}
	if last := got[len(got)-1]; last.To != kvlocation.StateStopped || last.From != kvlocation.StateDraining {
		t.Fatalf("last change is %s -> %s, want Draining -> Stopped", last.From, last.To)
	}
	for i := 1; i < len(got); i++ {
		if got[i].From != got[i-1].To {
			t.Fatalf("change %d starts at %s, the one before ended at %s", i, got[i].From, got[i-1].To)
		}
	}
	if _, open := <-c.watch(t.Context()); open {
		t.Fatal("an observer that comes after the end got a change")
	}
}

// TestHangingHostIsUnhealthy: nobody handles events.
func TestHangingHostIsUnhealthy(t *testing.T) {
	n := &Node{state: newStateCell(), events: make(chan hostEvent), stopped: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := n.Healthy(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a node whose host goroutine hangs: %v", err)
	}
}
