package channels_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// lostConnectionIsNotResubmitted cuts the caller's connection exactly around one message.
func lostConnectionIsNotResubmitted(t *testing.T) {
	for _, c := range []struct {
		name   string
		action fabrictest.Action
		answer bool
		ran    int
	}{
		{"before the server has it", fabrictest.CutBefore, false, 0},
		{"after the server has it", fabrictest.CutAfter, false, 1},
		{"before the answer", fabrictest.CutBefore, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := server(t)
			proxy := srv.Proxy(t)
			var l ledger
			dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
			release := make(chan struct{}) // the answer waits for the cut, unless it is what is cut
			if c.answer {
				close(release)
			}
			for _, rid := range []string{"m1", "m2"} {
				serve(t, startMember(t, srv.URL(), dir, rid, 1), channels.Spec{Name: "c", Handler: block(&l, rid, release)})
			}
			caller := startClient(t, proxy.URL(), dir)
			cut := proxy.Arm(fabrictest.Trigger{Subject: channelSubject("c"), Answer: c.answer, Action: c.action})
			began := time.Now()
			_, err := caller.Channel("c").Request(within(t, patience), []byte("x"))
			if !c.answer {
				close(release)
			}
			wantErr(t, err, outcome.Unavailable, outcome.Unknown)
			if took := time.Since(began); took > patience/2 {
				t.Errorf("it ended after %v: not at once", took)
			}
			cut.Wait(t)
			fabrictest.Eventually(t, patience, "the connection is back", func() bool { return caller.Epoch() == 2 })
			if _, err := caller.Channel("c").Request(within(t, patience), []byte("y")); err != nil {
				t.Fatal(err)
			}
			fabrictest.Eventually(t, patience, fmt.Sprintf("it has run %d times", c.ran), func() bool { return len(l.of("x")) == c.ran })
			if err := l.checkOnceAndTrue([]end{{"x", err}, {"y", nil}}); err != nil {
				t.Error(err)
			}
			if err := checkAccount(caller.Metrics().Calls["c"]); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("accepted after a notice", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		proxy := srv.Proxy(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		release := make(chan struct{})
		defer close(release)
		serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: block(&l, "m1", release)})
		caller := startClient(t, proxy.URL(), dir)
		notice := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.t.client.>", Action: fabrictest.CutAfter})
		_, err := caller.Channel("c").Request(within(t, patience), []byte("x"), channels.WithEarlyAcceptance())
		wantErr(t, err, outcome.Unavailable, outcome.Accepted)
		notice.Wait(t)
	})
	t.Run("not sent while disconnected", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		proxy := srv.Proxy(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
		caller := startClient(t, proxy.URL(), dir)
		proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
		fabrictest.Eventually(t, patience, "the connection is lost", func() bool { return caller.Epoch() == 0 })
		_, err := caller.Channel("c").Request(within(t, patience), []byte("x"))
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
		wantErr(t, caller.Channel("c").Send(within(t, patience), []byte("x")), outcome.Unavailable, outcome.NotAccepted)
		wantErr(t, caller.Channel("c").SendUnconfirmed(within(t, patience), []byte("x")), outcome.Unavailable, outcome.NotAccepted)
		proxy.Heal()
		fabrictest.Eventually(t, patience, "the connection is back", func() bool { return caller.Epoch() == 2 })
		if _, err := caller.Channel("c").Request(within(t, patience), []byte("y")); err != nil {
			t.Fatal(err)
		}
		if ran := l.of("x"); len(ran) != 0 {
			t.Errorf("what was refused while disconnected went out later: %v", ran)
		}
	})
}

