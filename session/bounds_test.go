package session

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

type objectsRef = objects.ActorRef

// TestMalformed: a client that does not keep to the protocol is told so, and its session ends, with all its bindings.
func TestMalformed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) { s.MaxMessage = 1000 })
	n.actor("alice")
	for i, c := range []struct{ data, text string }{
		{"garbage", "no line feed"},
		{"{\"t\":\"request\"}\n", `a request frame without an "id"`},
		{"{\"t\":7}\n", "not what it must be"},
		{"[]\n", "not what it must be"},
		{"{}\n", `no "t"`},
		{"\xff\n", "no valid UTF-8"},
		{strings.Repeat("x", 4097), "longer than 4096 bytes"},
		{hello("again"), "a second hello"},
	} {
		l := n.dial(fmt.Sprintf("user%d", i))
		l.bind("actor/alice")
		if err := l.send([]byte(c.data)); err != nil {
			t.Fatal(err)
		}
		if g := l.want(frame.Bye); g.Kind != outcome.ProtocolError.String() || !strings.Contains(g.Text, c.text) {
			t.Fatalf("%q: %v", c.data, g)
		}
		<-l.closed
		line := fmt.Sprintf("unbound user%d %d: disconnected", i, i+1)
		fabrictest.Eventually(t, long, line, func() bool { return b.log.has("alice", line) == 1 })
	}
	// What is only not understood, or too large, is answered.
	l := n.dial("ann")
	bound := l.bind("actor/alice")
	l.write(frame.Header{Type: "dance"}, "")
	l.write(frame.Header{Type: "dance", ID: 77}, "")
	wantErr(t, l.want(frame.Err), outcome.ProtocolError, outcome.NotAccepted, `knows no frame of type "dance"`)
	wantErr(t, l.call(frame.Request, bound.Token, strings.Repeat("x", 1001)), outcome.CapacityExceeded, outcome.NotAccepted, "1001 bytes, 1000 are allowed")
	if g := l.call(frame.Request, bound.Token, "add"); g.Type != frame.OK {
		t.Fatal(g)
	}
	if st := n.Stats(); st.EndedMalformed != 8 || st.FramesUnknown != 1 || st.Sessions != 1 {
		t.Fatalf("%+v", st)
	}
}

// TestFlood: a client that asks for more than may wait is refused, request by request; what was taken runs in its order, and
// another session of the same node is served meanwhile.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1", func(s *settings) { s.InFlight, s.Outbound = 8, 10_000 })
	n.actor("alice")
	n.actor("bob")
	l, other := n.dial("ann"), n.dial("bob")
	bound, its := l.bind("actor/alice"), other.bind("actor/bob")
	hold := make(chan struct{})
	turn := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		if req.Self().ID() == "alice" {
			<-hold
		}
		return objects.Reply{Data: req.Data()}, nil
	}
	b.log.onTurn.Store(&turn)
	const asked = 1000
	for i := range asked {
		l.ask(frame.Request, bound.Token, fmt.Sprint(i))
	}
	refused := 0
	for refused < asked-8 {
		g := l.want(frame.Err)
		wantErr(t, g, outcome.Unavailable, outcome.NotAccepted, "as many requests of the session")
		refused++
	}
	if g := other.call(frame.Request, its.Token, "hi"); g.data != "hi" {
		t.Fatal(g)
	}
	close(hold)
	for i := range 8 {
		if g := l.want(frame.OK); g.data != fmt.Sprint(i) {
			t.Fatalf("%d: %v", i, g)
		}
	}
	if st := n.Stats(); st.RefusedBusy != asked-8 {
		t.Fatalf("%+v", st)
	}
}

// TestSlowClient: what waits for a client that does not read is bounded, as the policy says.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	for _, policy := range []SlowPolicy{CloseSlow, DropNewest, DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			n := b.node("n1", func(s *settings) { s.Slow, s.Outbound, s.Heartbeat = policy, 50, 10*time.Minute })
			ref := n.actor("alice")
			p := fabrictest.NewProxy(t, n.web.Listener.Addr().String())
			l := n.dialVia(p, "ann")
			bound := l.bind(ref.String())
			p.Apply(fabrictest.Hang)
			// The network takes some before the queue fills.
			big := strings.Repeat("x", 8000)
			turn := func(ctx context.Context, req *objects.Request) (objects.Reply, error) {
				if present, ok := Of(req); ok {
					return objects.Reply{}, present.Push(ctx, req.Data())
				}
				return objects.Reply{}, nil
			}
			b.log.onTurn.Store(&turn)
			over := func() bool {
				st := n.Stats()
				return st.EndedSlow > 0 || st.PushesDropped >= 200
			}
			for late := time.Now().Add(long); !over(); {
				if time.Now().After(late) {
					t.Fatalf("%+v", n.Stats())
				}
				if _, err := n.objs.Actors().Request(b.ctx(), "alice", []byte(big)); err != nil && outcome.KindOf(err) != outcome.CapacityExceeded && outcome.KindOf(err) != outcome.Unavailable {
					t.Fatal(err)
				}
			}
			if policy == CloseSlow {
				fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
				return
			}
			if st := n.Stats(); st.Sessions != 1 || st.EndedSlow != 0 {
				t.Fatalf("%+v", st)
			}
			p.Heal()
			b.log.onTurn.Store(nil)
			var seq, gaps uint64
			// What waits is read first: a push that finds the queue still full would be dropped, too.
			for _, message := range []string{"hi", "push 1"} {
				id := l.ask(frame.Request, bound.Token, message)
				for answered, pushed := false, message == "hi"; !answered || !pushed; {
					switch g := l.read(); {
					case g.ID == id:
						answered = true
					case g.Type == frame.Push && g.Seq > seq:
						if g.Seq > seq+1 {
							gaps++
						}
						seq, pushed = g.Seq, pushed || g.data == "n1 0"
					default:
						t.Fatalf("got %v", g)
					}
				}
			}
			if gaps == 0 {
				t.Fatal("nothing is missing")
			}
		})
	}
}

