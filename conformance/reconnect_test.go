package conformance

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func echo(_ context.Context, r *channels.Request) (channels.Reply, error) {
	return channels.Reply{Data: r.Data()}, nil
}

// FO-3.2c: a member's connection is cut. Connected again it takes nothing until it has proven its lease and identity to
// the store; then its peers meet a new epoch of the same process run.
func handshakeIsRepeated(t *testing.T) {
	b := bed.New(t, bed.Options{})
	m := b.Member(t, "a")
	node := b.Node(t, "host", b.URL())
	bed.Sees(t, node, bed.Channel, "a")
	c := bed.NewCaller(t, "op", node)
	repliedBy(t, "before", c.Call(t, bed.Do{RID: "a"}), "a")
	before, epoch := b.Lease(t, node.Store(), "a"), epochOf(node.Peers(), "a")

	m.Proxy().Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	m.Became(t, "Preparing")
	renewal := m.Proxy().Arm(fabrictest.Trigger{Subject: bed.LeaseSubject("a"), Times: -1, Action: fabrictest.Drop})
	m.Proxy().Heal()
	renewal.Wait(t) // it is connected, and on its way to prove its lease
	for range 5 {
		op := c.Call(t, bed.Do{RID: "a", Timeout: bed.Long})
		want(t, "before the lease was checked again", op, outcome.Unavailable, outcome.NotAccepted)
	}
	refusedByAll(t, "select-one before the lease was checked again", b, c, bed.Do{Timeout: time.Second})
	if got := m.State(); got != "Preparing" {
		t.Errorf("the member is %s before its lease was checked again", got)
	}
	renewal.Disarm()
	m.Became(t, "Serving")
	fabrictest.Eventually(t, bed.Long, "a answers again", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	after := b.Lease(t, node.Store(), "a")
	if after.Lifecycle != before.Lifecycle {
		t.Errorf("lifecycle %d became %d by a reconnect", before.Lifecycle, after.Lifecycle)
	}
	if got := epochOf(node.Peers(), "a"); got <= epoch {
		t.Errorf("connection epoch %d, it was %d before the reconnect", got, epoch)
	}
	judge(t, b, c)
}

func epochOf(peers []channels.PeerStatus, rid string) uint64 {
	for _, p := range peers {
		if p.RID == rid && p.Listed {
			return p.Epoch
		}
	}
	return 0
}

// FO-3.2d: the caller's connection is lost after the request was sent: with its answer on the way, and with only the
// answers lost before. It ends at once as unknown, and nobody else is given it.
func lostConnectionIsUnknown(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.Member(t, "a")
	b.Member(t, "b")
	ps, url := b.Proxies(t)
	client := b.ClientAt(t, url)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)
	sent := fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.ch.work"}

	for _, lose := range []struct {
		name  string
		cause func(id string, m *bed.Member)
	}{
		{"while it runs", func(string, *bed.Member) { ps.Apply(fabrictest.Cut) }},
		{"after its answer was lost", func(id string, m *bed.Member) {
			ps.Apply(fabrictest.DropToClient)
			fabrictest.Eventually(t, bed.Long, "the request has been answered", func() bool {
				return b.Ledger(t, m.RID).Ended[id] != ""
			})
			ps.Apply(fabrictest.Cut)
		}},
	} {
		// It runs for longer than a busy machine takes to see that and to cut, and not for so long that its member is suspect.
		id := c.Go(t, bed.Do{Timeout: bed.Long, Job: job.Job{Do: job.Sleep, Millis: 1500}})
		lose.cause(id, runner(t, b, c, id))
		c.Wait()
		ps.Heal()
		op := c.Get(id)
		want(t, "the connection lost "+lose.name, op, outcome.Unavailable, outcome.Unknown)
		if op.Took() > 20*time.Second {
			t.Errorf("lost %s: told after %v", lose.name, op.Took())
		}
		connected(t, c)
	}
	// Cut in the middle: the server has read the request, the client library has not heard anything.
	for range 3 {
		sent.Action = fabrictest.CutAfter
		ps[0].Arm(sent)
		op := c.Call(t, bed.Do{Timeout: bed.Long})
		want(t, "the connection lost behind the request", op, outcome.Unavailable, outcome.Unknown)
		connected(t, c)
		// And in front of it: the client cannot know the difference.
		sent.Action = fabrictest.CutBefore
		ps[0].Arm(sent)
		op = c.Call(t, bed.Do{Timeout: bed.Long})
		want(t, "the connection lost before the request", op, outcome.Unavailable, outcome.Unknown)
		connected(t, c)
	}
	for _, op := range c.Ops() {
		if op.Trace.Attempts > 1 {
			t.Errorf("operation %s: %d attempts", op.ID, op.Trace.Attempts)
		}
	}
	judge(t, b, c)
}

