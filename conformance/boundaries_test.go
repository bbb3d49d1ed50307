package conformance

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// FO-10.1: three small members under more load than they hold, and one of them is killed: every operation moves on by
// refusals alone, and no further once somebody took it.
func selectionEndsWithAcceptance(t *testing.T) {
	b := bed.New(t, bed.Options{})
	members := []*bed.Member{b.Member(t, "a", "-workers=2", "-queue=2"), b.Member(t, "b", "-workers=2", "-queue=2"), b.Member(t, "c", "-workers=2", "-queue=2")}
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b", "c")
	c := bed.NewCaller(t, "op", client)
	stop := c.Steady(30, 10*time.Millisecond, func(n int) bed.Do {
		return bed.Do{Early: n%3 == 1, Send: n%3 == 2, Timeout: 4 * time.Second, Job: job.Job{Do: job.Sleep, Millis: 30}}
	})
	began := time.Now()
	ended := func(n int) func() bool {
		return func() bool { return len(c.Ops()) > n && time.Since(began) > time.Second }
	}
	fabrictest.Eventually(t, bed.Long, "some operations", ended(100))
	members[0].Kill9()
	began = time.Now()
	fabrictest.Eventually(t, bed.Long, "more operations", ended(len(c.Ops())+100))
	stop()
	judge(t, b, c)
	sum := history.Sum(c.Ops())
	if sum.Reselected == 0 || sum.Replied == 0 {
		t.Errorf("%+v: the test proves nothing", sum)
	}
}

