package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

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

// TestReaderHandsOver: whenever another goroutine takes over the reading, before a reply, with it or after it, every frame
// is read once and in order.
func TestReaderHandsOver(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	b.log.mute.Store(true)
	echo := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		return objects.Reply{Data: req.Data()}, nil
	}
	b.log.onTurn.Store(&echo)
	n2.actor("alice")
	for round := range 40 {
		n1.patience = time.Duration(round*30) * time.Microsecond
		l := n1.dial("ann")
		for range 3 { // a new binding begins with the reader again
			token := l.bind("actor/alice").Token
			for k := range 6 {
				text := strings.Repeat("x", k*200)
				if k%3 != 2 {
					if g := l.call(frame.Request, token, text); g.Type != frame.OK || g.data != text {
						t.Fatal(g)
					}
					continue
				}
				first, second := l.ask(frame.Request, token, "first"), l.ask(frame.Request, token, "second")
				if g := l.want(frame.OK); g.ID != first || g.data != "first" {
					t.Fatal(g)
				}
				if g := l.want(frame.OK); g.ID != second || g.data != "second" {
					t.Fatal(g)
				}
			}
			if g := l.call(frame.Unbind, token, ""); g.Type != frame.OK {
				t.Fatal(g)
			}
		}
		l.cut()
		<-l.closed
		fabrictest.Eventually(t, long, "the session ends", func() bool { return n1.Stats().Sessions == 0 })
	}
}
