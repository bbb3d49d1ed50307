package fence_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/fence/fencetest"
)

// promotionWrites are the writes of a promotion, in their order.
var promotionWrites = []string{"the right", "the intent", "the answer", "the confirmation", "the grant"}

// promotionWrite matches one of them, sent for the first time or again.
func promotionWrite(name string) func(fabrictest.Message) bool {
	return func(m fabrictest.Message) bool {
		var l fence.Leadership
		if err := json.Unmarshal(m.Payload, &l); err != nil {
			return false
		}
		switch {
		case l.Phase == fence.PhaseLed:
			return name == "the grant"
		case l.Phase == fence.PhaseFenced:
			return name == "the confirmation"
		case l.Claim == nil:
			return false
		case l.Claim.Device != "":
			return name == "the intent"
		case len(l.Tries) > 0:
			return name == "the answer"
		}
		return name == "the right"
	}
}

// The promoter dies at each of its writes, and another one goes on: nobody is promoted before the fence is confirmed, and in
// the end somebody is.
func TestPromoterDies(t *testing.T) {
	for _, name := range promotionWrites {
		for _, stored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stored=%t", name, stored), func(t *testing.T) {
				t.Parallel()
				servers, _ := startMesh(t, 1)
				var mu sync.Mutex
				var cuts []string
				onCut := func(target fence.Target) { mu.Lock(); cuts = append(cuts, target.Node); mu.Unlock() }
				dev := fencetest.New("power", onCut)
				level := fence.Level{cut(dev)}
				silent(t, servers[0], fenced("a", level))

				proxy := servers[0].Proxy(t)
				died := proxy.Arm(fabrictest.Trigger{ // and when it sends that write again, for it is not dead at once
					Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Match: promotionWrite(name), Times: -1, Answer: stored,
					Action: fabrictest.Drop,
				})
				b := candidate(t, proxy.URL(), fenced("b", level))
				standby(t, b)
				select {
				case <-died.Reached():
				case <-time.After(readyIn):
					t.Fatal("the promoter did not come to that write")
				}
				proxy.Apply(fabrictest.HalfOpen) // for the store it is dead
				c := candidate(t, servers[0].URL(), fenced("c", level))
				term := promoted(t, standby(t, c))
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(cuts, "a") {
					t.Fatalf("%s promoted, and only %q were cut off", term.Token(), cuts)
				}
				if leads := name == "the grant" && stored; leads != slices.Contains(cuts, "b") {
					t.Fatalf("cut off: %q; b led: %t", cuts, leads)
				}
			})
		}
	}
}
