package objects

import (
	"context"
	goruntime "runtime"
	"runtime/debug"
	"testing"
	"time"

	"natsfabric/outcome"
)

// underRace reports whether the race detector is in this program: pools then lose things on purpose.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "-race" {
				return s.Value == "true"
			}
		}
	}
	return false
}

// A request and a send within the process, turn included, allocate nothing.
func TestLocalAllocations(t *testing.T) {
	if underRace() {
		t.Skip("the race detector makes pools lose things; `make test` runs this a second time without it")
	}
	h := newHost(t, 10, Type{Name: "t"})
	o := h.object(t, "o", echo)
	data := []byte("0123456789abcdef")
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for _, c := range []struct {
		name  string
		ctx   context.Context
		sends int // before the request, which waits for their turns
	}{{"request", context.Background(), 0}, {"request with a deadline", ctx, 0}, {"send", context.Background(), 16}} {
		least := 100.0
		for range 5 { // other tests' goroutines may end meanwhile, and the collector empties pools
			least = min(least, testing.AllocsPerRun(500, func() {
				for range c.sends {
					if _, err := h.rt.request(c.ctx, o, opSend, data, nil, true); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := h.rt.request(c.ctx, o, opRequest, data, nil, false); err != nil {
					t.Fatal(err)
				}
				for n, _ := o.waiting(); n > 16; n, _ = o.waiting() { // a sender that is far ahead is no steady state
					goruntime.Gosched()
				}
			}))
		}
		if least != 0 {
			t.Errorf("a %s allocates %v times", c.name, least)
		}
	}
}

// The alarm of a waiter that has been used before goes off for its present use, however long the one before was.
func TestAlarmIsUsedAgain(t *testing.T) {
	t.Parallel()
	w := &waiter{done: make(chan struct{}, 1)}
	use := func(timeout time.Duration) {
		w.deadline.Store(int64(tick().add(timeout)))
		w.arm()
	}
	use(time.Hour)
	w.clear()
	use(10 * time.Millisecond) // earlier than the alarm is set for
	within(t, w.done, "the nudge at the earlier deadline")
	w.clear()
	use(10 * time.Millisecond)
	w.clear()
	use(40 * time.Millisecond) // the alarm goes off too early, and is set again
	within(t, w.done, "a nudge")
	for !w.overdue() { // that was the earlier use's, which lasted too long
		within(t, w.done, "the nudge at the later deadline")
	}
	w.clear()
	use(time.Millisecond)
	w.clear() // nobody waits any more
	use(time.Hour)
	w.alarm.Stop()
}

// What is full, or stops, is said otherwise to a caller elsewhere than to one in this process; all of it is NotAccepted.
func TestErrorsOfRefusals(t *testing.T) {
	t.Parallel()
	for because, want := range map[why][2]outcome.Kind{ // to callers here, elsewhere
		whyFull:     {outcome.CapacityExceeded, outcome.Unavailable},
		whyTooLarge: {outcome.CapacityExceeded, outcome.CapacityExceeded},
		whyClosed:   {outcome.Unavailable, outcome.Unavailable},
		whyLapsed:   {outcome.Unavailable, outcome.Unavailable},
		whyDraining: {outcome.ShuttingDown, outcome.Unavailable},
		whyPast:     {outcome.DeadlineExceeded, outcome.DeadlineExceeded},
	} {
		for i, remote := range []bool{false, true} {
			if err := because.refusal(opRequest, `actor "a"`, remote); err.Kind != want[i] || err.Acceptance != outcome.NotAccepted || err.Detail == "" {
				t.Errorf("%d, remote %v: %v", because, remote, err)
			}
		}
	}
}
