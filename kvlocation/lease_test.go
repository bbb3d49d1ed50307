package kvlocation

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

func TestLeaseConfig(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  LeaseConfig
		want []string // all of it stands in the error; none: allowed
	}{
		{"defaults", LeaseConfig{RID: "n1"}, nil},
		{"short", LeaseConfig{RID: "n1", TTL: 2 * time.Second}, []string{"store attempt timeout 2s clashes with lease TTL 2s", "at most 1.333"}},
		{"RID", LeaseConfig{RID: "a b"}, []string{"RID", `"a b"`, "A-Z"}},
		{"fraction", LeaseConfig{RID: "n1", TTL: 4500 * time.Millisecond}, []string{"TTL 4.5s", "whole seconds", "2s", "5m0s"}},
		{"long", LeaseConfig{RID: "n1", TTL: time.Hour}, []string{"TTL 1h0m0s", "5m0s"}},
		{"margin", LeaseConfig{RID: "n1", Margin: 10 * time.Second}, []string{"margin 10s clashes with lease TTL 18s", "9s"}},
		{"renew", LeaseConfig{RID: "n1", Renew: 8 * time.Second}, []string{"renewal interval 8s clashes with lease TTL 18s less margin 3s", "from 100ms to 7.5s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.cfg.Validate(0)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func TestLeaseLives(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	ctx := testContext(t)
	l := p.acquire(t, steadyLease("n1"))
	if err := l.Admit(); err != nil {
		t.Fatal(err)
	}
	if _, bound, ok := l.Clock().Now(); !ok || bound > 5*time.Second {
		t.Fatalf("the clock knows %v, bound %v", ok, bound)
	}
	first, err := p.LeaseOf(ctx, "n1")
	if err != nil || !first.Live || first.Lifecycle != l.Lifecycle() || first.Generation != l.Generation() || first.TTL != DefaultTTL {
		t.Fatalf("lease %+v, %v", first, err)
	}
	fabrictest.Eventually(t, 20*time.Second, "two renewals", func() bool {
		st, err := p.LeaseOf(ctx, "n1")
		return err == nil && st.Revision >= first.Revision+2 && st.Lifecycle == l.Lifecycle() && st.Generation == l.Generation()
	})
	if err := l.Verify(ctx); err != nil {
		t.Fatal(err)
	}
	lctx := l.Context()
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	wantLapsed(t, l, lctx)
	if st, err := p.LeaseOf(ctx, "n1"); err != nil || st.Live || st.Revision == 0 {
		t.Fatalf("after the release: %+v, %v", st, err)
	}
	if _, open := <-l.Events(); open {
		t.Fatal("an event after Release")
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	// The successor need not wait, and has a later lifecycle.
	l2 := p.acquire(t, steadyLease("n1"))
	if l2.Lifecycle() <= l.Lifecycle() {
		t.Fatalf("lifecycle %d after %d", l2.Lifecycle(), l.Lifecycle())
	}
}

func TestAdmitCost(t *testing.T) {
	var l Lease
	l.deadline.Store(1<<63 - 1)
	if n := testing.AllocsPerRun(100, func() { _ = l.Admit() }); n != 0 {
		t.Errorf("%v allocations per admission", n)
	}
}

// A second process with the RID of a live one waits for the expiry, sees a renewal, and is refused.
func TestLeaseInUse(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	cfg := shortLease("n1")
	cfg.Host = "here"
	l := m.program("n1").acquire(t, cfg)
	waits := 0
	cfg.OnWait = func(w LeaseWait) {
		waits++
		if w.Holder.Lifecycle != l.Lifecycle() || w.Remaining > 4*time.Second {
			t.Errorf("told %+v", w)
		}
	}
	_, err := m.program("n1").AcquireLease(testContext(t), cfg)
	if !errors.Is(err, ErrRIDInUse) || !errors.Is(err, outcome.AlreadyExists) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("got %v", err)
	}
	for _, w := range []string{`"n1"`, "on host here", "since 2"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if waits == 0 {
		t.Error("nobody was told about the wait")
	}
	if err := l.Admit(); err != nil {
		t.Fatal(err)
	}
}

// Who begins while the store elects a leader, or is held up, asks again until its time is over.
func TestBeginningIsPatient(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	noLeader := fabrictest.JetStreamError(503, codeNotAvailable, "JetStream system temporarily unavailable")
	begin := func(f func()) {
		t.Helper()
		for _, action := range []fabrictest.Action{fabrictest.Drop, noLeader} {
			hit := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.info(), Action: action})
			f()
			hit.Wait(t)
		}
	}
	begin(func() {
		if err := p.ReadClock(testContext(t), NewClock(time.Second)); err != nil {
			t.Error(err)
		}
	})
	begin(func() { release(p.acquire(t, steadyLease("n1"))) })
	p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.info(), Times: -1, Action: noLeader})
	short, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel()
	if err := p.ReadClock(short, NewClock(time.Second)); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) {
		t.Error(err)
	}
}

