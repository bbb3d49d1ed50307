package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabrictest"
	"natsfabric/relocate"
)

var moveTable = flag.String("moves.table", "", "file to which TestMoveCrash writes its table")

// More faults than those of objects, which stand beside them in a move.
const (
	mute = "what it sends is lost past its lease"
	deaf = "what it is sent is lost past its lease"
	slow = "a slow path"
	// apart: it stays connected to its clients.
	apart = "cut off from the other servers"
)

// moveCell is one row of the table.
type moveCell struct {
	step, victim, fault  string
	servers              int
	heard, during, after string
	verdict, again       string
	settled              time.Duration
	totals               history.Totals
	ran                  int
	broken               []string
}

// moveVictim is who is struck, and by what; quick is the fault that it suffers with each change.
type moveVictim struct {
	victim string
	steps  []moveStep // of the moves
	faults []string
	quick  []string
}

var moveVictims = []moveVictim{
	{source, moveSteps, []string{killed, frozen, cutOff, mute, deaf, slow, messageLost}, []string{killed, mute, messageLost}},
	{target, moveSteps, []string{killed, frozen, cutOff, mute, deaf, slow}, []string{frozen, cutOff, deaf}},
	{sessionOwner, moveSteps, []string{killed, frozen, cutOff, mute, deaf, slow}, []string{killed}},
	{storeLeader, moveSteps, []string{killed, frozen, slow, apart}, []string{slow, apart}},
	{survivor, survivorSteps, []string{killed, frozen, cutOff, messageLost}, []string{messageLost}},
	{source, unitSteps, []string{killed, frozen, cutOff, mute, slow, messageLost}, []string{killed}},
	{target, unitSteps, []string{killed, frozen, cutOff, deaf, slow}, []string{cutOff}},
	{storeLeader, unitSteps, []string{killed, frozen, apart}, nil},
}

// String is the victim and what moves, if that is no small Actor.
func (v moveVictim) String() string {
	if v.steps[0].what != "" {
		return v.victim + " of a larger unit"
	}
	return v.victim
}

// runs reports whether a cell runs. Where one server is enough a quick choice has no more.
func (v moveVictim) runs(fault string, servers int) bool {
	least := 1
	if fault == apart {
		least = 3
	}
	if *matrix == "quick" {
		return servers == least && slices.Contains(v.quick, fault)
	}
	return servers >= least
}

