package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// mesh is one server, or three, with a mesh's streams.
type mesh struct {
	servers []*fabrictest.Server
	cluster *fabrictest.Cluster
}

func newMesh(t *testing.T, replicas int) *mesh {
	t.Helper()
	m := &mesh{}
	if replicas == 1 {
		m.servers = []*fabrictest.Server{fabrictest.StartServer(t)}
	} else {
		m.cluster = fabrictest.StartCluster(t, replicas, fabrictest.WithProxiedRoutes())
		m.cluster.WaitReady(t)
		m.servers = m.cluster.Servers()
	}
	if _, err := kvlocation.Init(testContext(t), m.servers[0].Connect(t, nats.ReconnectBufSize(-1)), kvlocation.Setup{Mesh: "m", Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	return m
}

// store opens a store of its own for a program at url.
func openStore(t *testing.T, url, rid string) *kvlocation.Store {
	t.Helper()
	nc := fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	s, err := kvlocation.Open(testContext(t), nc, kvlocation.Config{Mesh: "m", RID: rid, AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// quick is a short term: 2 s, of which the last 0.4 s are the margin.
func quick(node string) ElectionConfig {
	return ElectionConfig{Name: "db", Node: node, TTL: 2 * time.Second, Renew: 300 * time.Millisecond, Margin: 400 * time.Millisecond, Poll: 50 * time.Millisecond}
}

// lasting is quick with a term that ends in no test, however long the machine keeps its holder from a renewal.
func lasting(node string) ElectionConfig {
	c := quick(node)
	c.TTL, c.Margin = 2*time.Minute, time.Second
	return c
}

// candidate makes one at url.
func candidate(t *testing.T, url string, cfg ElectionConfig) *Election {
	t.Helper()
	e, err := NewElection(openStore(t, url, cfg.Node), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		e.Close(ctx) //nolint:errcheck // the store may be gone; what matters is that nothing is left running
	})
	return e
}

func campaign(t *testing.T, e *Election) *Term {
	t.Helper()
	term, err := e.Campaign(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// One leads; the next follows at once when it resigns, with a higher token, and an observer sees both.
func TestLeadership(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1)
	a, b := candidate(t, m.servers[0].URL(), lasting("a")), candidate(t, m.servers[0].URL(), lasting("b"))
	seen := make(chan string, 64)
	octx, stop := context.WithCancel(testContext(t))
	observed := make(chan error, 1)
	go func() {
		observed <- b.Observe(octx, func(s Status) bool {
			if s.Holder != nil {
				select {
				case seen <- fmt.Sprint(s.Holder.Node, " ", s.Phase):
				default: // renewals, after the test has seen what it wanted
				}
			}
			return true
		})
	}()
	see := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case got = <-seen:
			case <-time.After(readyIn):
				t.Fatalf("the observer did not see %q", want)
			}
		}
	}
	first := campaign(t, a)
	see("a led")
	if tok, err := FromContext(first.Context()); err != nil || tok != first.Token() || tok.Source != "m/leader/db" || tok.Epoch == 0 || tok.Generation == 0 {
		t.Fatalf("the term's context carries %v, %v", tok, err)
	}
	if _, err := a.Campaign(testContext(t)); !errors.Is(err, outcome.InvalidOperation) {
		t.Fatalf("a campaign of a leader got %v", err)
	}
	short, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := b.Campaign(short); !errors.Is(err, outcome.DeadlineExceeded) {
		t.Fatalf("a campaign against a leader that renews got %v", err)
	}
	fabrictest.Eventually(t, readyIn, "renewals", func() bool { return a.Snapshot().Renewals >= 3 })
	if s := a.Snapshot(); !s.Leading || s.Status.Phase != PhaseLed || s.Status.Epoch != s.Token.Epoch || s.Status.Grant != s.Token.Generation {
		t.Fatalf("the leader's snapshot is %+v", s)
	}
	if err := first.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(first.Context()), ErrResigned) {
		t.Fatalf("the context ended with %v", context.Cause(first.Context()))
	}
	begin := time.Now()
	second := campaign(t, b)
	if second.Token().Compare(first.Token()) <= 0 {
		t.Fatalf("%s follows %s", second.Token(), first.Token())
	}
	if took := time.Since(begin); took > lasting("b").TTL/2 {
		t.Errorf("the leadership was vacant, and following took %v", took)
	}
	see("b led")
	if err := second.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-observed; !errors.Is(err, context.Canceled) {
		t.Fatalf("Observe ended with %v", err)
	}
}

// A holder whose renewals hang, or whose answers are lost, ends its term before another one can lead, by its own clock.
func TestTermEndsBeforeTheNextBegins(t *testing.T) {
	for name, fault := range map[string]fabrictest.Fault{"hang": fabrictest.Hang, "cut": fabrictest.RefuseReconnect} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, 1)
			proxy := m.servers[0].Proxy(t)
			cfg := quick("a")
			cfg.TTL = 6 * time.Second // so that it comes to its renewals on a machine that is busy
			a, b := candidate(t, proxy.URL(), cfg), candidate(t, m.servers[0].URL(), quick("b"))
			first := campaign(t, a)
			fabrictest.Eventually(t, readyIn, "a renewal", func() bool { return a.Snapshot().Renewals >= 2 })
			proxy.Apply(fault)
			if name == "cut" {
				proxy.Apply(fabrictest.Cut)
			}
			second := campaign(t, b)
			if _, err := first.FenceToken(); !errors.Is(err, ErrTermLost) { // by its clock, whenever a timer comes round
				t.Fatalf("as the new term begins, the old one's token: %v", err)
			}
			<-first.Context().Done()
			if !errors.Is(context.Cause(first.Context()), ErrTermLost) {
				t.Fatalf("the term ended with %v", context.Cause(first.Context()))
			}
			// What it writes through a guard is stopped by its own lease already.
			g := NewGuard("file", "")
			var s *StaleError
			if err := g.Do(first.Context(), pass); !errors.As(err, &s) || s.StoppedBy != ByLease || !errors.Is(err, ErrTermLost) {
				t.Fatalf("a guarded write of a lost term: %v", err)
			}
			// And by the token, whatever it believes.
			if err := g.Raise(second.Context()); err != nil {
				t.Fatal(err)
			}
			if err := g.DoToken(testContext(t), first.Token(), pass); !errors.As(err, &s) || s.StoppedBy != ByToken {
				t.Fatalf("a write with the token of a lost term: %v", err)
			}
			proxy.Heal()
		})
	}
}

