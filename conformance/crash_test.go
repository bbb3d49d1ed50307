package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

var crashTable = flag.String("crash.table", "", "file to which TestCrash writes its table")

// crashFaults are what a process suffers when it stands at its step.
var crashFaults = []string{killed, frozen, cutOff, messageLost}

// runs reports whether a cell runs. Of a server nothing but its death is tried, and what a caller or a server suffers makes
// less difference than what strikes the process that carries the steps out.
func (sc *scenario) runs(struck, fault string, servers int) bool {
	other := struck != sc.struck[0]
	switch {
	case *matrix == "quick" && servers > 1:
		return false
	case struck == storeServer:
		return fault == killed
	case other && fault == messageLost:
		return false // whose message it is makes no difference
	}
	return !other || *matrix != "quick" || fault == sc.quick
}

// storeServer is the server that leads the stream of the records, as what is struck.
const storeServer = "server"

// The faults of the crash matrix.
const (
	killed      = "kill -9"
	frozen      = "frozen past its lease, thawed"
	cutOff      = "cut off past its lease"
	messageLost = "the message is lost"
)

// crashCell is one row of the table.
type crashCell struct {
	scenario, step, struck, fault string
	servers                       int
	// heard is what the caller of the operation was told that was at this step.
	heard string
	// during and after are the record and what the next operation did, while the fault lasted and when it was over.
	during, after string
	factories     int
	broken        []string
}