// TestMoveCrash brings moves to every step of the protocol, before and after each message and record write and in the
// middle of code; strikes the source, the target, the owner of a session that is bound to the objects, or the leader of the
// store there; and judges what came of each object, under steady senders: a client, another node, and that session. All
// objects of one victim and fault stand at their steps when it strikes. Every change runs a choice with one server;
// scripts/faults runs it all, with three servers, too, and writes the table.
func TestMoveCrash(t *testing.T) {
	var mu sync.Mutex
	var order []string
	rows := map[string][]moveCell{}
	t.Run("cells", func(t *testing.T) {
		for _, servers := range []int{1, 3} {
			for _, v := range moveVictims {
				for _, fault := range v.faults {
					if !v.runs(fault, servers) {
						continue
					}
					name, nth := fmt.Sprintf("%s, %s, servers=%d", v.String(), fault, servers), len(order)
					order = append(order, name)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						cells := []moveCell{{victim: v.victim, fault: fault, servers: servers, broken: []string{"the cell did not come to its end"}}}
						defer func() {
							mu.Lock()
							defer mu.Unlock()
							rows[name] = cells
						}()
						cells = (&moveCrash{moveVictim: v, fault: fault, servers: servers, nth: nth}).run(t)
					})
				}
			}
		}
	})
	if *moveTable == "" {
		return
	}
	var all []moveCell
	for _, name := range order {
		all = append(all, rows[name]...)
	}
	if err := os.WriteFile(*moveTable, []byte(moveMarkdown(all)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// moveCrash is one fault of one victim: a mesh, and one object per step.
type moveCrash struct {
	moveVictim
	fault   string
	servers int
	nth     int // of the cells that run

	*scene
	moves   ops
	mover   *bed.User // at the source
	back    *bed.User // at the target
	next    *bed.User // issues the next operations
	session *bed.Session
	objects []*standing
	steady  []*bed.User
	stops   []func()
	leader  *fabrictest.Server
	ended   time.Time // when the fault was over
}

// unitTime is the deadline of one move here, and slowTime that of one on a slow path, which none is to need.
const (
	unitTime = 20 * time.Second
	slowTime = relocate.DefaultUnitTimeout
)

// moveLease leaves the nodes of a busy machine enough time to renew.
var moveLease = bed.Lease{TTL: 9 * time.Second, Renew: 500 * time.Millisecond, Margin: time.Second}

// rid names the process of a part.
func (c *moveCrash) rid(part string) string {
	return map[string]string{source: "s", target: "t", survivor: "t", sessionOwner: "w"}[part]
}

func (c *moveCrash) run(t *testing.T) []moveCell {
	c.moves.of = map[string]string{}
	c.scene = &scene{Bed: bed.New(t, bed.Options{Servers: c.servers, AsProcess: true, ProxiedRoutes: c.fault == apart, Lease: moveLease})}
	c.WatchRecords(t)
	unit := unitTime
	if c.fault == slow {
		unit = slowTime
	}
	for _, rid := range []string{"s", "t", "w"} {
		c.Member(t, rid, "-sessions", "-unit="+unit.String())
	}
	c.scene.client = c.Client(t)
	c.next = c.newUser(t, "next", c.scene.client)
	c.scene.user = c.next
	c.hosts(t, "s", "t", "w")
	c.mover, c.back = c.Get("s").User(t, "move"), c.Get("t").User(t, "back")
	c.users = append(c.users, c.mover, c.back)
	for i, p := range stepsOf(c.steps, c.victim, c.fault, *matrix == "quick", c.nth) {
		c.objects = append(c.objects, &standing{moveStep: p, c: c, i: i, object: fmt.Sprintf("object %d", i)})
	}
	together(c.objects, func(o *standing) { o.make(t) })
	if t.Failed() {
		t.FailNow()
	}
	c.send(t)
	c.moves.watch(c.Get("s").Proxies)
	for _, o := range c.objects {
		o.arm(t)
	}
	for _, soon := range []bool{false, true} {
		var these []*standing
		for _, o := range c.objects {
			if o.soon == soon {
				these = append(these, o)
			}
		}
		together(these, func(o *standing) { o.begin(t) })
		if c.victim == survivor {
			c.orphan(t)
		}
		together(these, func(o *standing) { o.arrive(t) })
	}
	if t.Failed() {
		t.FailNow()
	}
	c.strike(t)
	return c.settle(t)
}

// orphan kills the source when the target has restored each object and no move has been accepted.
func (c *moveCrash) orphan(t *testing.T) {
	if len(c.objects) == 0 || c.Get("s").Killed() {
		return
	}
	for _, o := range c.objects {
		o.noted(t, journal.RestoreEnd)
	}
	c.killed(t, "s")
}

// pause is the time between two operations of one sender at one object.
func pause() time.Duration {
	if *matrix == "quick" {
		return 2 * time.Second
	}
	return 300 * time.Millisecond
}

// send begins the steady senders of every object: a client, another node, and a session that is bound to all of them.
func (c *moveCrash) send(t *testing.T) {
	t.Helper()
	client, node := c.Client(t), c.Node(t, "caller", c.URL())
	bed.Hosts(t, node, "s", "t", "w")
	c.session = c.Session(t, "session", c.Get("w").SessionURL(t))
	for _, o := range c.objects {
		id, generation := o.bound()
		for _, u := range []*bed.User{
			bed.NewUser(t, fmt.Sprint("client ", o.i), client), bed.NewUser(t, fmt.Sprint("node ", o.i), node),
			c.session.User(t, fmt.Sprint("session ", o.i), id, generation),
		} {
			c.steady, c.users = append(c.steady, u), append(c.users, u)
			c.stops = append(c.stops, u.Steady(1, pause(), func(n int) bed.Act {
				a := o.act(history.Request)
				if u.Binding() != nil {
					a = bed.Actor(history.Request, id)
				}
				if n%3 == 2 {
					a.Way = history.Send
				}
				a.Timeout = 10 * time.Second
				return a
			}))
		}
	}
	fabrictest.Eventually(t, bed.Long, "every sender is served", func() bool {
		return !slices.ContainsFunc(c.steady, func(u *bed.User) bool {
			return !slices.ContainsFunc(u.Ops(), func(op history.Op) bool { return op.Ends > 0 && op.Err == nil })
		})
	})
}

// ways are the proxies whose messages the fault strikes.
func (c *moveCrash) ways() (ps bed.Proxies) {
	if c.victim != storeLeader {
		return c.Get(c.rid(c.victim)).Proxies
	}
	for _, rid := range []string{"s", "t", "w"} {
		if c.Cluster == nil {
			ps = append(ps, c.Get(rid).Proxies...)
			continue
		}
		for i, s := range c.Cluster.Servers() {
			if s == c.leader {
				ps = append(ps, c.Get(rid).Proxies[i])
			}
		}
	}
	return ps
}

// strike makes the fault, and gives up what is to be lost by it.
func (c *moveCrash) strike(t *testing.T) {
	c.leader = c.Server
	if c.Cluster != nil {
		c.leader = c.Cluster.StreamLeader(t, "KV_FABRIC_m_LOCATION")
	}
	switch c.fault {
	case killed:
		if c.victim == storeLeader {
			c.leader.Kill()
		} else {
			c.Get(c.rid(c.victim)).Kill9()
		}
	case frozen:
		if c.victim == storeLeader {
			c.leader.Freeze(t)
		} else {
			c.Get(c.rid(c.victim)).Freeze(t)
		}
	case cutOff:
		c.ways().Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	case mute:
		c.ways().Apply(fabrictest.DropToServer)
	case deaf:
		c.ways().Apply(fabrictest.DropToClient)
	case slow:
		c.ways().Apply(fabrictest.Delay(100 * time.Millisecond))
	case apart:
		c.Cluster.Isolate(t, slices.Index(c.Cluster.Servers(), c.leader), fabrictest.Cut, fabrictest.RefuseReconnect)
	}
	if c.fault == messageLost {
		return
	}
	for _, o := range c.objects {
		o.struck()
	}
	switch {
	case c.victim == storeLeader, c.fault == slow, c.fault == deaf:
		lasts(t, moveLease.TTL+2*time.Second)
	default:
		c.leaseGone(t, c.rid(c.victim))
	}
}

// lasts waits while a fault goes on.
func lasts(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// end ends the fault and waits until the process serves again.
func (c *moveCrash) end(t *testing.T) {
	t.Helper()
	defer func() { c.ended = time.Now() }()
	switch {
	case c.victim == storeLeader && c.fault == killed:
		c.leader.Restart(t)
	case c.victim == storeLeader && c.fault == frozen:
		c.leader.Thaw(t)
	case c.fault == killed, c.fault == messageLost:
		return
	case c.fault == apart:
		c.Cluster.Heal()
	case c.fault == frozen:
		c.Get(c.rid(c.victim)).Thaw(t)
	default:
		c.ways().Heal()
	}
	c.ended = time.Now()
	for _, rid := range []string{"s", "t", "w"} {
		if c.Get(rid).Killed() {
			continue
		}
		fabrictest.Eventually(t, bed.Long, rid+" has a lease", func() bool { return c.leaseLive(rid) })
		c.Get(rid).Became(t, "Serving")
	}
}

// leaseLive reports whether a node has a lease; a store that does not answer says nothing.
func (c *moveCrash) leaseLive(rid string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	l, err := c.client.Store().LeaseOf(ctx, rid)
	return err == nil && l.Live
}

// settle has the next operations issued while the fault lasts and when it is over, and judges.
func (c *moveCrash) settle(t *testing.T) []moveCell {
	if (c.victim == source || c.victim == target || c.victim == survivor) && (c.fault == killed || c.fault == frozen || c.fault == cutOff || c.fault == mute) {
		together(c.objects, func(o *standing) { o.during = o.judgeNext(t) })
	}
	c.end(t)
	for _, o := range c.objects {
		o.late()
	}
	together(c.objects, func(o *standing) {
		o.heard = c.mover.Ended(t, o.id)
		o.after = o.judgeNext(t)
		o.settled = time.Since(c.ended)
		o.judgeMove(t)
		o.judgeParts(t)
		if c.victim == sessionOwner && c.fault == killed {
			o.judgeSession(t)
		}
		if c.dead(source) || c.dead(target) {
			o.reborn(t)
		} else {
			o.moveAgain(t)
		}
	})
	for _, stop := range c.stops {
		stop()
	}
	return c.rows(t)
}

// excused reports whether the fault may have taken accepted messages along: the victim owned objects and lost its lease.
func (c *moveCrash) excused() bool {
	return c.victim != sessionOwner && c.fault != slow && c.fault != messageLost
}

// blind reports whether the store's notices of writes may be missing: the server that gave them was killed or left alone.
func (c *moveCrash) blind() bool {
	return c.victim == storeLeader && (c.fault == killed || c.fault == apart)
}

// dead reports whether the process of a part was killed.
func (c *moveCrash) dead(part string) bool {
	if rid := c.rid(part); rid != "" {
		return c.Get(rid).Killed()
	}
	return false
}

// rows judges each object by itself.
func (c *moveCrash) rows(t *testing.T) (cells []moveCell) {
	var ops []history.Op
	for _, u := range c.users {
		u.Wait()
		ops = append(ops, u.Ops()...)
	}
	if !c.excused() && c.fault != killed && !c.dead(source) {
		c.Settle(t, ops)
	}
	if !c.blind() {
		c.CatchUp(t, ops)
	}
	whole := c.Evidence(t, ops)
	if c.blind() {
		whole.Writes = nil
	}
	for _, o := range c.objects {
		if !o.reached() {
			o.broken = append(o.broken, "no message of this step was seen")
		}
		own := part(whole, o)
		own.Lapsed = c.excused()
		if c.victim == sessionOwner { // it owned nothing: whoever was killed with it, no message was
			own.Ledgers = nil
		}
		row := moveCell{step: o.String(), victim: c.victim, fault: c.fault, servers: c.servers, heard: heard(o.heard), during: o.during,
			after: o.after, verdict: o.verdict, again: o.again, settled: o.settled, broken: o.broken, totals: history.Sum(own.Ops)}
		for _, e := range own.Events {
			if e.What == journal.Turn {
				row.ran++
			}
		}
		for i := range own.Ops {
			if op := &own.Ops[i]; c.fault == messageLost && c.victim != survivor && op.Err != nil && op.Way != history.Move {
				row.broken = append(row.broken, fmt.Sprintf("only a message of the move is lost, and %s (%s) heard %v", op.ID, op.Way, op.Err))
			}
		}
		row.broken = append(row.broken, history.Judge(own, history.OneOwner, history.AtMostOnce, history.NoLoss, history.InOrder,
			history.OneTerminal, history.Monotonic, history.StateKept, history.Inert, history.Boundary, history.NoAdvice)...)
		for _, why := range row.broken {
			t.Errorf("%s: %s", row.step, why)
		}
		cells = append(cells, row)
	}
	return cells
}

// part is the evidence of one object and its members.
func part(whole *history.Evidence, o *standing) *history.Evidence {
	its := map[string]bool{o.key(): true}
	for _, id := range o.members() {
		its[job.Object("actor", id)] = true
	}
	own := &history.Evidence{Ledgers: whole.Ledgers, Leases: whole.Leases, Stalled: whole.Stalled}
	for _, op := range whole.Ops {
		if its[op.Object] {
			own.Ops = append(own.Ops, op)
		}
	}
	for _, e := range whole.Events {
		if its[e.Object] {
			own.Events = append(own.Events, e)
		}
	}
	for _, w := range whole.Writes {
		if its[w.Object] {
			own.Writes = append(own.Writes, w)
		}
	}
	return own
}

func moveMarkdown(cells []moveCell) string {
	var out strings.Builder
	out.WriteString("| Victim | Fault | Servers | Step | The mover heard | Outcome | While the fault lasted | When it was over | Settled after | Used again | Sent | Replied or accepted | Not accepted | Failed, accepted | Unknown | Ran | Promises |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		promises := "kept"
		if len(c.broken) > 0 {
			promises = "BROKEN: " + strings.ReplaceAll(strings.ReplaceAll(strings.Join(c.broken, "; "), "|", "/"), "\n", " ")
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %s | %s | %s | %s | %s | %.1f s | %s | %d | %d | %d | %d | %d | %d | %s |\n", c.victim, c.fault, c.servers, c.step,
			c.heard, c.verdict, c.during, c.after, c.settled.Seconds(), c.again, c.totals.Sent, c.totals.Replied, c.totals.Refused,
			c.totals.FailedAccepted, c.totals.Unknown, c.ran, promises)
	}
	return out.String()
}
