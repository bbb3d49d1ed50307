package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// FO-7a: the answer to a lease renewal is lost. The node sends the very same write again, with the same operation ID and
// expected revision, and takes "applied" from the answer: one more write, the same lease, and no moment out of service.
func sameWriteAgain(t *testing.T) {
	b := bed.New(t, bed.Options{Lease: bed.Lease{TTL: 12 * time.Second, Renew: 500 * time.Millisecond, Margin: time.Second}})
	m := b.Member(t, "a")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a")
	before := b.Lease(t, client.Store(), "a")
	notices := make(chan *nats.Msg, 1000)
	plain := b.Plain(t)
	if _, err := plain.ChanSubscribe("fab.m.chg.nodes.lease.a", notices); err != nil {
		t.Fatal(err)
	}
	if err := plain.Flush(); err != nil {
		t.Fatal(err)
	}
	sent := bed.Watch(m.Proxies, bed.LeaseSubject("a"))
	lost := m.Proxy().Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.LeaseSubject("a"), Answer: true, Action: fabrictest.Drop})
	lost.Wait(t)
	at := len(sent.Messages()) - 1
	fabrictest.Eventually(t, bed.Long, "three more writes", func() bool { return len(sent.Messages()) > at+3 })
	var ids []string
	again := false
	for i, msg := range sent.Messages() {
		h := msg.Headers()
		id := h.Get(nats.MsgIdHdr) + " over " + h.Get(nats.ExpectedLastSubjSeqHdr)
		again = again || i > 0 && id == ids[i-1]
		ids = append(ids, id)
	}
	if !again {
		t.Errorf("the write whose answer was lost was not sent again as it was: %q", ids)
	}
	var last uint64
	for len(notices) > 0 {
		var v struct {
			Write uint64 `json:"write"`
		}
		if err := json.Unmarshal((<-notices).Data, &v); err != nil {
			t.Fatal(err)
		}
		if last != 0 && v.Write != last+1 {
			t.Errorf("the lease's write %d follows %d: a write was applied twice or left out", v.Write, last)
		}
		last = v.Write
	}
	after := b.Lease(t, client.Store(), "a")
	if after.Lifecycle != before.Lifecycle || after.Generation != before.Generation {
		t.Errorf("lease before %+v, after %+v", before, after)
	}
	if changes := m.Changes(); len(changes) > 0 {
		t.Errorf("out of service because of a lost answer: %q", changes)
	}
}

// FO-7b: a caller cannot reach the store. Within the grace it goes on with the members of its last full list, still
// noticing when one of them dies, and uses no node that came since, although it hears of it.
func lastListIsKept(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.Member(t, "a")
	dies := b.Member(t, "dies")
	ps, url := b.Proxies(t)
	client, witness := b.ClientAt(t, url), b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "dies")
	c := bed.NewCaller(t, "op", client)

	cut := bed.CutStore(ps)
	cut.AwaitWrites(t, 1) // a client writes only when it doubts its list
	b.Member(t, "new")
	bed.Sees(t, witness, bed.Channel, "a", "dies", "new")
	cut.AwaitWrites(t, 3) // in between it looks at what it has heard
	for range 10 {
		repliedBy(t, "at a member of the last list", c.Call(t, bed.Do{RID: "a"}), "a")
		want(t, "at a node outside the last list", c.Call(t, bed.Do{RID: "new"}), outcome.NotFound, outcome.NotAccepted)
	}
	repliedBy(t, "at a member of the last list", c.Call(t, bed.Do{RID: "dies"}), "dies")
	dies.Kill9()
	goneWithin(t, c, "dies", 20*time.Second)
	want(t, "at a member that died meanwhile", c.Call(t, bed.Do{RID: "dies"}), outcome.Unavailable, outcome.NotAccepted)

	cut.Restore()
	fabrictest.Eventually(t, bed.Long, "the new node is used", func() bool {
		return c.Call(t, bed.Do{RID: "new", Timeout: 2 * time.Second}).Err == nil
	})
	judge(t, b, c)
}

