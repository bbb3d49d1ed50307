package channels_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestConformance holds one test per rule, named by the rule's ID. They look at what a user sees: replies, errors with
// kind and acceptance, the list of what each member ran, and the counters.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		id   string
		test func(*testing.T)
	}{
		{"FO-2.1", selectsAnotherUntilAccepted},
		{"FO-2.2", namedNodeIsKept},
		{"FO-2.3", acceptedRunsNowhereElse},
		{"FO-2.4", unknownRunsNowhereElse},
		{"FO-2.5", oneTerminalResult},
		{"FO-3.1a", candidates},
		{"FO-3.1b", refusalSelectsAgainUntilDeadline},
		{"FO-3.1c", nodeDirectNeverReselects},
		{"FO-3.2a", closeShowsAtOnceAndHalfOpenInTime},
		{"FO-3.2b", onePeersFailureTouchesNoOther},
		{"FO-3.2c", reconnectBeginsAnew},
		{"FO-3.2d", lostConnectionIsNotResubmitted},
		{"FO-8", errorsSayKindAndAcceptance},
		{"FO-10.1", selectsAnotherUntilAccepted},
		{"FO-10.2", namedNodeIsKept},
		{"FO-10.3", unknownRunsNowhereElse},
		{"FO-10.4", onePeersFailureTouchesNoOther},
		{"FO-10.5", reconnectBeginsAnew},
		{"CA-3", selectOneIsAQueueGroup},
	} {
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			c.test(t)
		})
	}
}

// block is a handler that notes what it runs and waits for release.
func block(l *ledger, rid string, release <-chan struct{}) channels.Handler {
	h := l.handler(rid)
	return func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
		reply, err := h(ctx, req)
		<-release
		return reply, err
	}
}

// full starts a member whose one worker and one place in the queue are taken until the test ends.
func full(t *testing.T, url string, dir *directory, l *ledger, rid string, caller *node) *channels.Server {
	t.Helper()
	n := startMember(t, url, dir, rid, 1)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	s := serve(t, n, channels.Spec{Name: "c", Queue: 1, Workers: 1, Handler: block(l, rid, release)})
	// Both places are filled directly, the worker's first.
	for i := range 2 {
		if err := caller.Channel("c").At(rid).Send(within(t, patience), fmt.Appendf(nil, "fill-%s-%d", rid, i)); err != nil {
			t.Fatalf("filling %s: %v", rid, err)
		}
		if i == 0 {
			fabrictest.Eventually(t, patience, "the worker is busy", func() bool { return s.Stats().Running == 1 && s.Stats().Queued == 0 })
		}
	}
	return s
}

