package objects

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/outcome"
)

// One hot object among 1,000 others, and one worker: between two turns of any other object the hot one has its budget
// at most. It is counted in turns, so the machine's speed does not matter.
func TestHotObjectStarvesNobody(t *testing.T) {
	t.Parallel()
	const others = 1000
	h := newHost(t, 1, Type{Name: "t", Mailbox: 100_000})
	var hot, turns atomic.Int64
	gate := make(chan struct{})
	ho := h.object(t, "hot", handle(func(_ context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "block" {
			<-gate
		}
		hot.Add(1)
		return Reply{}, nil
	}))
	if err := h.send(ho, "block"); err != nil {
		t.Fatal(err)
	}
	for range 20_000 {
		if err := h.send(ho, ""); err != nil {
			t.Fatal(err)
		}
	}
	waitRunning(t, ho)
	done := make(chan struct{})
	for i := range others {
		o := h.object(t, strconv.Itoa(i), handle(func(context.Context, *Request) (Reply, error) {
			if turns.Add(1) == others {
				if n := hot.Load(); n > 2*turnBudget {
					t.Errorf("the hot object had %d turns before every other object had one", n)
				}
				close(done)
			}
			return Reply{}, nil
		}))
		if err := h.send(o, ""); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	within(t, done, "the last of the others")
	eventually(t, func() error {
		if n := hot.Load(); n != 20_001 {
			return fmt.Errorf("%d turns of the hot object", n)
		}
		return nil
	})
}

// Handlers that block keep their own workers: as many as may run at once. Then objects wait for a worker, which the
// metrics show, and callers are held no longer than their deadlines.
func TestBlockedHandlers(t *testing.T) {
	t.Parallel()
	const most = 10_000
	h := newHost(t, most, Type{Name: "t"})
	gate := make(chan struct{})
	block := handle(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{}, nil })
	for i := range most {
		if err := h.send(h.object(t, strconv.Itoa(i), block), ""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if c := h.counts(); c.Running != most {
			return fmt.Errorf("%d turns run", c.Running)
		}
		return nil
	})
	one := h.object(t, "one more", echo)
	err := h.late(context.Background(), one, "", 20*time.Millisecond)
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	if s := h.rt.snapshot(); s.Queued != 1 || s.Workers != most || s.Types[0].Oldest <= 0 {
		t.Errorf("%d objects wait for %d workers, the oldest turn runs for %v", s.Queued, s.Workers, s.Types[0].Oldest)
	}
	last := make(chan error, 1)
	go func() { _, err := h.request(context.Background(), one, ""); last <- err }()
	close(gate)
	if err := within(t, last, "the object that waited for a worker"); err != nil {
		t.Error(err)
	}
	eventually(t, func() error { // workers that are not needed end
		if s := h.rt.snapshot(); s.Workers > maxIdleWorkers || s.Queued != 0 {
			return fmt.Errorf("%d workers are left, %d objects wait", s.Workers, s.Queued)
		}
		return nil
	})
}

// A turn that has run for long counts as blocked.
func TestBlockedIsVisible(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	gate := make(chan struct{})
	o := h.object(t, "o", handle(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{}, nil }))
	if err := h.send(o, ""); err != nil {
		t.Fatal(err)
	}
	waitRunning(t, o)
	if c := h.counts(); c.Running != 1 || c.Blocked != 0 {
		t.Errorf("counted %+v", c)
	}
	o.since.Add(-int64(BlockedAfter)) // as if it had begun so long ago
	if c := h.counts(); c.Blocked != 1 || c.Oldest < BlockedAfter {
		t.Errorf("counted %+v", c)
	}
	close(gate)
}

// An idle object has no goroutine, and its mailbox and timers hold nothing.
func TestIdleObjectCostsNoGoroutine(t *testing.T) {
	h := newHost(t, 1000, Type{Name: "t"})
	before := goruntime.NumGoroutine()
	for i := range 5_000 {
		o := h.object(t, strconv.Itoa(i), echo)
		if _, err := h.request(context.Background(), o, "x"); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.busy || o.box != (mailbox{}) || o.timers != nil || o.turn.req.mail != &nothing {
				return errors.New("an idle object holds on to something")
			}
			return nil
		})
	}
	eventually(t, func() error {
		if n := goruntime.NumGoroutine() - before; n > maxIdleWorkers {
			return fmt.Errorf("%d goroutines more", n)
		}
		return nil
	})
}

// Everything at once, for the race detector: senders, callers who leave, timers, closes and lapses. In the end what was
// accepted ran or ended by a stated cause, and every caller heard once (I3, I5).
func TestEverythingIsAccountedFor(t *testing.T) {
	t.Parallel()
	h := newHost(t, 8, Type{Name: "t", Mailbox: 8, OnPanic: DestroyOnPanic})
	const objects, callers = 20, 8
	var current [objects]atomic.Pointer[object]
	var made atomic.Int64
	handler := handle(func(ctx context.Context, req *Request) (Reply, error) {
		switch n := len(req.Data()); {
		case n == 1:
			panic("destroyed")
		case n == 2:
			_ = req.Self().SetTimer("x", time.Millisecond, nil)
		case n == 3:
			ctx.Done()
		case n == 4:
			req.Self().Close()
		}
		return Reply{Data: req.Data()}, nil
	})
	create := func(i int) *object {
		reg := h.rt.order[0]
		if h.rt.reserve(reg) != nil {
			t.Error("no slot")
		}
		o := h.rt.newObject(reg, fmt.Sprintf("%d-%d", i, made.Add(1)))
		h.rt.insert(o)
		current[i].Store(o)
		o.open(handler, 1, 1, h.lease.Load(), nil)
		return o
	}
	for i := range objects {
		create(i)
	}
	var wg sync.WaitGroup
	var ends, accepted atomic.Int64
	stop := make(chan struct{})
	for c := range callers {
		wg.Go(func() {
			for n := c; n < 3000; n++ {
				i := n * 7 % objects
				o := current[i].Load()
				data := make([]byte, []int{5, 2, 6, 3, 7, 5, 5, 0}[n%8])
				if n%97 == 0 {
					data = make([]byte, 1+3*(n%2))
				}
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if n%5 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(n%50)*time.Microsecond)
				}
				r, err := h.rt.request(ctx, o, []string{opRequest, opSend}[n%3%2], data, nil, n%3%2 == 1)
				cancel()
				ends.Add(1)
				if err == nil && n%3%2 == 0 && len(r.Data) != len(data) {
					t.Errorf("another's answer: %d bytes for %d", len(r.Data), len(data))
				}
				if err == nil || errors.Is(err, outcome.Accepted) {
					accepted.Add(1)
				}
				if errors.Is(err, outcome.Unknown) {
					t.Errorf("nothing is unknown in one process: %v", err)
				}
				if err != nil && h.rt.find(o.reg.kind, o.id) == nil && current[i].Load() == o {
					create(i)
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.lapse()
				goruntime.Gosched()
				h.regain()
				h.rt.snapshot()
			}
		}
	})
	go func() {
		for ends.Load() < callers*2900 {
			goruntime.Gosched()
		}
		close(stop)
	}()
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if err := h.rt.drain(ctx); err != nil {
		t.Fatal(err)
	}
	if c := h.counts(); c.Accepted != uint64(accepted.Load()) || c.Accepted != c.Run+c.Expired+c.Dropped {
		t.Errorf("callers heard %d acceptances; counted %+v", accepted.Load(), c)
	}
}
