package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// one makes a member serve one request at a time and hold one more.
var one = []string{"-workers=1", "-queue=1"}

// FO-2.1: a is full and says so; every request that it refuses goes to b within the request's own deadline. When b is
// full, too, the request ends as not accepted by its deadline.
func anotherTargetWhileNobodyAccepted(t *testing.T) {
	b := bed.New(t, bed.Options{})
	ma, mb := b.Member(t, "a", one...), b.Member(t, "b", one...)
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)
	freeA := ma.Occupy(t, c, 1)

	refusals := 0
	for range 40 {
		op := c.Call(t, bed.Do{Timeout: 20 * time.Second})
		repliedBy(t, "a request while a is full", op, "b")
		if len(op.Trace.Refused) > 0 {
			refusals++
			if !slices.Contains(op.Trace.Refused, "a") || op.Trace.Reselected == 0 {
				t.Errorf("trace %+v, want a refusal by a and a selection after it", op.Trace)
			}
		}
	}
	if refusals == 0 {
		t.Error("a was never chosen first: the test proves nothing")
	}
	freeB := mb.Occupy(t, c, 1)
	began := len(c.Ops())
	refusedByAll(t, "a request while all are full", b, c, bed.Do{Timeout: time.Second})
	for _, op := range c.Ops()[began:] {
		if errors.Is(op.Err, outcome.NotAccepted) && (op.Trace.Reselected < 2 || op.Took() < 500*time.Millisecond) {
			t.Errorf("gave up after %v and %d selections, before the operation's own deadline", op.Took(), op.Trace.Attempts)
		}
	}
	freeA()
	freeB()
	judge(t, b, c)
}

// FO-3.1b: capacity refusals move a request on; acceptance pins it. The member that accepted is cut off, or killed,
// before it answers: the request ends there, although b would take it.
func reselectionUntilAcceptance(t *testing.T) {
	b := bed.New(t, bed.Options{})
	for _, rid := range []string{"a", "b"} {
		b.Member(t, rid, "-workers=1", "-queue=2")
	}
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)

	// More than both can hold at a time: many are refused and come to their turn in the end.
	for range 30 {
		c.Go(t, bed.Do{Timeout: bed.Long, Job: job.Job{Do: job.Sleep, Millis: 20}})
	}
	c.Wait()
	moved := 0
	for _, op := range c.Ops() {
		if op.Err != nil {
			t.Errorf("under a load that passes: %v", op.Err)
		}
		if op.Trace.Reselected > 0 {
			moved++
		}
	}
	if moved == 0 {
		t.Error("nothing was refused: the test proves nothing")
	}

	notices := b.Notices(t)
	for _, fault := range []struct {
		name string
		end  func(*bed.Member)
	}{
		{"connection cut", func(m *bed.Member) { m.Proxy().Apply(fabrictest.Cut, fabrictest.RefuseReconnect) }},
		{"killed", (*bed.Member).Kill9},
	} {
		id := c.Go(t, bed.Do{Early: true, Timeout: 8 * time.Second, Job: job.Job{Do: job.Block}})
		m := runner(t, b, c, id)
		notices.Await(t, 1)
		fault.end(m)
		c.Wait()
		op := c.Get(id)
		want(t, "accepted, and then its member "+fault.name, op, outcome.DeadlineExceeded, outcome.Accepted)
		if op.Trace.Attempts != 1 {
			t.Errorf("%s after acceptance: %d attempts", fault.name, op.Trace.Attempts)
		}
		if n, where := b.Evidence(t, nil).Runs(id); n != 1 {
			t.Errorf("%s after acceptance: it ran at %v", fault.name, where)
		}
		if fault.name == "connection cut" {
			m.Proxy().Heal()
			m.Became(t, "Serving")
			fabrictest.Eventually(t, bed.Long, m.RID+" is back", func() bool {
				return c.Call(t, bed.Do{RID: m.RID, Timeout: 2 * time.Second}).Err == nil
			})
		}
	}
	judge(t, b, c)
}

// FO-2.3: the member that accepted dies (SIGKILL). Whether it ran the request is in its ledger; nobody else runs it.
func acceptedIsNeverRunElsewhere(t *testing.T) {
	b := bed.New(t, bed.Options{})
	ma, mb := b.Member(t, "a", "-workers=1"), b.Member(t, "b", "-workers=1")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)

	// Each member runs one and has some in its queue when it dies.
	notices := b.Notices(t)
	for range 24 {
		c.Go(t, bed.Do{Early: true, Timeout: 4 * time.Second, Job: job.Job{Do: job.Sleep, Millis: 1500}})
	}
	notices.Await(t, 24)
	sends := make([]string, 0, 24)
	for range 24 {
		op := c.Call(t, bed.Do{Send: true, Job: job.Job{Do: job.Reply}})
		if op.Err != nil {
			t.Fatal(op.Err)
		}
		sends = append(sends, op.ID)
	}
	ma.Kill9()
	c.Wait()
	e := judge(t, b, c)
	for _, op := range c.Ops() {
		if op.Way == history.Early && op.Err != nil {
			if !errors.Is(op.Err, outcome.Accepted) {
				t.Errorf("accepted by notice, then its member died: %v", op.Err)
			}
			if op.Trace.Attempts != 1 {
				t.Errorf("%d attempts of an accepted operation", op.Trace.Attempts)
			}
		}
	}
	// b lives and runs all that it had accepted; what a had accepted is gone, and not b's.
	fabrictest.Eventually(t, bed.Long, "b has run what it accepted", func() bool {
		e = b.Evidence(t, c.Ops())
		last := e.Ledgers[1]
		for _, id := range sends {
			if last.Ran[id] > 0 && last.Ended[id] == "" {
				return false
			}
		}
		return mb.State() == "Serving"
	})
	lost := 0
	for _, id := range sends {
		if ranAt(e, "a", id)+ranAt(e, "b", id) == 0 {
			lost++
		}
	}
	if lost == 0 {
		t.Error("a died with nothing in its queue: the test proves nothing")
	}
	bed.Judge(t, e, always...)
}

