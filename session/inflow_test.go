package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/session/internal/frame"
)

// sink is a client that keeps its frames.
type sink struct {
	mu     sync.Mutex
	frames []got
	err    error
}

func (s *sink) kind() Transport { return TransportWebSocket }
func (s *sink) most() int       { return 0 }
func (s *sink) close(*ending)   {}
func (s *sink) cut()            {}
func (s *sink) send(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, payload, err := frame.Parse(data)
	if err != nil {
		return err
	}
	s.frames = append(s.frames, got{h, string(payload)})
	return s.err
}

func (s *sink) seqs() (out []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frames {
		if f.Type == frame.Push {
			out = append(out, f.Seq)
		}
	}
	return out
}

// looseTie is a tie of a session that no connection is behind. Frames are carried at once.
func looseTie(tune func(*Config)) (*tie, *sink) {
	cfg := Config{Authenticate: letIn, GapWait: time.Minute}
	if tune != nil {
		tune(&cfg)
	}
	if err := cfg.Tune(); err != nil {
		panic(err)
	}
	s := &Service{cfg: cfg, log: cfg.Logger, sessions: map[string]*session{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	to := &sink{}
	c := &session{s: s, ties: map[string]*tie{}}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.out = outbound{to: to, start: func(f func()) bool { f(); return true }, failed: func(error) {}, most: cfg.Outbound, bytes: cfg.OutboundBytes, slow: cfg.Slow, stats: &s.stats}
	t := &tie{c: c, ref: objects.ActorRef{ID: "a", Generation: 1}, token: "tok", state: tieOpen}
	t.in.next = 1
	c.ties["tok"] = t
	return t, to
}

func open(t *tie) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.openLocked()
}

// TestPushOrder: however pushes come, late, twice and in batches, the client gets each once and in order.
func TestPushOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		tie, to := looseTie(nil)
		n := rapid.IntRange(1, 60).Draw(rt, "pushes")
		move := rapid.IntRange(0, n).Draw(rt, "moved after")
		owner := func(seq uint64) uint64 {
			if int(seq) > move {
				return 2
			}
			return 1
		}
		if rapid.Bool().Draw(rt, "comes before the bind's answer") {
			tie.state = tieOpening
		}
		missing := map[uint64]bool{}
		for i := range n {
			missing[uint64(i+1)] = true
		}
		for len(missing) > 0 {
			var batch []push
			for range rapid.IntRange(1, 5).Draw(rt, "batch") {
				seq := rapid.Uint64Range(1, uint64(n)).Draw(rt, "seq")
				batch = append(batch, push{seq, owner(seq), fmt.Append(nil, seq)})
				delete(missing, seq)
			}
			if v := tie.pushed(batch); v != pushTaken {
				rt.Fatalf("verdict %d", v)
			}
			if tie.state == tieOpening && len(missing) < n/2 {
				open(tie)
			}
		}
		open(tie)
		tie.c.mu.Lock()
		tie.in.calm()
		tie.c.mu.Unlock()
		got := to.seqs()
		if len(got) != n {
			rt.Fatalf("%d pushes came as %v", n, got)
		}
		for i, seq := range got {
			if seq != uint64(i+1) {
				rt.Fatalf("%v", got)
			}
		}
		if tie.in.bytes != 0 || len(tie.in.wait) != 0 {
			rt.Fatalf("%+v", tie.in)
		}
	})
}

// TestPushGap: what is missing is waited for, and then given up; it changes nothing when it comes later. The end of the
// binding waits for the pushes before it in the same way.
func TestPushGap(t *testing.T) {
	t.Parallel()
	tie, to := looseTie(func(c *Config) { c.GapWait = 50 * time.Millisecond })
	tie.pushed([]push{{1, 1, nil}, {3, 1, nil}, {4, 2, nil}, {6, 2, nil}})
	if got := fmt.Sprint(to.seqs()); got != "[1]" {
		t.Fatal(got)
	}
	fabrictest.Eventually(t, long, "both gaps are given up", func() bool { return fmt.Sprint(to.seqs()) == "[1 3 4 6]" })
	tie.pushed([]push{{2, 1, nil}, {5, 2, nil}, {7, 1, nil}}) // the last one is of an owner that is none any more
	if got := fmt.Sprint(to.seqs()); got != "[1 3 4 6]" {
		t.Fatal(got)
	}
	tie.ends(&notice{Kind: noticeEnded, Last: 8, Why: ReasonClosed})
	tie.pushed([]push{{7, 2, nil}})
	fabrictest.Eventually(t, long, "the end", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		last := to.frames[len(to.frames)-1]
		return last.Type == frame.Ended && last.Why == string(ReasonClosed)
	})
	if got := fmt.Sprint(to.seqs()); got != "[1 3 4 6 7]" {
		t.Fatal(got)
	}
	if v := tie.pushed([]push{{8, 2, nil}}); v != pushOver {
		t.Fatal(v)
	}
	if st := &tie.c.s.stats; st.gaps.Load() != 3 || st.pushesStale.Load() != 3 {
		t.Fatal(st.gaps.Load(), st.pushesStale.Load())
	}
}

