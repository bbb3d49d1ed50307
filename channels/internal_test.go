package channels

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

const long = 60 * time.Second

// TestEveryWaitEndsOnce is I5 where it is decided: replies, notices, timeouts and disconnects race for each waiter.
func TestEveryWaitEndsOnce(t *testing.T) {
	t.Parallel()
	tab := &waiters{max: 64, epoch: &epoch{n: 1}}
	var tokens sync.Map
	var delivered, abandoned, swept atomic.Int64
	inFlight := make(chan uint64, 1024)
	epochOf := func() *epoch {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		return tab.epoch
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	for range 3 {
		others.Go(func() { // the subscription's side, with repeated and late messages
			for {
				select {
				case <-done:
					return
				case token := <-inFlight:
					for range 1 + rand.N(3) {
						tab.deliver(epochOf(), token, rand.N(4) == 0, &nats.Msg{})
					}
				}
			}
		})
	}
	others.Go(func() { // the connection's side
		for n := uint64(2); ; n++ {
			select {
			case <-done:
				return
			default:
			}
			tab.mu.Lock()
			tab.sweepLocked(endDisconnected)
			tab.epoch = &epoch{n: n}
			tab.mu.Unlock()
		}
	})
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 1000 {
				w, _, token, refused := tab.acquire(0, "c", nil, rand.N(2) == 0)
				if refused != refusedNot {
					t.Errorf("refused: %d", refused)
					return
				}
				if _, twice := tokens.LoadOrStore(token, true); twice {
					t.Errorf("token %d came twice", token)
				}
				select {
				case inFlight <- token:
				default:
				}
				var got answer
				ended := false
				if rand.N(2) == 0 {
					if ok, _ := tab.abandon(w); !ok {
						got, ended = <-w.done, true
					}
				} else {
					select {
					case got = <-w.done:
						ended = true
					case <-time.After(time.Duration(rand.N(50)) * time.Microsecond):
						if ok, _ := tab.abandon(w); !ok {
							got, ended = <-w.done, true
						}
					}
				}
				switch {
				case !ended:
					abandoned.Add(1)
				case got.msg != nil:
					delivered.Add(1)
				default:
					swept.Add(1)
				}
				select {
				case <-w.done:
					t.Error("a second end")
				default:
				}
				tab.release(w)
			}
		})
	}
	callers.Wait()
	close(done)
	others.Wait()
	if sum := delivered.Load() + abandoned.Load() + swept.Load(); sum != 16*1000 || delivered.Load() == 0 || abandoned.Load() == 0 || swept.Load() == 0 {
		t.Errorf("%d replied, %d gave up, %d cut off", delivered.Load(), abandoned.Load(), swept.Load())
	}
	if n := tab.inFlight(); n != 0 || len(tab.all) > tab.max {
		t.Errorf("%d in flight, %d waiters", n, len(tab.all))
	}
}

type fixedDirectory struct{ m *kvlocation.Members }

func (d fixedDirectory) Members() *kvlocation.Members { return d.m }
func (d fixedDirectory) Changed() <-chan struct{}     { return nil }