// TestCrash brings objects to every step of their creation, their first activation, the taking over of an unfinished one,
// their release and their coming back after a lapse of their owner's lease, before and after each write; strikes one of
// the processes there; and judges what came of each object. All objects of one scenario stand at their steps when the
// fault strikes. Every change runs this with one server and a choice of what the callers suffer; scripts/faults runs it
// all, with three servers, too, and writes the table.
func TestCrash(t *testing.T) {
	var mu sync.Mutex
	var order []string
	rows := map[string][]crashCell{}
	t.Run("cells", func(t *testing.T) {
		for _, servers := range []int{1, 3} {
			for _, sc := range scenarios {
				for _, struck := range sc.struck {
					for _, fault := range crashFaults {
						if !sc.runs(struck, fault, servers) {
							continue
						}
						name := fmt.Sprintf("%s, %s %s, servers=%d", sc.name, struck, fault, servers)
						order = append(order, name)
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							cells := []crashCell{{scenario: sc.name, struck: struck, fault: fault, servers: servers,
								broken: []string{"the cell did not come to its end"}}}
							defer func() {
								mu.Lock()
								defer mu.Unlock()
								rows[name] = cells
							}()
							cells = (&crash{scenario: sc, struck: struck, fault: fault, servers: servers}).run(t)
						})
					}
				}
			}
		}
	})
	if *crashTable == "" {
		return
	}
	var all []crashCell
	for _, name := range order {
		all = append(all, rows[name]...)
	}
	if err := os.WriteFile(*crashTable, []byte(crashMarkdown(all)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// crash is one scenario under one fault: a mesh, and one object per step.
type crash struct {
	scenario
	struck, fault string
	servers       int

	*scene
	ways    bed.Proxies // the caller's
	actor   *bed.Member // who carries out the steps: the member "a"
	caller  *bed.Member // the process that issues the operations, if that is the one which is struck
	user    *bed.User   // issues the operations that stand at the steps
	next    *bed.User   // issues the next ones
	objects []*pinned
	leader  *fabrictest.Server // that was killed
}

// victim is the member that is struck; if it is a server, the member that stands at the steps.
func (c *crash) victim() *bed.Member {
	if c.struck == "caller" {
		return c.caller
	}
	return c.actor
}

// patience is how long the operations at the steps may take.
func (c *crash) patience() time.Duration {
	switch {
	case c.byActor:
		return 25 * time.Second // a release waits for a proof
	case c.fault == frozen && c.victim() == c.caller:
		return 20 * time.Second // what a frozen process has begun cannot end before it is thawed
	}
	return 10 * time.Second
}

func (c *crash) run(t *testing.T) []crashCell {
	c.scene = &scene{Bed: bed.New(t, bed.Options{Servers: c.servers, AsProcess: c.struck == storeServer, Brief: []string{"a", "caller", "z", "z1", "z2"}})}
	c.WatchRecords(t)
	c.scene.client = c.Client(t)
	c.next = c.newUser(t, "next", c.scene.client)
	c.scene.user = c.next
	if c.first != nil {
		c.first(t, c)
	}
	if c.actor == nil {
		c.actor = c.Member(t, "a")
	}
	c.hosts(t, "a")
	switch {
	case c.struck == "caller":
		c.caller = c.Bed.Prepare(t, "caller", "-journal=")
		c.caller.Start(t)
		c.ways = c.caller.Proxies
		c.user = c.caller.User(t, "op")
	case c.byActor:
		c.ways, c.user = c.actor.Proxies, c.actor.User(t, "op")
	default:
		var url string
		c.ways, url = c.Proxies(t)
		c.user = bed.NewUser(t, "op", c.ClientAt(t, url))
	}
	if c.then != nil {
		c.then(t, c)
	}
	for i, p := range c.steps {
		c.objects = append(c.objects, c.arm(t, i, p))
	}
	for _, o := range c.objects {
		o.begin(t)
	}
	if c.fault != messageLost {
		for _, o := range c.objects {
			o.arrive(t)
		}
	}
	c.Member(t, "b")
	c.hosts(t, "a", "b")
	c.strike(t)
	return c.settle(t)
}

// strike makes the fault, and gives up what is to be lost by it.
func (c *crash) strike(t *testing.T) {
	v := c.victim()
	switch {
	case c.struck == storeServer:
		if c.leader = c.Server; c.Cluster != nil {
			c.leader = c.Cluster.StreamLeader(t, "KV_FABRIC_m_LOCATION")
		}
		c.leader.Kill()
		for _, ways := range []bed.Proxies{v.Proxies, c.ways} { // what they keep would hide the end of the connection
			ways.Apply(fabrictest.Cut)
		}
	case c.fault == killed:
		v.Kill9()
	case c.fault == frozen:
		v.Freeze(t)
	case c.fault == cutOff:
		v.Proxies.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	}
	for _, o := range c.objects {
		o.struck(c.struck == "caller")
	}
	if c.fault != messageLost && c.struck != storeServer {
		c.leaseGone(t, v.RID)
	}
}

// end ends the fault and waits until the process serves again, under a new lease.
func (c *crash) end(t *testing.T) {
	t.Helper()
	v := c.victim()
	switch {
	case c.struck == storeServer:
		c.leader.Restart(t)
		fabrictest.Eventually(t, bed.Long, "the store answers", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := c.client.Store().LeaseOf(ctx, v.RID)
			return err == nil
		})
	case c.fault == frozen:
		v.Thaw(t)
	case c.fault == cutOff:
		v.Proxies.Heal()
	default:
		return
	}
	fabrictest.Eventually(t, bed.Long, v.RID+" has a lease again", func() bool { return c.Lease(t, c.client.Store(), v.RID).Live })
	v.Became(t, "Serving")
}

// settle has the next operations issued while the fault lasts and when it is over, and judges.
func (c *crash) settle(t *testing.T) []crashCell {
	together(c.objects, func(o *pinned) {
		switch {
		case c.struck == storeServer:
			return
		case c.fault == messageLost:
			o.heard = c.user.Ended(t, o.id)
		}
		o.during = c.judgeNext(t, o)
		if o.where == late && c.fault != messageLost && c.struck != "caller" {
			c.reborn(t, o, &o.during) // so that what arrives late meets another incarnation
		}
	})
	c.end(t)
	for _, o := range c.objects {
		o.late()
	}
	together(c.objects, func(o *pinned) {
		o.heard = c.user.Ended(t, o.id)
		o.after = c.judgeNext(t, o)
	})
	switch {
	case c.name == "membership" && c.alive(t, c.Record(t, c.client.Store(), c.objects[0].key())):
		together(c.objects, func(o *pinned) { c.judgeSeat(t, o) })
	case c.fault == killed && c.struck != storeServer:
		together(c.objects, func(o *pinned) { c.reborn(t, o, &o.after) })
	}
	return c.rows(t)
}

// together runs f for all objects at the same time.
func together[T any](objects []T, f func(T)) {
	var wg sync.WaitGroup
	for _, o := range objects {
		wg.Go(func() { f(o) })
	}
	wg.Wait()
}

// rows judges each object by itself.
func (c *crash) rows(t *testing.T) (cells []crashCell) {
	c.user.Wait()
	c.next.Wait()
	ops := append(c.user.Ops(), c.next.Ops()...)
	for _, u := range c.users {
		if u != c.next {
			ops = append(ops, u.Ops()...)
		}
	}
	if c.struck != storeServer {
		c.CatchUp(t, ops)
	}
	whole := c.Evidence(t, ops)
	if c.struck == storeServer { // its notices of writes may be gone with it
		whole.Writes = nil
	}
	for _, o := range c.objects {
		own := history.Evidence{Ledgers: whole.Ledgers, Leases: whole.Leases, Stalled: whole.Stalled, Lapsed: c.fault != killed || c.struck == storeServer || c.lapses}
		row := crashCell{scenario: c.name, step: o.String(), struck: c.struck, fault: c.fault, servers: c.servers,
			heard: heard(o.heard), during: o.during, after: o.after, broken: o.broken}
		for _, op := range whole.Ops {
			if op.Object == o.key() {
				own.Ops = append(own.Ops, op)
			}
		}
		for _, e := range whole.Events {
			if e.Object != o.key() {
				continue
			}
			own.Events = append(own.Events, e)
			if e.What == journal.Factory {
				row.factories++
			}
		}
		for _, w := range whole.Writes {
			if w.Object == o.key() {
				own.Writes = append(own.Writes, w)
			}
		}
		row.broken = append(row.broken, history.Judge(&own, history.OneOwner, history.AtMostOnce, history.NoLoss,
			history.InOrder, history.OneTerminal, history.Monotonic, history.NoAdvice)...)
		for _, why := range row.broken {
			t.Errorf("%s: %s", row.step, why)
		}
		cells = append(cells, row)
	}
	return cells
}

// heard is what a caller was told, in words.
func heard(r bed.Result) string {
	switch {
	case r.Ends == 0:
		return "nothing"
	case r.Err != nil:
		kind, acceptance := kindOf(r.Err)
		return fmt.Sprintf("%s, %s", kind, acceptance)
	case r.Way == history.Request:
		return "answered"
	}
	return "done"
}

// phrase is a record in words.
func phrase(e kvlocation.Entry, alive bool) string {
	if e.Phase() == kvlocation.PhaseMissing {
		return "Missing"
	}
	state := "its owner lives"
	if !alive {
		state = "its lease gone"
	}
	return fmt.Sprintf("%s at %s (%d), %s", strings.ToUpper(string(e.Phase())[:1])+string(e.Phase())[1:], e.Record.Owner.RID, e.Record.OwnerGeneration, state)
}

func crashMarkdown(cells []crashCell) string {
	var out strings.Builder
	out.WriteString("| Scenario | Step | Struck | Fault | Servers | The operation's caller heard | While the fault lasted | When it was over | Factory runs | Promises |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		promises := "kept"
		if len(c.broken) > 0 {
			promises = "BROKEN: " + strings.ReplaceAll(strings.Join(c.broken, "; "), "|", "/")
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %d | %s | %s | %s | %d | %s |\n",
			c.scenario, c.step, c.struck, c.fault, c.servers, c.heard, c.during, c.after, c.factories, promises)
	}
	return out.String()
}