// FO-7c: a node that cannot renew its lease serves on until its own admission deadline and not beyond; what runs then is
// cancelled and not reported as a success. With the store back it serves under the same lifecycle and a new lease
// generation. The same for a node that was frozen beyond the expiry, in the middle of a turn.
func graceExtendsNoLease(t *testing.T) {
	b := bed.New(t, bed.Options{Lease: moveLease})
	m := b.Member(t, "a")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a")
	b.WatchLeases(t, client.Store(), "a")
	c := bed.NewCaller(t, "op", client)

	t.Run("store cut", func(t *testing.T) {
		before := b.Lease(t, client.Store(), "a")
		running := c.Go(t, bed.Do{RID: "a", Timeout: bed.Long, Job: job.Job{Do: job.Block}})
		m.Ran(t, running)
		cut, began := m.CutStore(), time.Now()
		stop := c.Steady(2, 20*time.Millisecond, func(int) bed.Do { return bed.Do{RID: "a", Timeout: bed.Long} })
		m.Became(t, "Preparing")
		if served := time.Since(began); served < 3*time.Second {
			t.Errorf("out of service %v after the store was lost, before its admission deadline", served)
		}
		stop()
		served := 0
		for _, op := range c.Ops() {
			// Unless the machine stood still for seconds, the deadline of 8 s is more than 7 s away.
			if op.ID == running || op.Start.Before(began) || op.Start.Sub(began) > 2*time.Second {
				continue
			}
			served++
			if op.Err != nil {
				t.Errorf("%v before the admission deadline: %v", op.Start.Sub(began), op.Err)
			}
		}
		if served == 0 {
			t.Error("nothing was called before the admission deadline: the test proves nothing")
		}
		refuses(t, b, c, running)
		expired(t, b, client.Store())
		cut.Restore()
		m.Became(t, "Serving")
		servesUnderNewGeneration(t, b, c, client.Store(), before)
	})

	t.Run("frozen", func(t *testing.T) {
		before := b.Lease(t, client.Store(), "a")
		running := c.Go(t, bed.Do{RID: "a", Timeout: bed.Long, Job: job.Job{Do: job.Block}})
		m.Ran(t, running)
		m.Freeze(t)
		var given []string
		for range 5 {
			given = append(given, c.Go(t, bed.Do{RID: "a", Timeout: 500 * time.Millisecond}))
		}
		expired(t, b, client.Store())
		changes := len(m.Changes())
		m.Thaw(t)
		fabrictest.Eventually(t, bed.Long, "the thawed node lapses and comes back", func() bool {
			now := m.Changes()
			return len(now) > changes+1 && strings.HasPrefix(now[len(now)-1], "Preparing Serving")
		})
		fabrictest.Eventually(t, bed.Long, "the turn ends", func() bool { return c.Get(running).Ends > 0 })
		cancelled(t, b, c, running)
		for _, id := range given {
			if b.Ledger(t, "a").Ran[id] > 0 {
				t.Errorf("%s ran after its caller had given up", id)
			}
		}
		servesUnderNewGeneration(t, b, c, client.Store(), before)
	})
	judge(t, b, c)
}

// refuses checks a node past its admission deadline.
func refuses(t *testing.T, b *bed.Bed, c *bed.Caller, running string) {
	t.Helper()
	for range 10 {
		want(t, "past the admission deadline", c.Call(t, bed.Do{RID: "a", Timeout: bed.Long}), outcome.Unavailable, outcome.NotAccepted)
	}
	refusedByAll(t, "select-one past the admission deadline", b, c, bed.Do{Timeout: time.Second})
	fabrictest.Eventually(t, bed.Long, "the turn ends", func() bool { return c.Get(running).Ends > 0 })
	cancelled(t, b, c, running)
}

// cancelled checks a turn that ran when its node's lease ended.
func cancelled(t *testing.T, b *bed.Bed, c *bed.Caller, id string) {
	t.Helper()
	if how := b.Ledger(t, "a").Ended[id]; !strings.Contains(how, kvlocation.ErrOwnershipLost.Error()) {
		t.Errorf("the turn that ran at the lapse ended with %q", how)
	}
	if op := c.Get(id); !errors.Is(op.Err, outcome.Accepted) {
		t.Errorf("its caller heard %v, want an error that says Accepted", op.Err)
	}
}

// expired waits until the lease is gone on the store, too.
func expired(t *testing.T, b *bed.Bed, store *kvlocation.Store) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "the lease has expired", func() bool { return !b.Lease(t, store, "a").Live })
}

func servesUnderNewGeneration(t *testing.T, b *bed.Bed, c *bed.Caller, store *kvlocation.Store, before kvlocation.LeaseState) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "a serves again", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	after := b.Lease(t, store, "a")
	if after.Lifecycle != before.Lifecycle || after.Generation <= before.Generation {
		t.Errorf("lease before %+v, after %+v: want the same lifecycle and a later generation", before, after)
	}
}

