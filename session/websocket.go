package session

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

const (
	// sendTimeout bounds the writing of one frame to a WebSocket.
	sendTimeout = 20 * time.Second
	// closeTimeout bounds the closing handshake of a WebSocket.
	closeTimeout = time.Second
	// slack is by how much a frame may be too large and still be answered with an error, rather than with a close.
	slack = 64 << 10
)

// Handler returns what serves WebSockets: each is one session. It may be mounted at any path. A request that is no
// WebSocket's is answered with 426, one that the node has no room for, or that comes while it drains, with 503, and every one
// with 404 at a node without an authenticator. A browser may come from a page of the same host, and from those of
// Config.Origins.
func (s *Service) Handler() http.Handler { return http.HandlerFunc(s.serveWebSocket) }

// webSocket is a client behind a WebSocket.
type webSocket struct{ *frame.Socket }

func (w webSocket) kind() Transport        { return TransportWebSocket }
func (w webSocket) most() int              { return 0 }
func (w webSocket) send(data []byte) error { return w.Write(data) }
func (w webSocket) cut()                   { w.Cut() }

// close ends the connection in order, if the other side takes part in that.
func (w webSocket) close(why *ending) {
	code := websocket.StatusNormalClosure
	switch why.kind {
	case 0:
	case outcome.ShuttingDown:
		code = websocket.StatusGoingAway
	case outcome.Unavailable:
		code = websocket.StatusTryAgainLater
	default:
		code = websocket.StatusPolicyViolation
	}
	w.Close(code, why.kindText(), closeTimeout)
}

// kindText is what stands in a WebSocket's close frame.
func (e *ending) kindText() string {
	if e.kind == 0 {
		return ""
	}
	return e.kind.String()
}

func (s *Service) serveWebSocket(rw http.ResponseWriter, req *http.Request) {
	if !s.owns() {
		http.Error(rw, noSessions, http.StatusNotFound)
		return
	}
	if !s.enter() {
		http.Error(rw, errDraining.Detail, http.StatusServiceUnavailable)
		return
	}
	defer s.wg.Done()
	if e := s.reserve(); e != nil {
		s.stats.refused.Add(1)
		http.Error(rw, e.Detail, http.StatusServiceUnavailable)
		return
	}
	conn, err := websocket.Accept(rw, req, &websocket.AcceptOptions{OriginPatterns: s.cfg.Origins})
	if err != nil { // Accept has answered
		s.unreserve()
		s.stats.refused.Add(1)
		return
	}
	conn.SetReadLimit(int64(s.cfg.MaxMessage + frame.MaxHeader + 1 + slack))
	ws := webSocket{frame.NewSocket(conn, sendTimeout)}
	stop := context.AfterFunc(s.ctx, ws.cut) // the connection ends with the Service
	defer stop()
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.HandshakeTimeout)
	defer cancel()
	data, err := s.readFirst(ctx, ws)
	if err != nil {
		s.unreserve()
		if ctx.Err() != nil && s.ctx.Err() == nil {
			s.refuse(ws, refusal(outcome.DeadlineExceeded, "no hello came in time"))
			return
		}
		s.stats.refused.Add(1)
		ws.cut()
		return
	}
	who, e := s.greet(ctx, data, Hello{Transport: TransportWebSocket, Remote: req.RemoteAddr, Header: req.Header})
	if e != nil {
		s.refuse(ws, e)
		return
	}
	c, e := s.open(ws, who, func(string) string { return "" })
	if e != nil {
		s.refuse(ws, e)
		return
	}
	s.read(c, ws)
}

// readFirst reads the first frame. When ctx ends first the connection stays usable, so that the client can be told.
func (s *Service) readFirst(ctx context.Context, ws webSocket) ([]byte, error) {
	type first struct {
		data []byte
		err  error
	}
	read := make(chan first, 1)
	started := s.spawn(func() {
		data, err := ws.Read()
		read <- first{bytes.Clone(data), err} // the authenticator may keep what it sees
	})
	if !started {
		return nil, errDraining
	}
	select {
	case f := <-read:
		return f.data, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// read takes what comes from a client until its session or its connection is over.
func (s *Service) read(c *session, ws webSocket) {
	for {
		data, err := ws.Read()
		if err != nil {
			if websocket.CloseStatus(err) == websocket.StatusNormalClosure || websocket.CloseStatus(err) == websocket.StatusGoingAway {
				c.end(endLeft)
				return
			}
			c.end(endLost)
			return
		}
		if c.isOver() {
			c.seen.Store(int64(monotime.Now()))
			continue // what closes the connection goes on reading it
		}
		s.run(c.take(data))
	}
}
