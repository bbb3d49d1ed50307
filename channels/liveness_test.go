package channels_test

import (
	"fmt"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabrictest"
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
	swallowed := make(chan error, 8)
	for i := range cap(swallowed) {
		go func() {
			_, err := m3.Channel("work").Request(within(t, 3*time.Second), fmt.Append(nil, "swallowed-", i))
			swallowed <- err
		}()
	}
	until := time.Now().Add(6 * time.Second)
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
		time.Sleep(5 * time.Millisecond)
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
