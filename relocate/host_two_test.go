package relocate_test

import (
	"context"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/relocate"
)

// A Host does not wait for what another node means to bring: two hosts at once do not wait for each other's turns. What was on its way is kept by its
// source, however far it had come before the boundary.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// stand holds the move of the object at a step; it returns what lets it go on once the other Host has ended.
		stand func(t *testing.T, b *bed, n1 *node, id string, begin func()) (goOn func())
		why   relocate.Reason // empty: what the store says of the write that was too late
	}{
		{"reserved", func(t *testing.T, b *bed, n1 *node, id string, begin func()) func() {
			g := newGate(t)
			b.ledger.set(func(h *hooks) {
				h.turn = func(_ context.Context, self *objects.Self, _ message) error {
					if self.ID() == id {
						g.once.Do(func() { close(g.reached) })
						<-g.open
					}
					return nil
				}
			})
			s := n1.send(id, "s", time.Millisecond, long)
			g.wait(t)
			begin()
			return func() {
				g.release()
				received(t, 5, s)
				s.end()
				b.ledger.judge(t, id, s)
			}
		}, relocate.TargetUnavailable},
		{"loading", func(t *testing.T, b *bed, _ *node, _ string, begin func()) func() {
			g := newGate(t)
			b.ledger.set(func(h *hooks) {
				h.restore = func(ctx context.Context, self *objects.Self) error {
					if self.Type() == "counter" {
						return g.hook(ctx, self)
					}
					return nil
				}
			})
			begin()
			g.wait(t)
			return func() {}
		}, relocate.TargetUnavailable},
		{"ready", func(t *testing.T, _ *bed, n1 *node, _ string, begin func()) func() {
			accept := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Nth: 2, Times: -1, Action: fabrictest.Drop})
			begin()
			accept.Wait(t)
			return accept.Disarm
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 1)
			slow := unitTimeout(5 * time.Minute) // far beyond the test
			n1 := b.node("n1", slow, types(b.ledger.actor("counter")))
			id := n1.make().ID
			n2 := b.node("n2", types(b.ledger.actor("counter"), b.ledger.actor("other")))
			if _, err := n2.objects.Actors().Create(b.ctx(), "other", "x", nil); err != nil {
				t.Fatal(err)
			}
			b.node("n3", types(b.ledger.actor("other")))
			first := make(chan relocate.Result, 1)
			goOn := c.stand(t, b, n1, id, func() {
				go func() {
					n1.objects.SetPlacing(false)
					res, err := n1.moves.Host(b.ctxFor(2*long), relocate.Mode{Kind: relocate.Maintenance})
					if err != nil {
						t.Error(err)
					}
					first <- res
				}()
			})
			fabrictest.Eventually(t, long, "the object is on its way", func() bool { return n2.moves.Progress().Arriving == 1 })
			n2.objects.SetPlacing(false)
			res, err := n2.moves.Host(b.ctx(), relocate.Mode{Kind: relocate.Maintenance})
			if err != nil || res.Outcome != relocate.Relocated || res.Moved != 1 {
				t.Fatalf("the host that the object was on its way to: %+v, %v", res, err)
			}
			b.wantOwner(actorKey("x"), "n3", true)
			goOn()
			res = <-first
			if res.Outcome != relocate.Blocked || res.KeptCount != 1 || c.why != "" && res.Kept[0].Reason != c.why {
				t.Errorf("the other host: %+v", res)
			}
			b.wantKept(id, n1)
		})
	}
}
