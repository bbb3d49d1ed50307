package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/client"
	"natsfabric/session/internal/frame"
)

// TestHalfFrame: a message that a client begins and does not end keeps a session no longer than silence does, and another
// session of the same node is served meanwhile.
func TestHalfFrame(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", heartbeat(2*time.Second))
	n.actor("bob")
	half := func(rest string) *websocket.Conn {
		conn := n.enter("ann")
		w, err := conn.Writer(b.ctx(), websocket.MessageBinary)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(rest)); err != nil { // a part of a message, and no end
			t.Fatal(err)
		}
		// What the writer holds goes out with a ping behind it; its answer is never read.
		ctx, cancel := context.WithTimeout(b.ctx(), 10*time.Millisecond)
		defer cancel()
		_ = conn.Ping(ctx)
		return conn
	}
	half("{\"t\":\"requ")
	half(strings.Repeat("x", 30_000))
	other := n.dial("bob")
	bound := other.bind("actor/bob")
	fabrictest.Eventually(t, long, "the sessions end", func() bool {
		if g := other.call(frame.Request, bound.Token, "add"); g.Type != frame.OK {
			t.Fatal(g)
		}
		st := n.Stats()
		return st.EndedSilent == 2 && st.Sessions == 1
	})
}

// TestGiantFrame: a frame far above the limit ends its session with close code 1009, without being read.
func TestGiantFrame(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) { s.MaxMessage = 1000 })
	conn := n.enter("ann")
	go func() {
		_ = conn.Write(b.ctx(), websocket.MessageBinary, make([]byte, 8<<20)) // the node closes before it is through
	}()
	var err error
	for err == nil {
		_, _, err = conn.Read(b.ctx())
	}
	fabrictest.Eventually(t, long, "the session ends", func() bool { return n.Stats().EndedLost == 1 && n.Stats().Sessions == 0 })
	if code := websocket.CloseStatus(err); code != websocket.StatusMessageTooBig && code != -1 { // the reset of a connection may overtake it
		t.Fatal(err)
	}
}

// TestBindStorm: a client that asks for thousands of binds without waiting gets one answer to each, and what it has at the
// end is the Actor's one binding. Another session of the same node is served meanwhile.
func TestBindStorm(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.log.mute.Store(true)
	n1, n2 := b.node("n1", func(s *settings) { s.Outbound = 20_000 }), b.node("n2")
	n2.actor("alice")
	n2.actor("bob")
	other := n1.dial("bob")
	its := other.bind("actor/bob")
	l := n1.dial("ann")
	const binds = 2000
	answered := make([]bool, binds+1)
	var open int
	go func() {
		for id := range uint64(binds) {
			l.write(frame.Header{Type: frame.Bind, ID: id + 1, Ref: "actor/alice", MS: long.Milliseconds()}, "")
		}
	}()
	for left := binds; left > 0; {
		g := l.read()
		switch g.Type {
		case frame.OK:
			open++
		case frame.Ended:
			open--
			continue
		case frame.Err:
			if g.Kind != outcome.Unavailable.String() || g.Acceptance != outcome.NotAccepted.String() {
				if g.Kind != outcome.NotFound.String() { // bound, and replaced before the answer was written
					t.Fatal(g)
				}
			}
		default:
			t.Fatal(g)
		}
		if answered[g.ID] {
			t.Fatalf("bind %d was answered twice", g.ID)
		}
		answered[g.ID] = true
		if left--; left%500 == 0 {
			if g := other.call(frame.Request, its.Token, "add"); g.Type != frame.OK {
				t.Fatal(g)
			}
		}
	}
	for open > 1 {
		l.want(frame.Ended)
		open--
	}
	fabrictest.Eventually(t, long, "one binding is left", func() bool {
		return n2.Stats().Bound == 2 && n1.stats.turns.Load() == 0 && n2.stats.turns.Load() == 0
	})
}

