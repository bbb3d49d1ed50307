package bed

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// Mesh is the name of every test's mesh: each test has servers of its own.
const Mesh = "m"

// Long bounds every wait of a test: for what must happen, on a slow machine.
const Long = 60 * time.Second

// Lease is the three times of an owner lease; zero means the product's defaults.
type Lease struct{ TTL, Renew, Margin time.Duration }

// Brief lets a test see a lapse within seconds. Two renewals fit many times over, so that a slow machine makes none.
var Brief = Lease{TTL: 6 * time.Second, Renew: 500 * time.Millisecond, Margin: time.Second}

// Options say how a bed is made.
type Options struct {
	// Servers is 1 or 3. Default 1.
	Servers int
	// AsProcess makes each server a process, which can be killed and frozen, ProxiedRoutes lets them be kept apart.
	AsProcess, ProxiedRoutes bool
	// Lease is that of every member. Default the product's.
	Lease Lease
	// Brief are members whose lease is Brief instead: those whose lease the test lets end. All others keep theirs,
	// however long the machine stands still.
	Brief []string
}

// Bed is one mesh and what belongs to it.
type Bed struct {
	Server  *fabrictest.Server  // the first server
	Cluster *fabrictest.Cluster // nil with one server
	lease   Lease
	brief   []string
	binary  string
	dir     string
	ctx     context.Context
	journal *journal.Reader

	mu      sync.Mutex
	members map[string]*Member
	order   []string
	leases  []kvlocation.LeaseState
	writes  []history.Write
	stalled time.Duration // the longest that the machine stood still
}

// New starts the servers and makes the mesh's buckets.
func New(t testing.TB, o Options) *Bed {
	t.Helper()
	b := &Bed{lease: o.Lease, brief: o.Brief, dir: t.TempDir(), ctx: t.Context(), members: map[string]*Member{}}
	b.watchStalls(t)
	b.journal = journal.NewReader(b.journalPath())
	var opts []fabrictest.Option
	if o.AsProcess {
		opts = append(opts, fabrictest.AsProcess())
	}
	if o.ProxiedRoutes {
		opts = append(opts, fabrictest.WithProxiedRoutes())
	}
	if o.Servers > 1 {
		b.Cluster = fabrictest.StartCluster(t, o.Servers, opts...)
		b.Server = b.Cluster.Server(0)
	} else {
		b.Server = fabrictest.StartServer(t, opts...)
	}
	nc := fabrictest.Connect(t, b.URL())
	defer nc.Close()
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: Mesh, Replicas: o.Servers}); err != nil {
		t.Fatal(err)
	}
	b.binary = fabrictest.BuildBinary(t, "natsfabric/conformance/internal/member")
	return b
}

// URL names all servers.
func (b *Bed) URL() string {
	if b.Cluster != nil {
		return b.Cluster.URL()
	}
	return b.Server.URL()
}

// Proxies starts a proxy in front of each server, and returns them and the URL that names them all.
func (b *Bed) Proxies(t testing.TB) (ps Proxies, url string) {
	t.Helper()
	servers := []*fabrictest.Server{b.Server}
	if b.Cluster != nil {
		servers = b.Cluster.Servers()
	}
	var urls []string
	for _, s := range servers {
		p := s.Proxy(t)
		ps, urls = append(ps, p), append(urls, p.URL())
	}
	return ps, strings.Join(urls, ",")
}

// Proxies are one program's ways to the servers.
type Proxies []*fabrictest.Proxy

// Apply adds faults to all ways.
func (ps Proxies) Apply(fs ...fabrictest.Fault) {
	for _, p := range ps {
		p.Apply(fs...)
	}
}

// Heal ends the faults of all ways.
func (ps Proxies) Heal() {
	for _, p := range ps {
		p.Heal()
	}
}

// Client connects a client of the mesh, straight to the servers, and closes it with the test.
func (b *Bed) Client(t testing.TB) *fabric.Client {
	t.Helper()
	return b.ClientAt(t, b.URL())
}

