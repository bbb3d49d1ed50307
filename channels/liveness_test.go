package channels_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// stateOf returns what a router knows of a peer.
func stateOf(n *node, rid string) channels.PeerState {
	for _, p := range n.Peers() {
		if p.RID == rid {
			return p.State
		}
	}
	return channels.PeerUnknown
}

// closeShowsAtOnceAndHalfOpenInTime leaves the server's pings at their defaults of minutes.
func closeShowsAtOnceAndHalfOpenInTime(t *testing.T) {
	t.Run("orderly close and a broken connection", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
		caller := startClient(t, srv.URL(), dir)
		m1 := startMember(t, srv.URL(), dir, "m1", 1)
		serve(t, m1, channels.Spec{Name: "c", Handler: l.handler("m1")})
		m2 := startMember(t, srv.URL(), dir, "m2", 1)
		serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2")})
		for _, rid := range []string{"m1", "m2"} {
			if _, err := caller.Channel("c").At(rid).Request(within(t, patience), nil); err != nil {
				t.Fatal(err)
			}
		}
		draining := member("m1", 1, "c")
		draining.State = kvlocation.StateDraining
		dir.put(draining)
		_, err := caller.Channel("c").At("m1").Request(within(t, patience), nil)
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)

		connected := srv.NATS().NumClients()
		m2.nc.Close()
		fabrictest.Eventually(t, patience, "the server sees the end of the connection", func() bool { return srv.NATS().NumClients() < connected })
		began := time.Now()
		_, err = caller.Channel("c").At("m2").Request(within(t, patience), nil)
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
		if took := time.Since(began); took > patience/4 || stateOf(caller, "m2") != channels.PeerGone {
			t.Errorf("after %v m2 is %v", took, stateOf(caller, "m2"))
		}
	})
	t.Run("half-open", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		proxy := srv.Proxy(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
		caller := startClient(t, srv.URL(), dir)
		serve(t, startMember(t, proxy.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
		s2 := serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "c", Handler: l.handler("m2")})
		ch := caller.Channel("c")

		proxy.Apply(fabrictest.HalfOpen)
		began := time.Now()
		// A request that falls into the hole begins the suspicion.
		go func() { _, _ = ch.At("m1").Request(within(t, patience), []byte("lost")) }()
		_, err := ch.At("m1").Request(within(t, patience), []byte("lost"))
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted) // the handshake failed
		done := make(chan struct{})
		for i := range 8 {
			go func() {
				_, _ = ch.Request(within(t, 3*time.Second), fmt.Append(nil, "probe-", i))
				done <- struct{}{}
			}()
		}
		fabrictest.Eventually(t, patience, "the half-open member is suspect", func() bool { return stateOf(caller, "m1") == channels.PeerSuspect })
		t.Logf("suspect after %v", time.Since(began))
		// From now on no request falls into the hole, though the server still counts the member in.
		for i := range 40 {
			reply, err := ch.Request(within(t, patience), fmt.Append(nil, "around-", i))
			if err != nil || string(reply.Data) != "m2" {
				t.Fatalf("reply %q, error %v", reply.Data, err)
			}
		}
		fabrictest.Eventually(t, patience, "it is not ready", func() bool { return stateOf(caller, "m1") == channels.PeerNotReady })
		t.Logf("not ready after %v", time.Since(began))
		for range 8 {
			receive(t, done, "the end of a request")
		}
		before := s2.Stats().Ran
		for i := range 40 {
			if _, err := ch.Request(within(t, patience), fmt.Append(nil, "still-", i)); err != nil {
				t.Fatal(err)
			}
		}
		if got := s2.Stats().Ran - before; got != 40 {
			t.Errorf("m2 ran %d of 40", got)
		}
		proxy.Heal()
		fabrictest.Eventually(t, patience, "any answer makes it ready", func() bool { return stateOf(caller, "m1") == channels.PeerReady })
		fabrictest.Eventually(t, patience, "it gets its share", func() bool {
			reply, err := ch.Request(within(t, patience), []byte("x"))
			return err == nil && string(reply.Data) == "m1"
		})
		if err := checkAccount(caller.Metrics().Calls["c"]); err != nil {
			t.Error(err)
		}
	})
}