// TestClientLateAnswers: an answer that comes when its caller has just given up, or comes twice, reaches no other call.
func TestClientLateAnswers(t *testing.T) {
	t.Parallel()
	c, err := client.Dial(t.Context(), client.Config{URLs: []string{standIn(t, 2)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bound, err := c.Bind(t.Context(), "actor/alice@1")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for caller := range 16 {
		wg.Go(func() {
			for i := range 400 {
				text := fmt.Sprintf("request %d of caller %d", i, caller)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*25*time.Microsecond)
				reply, err := bound.Request(ctx, []byte(text))
				cancel()
				switch {
				case err == nil && string(reply) != text:
					t.Errorf("%q was answered with %q", text, reply)
				case err != nil && !errors.Is(err, outcome.DeadlineExceeded):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestReplies: requests to several Actors that are under way at the same time get their own replies, each in the order of
// its Actor's requests, whatever shares a buffer on the way.
func TestReplies(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	b.log.mute.Store(true)
	echo := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		return objects.Reply{Data: req.Data()}, nil
	}
	b.log.onTurn.Store(&echo)
	l := n1.dial("ann")
	const actors, rounds = 16, 40
	tokens := make([]string, actors)
	for i := range tokens {
		at := n1
		if i%2 == 0 {
			at = n2
		}
		tokens[i] = l.bind(at.actor(fmt.Sprint("actor", i)).String()).Token
	}
	for round := range rounds {
		texts := map[uint64]string{}
		for k := range 2 * actors {
			text := fmt.Sprintf("request %d of round %d to actor %d ", k, round, k%actors)
			text += strings.Repeat(string(rune('a'+k%actors)), (k*round*37)%3000)
			texts[l.ask(frame.Request, tokens[k%actors], text)] = text
		}
		last := make([]uint64, actors)
		for range 2 * actors {
			g := l.want(frame.OK)
			if g.data != texts[g.ID] {
				t.Fatalf("%q was answered with %q", texts[g.ID], g.data)
			}
			var k, r, actor int
			if _, err := fmt.Sscanf(g.data, "request %d of round %d to actor %d ", &k, &r, &actor); err != nil || g.ID < last[actor] {
				t.Fatalf("%v: reply %d after %d", err, g.ID, last[actor])
			}
			last[actor] = g.ID
		}
	}
}

// TestSlowActor: a request ends at the client's deadline when its Actor does not answer, and so does the one behind it;
// neither waits for the node's own time.
func TestSlowActor(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	longer := func(s *settings) { s.RelayTimeout = 5 * time.Minute }
	n1, n2 := b.node("n1", longer), b.node("n2")
	l := n1.dial("ann")
	for i, at := range []*node{n1, n2} {
		token := l.bind(at.actor(fmt.Sprint("actor", i)).String()).Token
		hold := make(chan struct{})
		left := make(chan time.Duration, 2)
		turn := func(ctx context.Context, _ *objects.Request) (objects.Reply, error) {
			at, _ := ctx.Deadline()
			left <- time.Until(at)
			<-hold
			return objects.Reply{}, nil
		}
		b.log.onTurn.Store(&turn)
		first, second := l.next+1, l.next+2
		l.next += 2
		begun := time.Now()
		// So much time that the first one's turn begins before it is over.
		l.write(frame.Header{Type: frame.Request, ID: first, Token: token, MS: 5000}, "")
		l.write(frame.Header{Type: frame.Request, ID: second, Token: token, MS: 4000}, "")
		for _, id := range []uint64{first, second} {
			g := l.want(frame.Err)
			if g.ID != id || g.Kind != outcome.DeadlineExceeded.String() || id == second && g.Acceptance != outcome.NotAccepted.String() {
				t.Fatal(g)
			}
		}
		if d := time.Since(begun); d < 5*time.Second || d > long {
			t.Fatalf("they ended after %v", d)
		}
		select {
		case d := <-left:
			if d > long {
				t.Fatalf("the Actor was given %v", d)
			}
		default:
			t.Fatal("no turn began")
		}
		b.log.onTurn.Store(nil)
		close(hold)
	}
}

// TestReplySubjectOfTheStore: who may only open sessions names a record of the Location Store as the place for the answer. It
// stays what it is, whether the client is let in, refused, or has no session.
func TestReplySubjectOfTheStore(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1")
	ref := n.actor("alice")
	nc := b.connect(b.server.URL(), "client", nil)
	defer nc.Close()
	record := "$KV." + wire.Mesh("m").LocationBucket() + ".actor.alice"
	heard, err := nc.SubscribeSync(record)
	if err != nil {
		t.Fatal(err)
	}
	in := n.router.RunSubject(n.rid, n.here.lifecycle, serviceName, verbIn+".nobody")
	for subject, data := range map[string][]string{frame.OpenSubject("m"): {hello("ann"), hello("wrong"), "x"}, in: {"x"}} {
		for _, text := range data {
			if err := nc.PublishRequest(subject, record, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.dialNATS("ann") // behind them on the first way
	if _, err := nc.Request(in, nil, long); err != nil {
		t.Fatal(err)
	}
	if at, err := n.objs.Actors().Find(b.ctx(), "alice"); err != nil || at.Generation != ref.Generation {
		t.Fatalf("%+v, %v", at, err)
	}
	if got, _, err := heard.Pending(); err != nil || got != 0 || n.Stats().Opened != 1 {
		t.Fatalf("%d answers went to the record, %d sessions are open (%v)", got, n.Stats().Opened, err)
	}
}

// TestOtherTransport: a session is spoken to over the connection on which it was opened: its ID is worth nothing over NATS.
func TestOtherTransport(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1")
	l := n.dial("ann")
	nc := b.connect(b.server.URL(), "client", nil)
	defer nc.Close()
	m, err := nc.Request(n.router.RunSubject(n.rid, n.here.lifecycle, serviceName, verbIn+"."+l.hello.Session), []byte("{\"t\":\"bye\"}\n"), long)
	if err != nil {
		t.Fatal(err)
	}
	if e := outcome.FromHeaders(m.Header, "", ""); e == nil || e.Kind != outcome.NotFound || n.Stats().Sessions != 1 {
		t.Fatal(m.Header, n.Stats())
	}
}