// connected waits until the caller's operations pass again.
func connected(t *testing.T, c *bed.Caller) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "the caller is connected", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
}

// FO-10.5: after a reconnect of the caller its requests carry a new reply route, what comes on the old one is dropped
// and counted, and a named node is greeted again before it is used.
func reconnectIsANewEpoch(t *testing.T) {
	b := bed.New(t, bed.Options{})
	m := b.Member(t, "a")
	ps, url := b.Proxies(t)
	node := b.Node(t, "host", url)
	bed.Sees(t, node, bed.Channel, "a")
	c := bed.NewCaller(t, "op", node)
	inbox := make(chan *nats.Msg, 1000)
	plain := b.Plain(t)
	if _, err := plain.ChanSubscribe("fab.m.node.a.>", inbox); err != nil {
		t.Fatal(err)
	}
	if err := plain.Flush(); err != nil {
		t.Fatal(err)
	}
	repliedBy(t, "before", c.Call(t, bed.Do{RID: "a"}), "a")
	first := until(t, inbox, ".ch.work")
	if !strings.HasSuffix(first[0].Subject, ".hello") {
		t.Errorf("the first message to a node is %s, not a handshake", first[0].Subject)
	}
	repliedBy(t, "again", c.Call(t, bed.Do{RID: "a"}), "a")
	if second := until(t, inbox, ".ch.work"); len(second) != 1 {
		t.Errorf("within an epoch a node is greeted %d times more", len(second)-1)
	}

	id := c.Go(t, bed.Do{RID: "a", Timeout: bed.Long, Job: job.Job{Do: job.Sleep, Millis: 4000}})
	m.Ran(t, id)
	running := until(t, inbox, ".ch.work")
	old := running[len(running)-1].Reply
	was := node.Metrics()
	ps.Apply(fabrictest.Cut)
	c.Wait()
	want(t, "running when the connection was lost", c.Get(id), outcome.Unavailable, outcome.Unknown)
	drain(inbox)
	fabrictest.Eventually(t, bed.Long, "the node calls again", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	again := until(t, inbox, ".ch.work")
	if !strings.HasSuffix(again[0].Subject, ".hello") {
		t.Errorf("the first message in the new epoch is %s, not a handshake", again[0].Subject)
	}
	now := again[len(again)-1].Reply
	if route(old) == route(now) {
		t.Errorf("the reply route %s is used again", route(now))
	}
	fabrictest.Eventually(t, bed.Long, "the late reply on the old route is dropped and counted", func() bool {
		return node.Metrics().StaleReplies > was.StaleReplies
	})
	if got := node.Metrics(); got.Epoch <= was.Epoch || got.Waiting != 0 {
		t.Errorf("epoch %d after %d, %d waiting", got.Epoch, was.Epoch, got.Waiting)
	}
	judge(t, b, c)
}

// route is a reply subject without the part that is the request's own.
func route(reply string) string { return reply[:strings.LastIndexByte(reply, '.')] }

// until reads messages up to the first one whose subject has the suffix, and returns them all.
func until(t *testing.T, ch chan *nats.Msg, suffix string) (msgs []*nats.Msg) {
	t.Helper()
	for {
		select {
		case m := <-ch:
			if msgs = append(msgs, m); strings.HasSuffix(m.Subject, suffix) {
				return msgs
			}
		case <-time.After(bed.Long):
			t.Fatalf("no message on %s", suffix)
		}
	}
}

func drain(ch chan *nats.Msg) {
	for {
		select {
		case <-ch:
		default:
			return
		}
	}
}