// TestEndBeforePushes: the word of the end overtakes the last pushes.
func TestEndBeforePushes(t *testing.T) {
	t.Parallel()
	tie, to := looseTie(nil)
	tie.ends(&notice{Kind: noticeEnded, Last: 2, Why: ReasonClosed})
	tie.pushed([]push{{1, 1, nil}, {2, 1, nil}})
	if n := len(to.frames); n != 3 || to.frames[2].Type != frame.Ended || tie.state != tieOver {
		t.Fatal(to.frames)
	}
}

// TestPushBounds: what waits for a missing push is bounded; beyond that the Actor's node sends again, and the missing one
// still gets through.
func TestPushBounds(t *testing.T) {
	t.Parallel()
	tie, to := looseTie(func(c *Config) { c.Outbound = 4 })
	for seq := uint64(2); seq <= 5; seq++ {
		if v := tie.pushed([]push{{seq, 1, nil}}); v != pushTaken {
			t.Fatal(seq, v)
		}
	}
	if v := tie.pushed([]push{{6, 1, nil}}); v != pushFull {
		t.Fatal(v)
	}
	if v := tie.pushed([]push{{1, 1, nil}, {6, 1, nil}}); v != pushTaken {
		t.Fatal(v)
	}
	if got := fmt.Sprint(to.seqs()); got != "[1 2 3 4 5 6]" {
		t.Fatal(got)
	}
}

// TestOutbound: the bounds hold under every policy, answers are never dropped, and order is kept.
func TestOutbound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		policy := SlowPolicy(rapid.IntRange(0, 2).Draw(rt, "policy"))
		to := &sink{}
		var carry func()
		var stats counters
		o := outbound{to: to, start: func(f func()) bool { carry = f; return true }, failed: func(error) {}, most: 5, bytes: 400, slow: policy, stats: &stats}
		var answers, pushes uint64
		closed := false
		for range rapid.IntRange(1, 60).Draw(rt, "frames") {
			isPush := rapid.Bool().Draw(rt, "push")
			size := rapid.IntRange(0, 150).Draw(rt, "size")
			h := frame.Header{Type: frame.OK, ID: answers + 1}
			if isPush {
				h = frame.Header{Type: frame.Push, Seq: pushes + 1}
			}
			if !o.put(frame.Make(&h, make([]byte, size)), isPush) {
				closed = true
				break
			}
			if isPush {
				pushes++
			} else {
				answers++
			}
			if n, bytes := o.waiting(); n > 5 || bytes > 400 && n > 1 {
				rt.Fatalf("%d frames of %d bytes wait", n, bytes)
			}
			if carry != nil && rapid.IntRange(0, 9).Draw(rt, "the client reads") == 0 {
				f := carry
				carry = nil
				f()
			}
		}
		if closed {
			return
		}
		if carry != nil {
			carry()
		}
		var gotAnswers, gotPushes, last uint64
		for _, f := range to.frames {
			if f.Type == frame.OK {
				if gotAnswers++; f.ID != gotAnswers {
					rt.Fatalf("answer %d as the %dth", f.ID, gotAnswers)
				}
				continue
			}
			gotPushes++
			if f.Seq <= last {
				rt.Fatalf("push %d after %d", f.Seq, last)
			}
			last = f.Seq
		}
		dropped := stats.pushesDropped.Load()
		if gotAnswers != answers || gotPushes+dropped != pushes || policy == CloseSlow && dropped > 0 {
			rt.Fatalf("%d of %d answers, %d of %d pushes, %d dropped", gotAnswers, answers, gotPushes, pushes, dropped)
		}
	})
}

// TestOutboundBroken: a frame that cannot be carried ends the session once.
func TestOutboundBroken(t *testing.T) {
	t.Parallel()
	failed := 0
	to := &sink{err: errors.New("broken")}
	var stats counters
	o := outbound{to: to, start: func(f func()) bool { f(); return true }, most: 5, bytes: 400, stats: &stats}
	o.failed = func(error) { failed++; o.end(endLost) }
	for range 3 {
		if !o.put([]byte("{\"t\":\"ok\"}\n"), false) {
			t.Fatal("no room")
		}
	}
	if failed != 1 {
		t.Fatal(failed)
	}
}

// TestSlowPolicies: which push is dropped when there is no room, and that an answer takes the place of the oldest push.
func TestSlowPolicies(t *testing.T) {
	t.Parallel()
	for policy, want := range map[SlowPolicy]string{CloseSlow: "[1 2 3]", DropNewest: "[2 3]", DropOldest: "[3 4]"} {
		to := &sink{}
		var carry func()
		var stats counters
		o := outbound{to: to, start: func(f func()) bool { carry = f; return true }, failed: func(error) {}, most: 3, bytes: 1000, slow: policy, stats: &stats}
		for seq := uint64(1); seq <= 4; seq++ {
			if ok := o.put(frame.Make(&frame.Header{Type: frame.Push, Seq: seq}, nil), true); ok != (policy != CloseSlow || seq < 4) {
				t.Fatalf("%v: push %d: %v", policy, seq, ok)
			}
		}
		if ok := o.put(frame.Make(&frame.Header{Type: frame.OK, ID: 1}, nil), false); ok != (policy != CloseSlow) {
			t.Fatalf("%v: the answer: %v", policy, ok)
		}
		carry()
		if got := fmt.Sprint(to.seqs()); got != want {
			t.Errorf("%v: %s were carried, want %s", policy, got, want)
		}
	}
}