// frozenRouter is a member whose ticker can be made to look late.
func frozenRouter(t *testing.T, url string, replace func(string)) *Router {
	t.Helper()
	nc := fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	r, err := New(Config{
		Mesh: "t", Conn: nc, RID: "m1", Lifecycle: 1, ReplaceConnection: replace, Logger: zap.NewNop(),
		Directory: fixedDirectory{kvlocation.NewMembers(nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { r.Disconnected() })
	nc.SetReconnectHandler(func(*nats.Conn) { _ = r.Reconnected() })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		_ = r.Close(ctx)
	})
	if err := r.SetServing(true); err != nil {
		t.Fatal(err)
	}
	_, err = r.Serve(context.Background(), Spec{Name: "c", Handler: func(context.Context, *Request) (Reply, error) { return Reply{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// freeze makes the last tick look three seconds old, as it does to the first message after a freeze.
func freeze(r *Router) {
	b := &beat{at: time.Now().Add(-3 * time.Second), mono: monotime.Now().Add(-3 * time.Second)}
	r.pulse.last.Store(b)
	r.noticeFreeze(b)
}

// TestThawWaitsForThePong holds back the PONG that proves a subscription current.
func TestThawWaitsForThePong(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	proxy := srv.Proxy(t)
	r := frozenRouter(t, proxy.URL(), nil)
	plain := fabrictest.Connect(t, srv.URL())
	ask := func() (refused bool) {
		t.Helper()
		m, err := plain.Request(wire.Mesh("t").Channel("c"), nil, long)
		if err != nil {
			t.Fatal(err)
		}
		return len(m.Header) > 0
	}
	if ask() {
		t.Fatal("refused before any freeze")
	}
	pong := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Verb: "PONG", Action: fabrictest.HoldAlone})
	freeze(r)
	pong.Wait(t)
	for range 5 {
		if !ask() {
			t.Fatal("a request without a deadline ran before the PONG")
		}
	}
	pong.Release()
	fabrictest.Eventually(t, long, "it runs again", func() bool { return !ask() })
	if s := r.Metrics(); s.FreezeGaps != 1 || s.Served["c"].RefusedThawing < 5 || s.Replacements != 0 {
		t.Errorf("%+v", s)
	}
}

// TestThawReplacesASilentConnection lets every answer of the server vanish.
func TestThawReplacesASilentConnection(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	proxy := srv.Proxy(t)
	asked := make(chan string, 1)
	var r *Router
	r = frozenRouter(t, proxy.URL(), func(reason string) {
		asked <- reason
		proxy.Heal()
		go func() { _ = r.nc.ForceReconnect() }()
	})
	proxy.Apply(fabrictest.DropToClient)
	freeze(r)
	select {
	case <-asked:
	case <-time.After(long):
		t.Fatal("nobody asked for another connection")
	}
	fabrictest.Eventually(t, long, "a new epoch", func() bool { return r.Epoch() == 2 })
	fabrictest.Eventually(t, long, "thawed", func() bool { return !r.pulse.thawing.Load() })
	plain := fabrictest.Connect(t, srv.URL())
	fabrictest.Eventually(t, long, "it serves again", func() bool {
		m, err := plain.Request(wire.Mesh("t").Channel("c"), nil, time.Second)
		return err == nil && len(m.Header) == 0
	})
}

// TestWorkersComeAndGo checks the bound, that every request is run, and that idle workers end.
func TestWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	var q queue
	release := make(chan struct{})
	var ran atomic.Int64
	q.init(&Spec{Queue: 1000, QueueBytes: 1 << 20, Workers: 10}, func(*Request) { <-release; ran.Add(1) })
	for i := range 500 {
		if because := q.offer(&Request{msg: &nats.Msg{}}); because != whyNot {
			t.Fatalf("offer %d: %d", i, because)
		}
	}
	fabrictest.Eventually(t, long, "ten run", func() bool { count, _, busy := q.depth(); return busy == 10 && count == 490 })
	close(release)
	fabrictest.Eventually(t, long, "all have run", func() bool { _, _, busy := q.depth(); return ran.Load() == 500 && busy == 0 })
	q.trim()
	q.trim()
	q.mu.Lock()
	workers := q.workers
	q.mu.Unlock()
	if workers != 0 {
		t.Errorf("%d idle workers stay", workers)
	}
	// The order of arrival is the order of beginning.
	var order []int
	var o queue
	var mu sync.Mutex
	o.init(&Spec{Queue: 100, QueueBytes: 1 << 20, Workers: 1}, func(r *Request) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, len(r.msg.Data))
	})
	for i := range 50 {
		o.offer(&Request{msg: &nats.Msg{Data: make([]byte, i)}})
	}
	o.drain()
	<-o.drained()
	o.stop()
	for i, n := range order {
		if i != n {
			t.Fatalf("order %v", order)
		}
	}
	if because := o.offer(&Request{msg: &nats.Msg{}}); because != whyDraining {
		t.Errorf("an offer after the end: %d", because)
	}
}

func TestHandlerContext(t *testing.T) {
	t.Parallel()
	clock := kvlocation.NewClock(18 * time.Second)
	now := monotime.Now()
	clock.Observe(now, monotime.Now(), time.Now())
	var p pulse
	p.init(clock)
	scope := newHandlerScope()
	fresh := func(d time.Duration) *handlerContext {
		c := &handlerContext{parent: scope.ctx, pulse: &p}
		if d > 0 {
			c.deadline = p.storeDeadline(time.Now().Add(d))
		}
		return c
	}
	c := fresh(time.Hour)
	child, cancel := context.WithCancel(c)
	defer cancel()
	c.finish()
	<-child.Done()
	if !errors.Is(c.Err(), context.Canceled) {
		t.Errorf("after the handler returned: %v", c.Err())
	}
	c = fresh(0)
	c.finish()
	if c.Err() == nil {
		t.Error("a context asked for after the handler returned is alive")
	}
	c = fresh(time.Millisecond)
	<-c.Done()
	if !errors.Is(c.Err(), context.DeadlineExceeded) {
		t.Error(c.Err())
	}
	cause := errors.New("cause")
	c = fresh(time.Hour)
	if _, ok := c.Deadline(); !ok {
		t.Error("no deadline")
	}
	scope.cancel(cause)
	<-c.Done()
	if !errors.Is(context.Cause(c), cause) {
		t.Error(context.Cause(c))
	}
}

func TestRoutePicksByWeight(t *testing.T) {
	t.Parallel()
	rt := &route{}
	for i, w := range []int{1, 2, 4} {
		rt.members = append(rt.members, routeMember{link: &link{linkKey: linkKey{rid: fmt.Sprint(i)}}, subject: fmt.Sprint(i), weight: w})
	}
	count := make(map[string]int)
	for range 7000 {
		to, ok := rt.pick(nil)
		if !ok {
			t.Fatal("nobody")
		}
		count[to.subject]++
	}
	for s, want := range map[string]int{"0": 1000, "1": 2000, "2": 4000} {
		if got := count[s]; got < want*8/10 || got > want*12/10 {
			t.Errorf("member %s: %d of 7000, want about %d", s, got, want)
		}
	}
	for range 100 {
		if to, ok := rt.pick([]string{"2", "0"}); !ok || to.subject != "1" {
			t.Fatalf("%+v %v", to, ok)
		}
	}
	if _, ok := rt.pick([]string{"0", "1", "2"}); ok {
		t.Error("a refuser was picked")
	}
}

// TestDetourSpans: a group in which requests vanish again and again is left alone for longer and longer, up to a bound,
// and one that was well for a while is forgiven.
func TestDetourSpans(t *testing.T) {
	now := time.Now()
	var d *detour
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 8 * time.Minute} {
		d = d.next(now)
		if d.span != want || !d.active(now) || !d.active(now.Add(want-1)) || d.active(now.Add(want)) {
			t.Fatalf("detour %d: %+v, want %v from %v", i, d, want, now)
		}
		now = d.until.Add(detourMemory)
	}
	if d = d.next(now.Add(1)); d.span != 30*time.Second {
		t.Errorf("after a good while the span is %v", d.span)
	}
}

