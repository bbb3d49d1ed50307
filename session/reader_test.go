package session

import (
	"context"
	"fmt"
	"testing"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/session/internal/frame"
)

// TestReaderGoesOn: while the Actor of a request takes its time, the session's other frames are read: a request to another
// Actor is answered, and the end of the connection is noticed.
func TestReaderGoesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	started, hold := make(chan struct{}), make(chan struct{})
	turn := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		if req.Self().ID() == "slow" {
			close(started)
			<-hold
		}
		return objects.Reply{Data: req.Data()}, nil
	}
	defer close(hold)
	l := n1.dial("ann")
	slow, quick := l.bind(n2.actor("slow").String()), l.bind(n2.actor("quick").String())
	b.log.onTurn.Store(&turn)
	l.ask(frame.Request, slow.Token, "")
	<-started
	for i := range 3 {
		if g := l.call(frame.Request, quick.Token, fmt.Sprint(i)); g.Type != frame.OK || g.data != fmt.Sprint(i) {
			t.Fatal(g)
		}
	}
	l.cut()
	fabrictest.Eventually(t, long, "the session ends", func() bool { return n1.Stats().Sessions == 0 })
}
