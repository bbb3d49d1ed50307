package conformance

import (
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// FO-3.1a: a RouteMesh channel is served by members that are Ready and have a weight above 0, in proportion to their
// weights, also when these change; a ClientServer channel by members that are Ready.
func candidates(t *testing.T) {
	b := bed.New(t, bed.Options{Brief: []string{"notready", "desk2"}})
	b.Member(t, "light")
	heavy, out := b.Member(t, "heavy", "-weight=4"), b.Member(t, "out", "-weight=-1")
	notReady := b.Member(t, "notready", "-weight=4")
	servers := []string{"-channel=desk", "-kind=client_server"}
	b.Member(t, "desk1", servers...)
	desk2 := b.Member(t, "desk2", servers...)
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "light", "heavy", "out", "notready")
	bed.Sees(t, client, "desk", "desk1", "desk2")
	c := bed.NewCaller(t, "op", client)

	notReadyCut, desk2Cut := notReady.CutStore(), desk2.CutStore()
	notReady.Became(t, "Preparing")
	desk2.Became(t, "Preparing")
	counts := share(t, b, c, "", 200)
	if counts["out"] > 0 || counts["notready"] > 0 {
		t.Errorf("chosen: %v; neither a weight of 0 nor a node that is not Ready is a candidate", counts)
	}
	if counts["heavy"] <= counts["light"] || counts["light"] == 0 {
		t.Errorf("chosen: %v; want heavy about four times as often as light", counts)
	}
	if counts := share(t, b, c, "desk", 40); counts["desk1"] != 40 {
		t.Errorf("chosen: %v; desk2 is not Ready", counts)
	}

	heavy.SetWeight(t, 0)
	out.SetWeight(t, 2)
	fabrictest.Eventually(t, bed.Long, "the client knows the weights", func() bool {
		h, _ := client.Members().Get("heavy")
		o, _ := client.Members().Get("out")
		return h.Channels[0].Weight == 0 && o.Channels[0].Weight == 2
	})
	counts = share(t, b, c, "", 100)
	if counts["heavy"] > 0 || counts["out"] == 0 || counts["light"] == 0 {
		t.Errorf("chosen: %v after heavy was set to 0 and out to 2", counts)
	}
	// With a weight of 0 a member is still a node that may be named.
	repliedBy(t, "at a member of weight 0", c.Call(t, bed.Do{RID: "heavy"}), "heavy")

	desk2Cut.Restore()
	desk2.Became(t, "Serving")
	fabrictest.Eventually(t, bed.Long, "desk2 takes its share again", func() bool {
		return share(t, b, c, "desk", 20)["desk2"] > 0
	})
	notReadyCut.Restore()
	notReady.Became(t, "Serving")
	judge(t, b, c)
}

// share sends n requests and returns who ran them. All must be answered.
func share(t *testing.T, b *bed.Bed, c *bed.Caller, channel string, n int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	var ids []string
	for range n {
		op := c.Call(t, bed.Do{Channel: channel, Timeout: 20 * time.Second})
		if op.Err != nil {
			t.Fatalf("%v (%v)", op.Err, outcome.AcceptanceOf(op.Err))
		}
		ids = append(ids, op.ID)
	}
	for _, l := range b.Evidence(t, nil).Ledgers {
		for _, id := range ids {
			counts[l.RID] += l.Ran[id]
		}
	}
	return counts
}