func selectsAnotherUntilAccepted(t *testing.T) {
	srv := server(t)
	var l ledger
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	s1 := full(t, srv.URL(), dir, &l, "m1", caller)
	m2 := startMember(t, srv.URL(), dir, "m2", 1)
	s2 := serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2")})

	var ends []end
	reselected := 0
	for i := range 60 {
		id := fmt.Sprint("op-", i)
		var tr channels.Trace
		reply, err := caller.Channel("c").Request(within(t, patience), []byte(id), channels.WithTrace(&tr))
		if err != nil || string(reply.Data) != "m2" {
			t.Fatalf("%s: reply %q, error %v; want m2's", id, reply.Data, err)
		}
		reselected += tr.Reselected
		ends = append(ends, end{id, err})
	}
	if reselected == 0 || s1.Stats().RefusedFull == 0 {
		t.Fatalf("60 requests never met the full member: reselected %d, refused there %d", reselected, s1.Stats().RefusedFull)
	}
	if got := caller.Metrics().Calls["c"].Reselected; got != uint64(reselected) {
		t.Errorf("the metric says %d reselections, the traces %d", got, reselected)
	}
	for _, check := range []error{
		l.checkOnceAndTrue(ends), checkAccount(caller.Metrics().Calls["c"]), checkServed(s2.Stats()),
	} {
		if check != nil {
			t.Error(check)
		}
	}

	// The other attempts stand within the same deadline: with every member full, it ends the operation.
	if err := s2.Drain(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	dir.put(member("m2", 1))
	if took, _ := refusedByAll(t, caller, "late", 300*time.Millisecond); took < 250*time.Millisecond || took > patience/2 {
		t.Errorf("ended after %v, the deadline was 300ms", took)
	}
	if ran := l.of("late"); len(ran) != 0 {
		t.Errorf("a refused request ran at %v", ran)
	}
}

// refusedByAll sends requests that last for d each until one ends between two attempts, which says that every member refused; what
// becomes of an attempt that is on its way at the deadline is not known.
func refusedByAll(t *testing.T, caller *node, data string, d time.Duration) (took time.Duration, tr channels.Trace) {
	t.Helper()
	fabrictest.Eventually(t, patience, "a request of which all is known", func() bool {
		tr = channels.Trace{}
		began := time.Now()
		_, err := caller.Channel("c").Request(within(t, d), []byte(data), channels.WithTrace(&tr))
		took = time.Since(began)
		if errors.Is(err, outcome.Unknown) || tr.Attempts < 3 {
			return false // a busy machine
		}
		if e := wantErr(t, err, outcome.Unavailable, outcome.NotAccepted); !strings.Contains(e.Error(), "all servers full") {
			t.Errorf("after %d attempts: %v", tr.Attempts, e)
		}
		return true
	})
	return took, tr
}

func refusalSelectsAgainUntilDeadline(t *testing.T) {
	t.Run("all servers full", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
		caller := startClient(t, srv.URL(), dir)
		full(t, srv.URL(), dir, &l, "m1", caller)
		full(t, srv.URL(), dir, &l, "m2", caller)
		refusedByAll(t, caller, "x", 400*time.Millisecond)
		if ran := l.of("x"); len(ran) != 0 {
			t.Errorf("a refused request ran at %v", ran)
		}
	})
	t.Run("until one accepts", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		caller := startClient(t, srv.URL(), dir)
		m1 := startMember(t, srv.URL(), dir, "m1", 1)
		release := make(chan struct{})
		s := serve(t, m1, channels.Spec{Name: "c", Queue: 1, Workers: 1, Handler: block(&l, "m1", release)})
		done := make(chan error, 3)
		for i := range 3 {
			go func() {
				_, err := caller.Channel("c").Request(within(t, patience), fmt.Append(nil, i))
				done <- err
			}()
		}
		fabrictest.Eventually(t, patience, "one of three is refused", func() bool { return s.Stats().RefusedFull > 2 })
		close(release)
		for range 3 {
			if err := receive(t, done, "the end of a request"); err != nil {
				t.Errorf("a request that was refused at first: %v", err)
			}
		}
		if got := s.Stats(); got.Ran != 3 {
			t.Errorf("ran %d, want 3", got.Ran)
		}
	})
	t.Run("a named refuser hands it back", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"))
		m1 := startMember(t, srv.URL(), dir, "m1", 1)
		s := serve(t, m1, channels.Spec{Name: "c", Handler: l.handler("m1")})
		plain := dial(t, srv.URL())
		reply, err := plain.RequestMsg(&nats.Msg{Subject: channelSubject("c"), Header: nats.Header{"Fabric-Refused": {"m0,m1"}}, Data: []byte("x")}, patience)
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, outcome.FromHeaders(reply.Header, "", ""), outcome.Unavailable, outcome.NotAccepted)
		if s.Stats().RefusedNamed != 1 || len(l.of("x")) != 0 {
			t.Errorf("stats %+v, ran %v", s.Stats(), l.of("x"))
		}
	})
	t.Run("never after acceptance", func(t *testing.T) {
		t.Parallel()
		acceptedRunsNowhereElse(t)
	})
}

func namedNodeIsKept(t *testing.T) {
	srv := server(t)
	var l ledger
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	full(t, srv.URL(), dir, &l, "m1", caller)
	m2 := startMember(t, srv.URL(), dir, "m2", 1)
	s2 := serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2")})
	for i := range 20 {
		var tr channels.Trace
		_, err := caller.Channel("c").At("m1").Request(within(t, patience), fmt.Append(nil, "op-", i), channels.WithTrace(&tr))
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
		if tr.Attempts != 1 || tr.Reselected != 0 {
			t.Fatalf("trace %+v, want one attempt", tr)
		}
	}
	wantErr(t, caller.Channel("c").At("m1").Send(within(t, patience), []byte("s")), outcome.Unavailable, outcome.NotAccepted)
	if got := s2.Stats(); got.Received != 0 {
		t.Errorf("the node that was not named received %d", got.Received)
	}
	reply, err := caller.Channel("c").At("m2").Request(within(t, patience), []byte("to m2"))
	if err != nil || string(reply.Data) != "m2" {
		t.Errorf("reply %q, error %v", reply.Data, err)
	}
}

