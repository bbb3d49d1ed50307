package conformance

import (
	"context"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// FO-2.2: what is said to a stays a's: dead, it runs nowhere, although b serves the same channel; started again, the
// name a means the new process.
func namedIdentityIsKept(t *testing.T) {
	b := bed.New(t, bed.Options{Brief: []string{"a"}})
	ma := b.Member(t, "a")
	b.Member(t, "b")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)
	for range 20 {
		repliedBy(t, "at a", c.Call(t, bed.Do{RID: "a"}), "a")
	}
	before := b.Lease(t, client.Store(), "a")

	running := c.Go(t, bed.Do{RID: "a", Timeout: 15 * time.Second, Job: job.Job{Do: job.Block}})
	ma.Ran(t, running)
	ma.Kill9()
	goneWithin(t, c, "a", 20*time.Second)
	for range 20 {
		op := c.Call(t, bed.Do{RID: "a", Timeout: bed.Long})
		want(t, "at a, which was killed", op, outcome.Unavailable, outcome.NotAccepted)
	}
	c.Wait()
	want(t, "running at a when it was killed", c.Get(running), outcome.DeadlineExceeded, outcome.Unknown)

	ma.Start(t)
	fabrictest.Eventually(t, bed.Long, "a answers under its name", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	after := b.Lease(t, client.Store(), "a")
	if after.Lifecycle <= before.Lifecycle {
		t.Errorf("lifecycle %d after %d: the second process run is the first one", after.Lifecycle, before.Lifecycle)
	}
	judge(t, b, c)
}

// FO-3.1c: a node that the mesh does not have is NotFound; one that it has and that is not connected (killed, frozen,
// cut off) is Unavailable. Neither is ever exchanged for another.
func nodeDirect(t *testing.T) {
	b := bed.New(t, bed.Options{})
	killed, frozen, cut := b.Member(t, "killed"), b.Member(t, "frozen"), b.Member(t, "cut")
	gone := b.Member(t, "gone")
	b.Member(t, "other")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "killed", "frozen", "cut", "gone", "other")
	c := bed.NewCaller(t, "op", client)

	killed.Kill9()
	frozen.Freeze(t)
	cut.Proxy().Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	gone.Leave(t)
	gone.Wait(t)
	fabrictest.Eventually(t, bed.Long, "the client knows that one has left", func() bool { _, there := client.Members().Get("gone"); return !there })
	for _, x := range []struct {
		rid, channel string
		kind         outcome.Kind
	}{
		{"nobody", bed.Channel, outcome.NotFound},
		{"gone", bed.Channel, outcome.NotFound},
		{"other", "unserved", outcome.NotFound},
		{"killed", bed.Channel, outcome.Unavailable},
		{"cut", bed.Channel, outcome.Unavailable},
		{"frozen", bed.Channel, outcome.Unavailable},
	} {
		if x.kind == outcome.Unavailable {
			goneWithin(t, c, x.rid, bed.Long)
		}
		for range 3 {
			op := c.Call(t, bed.Do{RID: x.rid, Channel: x.channel, Timeout: 10 * time.Second})
			want(t, x.rid+" "+x.channel, op, x.kind, outcome.NotAccepted)
			if op.Trace.Reselected > 0 {
				t.Errorf("%s: selected again", x.rid)
			}
		}
	}
	frozen.Thaw(t)
	cut.Proxy().Heal()
	for _, rid := range []string{"frozen", "cut", "other"} {
		fabrictest.Eventually(t, bed.Long, rid+" answers", func() bool {
			return c.Call(t, bed.Do{RID: rid, Timeout: 2 * time.Second}).Err == nil
		})
	}
	judge(t, b, c)
}

// FO-2.6: first counts who chose the target, then whether it accepted, then whether it may still act; what is left ends
// once, as it is. Every step is judged at a moment at which the next one would have decided otherwise.
func orderOfJudgement(t *testing.T) {
	b := bed.New(t, bed.Options{Brief: []string{"b"}})
	ma, mb := b.Member(t, "a", "-workers=1", "-queue=1"), b.Member(t, "b")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)

	// Nobody has accepted and b is free: the named a decides all the same; not named, b takes it.
	free := ma.Occupy(t, c, 1)
	op := c.Call(t, bed.Do{RID: "a", Timeout: bed.Long})
	want(t, "named, refused, and b is free", op, outcome.Unavailable, outcome.NotAccepted)
	if op.Trace.Attempts != 1 || op.Took() > bed.Long/2 {
		t.Errorf("a named node that refused was tried %d times in %v", op.Trace.Attempts, op.Took())
	}
	for range 10 {
		repliedBy(t, "chosen by the fabric", c.Call(t, bed.Do{}), "b")
	}
	free()
	// Accepted, with time left and another member Ready: acceptance decides.
	notices := b.Notices(t)
	ctx, cancel := context.WithCancel(t.Context())
	id := c.Go(t, bed.Do{Early: true, Context: ctx, Timeout: bed.Long, Job: job.Job{Do: job.Block}})
	m := runner(t, b, c, id)
	notices.Await(t, 1)
	repliedBy(t, "behind the notice", c.Call(t, bed.Do{RID: "b"}), "b") // so the client has read the notice, too
	cancel()
	fabrictest.Eventually(t, bed.Long, "the operation ends", func() bool { return c.Get(id).Ends > 0 })
	want(t, "accepted and then cancelled", c.Get(id), outcome.DeadlineExceeded, outcome.Accepted)
	if n, where := b.Evidence(t, nil).Runs(id); n != 1 || m.RID != where[0] {
		t.Errorf("accepted and then cancelled: it ran at %v", where)
	}
	// Named, alive and idle, but without a valid lease: it must not act.
	cut := mb.CutStore()
	mb.Became(t, "Preparing")
	want(t, "named, and its lease has ended", c.Call(t, bed.Do{RID: "b"}), outcome.Unavailable, outcome.NotAccepted)
	cut.Restore()
	mb.Became(t, "Serving")
	judge(t, b, c)
}
