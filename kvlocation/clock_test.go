package kvlocation

import (
	"regexp"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
)

// observe feeds a measurement made just now with the given round trip, of a store whose clock is ahead by skew.
func observe(c *Clock, trip, skew time.Duration) {
	received := monotime.Now()
	c.Observe(received.Add(-trip), received, time.Now().Add(skew-trip/2))
}

func TestClockUnknown(t *testing.T) {
	c := NewClock(time.Second)
	if _, _, ok := c.Now(); ok {
		t.Error("an unmeasured clock tells the time")
	}
	if c.Past(time.Unix(0, 0)) {
		t.Error("an unmeasured clock judges a deadline")
	}
	if _, ok := c.Skew(); ok {
		t.Error("an unmeasured clock tells its skew")
	}
}

func TestClockBound(t *testing.T) {
	c := NewClock(time.Minute)
	observe(c, 2*time.Second, 0)
	now, bound, ok := c.Now()
	if !ok || bound < time.Second || bound > 1100*time.Millisecond {
		t.Fatalf("bound %v, ok %v", bound, ok)
	}
	if d := time.Until(now).Abs(); d > 100*time.Millisecond {
		t.Errorf("off by %v", d)
	}
	if c.Past(time.Now().Add(-500 * time.Millisecond)) {
		t.Error("a deadline within the bound is judged past")
	}
	if !c.Past(time.Now().Add(-2 * time.Second)) {
		t.Error("a deadline outside the bound is not judged past")
	}
	// A better measurement replaces it, a worse one does not.
	observe(c, 20*time.Millisecond, 0)
	if _, bound, _ := c.Now(); bound > 100*time.Millisecond {
		t.Errorf("bound %v after a better measurement", bound)
	}
	observe(c, time.Second, 0)
	if _, bound, _ := c.Now(); bound > 100*time.Millisecond {
		t.Errorf("bound %v after a worse measurement", bound)
	}
	if c.Jumps() != 0 {
		t.Errorf("%d jumps", c.Jumps())
	}
}

// After a jump forward a deadline is past only when the old reading says so too; after the TTL the new one counts.
func TestClockJump(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, then time.Duration
		leniently   time.Duration // ahead of our clock by the more lenient reading
		eventually  time.Duration // by the one that counts after the TTL
	}{
		{"forward", 0, time.Hour, 0, time.Hour},
		{"back", time.Hour, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, ttl := range []time.Duration{time.Minute, 0} {
				k := NewClock(ttl)
				observe(k, 10*time.Millisecond, c.first)
				observe(k, 10*time.Millisecond, c.then)
				if k.Jumps() != 1 {
					t.Fatalf("%d jumps", k.Jumps())
				}
				ahead := c.leniently
				if ttl == 0 {
					ahead = c.eventually
				}
				now := time.Now()
				if k.Past(now.Add(ahead + time.Second)) {
					t.Errorf("TTL %v: a deadline 1 s ahead is judged past", ttl)
				}
				if !k.Past(now.Add(ahead - time.Second)) {
					t.Errorf("TTL %v: a deadline 1 s ago is not judged past", ttl)
				}
			}
		})
	}
}

// Two jumps within one TTL: the most lenient of all readings still holds.
func TestClockTwoJumps(t *testing.T) {
	k := NewClock(time.Minute)
	observe(k, 10*time.Millisecond, 0)
	observe(k, 10*time.Millisecond, time.Hour)
	observe(k, 10*time.Millisecond, 2*time.Hour)
	if k.Past(time.Now().Add(time.Second)) {
		t.Error("judged by a later reading than the most lenient one")
	}
}

func TestClockSkew(t *testing.T) {
	c := NewClock(time.Minute)
	observe(c, 10*time.Millisecond, -3*time.Second)
	if s, ok := c.Skew(); !ok || s > -2900*time.Millisecond || s < -3100*time.Millisecond {
		t.Errorf("skew %v", s)
	}
}

func TestClockCost(t *testing.T) {
	c := NewClock(time.Minute)
	observe(c, time.Millisecond, 0)
	deadline := time.Now()
	if n := testing.AllocsPerRun(100, func() { c.Now(); c.Past(deadline) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The leader's clock is 5 s ahead from some moment on: deadlines are judged leniently, and the skew is logged once.
func TestClockOfAnotherLeader(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	proxy := fabrictest.NewProxy(t, m.server())
	core, logs := observer.New(zap.WarnLevel)
	s := openStore(t, connect(t, proxy.URL()), Config{Mesh: "m", RID: "n1", AttemptTimeout: time.Second, Logger: zap.New(core)})
	l := program{Store: s}.acquire(t, steadyLease("n1"))
	stamp := regexp.MustCompile(`"ts":"([^"]+)"`)
	proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.info(), Answer: true, Times: -1,
		Action: fabrictest.Replace(func(msg fabrictest.Message) fabrictest.Message {
			at, err := time.Parse(time.RFC3339Nano, string(stamp.FindSubmatch(msg.Payload)[1]))
			if err != nil {
				t.Error(err)
			}
			msg.Payload = stamp.ReplaceAll(msg.Payload, []byte(at.Add(5*time.Second).Format(`"ts":"`+time.RFC3339Nano+`"`)))
			return msg
		})})
	fabrictest.Eventually(t, readyIn, "the skew is known", func() bool { skew, _ := l.Clock().Skew(); return skew > 3*time.Second })
	if l.Clock().Past(time.Now().Add(2 * time.Second)) {
		t.Error("judged by the new reading alone")
	}
	acked := l.acked.Load().revision
	fabrictest.Eventually(t, readyIn, "more measurements", func() bool { return l.acked.Load().revision > acked+3 })
	if n := logs.FilterMessageSnippet("clock differs").Len(); n != 1 {
		t.Errorf("the skew was logged %d times", n)
	}
}