// reconnectBeginsAnew holds an answer back over a reconnect of its caller.
func reconnectBeginsAnew(t *testing.T) {
	srv := server(t)
	proxy := srv.Proxy(t)
	var l ledger
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	release := make(chan struct{})
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: block(&l, "m1", release)})
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "c", Handler: l.handler("m2")})
	var routes struct { // the reply subjects that the caller subscribed
		mu   sync.Mutex
		seen map[string]bool
	}
	routes.seen = make(map[string]bool)
	proxy.Arm(fabrictest.Trigger{Verb: "SUB", Subject: "fab.t.client.>", Times: -1, Action: fabrictest.Signal, Match: func(m fabrictest.Message) bool {
		routes.mu.Lock()
		defer routes.mu.Unlock()
		routes.seen[m.Subject] = true
		return true
	}})
	caller := startClient(t, proxy.URL(), dir)
	ch := caller.Channel("c")

	peer := func(rid string) channels.PeerState {
		for _, p := range caller.Peers() {
			if p.RID == rid {
				return p.State
			}
		}
		return channels.PeerUnknown
	}
	if _, err := ch.At("m2").Request(within(t, patience), []byte("greets m2")); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.At("m2").Request(within(t, patience), []byte("greeted")); err != nil {
		t.Fatal(err)
	}
	if got := caller.Metrics().Hellos; got == 0 || peer("m2") != channels.PeerReady {
		t.Fatalf("%d hellos, and m2 is %v", got, peer("m2"))
	}

	ended := make(chan error, 1)
	go func() {
		_, err := ch.At("m1").Request(within(t, patience), []byte("held"))
		ended <- err
	}()
	fabrictest.Eventually(t, patience, "the request runs", func() bool { return len(l.of("held")) == 1 })
	proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	wantErr(t, receive(t, ended, "the end of the request"), outcome.Unavailable, outcome.Unknown)
	fabrictest.Eventually(t, patience, "the connection is lost", func() bool { return caller.Epoch() == 0 })
	proxy.Heal()
	fabrictest.Eventually(t, patience, "a new epoch", func() bool { return caller.Epoch() == 2 })
	if got := peer("m2"); got != channels.PeerUnknown {
		t.Errorf("after the reconnect m2 is %v before any hello", got)
	}

	// The late answer arrives, on the old route, and changes nothing. The server has to know that route again first.
	if err := caller.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	close(release)
	fabrictest.Eventually(t, patience, "the late answer is counted", func() bool {
		if n := caller.Epoch(); n != 2 {
			t.Fatalf("the epoch is %d: the connection was lost once more", n)
		}
		return caller.Metrics().StaleReplies > 0
	})
	hellos := caller.Metrics().Hellos
	if _, err := ch.At("m2").Request(within(t, patience), []byte("greets m2 anew")); err != nil {
		t.Fatal(err)
	}
	if caller.Metrics().Hellos == hellos {
		t.Error("no hello before the first direct request of the new epoch")
	}
	routes.mu.Lock()
	defer routes.mu.Unlock()
	if len(routes.seen) != 2 {
		t.Errorf("reply subjects of two epochs: %v", routes.seen)
	}
	if err := checkAccount(caller.Metrics().Calls["c"]); err != nil {
		t.Error(err)
	}
}

