package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/session/internal/frame"
)

// TestBindsAfterAnAbortedMove: binds that wait while the Actor's node tries to hand it over go on in the order in which
// they came when it stays: the last client has the Actor.
func TestBindsAfterAnAbortedMove(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	n2.actor("alice")
	capturing, stay := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fails := func() error {
		once.Do(func() { close(capturing) })
		<-stay
		return errors.New("the test wants it to stay")
	}
	b.log.onCapture.Store(&fails)
	moved := make(chan error, 1)
	go func() {
		_, err := n2.moves.Move(b.ctx(), kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "alice"}, 0, n1.rid)
		moved <- err
	}()
	<-capturing
	const clients = 12
	links := make([]*link, clients)
	for i := range links {
		links[i] = n1.dial(fmt.Sprintf("user%d", i))
		links[i].write(frame.Header{Type: frame.Bind, ID: 1, Ref: "actor/alice", MS: long.Milliseconds()}, "")
		fabrictest.Eventually(t, long, "the bind has come", func() bool { return n2.stats.turns.Load() == int64(i+1) })
	}
	close(stay)
	if err := <-moved; err == nil {
		t.Fatal("the Actor has moved")
	}
	for i, l := range links {
		if g := l.want(frame.OK); g.Number != uint64(i+1) {
			t.Errorf("the bind of client %d was number %d", i+1, g.Number)
		}
		if i < clients-1 {
			l.want(frame.Ended)
		}
	}
}

// TestTurnOrder: a place in the middle of a line that is given up keeps nobody waiting, and lets nobody past.
func TestTurnOrder(t *testing.T) {
	t.Parallel()
	var o turnOrder
	over, cancel := context.WithCancel(t.Context())
	cancel()
	first, second, third, other := o.join("a"), o.join("a"), o.join("a"), o.join("b")
	waits := func(p *turnPlace) bool { return p.wait(over) != nil }
	isFirst := func(p *turnPlace) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	isFirst(first)
	isFirst(other)
	second.leave()
	if !waits(third) {
		t.Fatal("the third was let past the first")
	}
	first.leave()
	isFirst(third)
	third.leave()
	other.leave()
	if len(o.by) != 0 {
		t.Fatalf("%d lines are left", len(o.by))
	}
}
