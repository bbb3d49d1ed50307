package session

import (
	"context"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/session/client"
	"natsfabric/session/internal/frame"
)

// withoutRace skips a test that counts allocations when the race detector is there.
func withoutRace(t *testing.T) {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-race" && s.Value == "true" {
				t.Skip("the race detector makes pools lose things; `make test` runs this a second time without it")
			}
		}
	}
}

// allocations is how often do allocates, in the whole process: at the least, because beside other programs hand-overs take longer ways.
func allocations(t *testing.T, do func()) float64 {
	t.Helper()
	do()
	least := math.Inf(1)
	for range 5 {
		least = min(least, testing.AllocsPerRun(1000, do))
	}
	return least
}

// TestRelayAllocations counts what a request takes at both nodes, without the client and the NATS server.
func TestRelayAllocations(t *testing.T) {
	withoutRace(t)
	b := newBed(t, fabrictest.AsProcess())
	direct := func(s *settings) { s.direct, s.Heartbeat = true, time.Minute }
	n1, n2 := b.node("n1", direct), b.node("n2", direct)
	b.log.mute.Store(true)
	echo := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		return objects.Reply{Data: req.Data()}, nil
	}
	b.log.onTurn.Store(&echo)
	for _, c := range []struct {
		name string
		ref  objects.ActorRef
		most float64 // three are the test's Actor's own
	}{{"another node", n2.actor("alice"), 23}, {"this node", n1.actor("bob"), 11}} {
		do := relayBy(t, n1, c.ref)
		if got := allocations(t, do); got > c.most {
			t.Errorf("a request to an Actor of %s allocates %v times, and may %v times", c.name, got, c.most)
		}
	}
}

// relayBy binds a client to an Actor and returns what sends a request and reads its answer, without allocations of the
// client's own.
func relayBy(t testing.TB, n *node, ref objects.ActorRef) func() {
	conn, _, err := websocket.Dial(t.Context(), n.ws(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ws := frame.NewSocket(conn, time.Minute)
	t.Cleanup(ws.Cut)
	ask := func(data []byte) (frame.Header, []byte) {
		if err := ws.Write(data); err != nil {
			t.Fatal(err)
		}
		answer, err := ws.Read()
		if err != nil {
			t.Fatal(err)
		}
		h, payload, err := frame.Parse(answer)
		if err != nil {
			t.Fatal(err)
		}
		return h, payload
	}
	if h, _ := ask([]byte(hello("ann"))); h.Type != frame.Welcome {
		t.Fatal(h)
	}
	bound, _ := ask(frame.Make(&frame.Header{Type: frame.Bind, ID: 1, Ref: ref.String()}, nil))
	if bound.Type != frame.OK {
		t.Fatal(bound)
	}
	h := frame.Header{Type: frame.Request, ID: 1, Token: bound.Token, MS: 60_000}
	data, out := []byte("0123456789abcdef"), []byte(nil)
	return func() {
		h.ID++
		out = frame.Append(out[:0], &h, data)
		if got, payload := ask(out); got.Type != frame.OK || got.ID != h.ID || string(payload) != string(data) {
			t.Fatalf("%+v %q", got, payload)
		}
	}
}

// TestClientAllocations counts what a request takes at the Go client, beside a node that is none.
func TestClientAllocations(t *testing.T) {
	withoutRace(t)
	c, err := client.Dial(t.Context(), client.Config{URLs: []string{standIn(t, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bound, err := c.Bind(t.Context(), "actor/alice@1")
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("0123456789abcdef")
	do := func(ctx context.Context) func() {
		return func() {
			if reply, err := bound.Request(ctx, data); err != nil || string(reply) != string(data) {
				t.Fatal(string(reply), err)
			}
		}
	}
	until, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// One for the reply, and one for the token that the node of the test reads.
	if got := allocations(t, do(context.Background())); got > 2 {
		t.Errorf("a request allocates %v times", got)
	}
	if got := allocations(t, do(until)); got > 2 {
		t.Errorf("a request with a deadline of its own allocates %v times", got)
	}
}