// A process that was frozen beyond its term asks before any timer has come round: the clock itself answers.
func TestTermAsksTheClock(t *testing.T) {
	t.Parallel()
	cfg := lasting("a")
	cfg.Renew = 20 * time.Second // no renewal but the test's own
	term := campaign(t, candidate(t, newMesh(t, 1).servers[0].URL(), cfg))
	term.mu.Lock()
	term.timer.Stop()
	term.deadline.Store(int64(monotime.Now()))
	term.mu.Unlock()
	if tok, err := term.FenceToken(); !errors.Is(err, ErrTermLost) || tok != term.Token() {
		t.Fatalf("%v, %v", tok, err)
	}
	// A renewal that is acknowledged now comes too late.
	if err := term.renew(monotime.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := term.FenceToken(); !errors.Is(err, ErrTermLost) {
		t.Fatalf("a late renewal has revived the term: %v", err)
	}
}

// The leader of the store's stream is killed. A term rides through the election of another one, and so does a guarded write:
// neither is refused, lost or done twice.
func TestStoreElectsALeader(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3, fabrictest.AsProcess())
	c.WaitReady(t)
	nc := c.Connect(t, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if _, err := kvlocation.Init(testContext(t), nc, kvlocation.Setup{Mesh: "m", Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	store, err := kvlocation.Open(testContext(t), nc, kvlocation.Config{Mesh: "m", RID: "a", AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	js := jetStream(t, nc)
	if _, err := js.CreateKeyValue(testContext(t), jetstream.KeyValueConfig{Bucket: "app", Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	key := arrivals{}.kv(t, js, "alice")
	e, err := NewElection(store, lasting("a"))
	if err != nil {
		t.Fatal(err)
	}
	term := campaign(t, e)
	write := func(v string) uint64 {
		t.Helper()
		ctx, cancel := context.WithTimeout(term.Context(), 50*time.Second)
		defer cancel()
		rev, err := key.Put(ctx, []byte(v))
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	before := write("before")
	c.StreamLeader(t, "KV_FABRIC_m_FENCE").Kill()
	renewals := e.Snapshot().Renewals
	if after := write("after"); after != before+1 {
		t.Errorf("revision %d follows %d", after, before)
	}
	fabrictest.Eventually(t, readyIn, "renewals with the new leader", func() bool { return e.Snapshot().Renewals >= renewals+2 })
	if err := term.Context().Err(); err != nil {
		t.Fatalf("the term ended: %v", context.Cause(term.Context()))
	}
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// Answers of grant, renewal and resignation are lost: each takes place once, and the term goes on.
func TestLostAnswersOfATerm(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1)
	proxy := m.servers[0].Proxy(t)
	a := candidate(t, proxy.URL(), lasting("a"))
	for _, nth := range []int{1, 3} { // the grant, and a renewal
		proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Nth: nth, Answer: true, Action: fabrictest.Drop})
	}
	term := campaign(t, a)
	grant := term.Token().Generation
	fabrictest.Eventually(t, readyIn, "renewals beyond the lost one", func() bool { return a.Snapshot().Renewals >= 3 })
	if err := term.Context().Err(); err != nil {
		t.Fatalf("the term ended: %v", context.Cause(term.Context()))
	}
	proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Match: func(m fabrictest.Message) bool {
		return bytes.Contains(m.Payload, []byte(`"vacant"`))
	}, Answer: true, Action: fabrictest.Drop})
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	s := a.Snapshot()
	if s.Grants != 1 || s.TermsLost != 0 || term.Token().Generation != grant {
		t.Fatalf("%+v", s)
	}
}

// The store gives a renewal up before it is known what became of it: the term asks on, and goes on.
func TestRenewalIsAskedFor(t *testing.T) {
	t.Parallel()
	proxy := newMesh(t, 1).servers[0].Proxy(t)
	nc := fabrictest.Connect(t, proxy.URL(), nats.ReconnectBufSize(-1))
	store, err := kvlocation.Open(testContext(t), nc, kvlocation.Config{Mesh: "m", RID: "a", AttemptTimeout: 800 * time.Millisecond, Timeout: 1200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	a, err := NewElection(store, lasting("a"))
	if err != nil {
		t.Fatal(err)
	}
	term := campaign(t, a)
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Times: 4, Answer: true, Action: fabrictest.Drop})
	fabrictest.Eventually(t, readyIn, "four answers to be lost", func() bool { return lost.Count() >= 4 })
	renewals := a.Snapshot().Renewals
	fabrictest.Eventually(t, readyIn, "renewals beyond", func() bool { return a.Snapshot().Renewals >= renewals+2 })
	if err := term.Context().Err(); err != nil {
		t.Fatalf("the term ended: %v", context.Cause(term.Context()))
	}
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// Lead runs the work with a context that ends with the caller's, and resigns when the work has ended.
func TestLead(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1)
	a, b := candidate(t, m.servers[0].URL(), lasting("a")), candidate(t, m.servers[0].URL(), lasting("b"))
	ctx, cancel := context.WithCancel(testContext(t))
	why := errors.New("the work has ended")
	err := a.Lead(ctx, func(ctx context.Context) error {
		if _, err := FromContext(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		<-ctx.Done()
		return why
	})
	if !errors.Is(err, why) {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := b.Lead(testContext(t), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > lasting("b").TTL/2 {
		t.Errorf("after a resignation the next one waited %v", took)
	}
	st, err := Leaderships(testContext(t), openStore(t, m.servers[0].URL(), "tool"), 0)
	if err != nil || len(st) != 1 || st[0].Phase != PhaseVacant || st[0].Holder.Node != "b" || st[0].Confirmed.How != ByHolder {
		t.Fatalf("%+v, %v", st, err)
	}
}

// The end of the work by a panic ends the term, which is not resigned: nobody knows what is left of the work.
func TestLeadPanics(t *testing.T) {
	t.Parallel()
	a := candidate(t, newMesh(t, 1).servers[0].URL(), lasting("a"))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not pass through")
			}
		}()
		_ = a.Lead(testContext(t), func(context.Context) error { panic("boom") })
	}()
	if s := a.Snapshot(); s.Leading || s.Status.Phase != PhaseLed || s.TermsLost != 1 {
		t.Fatalf("after the panic: %+v", s)
	}
}

// A write that the store never takes is given up after a TTL: the candidate says what is wrong and looks at the record again,
// so that it is not caught for ever in a write whose fate nobody can tell any more.
func TestWriteThatNeverArrives(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1)
	proxy := m.servers[0].Proxy(t)
	a := candidate(t, proxy.URL(), quick("a"))
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Times: -1, Action: fabrictest.Drop})
	got := make(chan *Term, 1)
	go func() {
		term, _ := a.Campaign(testContext(t)) // nil when it did not come about
		got <- term
	}()
	fabrictest.Eventually(t, readyIn, "the candidate to say what is wrong", func() bool { return a.Snapshot().Problem != "" })
	lost.Disarm()
	if term := <-got; term == nil {
		t.Fatal("the candidate never led")
	}
}

func TestElectionConfigs(t *testing.T) {
	t.Parallel()
	good := quick("a")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := (ElectionConfig{Name: "x", Node: "y"}).Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ElectionConfig){
		"name":    func(c *ElectionConfig) { c.Name = "a.b" },
		"node":    func(c *ElectionConfig) { c.Node = "" },
		"ttl":     func(c *ElectionConfig) { c.TTL = time.Hour },
		"margin":  func(c *ElectionConfig) { c.Margin = 1500 * time.Millisecond },
		"labels":  func(c *ElectionConfig) { c.Labels = map[string]string{"x": string(make([]byte, 5<<10))} },
		"backoff": func(c *ElectionConfig) { c.Backoff, c.MaxBackoff = time.Minute, time.Second },
		"plan":    func(c *ElectionConfig) { c.Fencing = &Plan{} },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("a wrong %s is allowed", name)
		}
	}
	err := ElectionConfig{Name: "a.b", TTL: time.Hour, MaxBackoff: time.Millisecond}.Validate()
	for _, want := range []string{`Name "a.b" is not allowed`, `Node "" is not allowed`, "TTL 1h0m0s is not allowed: it must be 1s to 5m0s", "Backoff 2s clashes with MaxBackoff 1ms"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

// A record that a newer version has written keeps what this one does not know, and one of a newer schema is left alone.
func TestNewerRecords(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 1)
	sh := openStore(t, m.servers[0].URL(), "tool").Shared(kvlocation.BucketFence)
	has := func(name, want string) {
		t.Helper()
		if e, err := sh.Confirm(testContext(t), leaderKey(name)); err != nil || !strings.Contains(string(e.Value), want) {
			t.Fatalf("%s: the record is %s, %v; want %s in it", name, e.Value, err, want)
		}
	}
	for name, value := range map[string]string{
		"db":    `{"v":1,"name":"db","phase":"vacant","later":{"x":[1]}}`,
		"newer": `{"v":2,"name":"newer","phase":"vacant"}`,
	} {
		if _, err := sh.Create(testContext(t), leaderKey(name), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	term := campaign(t, candidate(t, m.servers[0].URL(), lasting("a")))
	has("db", `"later":{"x":[1]}`)
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	has("db", `"later":{"x":[1]}`)

	cfg := lasting("b")
	cfg.Name = "newer"
	if _, err := candidate(t, m.servers[0].URL(), cfg).Campaign(testContext(t)); outcome.KindOf(err) != outcome.ProtocolError || !strings.Contains(err.Error(), "version is 2") {
		t.Fatalf("a campaign for a record of a newer schema: %v", err)
	}
	has("newer", `{"v":2,"name":"newer","phase":"vacant"}`)
}