func acceptedRunsNowhereElse(t *testing.T) {
	srv := server(t)
	var l ledger
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	release := make(chan struct{})
	defer close(release)
	for _, rid := range []string{"m1", "m2"} {
		serve(t, startMember(t, srv.URL(), dir, rid, 1), channels.Spec{Name: "c", Handler: block(&l, rid, release)})
	}
	ch := caller.Channel("c")
	var ends []end

	var tr channels.Trace
	_, err := ch.Request(within(t, 2*time.Second), []byte("early"), channels.WithEarlyAcceptance(), channels.WithTrace(&tr))
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	if !tr.Noticed || tr.Attempts != 1 {
		t.Errorf("trace %+v", tr)
	}
	ends = append(ends, end{"early", err})

	_, err = ch.Request(within(t, time.Second), []byte("plain"))
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	ends = append(ends, end{"plain", err})

	ctx, cancel := context.WithCancel(context.Background())
	cancelled := make(chan error, 1)
	go func() {
		_, err := ch.Request(ctx, []byte("cancelled"))
		cancelled <- err
	}()
	fabrictest.Eventually(t, patience, "it runs", func() bool { return len(l.of("cancelled")) == 1 })
	cancel()
	err = receive(t, cancelled, "the end of the request")
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled operation: %v", err)
	}
	ends = append(ends, end{"cancelled", err})

	if err := l.checkOnceAndTrue(ends); err != nil {
		t.Error(err)
	}
	for _, e := range ends {
		fabrictest.Eventually(t, patience, e.id+" has run once", func() bool { return len(l.of(e.id)) == 1 })
	}
	if err := ch.Send(within(t, patience), []byte("sent")); err != nil {
		t.Errorf("Send to a slow handler: %v", err)
	}
}

// unknownRunsNowhereElse loses the answers alone, and the member itself.
func unknownRunsNowhereElse(t *testing.T) {
	t.Run("answers lost", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		proxy := srv.Proxy(t)
		var l ledger
		dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"))
		for _, rid := range []string{"m1", "m2"} {
			serve(t, startMember(t, srv.URL(), dir, rid, 1), channels.Spec{Name: "c", Handler: l.handler(rid)})
		}
		caller := startClient(t, proxy.URL(), dir)
		// After the first loss the caller goes around the group, by the members' own subjects.
		lost := proxy.Arm(fabrictest.Trigger{Subject: channelSubject("c"), Answer: true, Times: -1, Action: fabrictest.Drop})
		lostToo := proxy.Arm(fabrictest.Trigger{Subject: "fab.t.node.*.*.ch.c", Answer: true, Times: -1, Action: fabrictest.Drop})
		var ends []end
		for i := range 5 {
			id := fmt.Sprint("op-", i)
			_, err := caller.Channel("c").Request(within(t, time.Second), []byte(id))
			wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
			ends = append(ends, end{id, err})
		}
		lost.Disarm()
		lostToo.Disarm()
		if _, err := caller.Channel("c").Request(within(t, patience), []byte("after")); err != nil {
			t.Fatal(err)
		}
		for _, e := range ends {
			fabrictest.Eventually(t, patience, e.id+" has run once", func() bool { return len(l.of(e.id)) == 1 })
		}
		if err := checkAccount(caller.Metrics().Calls["c"]); err != nil {
			t.Error(err)
		}
	})
	t.Run("member killed", func(t *testing.T) {
		t.Parallel()
		srv := server(t)
		p := startProcess(t, srv.URL(), "m1")
		var l ledger
		dir := newDirectory(member("m1", processLifecycle, "work"), member("m2", 1, "work"))
		caller := startClient(t, srv.URL(), dir)
		m2 := startMember(t, srv.URL(), dir, "m2", 1)
		serve(t, m2, channels.Spec{Name: "work", Handler: func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
			id, _, _ := strings.Cut(string(req.Data()), " ")
			l.note(id, "m2")
			return channels.Reply{Data: []byte("m2")}, nil
		}})
		const n = 32
		ends := make(chan end, n)
		ctx, giveUp := context.WithCancel(within(t, patience))
		defer giveUp()
		for i := range n {
			go func() {
				id := fmt.Sprint("op-", i)
				_, err := caller.Channel("work").Request(ctx, []byte(id+" sleep=600000"))
				ends <- end{id, err}
			}()
		}
		fabrictest.Eventually(t, patience, "the process holds some and the other has run its own", func() bool {
			return caller.Metrics().Waiting > 0 && len(p.ran(t)) == caller.Metrics().Waiting && caller.Metrics().Calls["work"].Started == n
		})
		p.Kill()
		giveUp()
		unknown, journal := 0, p.ran(t)
		for range n {
			e := receive(t, ends, "the end of a request")
			if e.err == nil {
				continue
			}
			wantErr(t, e.err, outcome.DeadlineExceeded, outcome.Unknown)
			unknown++
			if journal[e.id] != 1 || len(l.of(e.id)) != 0 {
				t.Errorf("%s: %d times at the dead member, then at %v", e.id, journal[e.id], l.of(e.id))
			}
		}
		if unknown == 0 || unknown != len(journal) {
			t.Errorf("%d operations are unknown, the dead member had begun %d", unknown, len(journal))
		}
		// From now on the other serves alone.
		for range 20 {
			if reply, err := caller.Channel("work").Request(within(t, patience), []byte("next")); err != nil || string(reply.Data) != "m2" {
				t.Fatalf("reply %q, error %v", reply.Data, err)
			}
		}
	})
}