// FO-2.4: a is frozen (SIGSTOP) and gets its share of requests; they end as unknown and are submitted to nobody else.
// Thawed, a does not run what its callers gave up on. Then the caller's own connection ends between sending and answer.
func unknownIsNeverSubmittedElsewhere(t *testing.T) {
	b := bed.New(t, bed.Options{})
	ma := b.Member(t, "a")
	b.Member(t, "b")
	ps, url := b.Proxies(t)
	client := b.ClientAt(t, url)
	bed.Sees(t, client, bed.Channel, "a", "b")
	c := bed.NewCaller(t, "op", client)
	fabrictest.Eventually(t, bed.Long, "the client knows the store's clock", func() bool {
		return c.Call(t, bed.Do{}).Err == nil && client.Metrics().Hellos > 0
	})

	ma.Freeze(t)
	for range 24 {
		c.Go(t, bed.Do{Timeout: time.Second})
	}
	c.Wait()
	// Named, the frozen member does not answer either; meanwhile the deadlines pass beyond every clock's error.
	if op := c.Call(t, bed.Do{RID: "a", Timeout: 3 * time.Second}); op.Err == nil {
		t.Errorf("the frozen member replied %q", op.Reply)
	}
	ma.Thaw(t)
	fabrictest.Eventually(t, bed.Long, "a answers again", func() bool {
		return c.Call(t, bed.Do{RID: "a", Timeout: 2 * time.Second}).Err == nil
	})
	e := b.Evidence(t, c.Ops())
	unknown := 0
	for _, op := range c.Ops() {
		if op.Way != history.Request || op.Err == nil {
			continue
		}
		unknown++
		want(t, "swallowed by a frozen member", op, outcome.DeadlineExceeded, outcome.Unknown)
		if op.Trace.Attempts != 1 || ranAt(e, "b", op.ID) > 0 {
			t.Errorf("operation %s: %d attempts, ran %d times at b", op.ID, op.Trace.Attempts, ranAt(e, "b", op.ID))
		}
		if ranAt(e, "a", op.ID) > 0 {
			t.Errorf("a ran %s after its caller had given up", op.ID)
		}
	}
	if unknown == 0 {
		t.Error("the frozen member got nothing: the test proves nothing")
	}

	// After what vanished, the client may go through the queue group or around it.
	ps[0].Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Action: fabrictest.CutAfter, Match: func(m fabrictest.Message) bool {
		return strings.HasSuffix(m.Subject, ".ch.work")
	}})
	op := c.Call(t, bed.Do{Timeout: bed.Long})
	want(t, "the connection lost after submission", op, outcome.Unavailable, outcome.Unknown)
	if op.Trace.Attempts != 1 {
		t.Errorf("%d attempts after a lost connection", op.Trace.Attempts)
	}
	judge(t, b, c)
}

// FO-2.5: a reply, a timeout, a cancellation and a shutdown race for one operation; the first one counts, and a late
// reply changes nothing and leaves nothing behind.
func oneTerminalResult(t *testing.T) {
	b := bed.New(t, bed.Options{})
	m := b.Member(t, "a", "-workers=300")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "a")
	c := bed.NewCaller(t, "op", client)

	// The reply is due when the deadline is: either may be first.
	for range 200 {
		c.Go(t, bed.Do{Timeout: 300 * time.Millisecond, Job: job.Job{Do: job.Sleep, Millis: 290}})
	}
	c.Wait()
	// The caller's patience ends long before the reply comes.
	ctx, cancel := context.WithCancel(context.Background())
	var cancelled []string
	for range 50 {
		cancelled = append(cancelled, c.Go(t, bed.Do{Context: ctx, Timeout: bed.Long, Job: job.Job{Do: job.Sleep, Millis: 10_000}}))
	}
	for _, id := range cancelled {
		m.Ran(t, id)
	}
	cancel()
	c.Wait()
	for _, id := range cancelled {
		op := c.Get(id)
		want(t, "cancelled", op, outcome.DeadlineExceeded, outcome.Unknown)
		if !errors.Is(op.Err, context.Canceled) {
			t.Errorf("a cancelled operation does not say so: %v", op.Err)
		}
	}
	fabrictest.Eventually(t, bed.Long, "late replies are counted and nothing waits", func() bool {
		s := client.Metrics()
		return s.LateReplies >= uint64(len(cancelled)) && s.Waiting == 0
	})
	for i := range 20 {
		op := c.Call(t, bed.Do{})
		repliedBy(t, "after late replies", op, "a")
		if op.Reply != string(job.Answer("a", op.ID)) {
			t.Errorf("request %d got the reply %q of another", i, op.Reply)
		}
	}

	id := c.Go(t, bed.Do{Timeout: bed.Long, Job: job.Job{Do: job.Block}})
	m.Ran(t, id)
	if err := client.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	want(t, "this side shut down", c.Get(id), outcome.ShuttingDown, outcome.Unknown)
	s := client.Metrics().Calls[bed.Channel]
	ended := s.Succeeded
	for _, byAcceptance := range s.Failed {
		for _, n := range byAcceptance {
			ended += n
		}
	}
	if sent := uint64(len(c.Ops())); s.Started != sent || ended != sent {
		t.Errorf("%d operations: %d started and %d ended by the client's own count", sent, s.Started, ended)
	}
	judge(t, b, c)
}
