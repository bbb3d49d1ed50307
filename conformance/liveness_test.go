package conformance

import (
	"errors"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// livenessDeadline is how long after a fault requests may still be given to a silent member: 2 s until a request is
// overdue, 2 s of probes until its member is suspect, and a slow machine's delays; far below the lease's 18 s.
const livenessDeadline = 11 * time.Second

// FO-3.2a: a member that leaves in order and one whose process is killed are known to be gone at once; one that is
// half-open, for which no packet says anything, within the liveness deadline.
func failuresShow(t *testing.T) {
	b := bed.New(t, bed.Options{})
	b.Member(t, "healthy")
	orderly, killed, halfOpen := b.Member(t, "orderly"), b.Member(t, "killed"), b.Member(t, "silent")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "healthy", "orderly", "killed", "silent")
	c := bed.NewCaller(t, "op", client)
	for _, rid := range []string{"orderly", "killed", "silent"} {
		repliedBy(t, "before", c.Call(t, bed.Do{RID: rid}), rid)
	}

	stop := c.Steady(4, 20*time.Millisecond, func(int) bed.Do { return bed.Do{Timeout: bed.Long} })
	orderly.Leave(t)
	orderly.Wait(t)
	op := c.Call(t, bed.Do{RID: "orderly", Timeout: bed.Long})
	if !errors.Is(op.Err, outcome.NotAccepted) || op.Took() > bed.Long/2 {
		t.Errorf("at a node that left: %v after %v", op.Err, op.Took())
	}
	stop()
	for _, op := range c.Ops() {
		if op.Way == history.Request && op.Err != nil {
			t.Errorf("a request failed because a member left in order: %v", op.Err)
		}
	}

	killed.Kill9()
	goneWithin(t, c, "killed", 5*time.Second)
	for range 20 {
		repliedToo(t, c.Call(t, bed.Do{Timeout: 20 * time.Second}), "healthy", "silent")
	}

	struck := time.Now()
	halfOpen.Proxy().Apply(fabrictest.HalfOpen)
	stop = c.Steady(8, 20*time.Millisecond, func(int) bed.Do { return bed.Do{Timeout: time.Second} })
	fabrictest.Eventually(t, bed.Long, "500 requests in a row are answered", func() bool {
		good, _ := inARow(c.Ops(), struck)
		return good >= 500
	})
	stop()
	var last time.Duration // when the half-open member was last given a request: one that ran nowhere
	e := b.Evidence(t, nil)
	for _, op := range c.Ops() {
		if n, _ := e.Runs(op.ID); op.Start.After(struck) && op.Err != nil && n == 0 {
			last = max(last, op.Start.Sub(struck))
		}
	}
	switch {
	case last == 0:
		t.Error("the half-open member got nothing: the test proves nothing")
	case last > livenessDeadline:
		t.Errorf("a half-open member was still chosen after %v", last)
	}
	halfOpen.Proxy().Heal()
	judge(t, b, c)
}

// repliedToo fails the test unless one of the members replied.
func repliedToo(t *testing.T, op history.Op, rids ...string) {
	t.Helper()
	for _, rid := range rids {
		if op.Err == nil && op.Reply == rid+" "+op.ID {
			return
		}
	}
	t.Errorf("reply %q, %v, want one of %v", op.Reply, op.Err, rids)
}

