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
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session/client"
	"natsfabric/session/internal/frame"
)

// TestFrameForms: a frame is one message, in however many fragments and of either type; control frames may come between. One
// that is compressed without having been agreed upon ends the connection, and nothing else.
func TestFrameForms(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n := b.node("n1")
	n.actor("alice")
	conn := n.enter("ann")
	read := func() got {
		t.Helper()
		for {
			_, data, err := conn.Read(b.ctx())
			if err != nil {
				t.Fatal(err)
			}
			h, payload, err := frame.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if h.Type != frame.Ping {
				return got{h, string(payload)}
			}
		}
	}
	if err := conn.Write(b.ctx(), websocket.MessageText, frame.Make(&frame.Header{Type: frame.Bind, ID: 1, Ref: "actor/alice"}, nil)); err != nil {
		t.Fatal(err)
	}
	bound := read()
	for i, typ := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
		text := strings.Repeat("grüße\n", 2000)
		data := frame.Make(&frame.Header{Type: frame.Request, ID: uint64(i + 2), Token: bound.Token}, []byte(text))
		w, err := conn.Writer(b.ctx(), typ)
		if err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			part := data[:min(len(data), 700)]
			data = data[len(part):]
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if g := read(); g.Type != frame.OK || g.ID != uint64(i+2) || g.data != text {
			t.Fatal(g)
		}
	}
	packed, _, err := websocket.Dial(b.ctx(), n.ws(), &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.CloseNow() }()
	if err := packed.Write(b.ctx(), websocket.MessageBinary, []byte(hello("bob"))); err != nil {
		t.Fatal(err)
	}
	if _, data, err := packed.Read(b.ctx()); err != nil || !strings.Contains(string(data), frame.Welcome) {
		t.Fatalf("a client that offers compression: %q, %v", data, err)
	}
	raw := n.tcp("ann")
	if _, err := raw.Write([]byte{0xc2, 0x84, 1, 2, 3, 4, 0, 0, 0, 0}); err != nil { // RSV1: compressed
		t.Fatal(err)
	}
	fabrictest.Eventually(t, long, "its session ends", func() bool { return n.Stats().EndedLost == 1 })
	if err := conn.Write(b.ctx(), websocket.MessageBinary, frame.Make(&frame.Header{Type: frame.Request, ID: 9, Token: bound.Token}, []byte("add"))); err != nil {
		t.Fatal(err)
	}
	if g := read(); g.data != "1" {
		t.Fatal(g)
	}
}

// TestFrameLimits: what is exactly as large as it may be is taken, and one byte more is refused: as an answer where there is a
// request to answer, else with the session's end.
func TestFrameLimits(t *testing.T) {
	t.Parallel()
	const most = 1000
	eachTransport(t, func(t *testing.T, dial func(*node, string) *link) {
		b := newBed(t)
		n := b.node("n1", func(s *settings) { s.MaxMessage = most })
		n.actor("alice")
		l := dial(n, "ann")
		if l.hello.MaxMessage != most {
			t.Fatal(l.hello)
		}
		token := l.bind("actor/alice").Token
		if g := l.call(frame.Request, token, strings.Repeat("x", most)); g.Type != frame.OK || len(g.data) != most {
			t.Fatal(g)
		}
		wantErr(t, l.call(frame.Request, token, strings.Repeat("x", most+1)), outcome.CapacityExceeded, outcome.NotAccepted, "1001 bytes")
		header := func(size int) []byte { // a request whose header has this many bytes
			head := fmt.Sprintf(`{"t":"request","id":%d,"b":%q,"pad":"`, l.next+1, token)
			return []byte(head + strings.Repeat("p", size-len(head)-2) + `"}` + "\nadd")
		}
		if err := l.send(header(frame.MaxHeader)); err != nil {
			t.Fatal(err)
		}
		l.next++
		if g := l.want(frame.OK); g.data != "1" {
			t.Fatal(g)
		}
		// A frame of every byte that is still read, and one more.
		whole := func(size int) []byte {
			head := frame.Make(&frame.Header{Type: frame.Request, ID: l.next + 1, Token: token}, nil)
			return append(head, make([]byte, size-len(head))...)
		}
		if err := l.send(whole(most + frame.MaxHeader + 1 + slack)); err != nil {
			t.Fatal(err)
		}
		l.next++
		wantErr(t, l.want(frame.Err), outcome.CapacityExceeded, outcome.NotAccepted)
		if err := l.send(whole(most + frame.MaxHeader + 1 + slack + 1)); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the session ends", func() bool { return n.Stats().Sessions == 0 })
		l = dial(n, "bob")
		token = l.bind("actor/alice").Token
		if err := l.send(header(frame.MaxHeader + 1)); err != nil {
			t.Fatal(err)
		}
		if g := l.want(frame.Bye); g.Kind != outcome.ProtocolError.String() {
			t.Fatal(g)
		}
	})
}

