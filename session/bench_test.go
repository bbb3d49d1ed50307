package session

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"

	"natsfabric/objects"
	"natsfabric/session/internal/frame"
)

// BenchmarkRelay measures a request over a WebSocket to an Actor on another node, beside what a program does without the
// fabric: a WebSocket server that passes each message on as a NATS request to a responder on another connection. The same
// server, payload and library; in turns of 100, so that both see the same machine. relay/raw is the median of the ratios of
// rates in the pairs (goal: 0.8 or more).
func BenchmarkRelay(b *testing.B) {
	bed := newBed(b)
	direct := func(s *settings) { s.direct = true }
	n1, n2 := bed.node("n1", direct), bed.node("n2", direct)
	ref := n2.actor("alice")
	bed.log.mute.Store(true)
	echo := func(_ context.Context, req *objects.Request) (objects.Reply, error) {
		return objects.Reply{Data: req.Data()}, nil
	}
	bed.log.onTurn.Store(&echo)
	ctx := b.Context()
	payload := []byte(strings.Repeat("x", 100))

	l := n1.dial("ann")
	bound := l.bind(ref.String())
	l.cut() // what follows speaks without the test's queue
	<-l.closed
	ws, _, err := websocket.Dial(ctx, n1.ws(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	ask := func(conn *websocket.Conn, data []byte) []byte {
		if err := conn.Write(ctx, websocket.MessageBinary, data); err != nil {
			b.Fatal(err)
		}
		_, reply, err := conn.Read(ctx)
		if err != nil {
			b.Fatal(err)
		}
		return reply
	}
	ask(ws, []byte(hello("ann")))
	h, _, err := frame.Parse(ask(ws, frame.Make(&frame.Header{Type: frame.Bind, ID: 1, Ref: ref.String()}, nil)))
	if err != nil || h.Type != frame.OK || h.Token == bound.Token {
		b.Fatal(h, err)
	}
	id := uint64(1)
	relay := func() {
		id++
		h, data, err := frame.Parse(ask(ws, frame.Make(&frame.Header{Type: frame.Request, ID: id, Token: h.Token}, payload)))
		if err != nil || h.Type != frame.OK || h.ID != id || len(data) != len(payload) {
			b.Fatal(h, err)
		}
	}

	nc, responder := bed.connect(bed.server.URL(), "raw", nil), bed.connect(bed.server.URL(), "responder", nil)
	defer nc.Close()
	defer responder.Close()
	if _, err := responder.Subscribe("raw", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for {
			_, data, err := conn.Read(ctx)
			if err != nil {
				return
			}
			m, err := nc.Request("raw", data, time.Second)
			if err != nil {
				return
			}
			if err := conn.Write(ctx, websocket.MessageBinary, m.Data); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	rawConn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = rawConn.CloseNow() }()
	raw := func() { ask(rawConn, payload) }

	const turn = 100
	time100 := func(f func()) time.Duration {
		begun := time.Now()
		for range turn {
			f()
		}
		return time.Since(begun)
	}
	time100(raw)
	time100(relay)
	b.ReportAllocs()
	b.ResetTimer()
	var ratios []float64
	var rawTime, relayTime time.Duration
	pairs := 0
	for b.Loop() {
		r, f := time100(raw), time100(relay)
		ratios = append(ratios, float64(r)/float64(f))
		rawTime, relayTime = rawTime+r, relayTime+f
		pairs++
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "relay/raw")
	b.ReportMetric(float64(rawTime.Microseconds())/float64(pairs*turn), "raw-µs")
	b.ReportMetric(float64(relayTime.Microseconds())/float64(pairs*turn), "relay-µs")
	b.ReportMetric(0, "ns/op")
}
