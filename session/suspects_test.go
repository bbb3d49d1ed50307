package session

import (
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// TestSuspectIsGone: what a binding joins stands on two nodes, one of which dies without a word. The other one, which has met
// the silence, finds out when that node's lease is over, though no comparison of bindings is due.
func TestSuspectIsGone(t *testing.T) {
	t.Parallel()
	never := heartbeat(10 * time.Minute) // no comparison in the time of the test
	t.Run("the Actor's node", func(t *testing.T) {
		t.Parallel()
		b := newBed(t)
		n1, n2 := b.node("n1", never), b.node("n2", shortLease)
		l := n1.dial("ann")
		bound := l.bind(n2.actor("alice").String())
		n2.vanish()
		fabrictest.Eventually(t, long, "nobody is there", func() bool { return b.server.NATS().NumClients() == 1 })
		wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.Unavailable, outcome.NotAccepted)
		if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonLost) {
			t.Fatal(g)
		}
	})
	t.Run("the session's node", func(t *testing.T) {
		t.Parallel()
		b := newBed(t)
		n1, n2 := b.node("n1", shortLease), b.node("n2", never)
		n2.actor("alice")
		n1.dial("ann").bind("actor/alice")
		n1.vanish()
		if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: node gone") == 1 })
	})
}