// FO-3.2b: one member frozen and one killed; the others, and what a node serves to itself, go on as before.
func othersGoOn(t *testing.T) {
	b := bed.New(t, bed.Options{})
	frozen, killed := b.Member(t, "frozen"), b.Member(t, "killed")
	peers := []*bed.Member{b.Member(t, "b"), b.Member(t, "c")}
	node := b.Node(t, "host", b.URL())
	if err := node.Serve(t.Context(), channels.Spec{Name: "own", Handler: echo}); err != nil {
		t.Fatal(err)
	}
	bed.Sees(t, node, bed.Channel, "frozen", "killed", "b", "c")
	c, everybody := bed.NewCaller(t, "op", node), bed.NewCaller(t, "any", node)
	others := func(n int) bed.Do { return bed.Do{RID: peers[n%2].RID, Timeout: 5 * time.Second} }
	during := func(what string) (took []time.Duration) {
		stop := c.Steady(4, 5*time.Millisecond, others)
		all := everybody.Steady(4, 10*time.Millisecond, func(int) bed.Do { return bed.Do{Timeout: time.Second} })
		began := time.Now()
		fabrictest.Eventually(t, bed.Long, "400 requests at the others "+what, func() bool {
			return count(c.Ops(), began, history.Direct) >= 400 && time.Since(began) > 4*time.Second
		})
		if reply, err := node.Channel("own").Request(t.Context(), []byte("x")); err != nil || string(reply.Data) != "x" {
			t.Errorf("%s: the node's own channel: %q, %v", what, reply.Data, err)
		}
		stop()
		all()
		for _, op := range c.Ops() {
			if op.Start.After(began) {
				took = append(took, op.Took())
				if op.Err != nil {
					t.Errorf("%s: at a healthy node: %v", what, op.Err)
				}
			}
		}
		return took
	}
	quiet := during("without a fault")
	frozen.Freeze(t)
	killed.Kill9()
	struck := during("with a frozen and a killed peer")
	frozen.Thaw(t)

	e := judge(t, b, c, everybody)
	e.Undisturbed, e.Disturbed = quiet, struck
	bed.Judge(t, e, history.Isolation)
	for _, m := range peers {
		if changes := m.Changes(); len(changes) > 0 {
			t.Errorf("%s changed its state because of a peer: %q", m.RID, changes)
		}
	}
	if node.State() != kvlocation.StateServing || node.Err() != nil {
		t.Errorf("the calling node is %s (%v) because of a peer", node.State(), node.Err())
	}
}

// count returns how many operations of a way began after a moment and have ended.
func count(ops []history.Op, since time.Time, way history.Way) (n int) {
	for i := range ops {
		if ops[i].Start.After(since) && ops[i].Ends > 0 && ops[i].Way == way {
			n++
		}
	}
	return n
}

// FO-10.4: a peer that stops answering is not ready for its callers; another one stays ready, and no host turns to Error.
func hostsStayServing(t *testing.T) {
	b := bed.New(t, bed.Options{})
	frozen, other := b.Member(t, "frozen"), b.Member(t, "other")
	node := b.Node(t, "host", b.URL())
	bed.Sees(t, node, bed.Channel, "frozen", "other")
	c := bed.NewCaller(t, "op", node)
	for _, rid := range []string{"frozen", "other"} {
		repliedBy(t, "before", c.Call(t, bed.Do{RID: rid}), rid)
	}
	frozen.Freeze(t)
	c.Go(t, bed.Do{RID: "frozen", Timeout: 15 * time.Second})
	fabrictest.Eventually(t, 16*time.Second, "the frozen peer is not ready", func() bool {
		return peer(node.Peers(), "frozen") == channels.PeerNotReady
	})
	repliedBy(t, "at the other peer", c.Call(t, bed.Do{RID: "other"}), "other")
	for range 10 {
		repliedBy(t, "select-one around the silent peer", c.Call(t, bed.Do{}), "other")
	}
	if got := peer(node.Peers(), "other"); got != channels.PeerReady {
		t.Errorf("the healthy peer is %v", got)
	}
	if node.State() != kvlocation.StateServing || node.Err() != nil {
		t.Errorf("the host is %s (%v)", node.State(), node.Err())
	}
	if changes := other.Changes(); len(changes) > 0 {
		t.Errorf("the healthy peer changed its state: %q", changes)
	}
	frozen.Thaw(t)
	fabrictest.Eventually(t, bed.Long, "the thawed peer is ready again", func() bool {
		return c.Call(t, bed.Do{RID: "frozen", Timeout: 2 * time.Second}).Err == nil && peer(node.Peers(), "frozen") == channels.PeerReady
	})
	for _, change := range frozen.Changes() {
		if change[:len("Serving Error")] == "Serving Error" {
			t.Errorf("a frozen node ended itself: %q", change)
		}
	}
	judge(t, b, c)
}

// peer returns what is known of a node's present process run.
func peer(peers []channels.PeerStatus, rid string) channels.PeerState {
	state := channels.PeerUnknown
	for _, p := range peers {
		if p.RID == rid && p.Listed {
			state = p.State
		}
	}
	return state
}