// TestLongTexts: what an Actor or the application says reaches the client in a frame that it can read, however long it is and
// whatever is escaped in it.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	endless := strings.Repeat("<é>", 5000)
	n := b.node("n1", func(s *settings) {
		s.Authorize = func(_ context.Context, _ Identity, actor objectsRef) error {
			if actor.ID == "secret" {
				return outcome.New("", outcome.Rejected, outcome.Accepted, "", endless)
			}
			return nil
		}
	})
	n.actor("alice")
	n.actor("secret")
	l := n.dial("ann")
	bound := l.bind("actor/alice")
	turn := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		if string(req.Data()) == "fail" {
			return objects.Reply{}, outcome.New("", outcome.Rejected, outcome.Accepted, "", endless)
		}
		present, _ := Of(req)
		present.Unbind(endless)
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&turn)
	said := func(text string) {
		t.Helper()
		if len(text) < 500 || len(text) > maxText || !strings.HasPrefix(endless, text) {
			t.Fatalf("it says %d bytes: %.80q", len(text), text)
		}
	}
	said(l.bind("actor/secret").Text)
	said(l.call(frame.Request, bound.Token, "fail").Text)
	l.ask(frame.Request, bound.Token, "unbind")
	for ended, answered := false, false; !ended || !answered; {
		switch g := l.read(); g.Type {
		case frame.Ended:
			ended = true
			said(g.Text)
		case frame.OK:
			answered = true
		default:
			t.Fatal(g)
		}
	}
}

// TestBindRace: sessions of two nodes bind to one Actor at the same moment, again and again. One has it in the end, the other
// hears that it was replaced, and both hear so once.
func TestBindRace(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	n2.actor("alice")
	links := []*link{n1.dial("ann"), n3.dial("bob")}
	for round := range 20 {
		var answers [2]got
		var wg sync.WaitGroup
		for i, l := range links {
			wg.Go(func() {
				l.next++
				l.write(frame.Header{Type: frame.Bind, ID: l.next, Ref: "actor/alice", MS: 20_000}, "")
				answers[i] = l.read()
			})
		}
		wg.Wait()
		for _, a := range answers {
			if a.Type != frame.OK {
				t.Fatalf("round %d: %v", round, a)
			}
		}
		winner := 0
		if answers[1].Number > answers[0].Number {
			winner = 1
		}
		if g := links[1-winner].want(frame.Ended); g.Token != answers[1-winner].Token || g.Why != string(ReasonReplaced) {
			t.Fatalf("round %d: %v", round, g)
		}
		if first, second := answers[1-winner].Number, answers[winner].Number; first != uint64(2*round+1) || second != first+1 {
			t.Fatalf("round %d: numbers %d and %d", round, first, second)
		}
		wantErr(t, links[1-winner].call(frame.Request, answers[1-winner].Token, "add"), outcome.InvalidOperation, outcome.NotAccepted)
		if g := links[winner].call(frame.Request, answers[winner].Token, "add"); g.data != fmt.Sprint(round+1) {
			t.Fatalf("round %d: %v", round, g)
		}
		if g := links[winner].call(frame.Unbind, answers[winner].Token, ""); g.Type != frame.OK {
			t.Fatalf("round %d: %v", round, g)
		}
	}
}

