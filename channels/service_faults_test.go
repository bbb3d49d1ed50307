package channels_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// The router refuses what must not be taken in before the service sees it.
func TestServiceIntake(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1))
	var closed atomic.Bool
	m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: newClock(), Gate: gateFunc(func() error {
		if closed.Load() {
			return errors.New("lapsed")
		}
		return nil
	})})
	var handled atomic.Int32
	listen(t, m, func(in *channels.Inbound) { handled.Add(1); in.Reply(nil, nil) })
	caller := start(t, srv.URL(), channels.Config{Directory: dir, Clock: newClock()})
	call := func(want int32, k outcome.Kind, part string) {
		t.Helper()
		_, err := caller.CallRun(within(t, patience), runOf(caller, "m1", "x"))
		if got := handled.Load(); got != want {
			t.Errorf("%s: handled %d times, want %d", part, got, want)
		}
		if part == "" {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if e := wantErr(t, err, k, outcome.NotAccepted); !strings.Contains(e.Detail, part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
	call(0, outcome.Unavailable, "not serving")
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	call(1, 0, "")
	closed.Store(true)
	call(1, outcome.Unavailable, "lease")
	closed.Store(false)

	// A deadline that has passed on the way: the reply subject says so.
	plain := dial(t, srv.URL())
	inbox, err := plain.SubscribeSync("fab.t.client.late.r1.*")
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour).UnixMilli()
	if err := plain.PublishRequest(caller.RunSubject("m1", 1, "svc", "do.it"), "fab.t.client.late.r1.1-"+strconv.FormatInt(past, 36)+"-0", nil); err != nil {
		t.Fatal(err)
	}
	answer, err := inbox.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, outcome.FromHeaders(answer.Header, "request", ""), outcome.DeadlineExceeded, outcome.NotAccepted)
	if got := handled.Load(); got != 1 {
		t.Errorf("what was past its deadline was handled")
	}

	m.Mute("unknown")
	call(2, 0, "")
	m.Mute("svc")
	call(2, outcome.Unavailable, "shutting down")
	s := m.Metrics().Services["svc"]
	if s.Received != 6 || s.RefusedNotServing != 1 || s.RefusedLease != 1 || s.RefusedPast != 1 || s.RefusedMuted != 1 {
		t.Errorf("counted %+v", s)
	}
}

// A process run that is not there answers nothing, and no other run of its RID does.
func TestServiceOfNobody(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 2))
	m := startMember(t, srv.URL(), dir, "m1", 2)
	var handled atomic.Int32
	listen(t, m, func(in *channels.Inbound) { handled.Add(1); in.Reply(nil, nil) })
	caller := startClient(t, srv.URL(), dir)
	for name, c := range map[string]*channels.RunCall{
		"an earlier run":  runOf(caller, "m1", "x"),
		"an unknown node": runOf(caller, "m2", "x"),
	} {
		_, err := caller.CallRun(within(t, patience), c)
		wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
		if !channels.IsNobody(err) {
			t.Errorf("%s: %v does not say that nobody is there", name, err)
		}
	}
	if handled.Load() != 0 {
		t.Error("another run got it")
	}
	// A run that the directory does not list yet is found all the same.
	dir.remove("m1")
	late := &channels.RunCall{Op: "request", RID: "m1", Lifecycle: 2, Subject: caller.RunSubject("m1", 2, "svc", "x")}
	if _, err := caller.CallRun(within(t, patience), late); err != nil {
		t.Errorf("a run that is not listed yet: %v", err)
	}
	// One that was greeted and has gone since: the server says so at once.
	dir.put(member("m1", 2))
	fabrictest.Eventually(t, patience, "the peer is known", func() bool {
		_, err := caller.CallRun(within(t, patience), late)
		return err == nil && stateOf(caller, "m1") == channels.PeerReady
	})
	if err := m.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if err := m.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	_, err := caller.CallRun(within(t, patience), late)
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if !channels.IsNobody(err) {
		t.Errorf("%v does not say that nobody is there", err)
	}
	if m1 := member("m1", 2); caller.PeerSelectable(&m1) {
		t.Error("a peer that has gone may be chosen")
	}
}

// A connection that is lost between sending and answer: Unknown, or Accepted once the notice was here. Never again.
func TestServiceLostConnection(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"without a notice": false, "after a notice": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := server(t)
			proxy := srv.Proxy(t)
			dir := newDirectory(member("m1", 1))
			m := startMember(t, srv.URL(), dir, "m1", 1)
			var handled atomic.Int32
			taken := make(chan *channels.Inbound, 1)
			listen(t, m, func(in *channels.Inbound) {
				handled.Add(1)
				in.Accept()
				taken <- in
			})
			caller := startClient(t, proxy.URL(), dir)
			c := runOf(caller, "m1", "x")
			c.Early = early
			noticed := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.t.client.>", Action: fabrictest.CutAfter,
				Match: func(msg fabrictest.Message) bool { return strings.HasSuffix(msg.Subject, ".a") }})
			ended := make(chan error, 1)
			go func() {
				_, err := caller.CallRun(within(t, patience), c)
				ended <- err
			}()
			in := receive(t, taken, "the message")
			acc := outcome.Unknown
			if early {
				acc = outcome.Accepted
				noticed.Wait(t)
			} else {
				proxy.Apply(fabrictest.Cut)
			}
			wantErr(t, receive(t, ended, "the end of the call"), outcome.Unavailable, acc)
			in.Reply(nil, nil)
			fabrictest.Eventually(t, patience, "the connection is back", func() bool { return caller.Epoch() == 2 })
			if handled.Load() != 1 {
				t.Errorf("handled %d times", handled.Load())
			}
		})
	}
}