// oneTerminalResult lets replies, timeouts, cancellations and a shutdown race.
func oneTerminalResult(t *testing.T) {
	t.Run("reply against timeout and cancellation", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		s := serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
			l.note(string(req.Data()), "m1")
			<-time.After(time.Millisecond) // about as long as the callers' patience
			return channels.Reply{Data: req.Data()}, nil
		}})
		caller := startClient(t, srv.URL(), dir)
		var mu sync.Mutex
		var ends []end
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := range 60 {
					id := fmt.Sprintf("%d-%d", g, i)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%6)*time.Millisecond+500*time.Microsecond)
					if i%3 == 0 {
						time.AfterFunc(2*time.Millisecond, cancel)
					}
					reply, err := caller.Channel("c").Request(ctx, []byte(id))
					cancel()
					if err == nil && string(reply.Data) != id {
						t.Errorf("%s got the reply of %s", id, reply.Data)
					}
					mu.Lock()
					ends = append(ends, end{id, err})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		fabrictest.Eventually(t, patience, "the member is idle", func() bool { st := s.Stats(); return st.Queued == 0 && st.Running == 0 })
		if err := l.checkOnceAndTrue(ends); err != nil {
			t.Error(err)
		}
		m := caller.Metrics()
		if err := checkAccount(m.Calls["c"]); err != nil {
			t.Error(err)
		}
		if m.Waiting != 0 {
			t.Errorf("%d attempts wait after all have ended", m.Waiting)
		}
		// Each answer of the member is somebody's result or counted as late.
		fabrictest.Eventually(t, patience, "every late reply is counted", func() bool {
			m, st := caller.Metrics(), s.Stats()
			answers := m.Calls["c"].Succeeded + m.LateReplies
			for _, by := range m.Calls["c"].Failed {
				answers += by[outcome.Accepted]
			}
			return answers == st.Replied+st.ErrorReplies
		})
	})
	t.Run("shutdown", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		release := make(chan struct{})
		defer close(release)
		serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: block(&l, "m1", release)})
		caller := startClient(t, srv.URL(), dir)
		ended := make(chan error, 1)
		go func() {
			_, err := caller.Channel("c").Request(within(t, patience), []byte("x"))
			ended <- err
		}()
		fabrictest.Eventually(t, patience, "the request runs", func() bool { return len(l.of("x")) == 1 })
		if err := caller.Close(within(t, patience)); err != nil {
			t.Fatal(err)
		}
		wantErr(t, receive(t, ended, "the end of the request"), outcome.ShuttingDown, outcome.Unknown)
		_, err := caller.Channel("c").Request(within(t, patience), []byte("y"))
		wantErr(t, err, outcome.ShuttingDown, outcome.NotAccepted)
	})
	t.Run("before anything is sent", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		caller := startClient(t, srv.URL(), newDirectory(member("m1", 1, "c")))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := caller.Channel("c").Request(ctx, nil)
		wantErr(t, err, outcome.DeadlineExceeded, outcome.NotAccepted)
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestDrainOverAReconnectSwallowsNothing loses the connection while a subscription drains. nats.go announces it to the
// new server and then forgets it, and what that server sends to it would vanish.
func TestDrainOverAReconnectSwallowsNothing(t *testing.T) {
	t.Parallel()
	srv := server(t)
	proxy := srv.Proxy(t)
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	var l ledger
	var m1 *node
	m1 = start(t, proxy.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, ReplaceConnection: func(string) {
		go func() { _ = m1.nc.ForceReconnect() }()
	}})
	if err := m1.SetServing(true); err != nil {
		t.Fatal(err)
	}
	s1 := serve(t, m1, channels.Spec{Name: "c", Weight: 8, Handler: l.handler("m1")})
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "c", Handler: l.handler("m2")})
	caller := startClient(t, srv.URL(), dir)

	leave := proxy.Arm(fabrictest.Trigger{Verb: "UNSUB", Action: fabrictest.Signal})
	silent := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Verb: "PONG", Times: -1, Action: fabrictest.Drop})
	left := make(chan error, 1)
	go func() { left <- s1.SetWeight(within(t, patience), 0) }()
	leave.Wait(t)
	silent.Wait(t)
	silent.Disarm()
	proxy.Apply(fabrictest.Cut)
	if err := receive(t, left, "the end of SetWeight"); err != nil {
		wantErr(t, err, outcome.Unavailable, outcome.Unknown)
	}
	fabrictest.Eventually(t, patience, "the connection is back", func() bool { return m1.Epoch() >= 2 })
	fabrictest.Eventually(t, patience, "all goes to the other", func() bool {
		for i := range 20 {
			reply, err := caller.Channel("c").Request(within(t, 2*time.Second), fmt.Append(nil, i))
			if err != nil || string(reply.Data) != "m2" {
				return false
			}
		}
		return true
	})
	if got := s1.Stats(); got.Subscriptions != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := caller.Channel("c").At("m1").Request(within(t, patience), []byte("direct")); err != nil {
		t.Errorf("direct: %v", err)
	}
}