// TestBindDuringAMove: what asks for a turn of the Actor while it moves, a bind and an unbind, is done at the target.
func TestBindDuringAMove(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	n2.actor("alice")
	ann, bob := n1.dial("ann"), n1.dial("bob")
	bound := ann.bind("actor/alice")
	capturing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	waits := func() error {
		once.Do(func() { close(capturing) })
		<-goOn
		return nil
	}
	b.log.onCapture.Store(&waits)
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		n2.move("alice", n3)
	}()
	<-capturing
	unbind := ann.ask(frame.Unbind, bound.Token, "")
	fabrictest.Eventually(t, long, "the unbind waits", func() bool { return n2.stats.turns.Load() == 1 })
	bob.next++
	bob.write(frame.Header{Type: frame.Bind, ID: bob.next, Ref: "actor/alice", MS: 20_000}, "")
	fabrictest.Eventually(t, long, "the bind waits", func() bool { return n2.stats.turns.Load() == 2 })
	close(goOn)
	<-moved
	if g := ann.want(frame.OK); g.ID != unbind {
		t.Fatal(g)
	}
	its := bob.want(frame.OK)
	if its.Number != 2 || its.RID != "n3" || its.Owner != 2 {
		t.Fatal(its)
	}
	if g := bob.call(frame.Request, its.Token, "add"); g.data != "1" {
		t.Fatal(g)
	}
	if st := n3.Stats(); st.Bound != 1 || n2.Stats().Bound != 0 || b.log.has("alice", "unbound ann 1: unbound")+b.log.has("alice", "unbound ann 1: replaced") != 1 {
		t.Fatalf("%+v %q", st, b.log.of("alice"))
	}
}

// TestDrainDuringBinds: the node drains while binds are under way. Each is answered, or ends with its session, and no Actor
// keeps a binding whose session is over.
func TestDrainDuringBinds(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	// The bind that comes after the go-away comes within this time.
	n1, n2 := b.node("n1", func(s *settings) { s.GoAway = 10 * time.Second }), b.node("n2")
	hold := make(chan struct{})
	var waiting sync.WaitGroup
	turn := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		waiting.Done()
		<-hold
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&turn)
	l := n1.dial("ann")
	const actors = 8
	waiting.Add(actors)
	for i := range actors {
		n2.actor(fmt.Sprint("actor", i))
		go func() { _, _ = n2.objs.Actors().Request(b.ctx(), fmt.Sprint("actor", i), nil) }()
	}
	waiting.Wait()
	for i := range actors {
		l.write(frame.Header{Type: frame.Bind, ID: uint64(i + 1), Ref: fmt.Sprint("actor/actor", i), MS: 20_000}, "")
	}
	fabrictest.Eventually(t, long, "the binds wait", func() bool { return n2.stats.turns.Load() == actors })
	drained := make(chan error, 1)
	go func() { drained <- n1.Drain(b.ctx()) }()
	if g := l.want(frame.GoAway); g.MS <= 0 {
		t.Fatal(g)
	}
	l.write(frame.Header{Type: frame.Bind, ID: actors + 1, Ref: "actor/actor0", MS: 20_000}, "")
	wantErr(t, l.want(frame.Err), outcome.ShuttingDown, outcome.NotAccepted)
	if err := <-drained; err != nil { // GoAway is over
		t.Fatal(err)
	}
	if g := l.want(frame.Bye); g.Kind != outcome.ShuttingDown.String() {
		t.Fatal(g)
	}
	b.log.onTurn.Store(nil)
	close(hold)
	fabrictest.Eventually(t, long, "no Actor is bound", func() bool { return n2.stats.turns.Load() == 0 && n2.Stats().Bound == 0 })
}

// TestLateAuthenticator: the client has gone when the authenticator lets it in. Nothing is left of it.
func TestLateAuthenticator(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	asked, hold := make(chan struct{}), make(chan struct{})
	n := b.node("n1", func(s *settings) {
		s.MaxSessions, s.HandshakeTimeout = 1, long
		s.Authenticate = func(ctx context.Context, h Hello) (Identity, error) {
			if string(h.Credentials) == "slow" {
				close(asked)
				<-hold
			}
			return letIn(ctx, h)
		}
	})
	l := n.dialRaw()
	l.write(frame.Header{Type: frame.Hello, V: frame.Version}, "slow")
	<-asked
	l.cut()
	<-l.closed
	close(hold)
	fabrictest.Eventually(t, long, "its place is free", func() bool {
		st := n.Stats()
		return st.Opened == 1 && st.EndedLost == 1 && st.Sessions == 0
	})
	n.dial("ann")
}