// FO-10.2: operations at three named nodes while one is killed and started again and one is frozen: each runs at the
// node that it names or nowhere, and what was on its way to a process run that has died does not reach the next one.
func directKeepsIdentity(t *testing.T) {
	b := bed.New(t, bed.Options{Brief: []string{"a"}})
	ma, mb := b.Member(t, "a"), b.Member(t, "b")
	b.Member(t, "c")
	ps, url := b.Proxies(t)
	client := b.ClientAt(t, url)
	bed.Sees(t, client, bed.Channel, "a", "b", "c")
	c := bed.NewCaller(t, "op", client)
	for _, rid := range []string{"a", "b", "c"} {
		repliedBy(t, "before", c.Call(t, bed.Do{RID: rid}), rid)
	}

	held := ps[0].Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.a.*.ch.work", Action: fabrictest.HoldAlone})
	id := c.Go(t, bed.Do{RID: "a", Timeout: bed.Long})
	held.Wait(t)
	old := b.Lease(t, client.Store(), "a").Lifecycle
	ma.Kill9()
	ma.Start(t)
	fabrictest.Eventually(t, bed.Long, "the next process run answers", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	if now := b.Lease(t, client.Store(), "a").Lifecycle; now <= old {
		t.Errorf("lifecycle %d after %d", now, old)
	}
	held.Release()
	fabrictest.Eventually(t, bed.Long, "what was on its way ends", func() bool { return c.Get(id).Ends > 0 })
	want(t, "on its way to a process run that has died", c.Get(id), outcome.Unavailable, outcome.NotAccepted)

	stop := c.Steady(6, 10*time.Millisecond, func(n int) bed.Do {
		return bed.Do{RID: []string{"a", "b", "c"}[n%3], Early: n%2 == 0, Timeout: time.Second}
	})
	began := time.Now()
	mb.Freeze(t)
	ma.Kill9()
	ma.Start(t)
	mb.Thaw(t)
	fabrictest.Eventually(t, bed.Long, "all three answer again", func() bool {
		return !slices.ContainsFunc([]string{"a", "b", "c"}, func(rid string) bool {
			return c.Call(t, bed.Do{RID: rid, Timeout: 2 * time.Second}).Err != nil
		})
	})
	stop()
	if n := count(c.Ops(), began, history.Direct); n < 20 {
		t.Errorf("only %d operations during the faults", n)
	}
	judge(t, b, c)
}

// FO-10.3: steady callers while members are frozen and thawed, cut off, left without their answers, and killed, and while
// the callers' own connection is cut: what is accepted or unknown runs at one member at most and is given to no other.
func nothingIsResubmitted(t *testing.T) {
	b := bed.New(t, bed.Options{})
	var members []*bed.Member
	for _, rid := range []string{"a", "b", "c", "d"} {
		members = append(members, b.Member(t, rid))
	}
	ps, url := b.Proxies(t)
	client := b.ClientAt(t, url)
	bed.Sees(t, client, bed.Channel, "a", "b", "c", "d")
	b.WatchLeases(t, client.Store(), "a", "b", "c", "d")
	c := bed.NewCaller(t, "op", client)
	stop := c.Steady(16, 10*time.Millisecond, func(n int) bed.Do {
		return bed.Do{Early: n%2 == 0, Send: n%5 == 0, Timeout: 700 * time.Millisecond, Job: job.Job{Do: job.Sleep, Millis: n % 7}}
	})
	wait := func(what string, unknown int) {
		t.Helper()
		before := history.Sum(c.Ops()).Unknown
		fabrictest.Eventually(t, bed.Long, what+" shows", func() bool { return history.Sum(c.Ops()).Unknown >= before+unknown })
	}
	members[0].Freeze(t)
	wait("the freeze", 3)
	members[1].Proxy().Apply(fabrictest.DropToServer) // its answers are lost, its requests come
	wait("the loss of the answers", 3)
	members[0].Thaw(t)
	members[1].Proxy().Heal()
	members[2].Kill9()
	for range 3 {
		members[3].After(t, func() { members[3].Proxy().Apply(fabrictest.Cut) }, "Preparing", "Serving")
	}
	for range 3 {
		ps[0].Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.ch.work", Action: fabrictest.CutAfter})
		wait("the loss of the callers' connection", 1)
	}
	fabrictest.Eventually(t, bed.Long, "everybody that lives serves again", func() bool {
		return !slices.ContainsFunc([]string{"a", "b", "d"}, func(rid string) bool {
			return c.Call(t, bed.Do{RID: rid, Timeout: 2 * time.Second}).Err != nil
		})
	})
	stop()
	judge(t, b, c)
}

// CA-3: select-one is a NATS queue group: as many subscriptions as the member has weight, and a plain NATS client is
// served by exactly one member.
func queueGroups(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.Member(t, "a")
	m := b.Member(t, "b", "-weight=3")
	plain := b.Plain(t)
	groups := func() map[string]int {
		subs, err := b.Server.NATS().Subsz(&server.SubszOptions{Subscriptions: true, Limit: 10000, Test: "fab.m.ch.work"})
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{}
		for _, s := range subs.Subs {
			n[s.Queue]++
		}
		return n
	}
	if got := groups(); len(got) != 1 || got["fabric"] != 4 {
		t.Errorf("subscriptions by queue group: %v, want 4 in fabric", got)
	}
	for i := range 40 {
		id := "plain-" + string(rune('A'+i))
		answer, err := plain.Request("fab.m.ch.work", job.Job{ID: id, Do: job.Reply}.Encode(), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if n, where := b.Evidence(t, nil).Runs(id); n != 1 || string(answer.Data) != string(job.Answer(where[0], id)) {
			t.Errorf("%s ran at %v and was answered %q", id, where, answer.Data)
		}
	}
	for rid, l := range map[string]history.Ledger{"a": b.Ledger(t, "a"), "b": b.Ledger(t, "b")} {
		if len(l.Ran) == 0 {
			t.Errorf("%s got none of 40 requests", rid)
		}
	}
	m.SetWeight(t, 0)
	fabrictest.Eventually(t, bed.Long, "b has left the queue group", func() bool { return groups()["fabric"] == 1 })
}

// CA-6: a program that uses the fabric package alone is held inside the failover boundaries: a connection that would
// send later what was given up is refused; what is refused while disconnected never goes out; the node that is out of
// service says so before it takes anything.
func fabricHoldsTheBoundaries(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.Member(t, "a")
	_, err := fabric.Start(t.Context(), fabric.Config{Mesh: bed.Mesh, Conn: b.Plain(t)})
	if !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), "ReconnectBufSize(-1)") {
		t.Errorf("a connection with a reconnect buffer: %v", err)
	}
	ps, url := b.Proxies(t)
	nc := fabrictest.Connect(t, url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: bed.Mesh, Conn: nc})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	bed.Sees(t, client, bed.Channel, "a")
	c := bed.NewCaller(t, "op", client)
	repliedBy(t, "over the caller's own connection", c.Call(t, bed.Do{}), "a")

	ps.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	fabrictest.Eventually(t, bed.Long, "disconnected", func() bool { return !nc.IsConnected() })
	for n := range 30 {
		op := c.Call(t, bed.Do{Send: n%2 == 0, Timeout: time.Second})
		if op.Err == nil || errors.Is(op.Err, outcome.Accepted) {
			t.Errorf("while disconnected: %v", op.Err)
		}
		if n > 0 { // the first one may have met the loss itself
			want(t, "while disconnected", op, outcome.Unavailable, outcome.NotAccepted)
		}
	}
	ps.Heal()
	connected(t, c)
	repliedBy(t, "after the reconnect", c.Call(t, bed.Do{}), "a")
	judge(t, b, c)
	if e := b.Evidence(t, nil); len(e.Ledgers[0].Ran) > 10 {
		t.Errorf("a ran %d operations: what was refused went out later", len(e.Ledgers[0].Ran))
	}
}
