package session

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// opened is how many sessions TestManySessions opens: more take longer and show no more.
var opened = flag.Int("sessions", 300, "how many sessions TestManySessions opens")

// TestManySessions: clients come and go in every way, many at a time, and leave nothing behind.
//
// It runs alone: it counts goroutines.
func TestManySessions(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	const actors = 20
	for i := range actors {
		n2.actor(fmt.Sprint("actor", i))
	}
	b.log.mute.Store(true)
	n1.dial("ann").cut()
	quiet := func() bool {
		st := n1.Stats()
		n1.mu.Lock()
		opening := n1.opening
		n1.mu.Unlock()
		return st.Sessions == 0 && opening == 0 && n2.Stats().Bound == 0 && n1.stats.turns.Load() == 0 && n2.stats.turns.Load() == 0
	}
	fabrictest.Eventually(t, long, "nobody is there", quiet)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	const atOnce = 20
	for w := range atOnce {
		wg.Go(func() {
			for i := w; i < *opened; i += atOnce {
				conn, _, err := websocket.Dial(b.ctx(), n1.ws(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				say := func(data string) { _ = conn.Write(b.ctx(), websocket.MessageBinary, []byte(data)) }
				hear := func() { _, _, _ = conn.Read(b.ctx()) }
				bind := string(frame.Make(&frame.Header{Type: frame.Bind, ID: 1, Ref: fmt.Sprint("actor/actor", i%actors)}, nil))
				switch i % 6 {
				case 0: // it says nothing
				case 1: // it does not wait for the welcome
					say(hello("ann"))
				case 2: // it does not wait for its binding
					say(hello("ann"))
					hear()
					say(bind)
				case 3:
					say(hello("ann"))
					hear()
					say(bind)
					hear()
				case 4: // it leaves in order
					say(hello("ann"))
					hear()
					say(bind)
					hear()
					say("{\"t\":\"bye\"}\n")
					hear()
				case 5:
					say(hello("wrong"))
					hear()
				}
				_ = conn.CloseNow()
			}
		})
	}
	wg.Wait()
	fabrictest.Eventually(t, long, "nobody is there any more", quiet)
	fabrictest.Eventually(t, long, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+maxIdle })
	st := n1.Stats()
	if ended := st.EndedLeft + st.EndedLost + st.EndedSilent + st.EndedSlow + st.EndedDraining + st.EndedMalformed; st.Opened != ended {
		t.Fatalf("%d sessions were opened, and %d have ended: %+v", st.Opened, ended, st)
	}
}

// TestFullMailbox: an Actor that takes no more is where it is: what it refuses has nobody look for it in the store.
func TestFullMailbox(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	l := n1.dial("ann")
	bound := l.bind(n2.actor("alice").String())
	if g := l.call(frame.Request, bound.Token, "add"); g.data != "1" {
		t.Fatal(g)
	}
	hold := n2.occupy("alice")
	for {
		if err := n2.objs.Actors().Send(b.ctx(), "alice", nil); err != nil && strings.Contains(err.Error(), "the mailbox is full") {
			break
		}
	}
	before := n1.Stats().LookUps
	for range 20 {
		wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.Unavailable, outcome.NotAccepted, "the mailbox is full")
	}
	if got := n1.Stats().LookUps; got != before {
		t.Errorf("%d look-ups", got-before)
	}
	close(hold)
	fabrictest.Eventually(t, long, "it takes some again", func() bool { return l.call(frame.Request, bound.Token, "add").Type == frame.OK })
}