// TestFrozenOwner: the session's node hangs for longer than its lease. The Actor lets the session go, and is bound to another one.
// When the node goes on, its client hears that the binding is over, and gets nothing that the Actor pushes.
func TestFrozenOwner(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1", shortLease, heartbeat(2*time.Second)), b.node("n2", heartbeat(2*time.Second))
	ref := n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind(ref.String())
	n1.proxy.Apply(fabrictest.Hang)
	push := func() {
		if _, err := n2.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); err != nil {
			t.Fatal(err)
		}
	}
	push() // on its way to a node that hangs
	fabrictest.Eventually(t, long, "the Actor is told", func() bool { return b.log.has("alice", "unbound ann 1: node gone") == 1 })
	other := n2.dial("bob")
	its := other.bind(ref.String())
	push()
	if g := other.want(frame.Push); g.Token != its.Token || g.Seq != 1 {
		t.Fatal(g)
	}
	n1.proxy.Heal()
	push()
	if g := other.want(frame.Push); g.Seq != 2 {
		t.Fatal(g)
	}
	if g := l.want(frame.Ended); g.Token != bound.Token || g.Why != string(ReasonLost) {
		t.Fatalf("the client of the node that hung got %v", g)
	}
	wantErr(t, l.call(frame.Request, bound.Token, "add"), outcome.InvalidOperation, outcome.NotAccepted)
	if g := other.call(frame.Request, its.Token, "add"); g.data != "1" {
		t.Fatal(g)
	}
}

// TestRebindGoesAround: one of a client's Actors cannot be bound again yet. The others are.
func TestRebindGoesAround(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var stuck sync.Map // Actors that may not be bound now
	n1 := b.node("n1", func(s *settings) {
		s.Authorize = func(_ context.Context, _ Identity, actor objectsRef) error {
			if _, no := stuck.Load(actor.ID); no {
				return outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "not now")
			}
			return nil
		}
	})
	p := fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
	w := &witness{}
	c := b.client(w, client.Config{URLs: []string{"ws" + strings.TrimPrefix(p.URL(), "nats")}})
	var bound []*client.Binding
	for _, id := range []string{"first", "second", "third"} {
		n1.actor(id)
		one, err := c.Bind(b.ctx(), "actor/"+id)
		if err != nil {
			t.Fatal(err)
		}
		bound = append(bound, one)
	}
	stuck.Store("first", true)
	p.Apply(fabrictest.Cut)
	for _, one := range bound[1:] {
		fabrictest.Eventually(t, long, "it is bound again", func() bool {
			_, err := one.Request(b.ctx(), []byte("add"))
			return err == nil
		})
	}
	if _, err := bound[0].Request(b.ctx(), nil); !errors.Is(err, outcome.Unavailable) {
		t.Fatal(err)
	}
	stuck.Delete("first")
	fabrictest.Eventually(t, long, "so is the first", func() bool {
		_, err := bound[0].Request(b.ctx(), []byte("add"))
		return err == nil
	})
}

// TestUnbindBehindAMove: the client has unbound, and its word has not reached the Actor yet, which has moved. Its new node, which
// tells where it is and brings a push meanwhile, does not take the session for over: the Actor hears why the binding ended.
func TestUnbindBehindAMove(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2, n3 := b.node("n1"), b.node("n2"), b.node("n3")
	n2.actor("alice")
	l := n1.dial("ann")
	bound := l.bind("actor/alice")
	capturing, goOn := make(chan struct{}), make(chan struct{})
	waits := func() error {
		close(capturing)
		<-goOn
		return nil
	}
	b.log.onCapture.Store(&waits)
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		n2.move("alice", n3)
	}()
	<-capturing
	held := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "fab.m.node.n3.*.ses.unbind.alice", Action: fabrictest.HoldAlone})
	id := l.ask(frame.Unbind, bound.Token, "")
	fabrictest.Eventually(t, long, "the unbind waits", func() bool { return n2.stats.turns.Load() == 1 })
	close(goOn)
	<-moved
	<-held.Reached()
	fabrictest.Eventually(t, long, "the session's node knows of the move", func() bool {
		n3.tellers.mu.Lock()
		defer n3.tellers.mu.Unlock()
		return len(n3.tellers.by) == 0
	})
	its := n3.bound.get(bound.Token)
	for range 2 {
		if _, err := n3.objs.Actors().Request(b.ctx(), "alice", []byte("push 1")); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, long, "the push is brought", func() bool {
			its.mu.Lock()
			defer its.mu.Unlock()
			return !its.busy
		})
	}
	held.Release()
	if g := l.want(frame.OK); g.ID != id {
		t.Fatal(g)
	}
	if b.log.has("alice", "unbound ann 1: unbound") != 1 || n3.Stats().Bound != 0 {
		t.Fatal(b.log.of("alice"))
	}
}
