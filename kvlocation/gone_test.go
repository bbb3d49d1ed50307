package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

func TestProvablyGone(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	admin := m.program("admin")
	ctx := testContext(t)
	h := m.holder(t, "n1")

	// While it lives.
	_, err := admin.ProvablyGone(ctx, "n1", h.lifecycle, GoneConfig{})
	if !errors.Is(err, ErrNodeAlive) || !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("proof against a live node: %v", err)
	}
	wantText(t, err, "until 2", "at most")
	if _, err := admin.ConfirmAbsent(ctx, "n1", h.lifecycle); !errors.Is(err, ErrNodeAlive) {
		t.Fatalf("absence of a live node: %v", err)
	}

	// Frozen: its key is taken, and one full TTL waited for. Thawed meanwhile, it stays closed and says who is there.
	h.waitTurn(t)
	h.Freeze(t)
	frozen := time.Now()
	fabrictest.Eventually(t, readyIn, "the lease expires", func() bool {
		_, err := admin.ConfirmAbsent(ctx, "n1", h.lifecycle)
		return err == nil
	})
	type result struct {
		proof GoneProof
		err   error
	}
	proven := make(chan result, 1)
	started := monotime.Now()
	go func() {
		p, err := admin.ProvablyGone(ctx, "n1", h.lifecycle, GoneConfig{By: "the test", TTL: 4 * time.Second})
		proven <- result{p, err}
	}()
	fabrictest.Eventually(t, readyIn, "the key is taken", func() bool {
		st, err := admin.LeaseOf(ctx, "n1")
		return err == nil && st.Proof == "the test" && !st.Live
	})
	h.Thaw(t)
	if _, err := m.program("other").ProvablyGone(ctx, "n1", h.lifecycle, GoneConfig{}); !errors.Is(err, outcome.Unavailable) {
		t.Errorf("a second proof at once: %v", err)
	}
	h.WaitOutput(t, "event lapsed")
	r := <-proven
	if r.err != nil {
		t.Fatal(r.err)
	}
	if d := monotime.Since(started); d < 4*time.Second {
		t.Errorf("proven after %v", d)
	}
	for _, d := range readDeeds(t, h.file) {
		if d.verb == "admit" && d.at.After(frozen) && d.generation == h.generation {
			t.Error("admitted under the old generation")
		}
	}
	// The process comes back under a new generation, which the proof does not cover.
	h.WaitOutput(t, "event regained")
	st, err := admin.LeaseOf(ctx, "n1")
	if err != nil || st.Lifecycle != h.lifecycle {
		t.Fatalf("lease %+v, %v", st, err)
	}
	if !r.proof.Covers("n1", h.lifecycle, h.generation) {
		t.Error("the proof does not cover what it was made for")
	}
	for _, bad := range []bool{
		r.proof.Covers("n1", h.lifecycle, st.Generation), r.proof.Covers("n2", h.lifecycle, h.generation),
		r.proof.Covers("n1", h.lifecycle+1, h.generation), GoneProof{}.Covers("", 0, 0),
	} {
		if bad {
			t.Error("the proof covers what it must not")
		}
	}
}

// A later run of the same RID is proof as well, after one full TTL.
func TestProvablyGoneByLaterRun(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	ctx := testContext(t)
	old := p.acquire(t, shortLease("n1"))
	p.publish(t, old, StateServing)
	if err := old.Release(ctx); err != nil {
		t.Fatal(err)
	}
	l := p.acquire(t, shortLease("n1"))
	started := monotime.Now()
	proof, err := m.program("admin").ProvablyGone(ctx, "n1", old.Lifecycle(), GoneConfig{TTL: time.Second})
	if err != nil || !proof.Covers("n1", old.Lifecycle(), old.Generation()) {
		t.Fatalf("%+v, %v", proof, err)
	}
	if d := monotime.Since(started); d < 4*time.Second {
		t.Errorf("proven after %v, the lease's TTL is 4 s", d)
	}
	if err := l.Admit(); err != nil {
		t.Errorf("the living run was disturbed: %v", err)
	}
}

// TestProvablyGoneWait shows what one full TTL of a process run is, from what the store says about it.
func TestProvablyGoneWait(t *testing.T) {
	t.Parallel()
	desc := func(lifecycle uint64, ttl time.Duration) *storedMsg {
		return &storedMsg{key: "desc.n1", value: fmt.Appendf(nil, `{"v":1,"rid":"n1","lifecycle":%d,"lease_ttl_ms":%d}`, lifecycle, ttl.Milliseconds())}
	}
	for _, c := range []struct {
		name  string
		cfg   time.Duration
		lease time.Duration // of a later run
		desc  *storedMsg
		want  time.Duration
	}{
		{"nothing is known", 0, 0, nil, DefaultTTL},
		{"its own descriptor", 0, 0, desc(5, 4*time.Second), 4 * time.Second},
		{"its own descriptor, long", 0, 0, desc(5, time.Minute), time.Minute},
		{"a later run's descriptor", 0, 4 * time.Second, desc(9, 4*time.Second), DefaultTTL},
		{"a later run's descriptor, long", 0, time.Minute, desc(9, time.Minute), time.Minute},
		{"a descriptor without a TTL", 0, 0, desc(5, 0), DefaultTTL},
		{"the caller knows", 6 * time.Second, 0, nil, 6 * time.Second},
		{"the caller knows less than the descriptor", 3 * time.Second, 0, desc(9, 4*time.Second), 4 * time.Second},
		{"absurdly short", 0, 0, desc(5, time.Millisecond), MinTTL},
		{"absurdly long", 0, 0, desc(5, 100*time.Hour), MaxTTL},
	} {
		if got := (GoneConfig{TTL: c.cfg}).wait(5, LeaseState{TTL: c.lease}, c.desc); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Whoever gives up leaves nothing behind but a key that is free again.
func TestProvablyGoneCancelled(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	admin := m.program("admin")
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := admin.ProvablyGone(ctx, "n1", 1, GoneConfig{})
		done <- err
	}()
	fabrictest.Eventually(t, readyIn, "the key is taken", func() bool {
		st, err := admin.LeaseOf(testContext(t), "n1")
		return err == nil && st.Proof == "admin"
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("got %v", err)
	}
	if st, err := admin.LeaseOf(testContext(t), "n1"); err != nil || st.held() {
		t.Fatalf("lease %+v, %v", st, err)
	}
	// A key that is lost while waiting is no proof.
	go func() {
		_, err := admin.ProvablyGone(testContext(t), "n1", 1, GoneConfig{TTL: 2 * time.Second})
		done <- err
	}()
	var rev uint64
	fabrictest.Eventually(t, readyIn, "the key is taken", func() bool {
		st, err := admin.LeaseOf(testContext(t), "n1")
		rev = st.Revision
		return err == nil && st.Proof == "admin"
	})
	w := admin.leaseWrite("n1", leaseValue{V: 1, RID: "n1", TTLMillis: 2000}, "x", rev, 2*time.Second)
	if _, err := m.program("n1").write(testContext(t), w); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, outcome.Unavailable) {
		t.Fatalf("got %v", err)
	}
	for _, cfg := range []GoneConfig{{TTL: -1}, {TTL: time.Hour}} {
		_, err := admin.ProvablyGone(testContext(t), "n1", 1, cfg)
		wantText(t, err, cfg.TTL.String(), MaxTTL.String())
	}
}