// A service member that was frozen refuses what its callers gave up on.
func TestThawedServiceTakesNothingThatCallersGaveUpOn(t *testing.T) {
	t.Parallel()
	srv := server(t)
	p := startProcess(t, srv.URL(), "m1")
	dir := newDirectory(member("m1", processLifecycle, "work"))
	caller := start(t, srv.URL(), channels.Config{Directory: dir, Clock: newClock()})
	plain := dial(t, srv.URL())
	subject := caller.RunSubject("m1", processLifecycle, "svc", "do.it")
	call := func(id string, timeout time.Duration) error {
		_, err := caller.CallRun(within(t, timeout), &channels.RunCall{
			Op: "request", RID: "m1", Lifecycle: processLifecycle, Subject: subject, Data: []byte(id),
		})
		return err
	}
	if err := call("before", patience); err != nil {
		t.Fatal(err)
	}
	p.Freeze(t)
	frozen := time.Now()
	wantErr(t, call("swallowed", 2*time.Second), outcome.DeadlineExceeded, outcome.Unknown)
	if err := plain.PublishRequest(subject, "nowhere", []byte("bare")); err != nil {
		t.Fatal(err)
	}
	if err := plain.Flush(); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, patience, "the freeze is long enough to count", func() bool { return time.Since(frozen) > 1500*time.Millisecond })
	p.Thaw(t)
	fabrictest.Eventually(t, patience, "it has refused what it was sent", func() bool {
		s := p.stats(t, plain).Service
		return s.RefusedPast == 1 && s.RefusedThawing == 1
	})
	fabrictest.Eventually(t, patience, "what has no deadline is taken again", func() bool {
		m, err := plain.Request(subject, []byte("plain-after"), patience)
		return err == nil && string(m.Data) == "m1"
	})
	if err := call("after", patience); err != nil {
		t.Fatal(err)
	}
	ran := p.ran(t)
	if len(ran) != 3 || ran["before"] != 1 || ran["plain-after"] != 1 || ran["after"] != 1 {
		t.Errorf("ran %v", ran)
	}
}

// Close returns when no Handle runs any more, and lets none begin.
func TestCloseWaitsForHandle(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	var running atomic.Int32
	m, caller := servicePair(t, func(in *channels.Inbound) {
		running.Add(1)
		close(began)
		<-release
		in.Reply(nil, nil)
		running.Add(-1)
	})
	go func() { _, _ = caller.CallRun(within(t, patience), runOf(caller, "m1", "x")) }()
	receive(t, began, "the call of Handle")
	closed := make(chan error, 1)
	go func() { closed <- m.Close(within(t, patience)) }()
	fabrictest.Eventually(t, patience, "the router has left its subjects", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := caller.CallRun(ctx, &channels.RunCall{Op: "request", RID: "m1", Lifecycle: 1, Subject: caller.RunSubject("m1", 1, "svc", "x")})
		return channels.IsNobody(err)
	})
	select {
	case err := <-closed:
		t.Errorf("Close returned %v while Handle ran", err)
	default:
	}
	close(release)
	if err := receive(t, closed, "the end of Close"); err != nil {
		t.Error(err)
	}
	if running.Load() != 0 {
		t.Error("Handle runs after Close")
	}
}

// Beyond the grace for the store's silence nothing is sent to a process run, listed or not (FO-7b).
func TestCallRunBeyondTheGrace(t *testing.T) {
	t.Parallel()
	srv := server(t)
	proxy := srv.Proxy(t)
	ctx := within(t, patience)
	if _, err := kvlocation.Init(ctx, dial(t, srv.URL()), kvlocation.Setup{Mesh: string(mesh)}); err != nil {
		t.Fatal(err)
	}
	store, err := kvlocation.Open(ctx, dial(t, proxy.URL()), kvlocation.Config{Mesh: string(mesh)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	dir, err := store.OpenDirectory(ctx, kvlocation.DirectoryConfig{Interval: 200 * time.Millisecond, Grace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	var handled atomic.Int32
	m := startMember(t, srv.URL(), dir, "m1", 1)
	listen(t, m, func(in *channels.Inbound) { handled.Add(1); in.Reply(nil, nil) })
	caller := startClient(t, srv.URL(), dir)
	if _, err := caller.CallRun(ctx, runOf(caller, "m1", "x")); err != nil {
		t.Fatal(err)
	}
	proxy.Apply(fabrictest.HalfOpen)
	fabrictest.Eventually(t, patience, "the list has expired", func() bool { return dir.Members().Expired() })
	_, err = caller.CallRun(ctx, runOf(caller, "m1", "x"))
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if channels.IsNobody(err) || handled.Load() != 1 {
		t.Errorf("got %v, and it was handled %d times", err, handled.Load())
	}
}