// dialVia opens a session through a proxy.
func (n *node) dialVia(p *fabrictest.Proxy, credentials string) *link {
	l := n.dialTo("ws" + strings.TrimPrefix(p.URL(), "nats"))
	l.write(frame.Header{Type: frame.Hello, V: frame.Version}, credentials)
	l.hello = l.want(frame.Welcome)
	return l
}

// TestSilentClient: a client that does not answer pings is given up, over both transports, and told.
func TestSilentClient(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, dial func(*node, string) *link) {
		b := newBed(t)
		n := b.node("n1", heartbeat(2*time.Second))
		n.actor("alice")
		l := dial(n, "ann")
		l.bind("actor/alice")
		l.mute.Store(true)
		if g := l.want(frame.Bye); g.Kind != outcome.DeadlineExceeded.String() || !strings.Contains(g.Text, "two heartbeats") {
			t.Fatal(g)
		}
		fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: disconnected") == 1 })
	})
}

// binds is how many binds TestManyBinds makes: more take longer and show no more.
var binds = flag.Int("binds", 500, "how many binds TestManyBinds makes")

// TestManyBinds: many binds and unbinds leave nothing behind.
//
// It runs alone: it looks at the heap.
func TestManyBinds(t *testing.T) {
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2")
	n2.actor("alice")
	quiet := func(context.Context, *objects.Request) (objects.Reply, error) { return objects.Reply{}, nil }
	b.log.onTurn.Store(&quiet)
	l := n1.dial("ann")
	round := func(n int) {
		for range n {
			bound := l.bind("actor/alice")
			if bound.Type != frame.OK {
				t.Fatal(bound)
			}
			if g := l.call(frame.Unbind, bound.Token, ""); g.Type != frame.OK {
				t.Fatal(g)
			}
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	b.log.mute.Store(true)
	round(200)
	before := heap()
	round(*binds)
	after := heap()
	if after > before+(8<<20) {
		t.Fatalf("the heap has grown from %d to %d bytes", before, after)
	}
	if info := n1.List(1); len(info) != 1 || len(info[0].Bindings) != 0 || info[0].InFlight != 0 {
		t.Fatalf("%+v", info)
	}
	if n1.Stats().Bound != 0 || n2.Stats().Bound != 0 {
		t.Fatal("bindings are left")
	}
}

// TestPushesToASilentNode: what waits at the Actor's node for that of the session is bounded, and what was lost on the way is sent
// again.
func TestPushesToASilentNode(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1"), b.node("n2", func(s *settings) { s.Outbound = 4 })
	l := n1.dial("ann")
	l.bind(n2.actor("alice").String())
	push := func(text string) error {
		_, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte(text))
		return err
	}
	to := fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n1.*.ses.push.>", Times: -1, Action: fabrictest.HoldAlone}
	held := n2.proxy.Arm(to)
	if err := push("push 4"); err != nil {
		t.Fatal(err)
	}
	<-held.Reached()
	if err := push("push 1"); outcome.KindOf(err) != outcome.CapacityExceeded || n2.Stats().PushesRefused != 1 {
		t.Fatal(err)
	}
	held.Release()
	for seq := uint64(1); seq <= 4; seq++ {
		if g := l.want(frame.Push); g.Seq != seq {
			t.Fatal(g)
		}
	}
	fabrictest.Eventually(t, long, "there is room again", func() bool { return n2.idle("alice") })
	to.Times, to.Action = 1, fabrictest.Drop
	n2.proxy.Arm(to)
	if err := push("push 1"); err != nil {
		t.Fatal(err)
	}
	if g := l.want(frame.Push); g.Seq != 5 {
		t.Fatal(g)
	}
}

// idle reports whether nothing waits of what an Actor here has pushed.
func (n *node) idle(id string) bool {
	for _, at := range n.bound.runs() {
		for _, b := range n.bound.of(at, 0) {
			b.mu.Lock()
			busy := b.busy && b.actor.ID == id
			b.mu.Unlock()
			if busy {
				return false
			}
		}
	}
	return true
}
