package conformance

import (
	"errors"
	"regexp"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// FO-8: every way to fail says its kind and what is known about acceptance, here and in what a plain NATS client gets;
// none advises to issue the operation again.
func errorsTellKindAndAcceptance(t *testing.T) {
	b := bed.New(t, bed.Options{})
	m := b.Member(t, "a", "-workers=4", "-queue=1")
	ps, url := b.Proxies(t)
	client := b.ClientAt(t, url)
	bed.Sees(t, client, bed.Channel, "a")
	c := bed.NewCaller(t, "op", client)
	// Whoever waits for no answer gets none before its deadline, however late that is noticed: its reply waits at a gate.
	answers, held := m.Hold(t), []string(nil)

	for _, x := range []struct {
		name string
		do   bed.Do
		kind outcome.Kind
		acc  outcome.Acceptance
		peer bool // said by the peer
	}{
		{"unknown channel", bed.Do{Channel: "nobody"}, outcome.NotFound, outcome.NotAccepted, false},
		{"bad channel name", bed.Do{Channel: "not.a.name"}, outcome.InvalidOperation, outcome.NotAccepted, false},
		{"unknown node", bed.Do{RID: "nobody"}, outcome.NotFound, outcome.NotAccepted, false},
		{"handler's own kind", bed.Do{Job: job.Job{Do: job.Fail, Kind: outcome.Rejected}}, outcome.Rejected, outcome.Accepted, true},
		{"handler's kind is no refusal", bed.Do{Job: job.Job{Do: job.Fail, Kind: outcome.Unavailable}}, outcome.Unavailable, outcome.Accepted, true},
		{"handler's plain error", bed.Do{Job: job.Job{Do: job.Fail}}, outcome.InternalFailure, outcome.Accepted, true},
		{"panic", bed.Do{Job: job.Job{Do: job.Panic}}, outcome.InternalFailure, outcome.Accepted, true},
		{"reply above the limit", bed.Do{Job: job.Job{Do: job.Big, Size: 2 << 20}}, outcome.CapacityExceeded, outcome.Accepted, true},
		{"no answer in time", bed.Do{Timeout: 5 * time.Second, Job: job.Job{Do: job.Hold}}, outcome.DeadlineExceeded, outcome.Unknown, false},
		{"no answer, but a notice", bed.Do{Early: true, Timeout: 10 * time.Second, Job: job.Job{Do: job.Hold}}, outcome.DeadlineExceeded, outcome.Accepted, false},
	} {
		serves(t, c)
		op := c.Call(t, x.do)
		if x.do.Job.Do == job.Hold {
			held = append(held, op.ID)
		}
		want(t, x.name, op, x.kind, x.acc)
		var e *outcome.Error
		if errors.As(op.Err, &e) && e.Remote != x.peer {
			t.Errorf("%s: said by the peer %v, want %v: %v", x.name, e.Remote, x.peer, e)
		}
	}
	answers()
	for _, id := range held { // before the gate is closed again
		fabrictest.Eventually(t, bed.Long, "what was held has ended", func() bool { return b.Ledger(t, "a").Ended[id] != "" })
	}
	serves(t, c)
	if _, err := client.Channel(bed.Channel).Request(t.Context(), make([]byte, 2<<20)); !errors.Is(err, outcome.CapacityExceeded) || !errors.Is(err, outcome.NotAccepted) {
		t.Errorf("a payload above the limit: %v", err)
	}

	// What a plain client gets: the member is full, and the headers say so.
	free := m.Occupy(t, c, 4)
	plain := b.Plain(t)
	answer, err := plain.Request("fab.m.ch.work", job.Job{ID: "plain", Do: job.Reply}.Encode(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for header, text := range map[string]string{
		outcome.HeaderKind: "Unavailable", outcome.HeaderAcceptance: "NotAccepted", outcome.HeaderServiceErrorCode: "503",
	} {
		if got := answer.Header.Get(header); got != text {
			t.Errorf("header %s of a refusal is %q, want %q", header, got, text)
		}
	}
	for header := range answer.Header {
		if regexp.MustCompile(`(?i)retry|again`).MatchString(header + answer.Header.Get(header)) {
			t.Errorf("a refusal gives advice: %s: %s", header, answer.Header.Get(header))
		}
	}
	refusedByAll(t, "all full", b, c, bed.Do{Timeout: time.Second})
	free()
	ps.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	fabrictest.Eventually(t, bed.Long, "the client is not connected", func() bool {
		return errors.Is(c.Call(t, bed.Do{Timeout: time.Second}).Err, outcome.NotAccepted)
	})
	want(t, "not connected", c.Call(t, bed.Do{Timeout: time.Second}), outcome.Unavailable, outcome.NotAccepted)
	ps.Heal()
	judge(t, b, c)
}

// serves waits until a plain call has its reply: a member that owed one for a while was suspected, and is not any more.
func serves(t *testing.T, c *bed.Caller) {
	t.Helper()
	fabrictest.Eventually(t, bed.Long, "a plain call is served", func() bool { return c.Call(t, bed.Do{Timeout: 10 * time.Second}).Err == nil })
}