// TestShortDeadlinesFindAFrozenMember: a caller all of whose deadlines are shorter than the time after which an
// unanswered request makes a probe still learns that a member is frozen, and goes around it.
func TestShortDeadlinesFindAFrozenMember(t *testing.T) {
	t.Parallel()
	srv := server(t)
	p := startProcess(t, srv.URL(), "m1")
	var l ledger
	dir := newDirectory(member("m1", processLifecycle, "work"), member("m2", 1, "work"))
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "work", Handler: l.handler("m2")})
	caller := startClient(t, srv.URL(), dir)
	p.Freeze(t)
	fabrictest.Eventually(t, patience, "the frozen member is suspect", func() bool {
		var tr channels.Trace
		_, err := caller.Channel("work").Request(within(t, 100*time.Millisecond), []byte("short"), channels.WithTrace(&tr))
		if err != nil && tr.Attempts > 0 && !errors.Is(err, outcome.Unknown) {
			t.Fatalf("a request that a frozen member may hold ended with %v", err)
		}
		return !selectable(stateOf(caller, "m1"))
	})
	for i := range 40 {
		if _, err := caller.Channel("work").Request(within(t, patience), fmt.Append(nil, "around-", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGhostInTheGroup: a subscription that nobody is behind sits in the queue group, as after a NATS server froze. The
// members answer every probe, so nobody is suspect; still callers go around the group after the first loss.
func TestGhostInTheGroup(t *testing.T) {
	t.Parallel()
	srv := server(t)
	var l ledger
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "c", Handler: l.handler("m2")})
	ghost := dial(t, srv.URL())
	if _, err := ghost.QueueSubscribe(mesh.Channel("c"), wire.QueueGroup, func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := ghost.Flush(); err != nil {
		t.Fatal(err)
	}
	caller := startClient(t, srv.URL(), dir)
	ch := caller.Channel("c")
	fabrictest.Eventually(t, patience, "a request vanishes", func() bool {
		_, err := ch.Request(within(t, 500*time.Millisecond), []byte("lost"))
		return errors.Is(err, outcome.Unknown)
	})
	fabrictest.Eventually(t, patience, "the channel goes around its group", func() bool { return caller.Metrics().Detours == 1 })
	watcher := dial(t, srv.URL())
	watch, err := watcher.SubscribeSync(mesh.Channel("c"))
	if err != nil {
		t.Fatal(err)
	}
	// watched returns how many requests have gone through the group's subject since it was asked first.
	watched := func() int {
		if err := watcher.Flush(); err != nil {
			t.Fatal(err)
		}
		n, _, err := watch.Pending()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	watched()
	for i := range 60 {
		if _, err := ch.Request(within(t, patience), fmt.Append(nil, "around-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if m := caller.Metrics(); m.Suspects != 0 || m.NotReady != 0 {
		t.Errorf("%d suspects, %d not ready: nobody is to blame", m.Suspects, m.NotReady)
	}

	// Once the ghost is gone, and the time of the detour up, requests go through the group again.
	if through := watched(); through != 0 {
		t.Errorf("%d requests went through the group during the detour", through)
	}
	ghost.Close()
	fabrictest.Eventually(t, patience, "the channel goes through its group again", func() bool {
		if _, err := ch.Request(within(t, patience), []byte("again")); err != nil {
			t.Fatal(err)
		}
		return watched() > 0
	})
}

func selectable(s channels.PeerState) bool {
	return s == channels.PeerUnknown || s == channels.PeerReady
}

// onePeersFailureTouchesNoOther freezes a real process.
func onePeersFailureTouchesNoOther(t *testing.T) {
	srv := server(t)
	p := startProcess(t, srv.URL(), "m1")
	var l ledger
	dir := newDirectory(member("m1", processLifecycle, "work"), member("m2", 1, "work", "other"), member("m3", 1, "own"))
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "work", Handler: l.handler("m2")})
	m3 := startMember(t, srv.URL(), dir, "m3", 1) // a caller that is a node and serves as well
	serve(t, m3, channels.Spec{Name: "own", Handler: l.handler("m3")})
	plain := startClient(t, srv.URL(), dir)

	p.Freeze(t)
	swallowed := make(chan error, 40) // so many that the frozen member gets one for certain
	for i := range cap(swallowed) {
		go func() {
			_, err := m3.Channel("work").Request(within(t, 3*time.Second), fmt.Append(nil, "swallowed-", i))
			swallowed <- err
		}()
	}
	until := time.Now().Add(6 * time.Second)
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for i := 0; time.Now().Before(until); i++ {
		began := time.Now()
		if _, err := m3.Channel("work").At("m2").Request(within(t, patience), fmt.Append(nil, "direct-", i)); err != nil {
			t.Fatalf("another peer, at second %v: %v", time.Since(until), err)
		}
		if _, err := plain.Channel("own").Request(within(t, patience), fmt.Append(nil, "own-", i)); err != nil {
			t.Fatalf("the caller's own channel: %v", err)
		}
		if took := time.Since(began); took > patience/10 {
			t.Errorf("a request to a live peer took %v", took)
		}
		<-pace.C
	}
	fabrictest.Eventually(t, patience, "the frozen member is not picked", func() bool { return stateOf(m3, "m1") >= channels.PeerSuspect })
	if got := stateOf(m3, "m2"); got != channels.PeerReady {
		t.Errorf("m2 is %v", got)
	}
	for range cap(swallowed) {
		if err := receive(t, swallowed, "the end of a request"); err != nil {
			wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
		}
	}
	for i := range 40 {
		if _, err := m3.Channel("work").Request(within(t, patience), fmt.Append(nil, "later-", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// suspectInHalfOpen starts m1 behind a proxy and m2 beside it, lets m1's bytes vanish, and returns once the caller
// suspects it.
func suspectInHalfOpen(t *testing.T, cfg channels.Config) (dir *directory, caller *node, proxy *fabrictest.Proxy) {
	t.Helper()
	srv := server(t)
	proxy = srv.Proxy(t)
	dir = newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	cfg.Directory = dir
	caller = start(t, srv.URL(), cfg)
	for rid, url := range map[string]string{"m1": proxy.URL(), "m2": srv.URL()} {
		serve(t, startMember(t, url, dir, rid, 1), channels.Spec{Name: "c", Handler: (&ledger{}).handler(rid)})
	}
	t.Cleanup(proxy.Heal) // before the members close, which would wait for the server
	proxy.Apply(fabrictest.HalfOpen)
	done := make(chan struct{})
	const many = 40 // so many that m1 gets one for certain
	for range many {
		go func() {
			_, _ = caller.Channel("c").Request(within(t, 3*time.Second), nil)
			done <- struct{}{}
		}()
	}
	for range many {
		receive(t, done, "the end of a request")
	}
	fabrictest.Eventually(t, patience, "suspicion", func() bool { return stateOf(caller, "m1") >= channels.PeerSuspect })
	return dir, caller, proxy
}

// TestForgottenMemberIsStillAvoided: a descriptor may go while the frozen process still sits in the queue group.
func TestForgottenMemberIsStillAvoided(t *testing.T) {
	t.Parallel()
	dir, caller, _ := suspectInHalfOpen(t, channels.Config{})
	dir.remove("m1")
	fabrictest.Eventually(t, patience, "the directory's change is seen", func() bool {
		for _, p := range caller.Peers() {
			if p.RID == "m1" {
				return !p.Listed
			}
		}
		t.Fatal("the peer is forgotten")
		return false
	})
	for range 40 {
		if reply, err := caller.Channel("c").Request(within(t, patience), nil); err != nil || string(reply.Data) != "m2" {
			t.Fatalf("reply %q, error %v", reply.Data, err)
		}
	}
}

// TestLeaseDecidesOnSuspicion: a suspect without a lease is not ready at once.
func TestLeaseDecidesOnSuspicion(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	_, caller, _ := suspectInHalfOpen(t, channels.Config{LeaseOf: func(_ context.Context, rid string) (kvlocation.LeaseState, error) {
		asked <- rid
		return kvlocation.LeaseState{RID: rid}, nil
	}})
	if rid := receive(t, asked, "the lease's reading"); rid != "m1" {
		t.Errorf("the lease of %s was read", rid)
	}
	fabrictest.Eventually(t, patience, "not ready", func() bool { return stateOf(caller, "m1") == channels.PeerNotReady })
	if m := caller.Metrics(); m.NotReady != 1 || m.Suspects != 1 {
		t.Errorf("%d suspects, %d not ready", m.Suspects, m.NotReady)
	}
}

// TestNobodyReadyIsUnavailable: no member is picked for want of a better one.
func TestNobodyReadyIsUnavailable(t *testing.T) {
	t.Parallel()
	dir, caller, proxy := suspectInHalfOpen(t, channels.Config{})
	dir.remove("m2")
	began := time.Now()
	fabrictest.Eventually(t, patience, "no member is ready", func() bool {
		_, err := caller.Channel("c").Request(within(t, patience), nil)
		return err != nil && errors.Is(err, outcome.Unavailable) && errors.Is(err, outcome.NotAccepted)
	})
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	proxy.Heal()
	fabrictest.Eventually(t, patience, "it is picked again", func() bool {
		_, err := caller.Channel("c").Request(within(t, patience), nil)
		return err == nil
	})
}

// TestAskedAgainWhileAMemberIsReady: a member that is ready but not yet in the queue group is waited for.
func TestAskedAgainWhileAMemberIsReady(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	m1 := startMember(t, srv.URL(), dir, "m1", 1)
	ended := make(chan error, 1)
	var tr channels.Trace
	go func() {
		_, err := caller.Channel("c").Request(within(t, patience), nil, channels.WithTrace(&tr))
		ended <- err
	}()
	fabrictest.Eventually(t, patience, "nothing takes it", func() bool { return caller.Metrics().Calls["c"].NoResponders > 2 })
	serve(t, m1, channels.Spec{Name: "c", Handler: echo})
	if err := receive(t, ended, "the end of the request"); err != nil || tr.NoResponders < 3 {
		t.Errorf("%+v, %v", tr, err)
	}
}