// ClientAt connects a client at url, a proxy's for example.
func (b *Bed) ClientAt(t testing.TB, url string) *fabric.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	c, err := fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: Mesh, Connect: fabric.Connect{URL: url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Long)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("closing a client: %v", err)
		}
	})
	return c
}

// Node starts a node that serves nothing inside the test process: it calls, and tells what it knows of the others.
func (b *Bed) Node(t testing.TB, rid, url string) *fabric.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	n, err := fabric.Start(ctx, fabric.Config{Mesh: Mesh, RID: rid, Connect: fabric.Connect{URL: url},
		LeaseTTL: b.lease.TTL, LeaseRenew: b.lease.Renew, LeaseMargin: b.lease.Margin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Long)
		defer cancel()
		if err := n.Shutdown(ctx); err != nil {
			t.Logf("shutting node %s down: %v", rid, err)
		}
	})
	return n
}

// Plain connects a NATS client that knows nothing of the fabric.
func (b *Bed) Plain(t testing.TB) *nats.Conn {
	t.Helper()
	return fabrictest.Connect(t, b.URL())
}

// Sees waits until a caller's list has exactly these members for the channel, all serving.
func Sees(t testing.TB, caller interface{ Members() *kvlocation.Members }, channel string, rids ...string) {
	t.Helper()
	fabrictest.Eventually(t, Long, "the caller sees "+strings.Join(rids, ", "), func() bool {
		serving := map[string]bool{}
		for _, m := range caller.Members().Channel(channel) {
			if m.State == kvlocation.StateServing {
				serving[m.RID] = true
			}
		}
		for _, rid := range rids {
			if !serving[rid] {
				return false
			}
		}
		return len(serving) == len(rids)
	})
}

// Evidence reads every ledger and returns it with the operations and the leases that were watched.
func (b *Bed) Evidence(t testing.TB, ops []history.Op) *history.Evidence {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &history.Evidence{Ops: ops, Leases: b.leases, Stalled: b.stalled, Writes: slices.Clone(b.writes)}
	var err error
	if e.Events, err = b.journal.Events(); err != nil {
		t.Fatal(err)
	}
	for _, rid := range b.order {
		l, err := history.ReadLedger(rid, b.ledgerPath(rid))
		if err != nil {
			t.Fatal(err)
		}
		l.Killed = b.members[rid].killed
		e.Ledgers = append(e.Ledgers, l)
	}
	return e
}

// Get returns a member by name.
func (b *Bed) Get(rid string) *Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members[rid]
}

// Settle waits until everything that was accepted has run or come to its end for a cause that is stated in public: the end of
// a lease, a deadline, or, of a killed member, its death.
func (b *Bed) Settle(t testing.TB, ops []history.Op) {
	t.Helper()
	var waits []string
	defer func() {
		if t.Failed() && len(waits) > 0 {
			t.Logf("accepted and not run: %v", waits)
		}
	}()
	fabrictest.Eventually(t, Long, "everything that was accepted has run", func() bool {
		e := b.Evidence(t, ops)
		if e.AnyKilled() {
			return true
		}
		waits = e.Unexplained()
		for i := range ops {
			op := &ops[i]
			if n, _ := e.Runs(op.ID); op.Way == history.Send && op.Object != "" && op.Ends > 0 && op.Err == nil && n == 0 && !e.Excused(op) {
				waits = append(waits, op.ID+" at "+op.Object)
			}
		}
		return len(waits) == 0
	})
}

// Ledger reads one member's.
func (b *Bed) Ledger(t testing.TB, rid string) history.Ledger {
	t.Helper()
	l, err := history.ReadLedger(rid, b.ledgerPath(rid))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (b *Bed) ledgerPath(rid string) string { return filepath.Join(b.dir, rid+".ledger") }

// Judge fails the test for every broken promise.
func Judge(t testing.TB, e *history.Evidence, vs ...history.Validator) {
	t.Helper()
	for _, broken := range history.Judge(e, vs...) {
		t.Error(broken)
	}
}