// FO-7d: while a node was away one member came and one left. Connected again, the node reads everything before it
// changes anything: it neither publishes nor serves while its reading is kept back.
func everythingIsCheckedFirst(t *testing.T) {
	b := bed.New(t, bed.Options{})
	leaves := b.Member(t, "leaves")
	ps, url := b.Proxies(t)
	node, witness := b.Node(t, "host", url), b.Client(t)
	bed.Sees(t, node, bed.Channel, "leaves")
	before := b.Lease(t, witness.Store(), "host")

	ps.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	awaitState(t, node, kvlocation.StatePreparing)
	leaves.Leave(t)
	leaves.Wait(t)
	b.Member(t, "comes")
	bed.Sees(t, witness, bed.Channel, "comes")
	published := bed.Watch(ps, bed.DescSubject("host"))
	reading := ps[0].Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$JS.API.DIRECT.GET.KV_FABRIC_m_NODES", Times: -1, Action: fabrictest.Drop})
	ps.Heal()
	reading.Wait(t)
	fabrictest.Eventually(t, bed.Long, "more readings are lost", func() bool { return reading.Count() > 3 })
	if n := len(published.Messages()); n > 0 || node.State() != kvlocation.StatePreparing {
		t.Errorf("%d descriptors published, state %s, before everything was read again", n, node.State())
	}
	reading.Disarm()
	awaitState(t, node, kvlocation.StateServing)
	if _, there := node.Members().Get("leaves"); there {
		t.Error("a node that left is still a member for the node that serves again")
	}
	if _, there := node.Members().Get("comes"); !there {
		t.Error("a node that came is no member for the node that serves again")
	}
	if n := len(published.Messages()); n != 1 {
		t.Errorf("the descriptor was published %d times, once is needed", n)
	}
	if after := b.Lease(t, witness.Store(), "host"); after.Generation != before.Generation {
		t.Errorf("the lease was made again although it never ended: %+v, before %+v", after, before)
	}
	c := bed.NewCaller(t, "op", node)
	repliedBy(t, "at the member that came", c.Call(t, bed.Do{RID: "comes", Timeout: bed.Long}), "comes")
	want(t, "at the member that left", c.Call(t, bed.Do{RID: "leaves"}), outcome.NotFound, outcome.NotAccepted)
	judge(t, b, c)
}

func awaitState(t *testing.T, n interface{ State() kvlocation.NodeState }, state kvlocation.NodeState) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "the node is "+string(state), func() bool { return n.State() == state })
}

// becomes brings a fault about and waits until the node has become one state after the other since, however short it was in
// each.
func becomes(t *testing.T, n *fabric.Node, fault func(), states ...kvlocation.NodeState) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bed.Long)
	defer cancel()
	changes := n.States(ctx)
	fault()
	for _, state := range states {
		became := false
		for !became {
			ch, more := <-changes
			if became = ch.To == state; !more {
				t.Fatalf("the node did not become %s", state)
			}
		}
	}
}

// FO-7e: the writes that prove a lease arrive, their answers do not. The store says that the node holds its lease; the
// node, which does not know, takes nothing: at its start, and after a reconnect.
func nothingOpensOnUnknown(t *testing.T) {
	b := bed.New(t, bed.Options{})
	client := b.Client(t)
	c := bed.NewCaller(t, "op", client)
	m := b.Prepare(t, "a")
	unanswered := fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: bed.LeaseSubject("a"), Answer: true, Times: -1, Action: fabrictest.Drop}
	closed := func(kind outcome.Kind) {
		t.Helper()
		fabrictest.Eventually(t, bed.Long, "the store holds the lease", func() bool { return b.Lease(t, client.Store(), "a").Live })
		for range 5 {
			want(t, "while the result is unknown", c.Call(t, bed.Do{RID: "a", Timeout: bed.Long}), kind, outcome.NotAccepted)
		}
	}
	answers := m.Proxy().Arm(unanswered)
	m.Launch(t)
	answers.Wait(t)
	closed(outcome.NotFound)
	want(t, "select-one while the result is unknown", c.Call(t, bed.Do{}), outcome.NotFound, outcome.NotAccepted)
	answers.Disarm()
	m.WaitOutput(t, "ready ")
	bed.Sees(t, client, bed.Channel, "a")
	repliedBy(t, "with the answer", c.Call(t, bed.Do{RID: "a"}), "a")
	before := b.Lease(t, client.Store(), "a")

	m.Proxy().Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	m.Became(t, "Preparing")
	answers = m.Proxy().Arm(unanswered)
	m.Proxy().Heal()
	answers.Wait(t)
	closed(outcome.Unavailable)
	refusedByAll(t, "select-one while the result is unknown", b, c, bed.Do{Timeout: time.Second})
	if m.State() != "Preparing" {
		t.Errorf("the node is %s while it does not know whether it holds its lease", m.State())
	}
	answers.Disarm()
	m.Became(t, "Serving")
	fabrictest.Eventually(t, bed.Long, "a serves again", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	if after := b.Lease(t, client.Store(), "a"); after.Lifecycle != before.Lifecycle {
		t.Errorf("lease before %+v, after %+v", before, after)
	}
	judge(t, b, c)
}