// Who waits for less than what is left of another process run's lease hears that, and not that the store were at fault.
func TestLeaseMaxWait(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	cfg := LeaseConfig{RID: "n1", TTL: MaxTTL, Renew: 2 * time.Minute, Host: "here"}
	m.program("n1").acquire(t, cfg)
	cfg.MaxWait = time.Second
	_, err := m.program("n1").AcquireLease(testContext(t), cfg)
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.NotAccepted) ||
		!strings.Contains(err.Error(), "on host here may hold its lease for 4m") || !strings.Contains(err.Error(), "MaxWait 1s is over") {
		t.Fatal(err)
	}
}

// A lapse closes everything; the same process comes back with a new generation. The renewal of unknown result, sent
// again, is applied, but so late that the lease may be near its end on the store by what is known here: a write over it
// could be erased by its expiry, so that is waited for.
func TestLeaseLapseAndReturn(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	cfg := shortLease("n1")
	cfg.Margin = 2 * time.Second
	l := p.acquire(t, cfg)
	old, lctx := l.Generation(), l.Context()
	var expired atomic.Bool
	nc := connect(t, m.server())
	if _, err := nc.Subscribe(m.notice("lease.n1"), func(msg *nats.Msg) {
		if msg.Header.Get("Nats-Marker-Reason") != "" {
			expired.Store(true)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	lost := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.key("lease.n1"), Times: -1, Action: fabrictest.Drop})
	lost.Wait(t)
	sent := monotime.Now()
	if e := wantEvent(t, l, LeaseLapsed); e.Generation != old {
		t.Fatalf("generation %d lapsed, had %d", e.Generation, old)
	}
	wantLapsed(t, l, lctx)
	fabrictest.Eventually(t, readyIn, "the lost renewal's own deadline", func() bool { return monotime.Since(sent) > cfg.TTL-cfg.Margin })
	lost.Disarm()
	e := wantEvent(t, l, LeaseRegained)
	fabrictest.Eventually(t, 5*time.Second, "the old lease has expired before", expired.Load)
	if e.Generation <= old || l.Generation() != e.Generation {
		t.Fatalf("generation %d after %d", e.Generation, old)
	}
	if err := l.Admit(); err != nil {
		t.Fatal(err)
	}
	st, err := p.LeaseOf(testContext(t), "n1")
	if err != nil || st.Lifecycle != l.Lifecycle() || st.Generation != e.Generation {
		t.Fatalf("lease %+v, %v", st, err)
	}
	if l.Context().Err() != nil {
		t.Fatal("the new context is over")
	}
}

// A renewal that is acknowledged after the deadline opens nothing, even when the timer has not come round yet.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	p := newMesh(t).program("n1")
	l := p.acquire(t, steadyLease("n1"))
	lctx := l.Context()
	l.mu.Lock()
	l.timer.Stop()
	l.deadline.Store(int64(monotime.Now()) - 1)
	l.mu.Unlock()
	if l.renewed(l.Generation()+1, monotime.Now()) {
		t.Error("a late acknowledgement renewed the lease")
	}
	wantEvent(t, l, LeaseLapsed)
	wantLapsed(t, l, lctx)
	// By itself, with the next round: the lease is far from its end on the store, so that need not be waited for.
	lapsed := monotime.Now()
	wantEvent(t, l, LeaseRegained)
	if d := monotime.Since(lapsed); d > DefaultTTL-DefaultMargin {
		t.Errorf("came back after %v only", d)
	}
}
