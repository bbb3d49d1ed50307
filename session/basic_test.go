package session

import (
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// eachTransport runs a test over both.
func eachTransport(t *testing.T, f func(t *testing.T, dial func(n *node, credentials string) *link)) {
	t.Run("websocket", func(t *testing.T) { t.Parallel(); f(t, (*node).dial) })
	t.Run("nats", func(t *testing.T) { t.Parallel(); f(t, (*node).dialNATS) })
}

func TestBindRelayPushUnbind(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, dial func(*node, string) *link) {
		b := newBed(t)
		never := heartbeat(10 * time.Minute) // no comparison in the time of the test
		n1, n2 := b.node("n1", never), b.node("n2", never)
		ref := n2.actor("alice")
		l := dial(n1, "ann")
		if l.hello.RID == "" || l.hello.Session == "" || l.hello.Heartbeat != 600_000 || l.hello.data != "hello ann" {
			t.Fatalf("welcome %v", l.hello)
		}
		bound := l.bind(ref.String())
		if bound.Type != frame.OK || bound.Token == "" || bound.Number != 1 || bound.Ref != ref.String() || bound.RID != "n2" {
			t.Fatalf("bind: %v", bound)
		}
		for i, want := range []string{"1", "2", "3"} {
			if g := l.call(frame.Request, bound.Token, "add"); g.Type != frame.OK || g.data != want {
				t.Fatalf("add %d: %v", i, g)
			}
		}
		if g := l.call(frame.Send, bound.Token, "add"); g.Type != frame.OK || g.data != "" {
			t.Fatalf("send: %v", g)
		}
		wantErr(t, l.call(frame.Request, bound.Token, "fail"), outcome.Rejected, outcome.Accepted, "does not want to")
		// Pushes made in the turn, and its reply, come in some order, each once.
		id := l.ask(frame.Request, bound.Token, "push 3")
		seq, replied := uint64(0), false
		for range 4 {
			switch g := l.read(); {
			case g.Type == frame.OK && g.ID == id:
				replied = true
			case g.Type == frame.Push && g.Seq == seq+1 && g.Token == bound.Token && g.Owner == 1:
				seq++
			default:
				t.Fatalf("got %v", g)
			}
		}
		if !replied || seq != 3 {
			t.Fatal(replied, seq)
		}
		if g := l.call(frame.Unbind, bound.Token, ""); g.Type != frame.OK {
			t.Fatalf("unbind: %v", g)
		}
		wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.InvalidOperation, outcome.NotAccepted, "bind again")
		if got := b.log.has("alice", "unbound ann 1: unbound"); got != 1 {
			t.Fatalf("the Actor heard of the unbind %d times: %q", got, b.log.of("alice"))
		}
		// The session's end is told to what is bound then.
		if g := l.bind("actor/alice"); g.Number != 2 || g.Ref != ref.String() {
			t.Fatalf("bind by ID: %v", g)
		}
		l.write(frame.Header{Type: frame.Bye}, "")
		fabrictest.Eventually(t, long, "the disconnect notice", func() bool { return b.log.has("alice", "unbound ann 2: disconnected") == 1 })
	})
}
