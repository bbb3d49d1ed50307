package objects

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/outcome"
)

// newLanes is newHost with so many lanes, whatever the machine.
func newLanes(t *testing.T, most, lanes int, types ...Type) *host {
	h := newHost(t, most, types...)
	h.rt.sched = newScheduler(h.rt, most, lanes)
	return h
}

// objectIn makes an object that stands in the lane.
func (h *host) objectIn(t *testing.T, l *lane, id string, inst Object) *object {
	t.Helper()
	for h.rt.sched.of[uint8(h.rt.nextShard.Load()+1)] != l {
		h.rt.nextShard.Add(1)
	}
	o := h.object(t, id, inst)
	if h.rt.sched.of[o.shard] != l {
		t.Fatal("the object stands in another lane")
	}
	return o
}

// Turns that block are all in one lane: it takes its share and the whole reserve, and each other lane still has its own share.
// A worker that was borrowed goes back when it is not needed, to whichever lane waits for one.
func TestLanesShareTheReserve(t *testing.T) {
	t.Parallel()
	const most = 512
	h := newLanes(t, most, 4, Type{Name: "t"})
	lanes := h.rt.sched.lanes
	a, b := lanes[0], lanes[1]
	all := a.share + int(h.rt.sched.reserve.Load()) // of lane a
	if want := most - (len(lanes)-1)*b.share; all != want {
		t.Fatalf("a lane may have %d workers, want %d", all, want)
	}
	gate, one := make(chan struct{}), make(chan struct{})
	block := handle(func(_ context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "one" {
			<-one
			return Reply{}, nil
		}
		<-gate
		return Reply{}, nil
	})
	running := func(n int) {
		t.Helper()
		eventually(t, func() error {
			if c := h.counts(); c.Running != n {
				return fmt.Errorf("%d turns run, want %d", c.Running, n)
			}
			return nil
		})
	}
	for i := range all {
		data := ""
		if i == 0 {
			data = "one"
		}
		if err := h.send(h.objectIn(t, a, "a"+strconv.Itoa(i), block), data); err != nil {
			t.Fatal(err)
		}
	}
	running(all)
	late := h.objectIn(t, a, "late", echo)
	wantOutcome(t, h.late(context.Background(), late, "", 20*time.Millisecond), outcome.DeadlineExceeded, outcome.Accepted)
	for i := range b.share {
		if err := h.send(h.objectIn(t, b, "b"+strconv.Itoa(i), block), ""); err != nil {
			t.Fatal(err)
		}
	}
	running(all + b.share)
	waits := h.objectIn(t, b, "waits", block)
	if err := h.send(waits, ""); err != nil {
		t.Fatal(err)
	}
	if s := h.rt.snapshot(); s.Workers != all+b.share || s.Queued != 2 {
		t.Fatalf("%d workers, %d objects wait", s.Workers, s.Queued)
	}
	close(one) // its worker finds the late object, whose caller has left, and is then given back
	waitRunning(t, waits)
	if s := h.rt.snapshot(); s.Workers != all+b.share || s.Queued != 0 {
		t.Errorf("%d workers, %d objects wait", s.Workers, s.Queued)
	}
	close(gate)
	eventually(t, func() error {
		s, left := h.rt.snapshot(), int(h.rt.sched.reserve.Load())
		if s.Workers > maxIdleWorkers || s.Queued != 0 || left != all-a.share {
			return fmt.Errorf("%d workers are left, %d objects wait, %d workers are in the reserve", s.Workers, s.Queued, left)
		}
		return nil
	})
}

// A node that stops waits for what goes from lane to lane: at no moment does every lane look quiet before it has come to its end.
func TestDrainFollowsFromLaneToLane(t *testing.T) {
	t.Parallel()
	for range 300 {
		h := newLanes(t, 1_000, 4, Type{Name: "t"})
		const hops = 16 // a chain may be no longer
		var ran atomic.Int64
		lanes := h.rt.sched.lanes
		objects := make([]*object, len(lanes))
		for i, l := range lanes {
			objects[i] = h.objectIn(t, l, strconv.Itoa(i), handle(func(ctx context.Context, _ *Request) (Reply, error) {
				if n := ran.Add(1); n < hops {
					_, err := h.rt.request(ctx, objects[int(n)%len(objects)], opSend, nil, nil, true)
					return Reply{}, err
				}
				return Reply{}, nil
			}))
		}
		if err := h.send(objects[0], ""); err != nil {
			t.Fatal(err)
		}
		if err := h.rt.drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := ran.Load(); n != hops {
			t.Fatalf("drained after %d turns of %d", n, hops)
		}
	}
}