func errorsSayKindAndAcceptance(t *testing.T) {
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	m1 := startMember(t, srv.URL(), dir, "m1", 1)
	var answer error
	serve(t, m1, channels.Spec{Name: "c", Workers: 1, Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
		if answer == nil {
			panic("boom")
		}
		return channels.Reply{}, answer
	}})
	for _, k := range outcome.Kinds() {
		// Whatever acceptance the handler's own error claims: that the handler ran is certain.
		answer = fmt.Errorf("wrapped: %w", outcome.New("inner", k, outcome.NotAccepted, "", "because"))
		_, err := caller.Channel("c").Request(within(t, patience), nil)
		if e := wantErr(t, err, k, outcome.Accepted); !e.Remote {
			t.Errorf("%v: not marked as said by the peer", e)
		}
	}
	answer = errors.New("plain")
	_, err := caller.Channel("c").Request(within(t, patience), nil)
	wantErr(t, err, outcome.InternalFailure, outcome.Accepted)
	answer = nil
	_, err = caller.Channel("c").Request(within(t, patience), nil)
	wantErr(t, err, outcome.InternalFailure, outcome.Accepted)

	all := caller.Metrics().Calls["c"].Failed
	if all[outcome.InternalFailure][outcome.Accepted] != 3 || all[outcome.Rejected][outcome.Accepted] != 1 {
		t.Errorf("failures by kind and acceptance: %v", all)
	}
	// None advises to retry.
	_, nf := caller.Channel("nope").Request(within(t, patience), nil)
	for _, err := range []error{err, nf} {
		for _, word := range []string{"retry", "again", "later"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%q says %q", err, word)
			}
		}
	}
}

// selectOneIsAQueueGroup looks at the server's side, and calls as any NATS program can.
func selectOneIsAQueueGroup(t *testing.T) {
	srv := server(t)
	proxy := srv.Proxy(t)
	joined := proxy.Arm(fabrictest.Trigger{Verb: "SUB", Subject: channelSubject("c"), Match: func(m fabrictest.Message) bool { return m.Queue == "fabric" }, Times: -1, Action: fabrictest.Signal})
	var l ledger
	dir := newDirectory(member("m1", 1, "c"))
	m1 := startMember(t, proxy.URL(), dir, "m1", 1)
	s := serve(t, m1, channels.Spec{Name: "c", Weight: 4, Handler: l.handler("m1")})
	if got := joined.Count(); got != 4 {
		t.Errorf("%d subscriptions in the queue group, want 4", got)
	}
	plain := dial(t, srv.URL())
	sub, err := plain.SubscribeSync("answers")
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.PublishRequest(channelSubject("c"), "answers", []byte("plain")); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(patience)
	if err != nil || string(m.Data) != "m1" || m.Header != nil {
		t.Fatalf("reply %q with headers %v, error %v", m.Data, m.Header, err)
	}
	// Without a reply subject it runs, and nobody is answered.
	if err := plain.Publish(channelSubject("c"), []byte("published")); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, patience, "the published message runs", func() bool { return len(l.of("published")) == 1 })
	// An ordinary request of the fabric itself needs no headers either.
	bare := proxy.Arm(fabrictest.Trigger{Verb: "HPUB", Times: -1, Action: fabrictest.Signal})
	caller := startClient(t, proxy.URL(), dir)
	if _, err := caller.Channel("c").Request(within(t, patience), []byte("fabric")); err != nil {
		t.Fatal(err)
	}
	if err := caller.Channel("c").Send(within(t, patience), []byte("fabric")); err != nil {
		t.Fatal(err)
	}
	if n := bare.Count(); n != 0 {
		t.Errorf("%d messages had headers", n)
	}
	if err := checkServed(s.Stats()); err != nil {
		t.Error(err)
	}
}