// TestSuspectIsGreetedAgain: suspicion outlives a connection epoch, but a suspect that had answered in it has not
// answered in the next: a direct operation greets it first (FO-10.5).
func TestSuspectIsGreetedAgain(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	frozenRouter(t, srv.URL(), nil) // answers hellos as m1, lifecycle 1
	m1 := kvlocation.Member{Descriptor: kvlocation.Descriptor{V: 1, RID: "m1", Lifecycle: 1, State: kvlocation.StateServing}}
	r, err := New(Config{
		Mesh: "t", Conn: fabrictest.Connect(t, srv.URL(), nats.ReconnectBufSize(-1)),
		Directory: fixedDirectory{kvlocation.NewMembers([]kvlocation.Member{m1})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	l := r.links.of(&m1)
	greeted := func() uint64 {
		t.Helper()
		before := r.counters.hellos.Load()
		// Whether there is such a service is all the same: the hello comes first.
		if _, err := r.CallRun(ctx, &RunCall{Op: "request", RID: "m1", Lifecycle: 1, Subject: r.RunSubject("m1", 1, "svc", "x")}); !IsNobody(err) {
			t.Fatalf("got %v", err)
		}
		r.links.set(l, PeerSuspect)
		return r.counters.hellos.Load() - before
	}
	if n := greeted(); n != 1 {
		t.Fatalf("%d hellos before the first operation", n)
	}
	if n := greeted(); n != 0 {
		t.Errorf("%d hellos to a suspect that had answered in this epoch", n)
	}
	r.Disconnected()
	if err := r.Reconnected(); err != nil {
		t.Fatal(err)
	}
	if n := greeted(); n != 1 {
		t.Errorf("%d hellos to a suspect in the next epoch", n)
	}
}

// TestNobodyFollowsAnUnlistedRun: the link of a process run that the directory does not list is kept by nobody. A probe
// of it would be one more goroutine for each operation, and what becomes of it concerns no channel.
func TestNobodyFollowsAnUnlistedRun(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	r := frozenRouter(t, srv.URL(), nil)
	l := r.links.run("m9", 9)
	if l == nil || l.ready() || len(r.Peers()) != 0 {
		t.Fatalf("link %+v, peers %v", l, r.Peers())
	}
	r.probe(l)
	r.links.mu.Lock()
	if l.probing {
		t.Error("it is probed")
	}
	r.links.mu.Unlock()
	version := r.links.version.Load()
	r.links.set(l, PeerGone)
	if r.links.version.Load() != version {
		t.Error("its end makes every channel look anew for its members")
	}
}
