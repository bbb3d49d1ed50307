package bench

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// sink keeps what the allocating operation of a test makes.
var sink atomic.Pointer[[64]byte]

func TestMeasure(t *testing.T) {
	var r recorder
	var n atomic.Int64
	s, err := r.measure(t.Context(), 3, 20*time.Millisecond, work{op: func(int) error {
		n.Add(1)
		sink.Store(new([64]byte))
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s[Throughput] <= 0 || s[P99] < s[P50] || s[Allocs] < 0.9 {
		t.Errorf("%d operations of one allocation each: %v", n.Load(), s)
	}
	if _, ok := s[Delivered]; ok {
		t.Error("delivered was not measured, but is reported")
	}
}

func TestMeasureUntimed(t *testing.T) {
	var r recorder
	var n int64
	flushed := false
	s, err := r.measure(t.Context(), 1, 10*time.Millisecond, work{
		op:    func(int) error { n++; return nil },
		flush: func(context.Context) error { flushed = true; return nil },
		settle: func(_ context.Context, sent int64) (int64, time.Time, error) {
			if sent != n {
				t.Errorf("told %d operations, %d ran", sent, n)
			}
			return sent / 2, time.Now(), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !flushed {
		t.Error("flush was not called")
	}
	if s[Delivered] <= 0 || s[Delivered] > s[Throughput] {
		t.Errorf("half of what was sent arrived: %v", s)
	}
	if _, ok := s[P50]; ok {
		t.Error("single operations were not timed, but a p50 is reported")
	}
}

func TestMeasureFailure(t *testing.T) {
	var r recorder
	why := errors.New("refused")
	_, err := r.measure(t.Context(), 2, time.Second, work{op: func(c int) error {
		if c == 1 {
			return why
		}
		return nil
	}})
	if !errors.Is(err, why) || !strings.Contains(err.Error(), "caller 1") {
		t.Errorf("a slice with a failed operation: %v", err)
	}
}

func TestMeasurePaced(t *testing.T) {
	var r recorder
	slow := make(chan struct{}, 1)
	slow <- struct{}{}
	s, err := r.measure(t.Context(), 1, 60*time.Millisecond, work{every: time.Millisecond, op: func(int) error {
		select {
		case <-slow: // one stall
			<-time.After(30 * time.Millisecond)
		default:
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s[Throughput] > 1100 {
		t.Errorf("more operations than the pace has: %v", s)
	}
	// What the stall delayed is late, too: without that the median would be next to nothing.
	if s[Longest] < 30_000 || s[P50] < 1000 {
		t.Errorf("a stall of 30 ms in 60 is not seen in the operations after it: %v", s)
	}
}

func TestMeasurePairs(t *testing.T) {
	var r recorder
	s, err := r.measure(t.Context(), 2, 500*time.Millisecond, work{pairs: true, op: func(c int) error {
		if c == 1 {
			<-time.After(20 * time.Millisecond)
		} else {
			<-time.After(time.Millisecond)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if f := s[Fairness]; f <= 0 || f > 0.7 {
		t.Errorf("one of two pairs gets a small share: fairness %v", f)
	}
}

func TestLoad(t *testing.T) {
	l := startLoad(2, work{op: func(int) error { return nil }})
	if n, err := l.stop(); n < 0 || err != nil {
		t.Errorf("%v, %v", n, err)
	}
	why := errors.New("refused")
	l = startLoad(2, work{op: func(int) error { return why }})
	l.wg.Wait()
	if _, err := l.stop(); !errors.Is(err, why) {
		t.Errorf("a load that failed: %v", err)
	}
}

func TestPlainActor(t *testing.T) {
	p, answer := newPlainActor(), make(chan []byte, 1)
	p.mail <- plainMessage{data: []byte("sent")}
	p.mail <- plainMessage{[]byte("asked"), answer}
	if got := string(<-answer); got != "asked" {
		t.Errorf("it answers %q", got)
	}
	p.close()
	if n := p.turns.Load(); n != 2 {
		t.Errorf("%d turns", n)
	}
}

func TestCounterAwait(t *testing.T) {
	c := &counter{reached: make(chan struct{}, 1)}
	_, _ = c.Handle(t.Context(), nil)
	c.await(1) // it was before
	for turn := int64(2); turn <= 1000; turn++ {
		go func() { _, _ = c.Handle(t.Context(), nil) }()
		c.await(turn)
		if n := c.turns.Load(); n != turn {
			t.Fatalf("turn %d was awaited, and there were %d", turn, n)
		}
	}
}
