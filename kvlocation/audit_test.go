package kvlocation

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, q := b.party(t), b.partyAt(t, len(b.servers)-1, time.Second)
		const n = walkBatch/2 + 20
		for i := range n {
			e := AuditEntry{
				By: "ops", Action: "release", Kind: KindActor, ID: fmt.Sprintf("a%d", i), Class: ClassActor, Type: "room", Owner: n1,
				Generation: 20, OwnerGeneration: 1, Reason: "it is gone", Outcome: "released", Time: testTime.Add(time.Duration(i) * time.Second),
			}
			if i == 7 {
				e.By, e.Action, e.Kind = "other", "explain", KindSpot
			}
			if err := p.Audit(testContext(t), e, 30*24*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			filter AuditFilter
			want   int
			first  string
		}{
			{AuditFilter{}, 100, fmt.Sprintf("a%d", n-100)},
			{AuditFilter{Limit: MaxAudits}, n, "a0"},
			{AuditFilter{Limit: 1}, 1, fmt.Sprintf("a%d", n-1)},
			{AuditFilter{ID: "a3"}, 1, "a3"},
			{AuditFilter{By: "other"}, 1, "a7"},
			{AuditFilter{Action: "explain"}, 1, "a7"},
			{AuditFilter{Kind: KindSpot}, 1, "a7"},
			{AuditFilter{Kind: KindSpot, ID: "a3"}, 0, ""},
			{AuditFilter{Since: testTime.Add(10 * time.Second), Until: testTime.Add(12 * time.Second)}, 3, "a10"},
		} {
			got, err := q.Audits(testContext(t), c.filter)
			if err != nil || len(got) != c.want || c.want > 0 && got[0].ID != c.first {
				t.Errorf("%+v: %d entries, the first %+v, %v", c.filter, len(got), got[:min(1, len(got))], err)
			}
		}
		got, err := q.Audits(testContext(t), AuditFilter{ID: "a3"})
		if err != nil {
			t.Fatal(err)
		}
		if e := got[0]; e.V != 1 || e.Op == "" || e.Owner.RID != "n1" || e.Generation != 20 || e.Reason != "it is gone" || e.Outcome != "released" {
			t.Errorf("got %+v", e)
		}
	})
}

// TestAuditGoesAway shows that the retention is a TTL of the entry's key.
func TestAuditGoesAway(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	sent := p.proxy.Arm(fabrictest.Trigger{Subject: p.supervise.publish + "audit.>", Action: fabrictest.Signal, Times: -1})
	if err := p.Audit(testContext(t), AuditEntry{Action: "release", ID: "stays"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := sent.Message().Headers().Get("Nats-TTL"); got != "3600" {
		t.Errorf("TTL %q", got)
	}
	if err := p.Audit(testContext(t), AuditEntry{Action: "release", ID: "goes"}, time.Second); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 20*time.Second, "the entry goes away", func() bool {
		got, err := p.Audits(testContext(t), AuditFilter{})
		return err == nil && len(got) == 1 && got[0].ID == "stays"
	})
	for _, retention := range []time.Duration{0, time.Millisecond, -time.Hour, MaxAuditRetention + time.Second} {
		wantError(t, p.Audit(testContext(t), AuditEntry{}, retention), outcome.InvalidOperation, outcome.NotAccepted)
	}
	wantError(t, p.Audit(testContext(t), AuditEntry{Reason: strings.Repeat("x", MaxAudit)}, time.Hour), outcome.CapacityExceeded, outcome.NotAccepted)
	if err := p.Audit(testContext(t), AuditEntry{}, MaxAuditRetention); err != nil {
		t.Errorf("the longest retention: %v", err)
	}
}

func TestAuditKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	const in = `{"v":1,"op":"o","time":"2026-01-02T03:04:05Z","by":"","action":"","outcome":"","ticket":[1]}`
	var e AuditEntry
	if err := json.Unmarshal([]byte(in), &e); err != nil {
		t.Fatal(err)
	}
	if out, err := json.Marshal(e); err != nil || string(out) != in {
		t.Errorf("%s comes back as %s, %v", in, out, err)
	}
}
