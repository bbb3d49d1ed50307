package client

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"

	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// carrier is one connection that carries frames. read is called by one goroutine, write by one at a time.
type carrier interface {
	// read returns what comes next. It is valid until the next call.
	read() (incoming, error)
	// write sends a frame, which it does not keep.
	write(id uint64, data []byte) error
	// close ends the connection; read then returns an error.
	close()
}

// incoming is a frame, or, over NATS, what is known of a frame that was not taken.
type incoming struct {
	data []byte
	// id is that of the frame that was refused, err why. gone: there is no such session any more.
	id   uint64
	err  *outcome.Error
	gone bool
}

// connect opens a connection to an address, with the hello on its way.
func connect(ctx context.Context, cfg *Config, url string, hello []byte) (carrier, error) {
	if strings.HasPrefix(url, "ws") {
		return dialWebSocket(ctx, cfg, url, hello)
	}
	return dialNATS(ctx, cfg, url, hello)
}

type webSocket struct{ *frame.Socket }

const (
	// maxReply is the greatest frame that a node sends over a WebSocket.
	maxReply = 64 << 20
	// writeTimeout bounds the writing of one frame.
	writeTimeout = 20 * time.Second
)

func dialWebSocket(ctx context.Context, cfg *Config, url string, hello []byte) (carrier, error) {
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: cfg.HTTP})
	if err != nil {
		detail := "no connection"
		switch {
		case resp != nil && resp.StatusCode == http.StatusServiceUnavailable:
			detail = "the node has no room, or is about to stop"
		case resp != nil && resp.StatusCode == http.StatusNotFound:
			detail = "no sessions are served under this path, or the node takes none"
		}
		return nil, outcome.Wrap("open session", outcome.Unavailable, outcome.NotAccepted, url, detail, err)
	}
	conn.SetReadLimit(maxReply)
	if err := conn.Write(ctx, websocket.MessageBinary, hello); err != nil {
		_ = conn.CloseNow() // it is over in either case
		return nil, outcome.Wrap("open session", outcome.Unavailable, outcome.NotAccepted, url, "the hello could not be sent", err)
	}
	return webSocket{frame.NewSocket(conn, writeTimeout)}, nil
}

func (w webSocket) read() (incoming, error) {
	data, err := w.Read()
	return incoming{data: data}, err
}

func (w webSocket) write(_ uint64, data []byte) error { return w.Write(data) }
func (w webSocket) close()                            { w.Cut() }

// natsCarrier is a session over a NATS connection of its own, which lives as long as the session.
type natsCarrier struct {
	nc     *nats.Conn
	frames chan *nats.Msg
	inbox  string
	done   chan struct{} // closed with the connection
	once   sync.Once

	mu sync.Mutex
	to string // the session's subject, from the welcome
}

// natsPending bounds what the client library holds for a session.
const natsPending = 4096

func dialNATS(ctx context.Context, cfg *Config, url string, hello []byte) (carrier, error) {
	n := &natsCarrier{frames: make(chan *nats.Msg, natsPending), done: make(chan struct{})}
	opts := append([]nats.Option{
		nats.Name(cfg.Name), nats.Timeout(timeLeft(ctx, cfg.HandshakeTimeout)),
	}, cfg.NATS...)
	opts = append(opts, nats.NoReconnect(), nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { n.once.Do(func() { close(n.done) }) }))
	var err error
	if n.nc, err = nats.Connect(url, opts...); err != nil {
		return nil, outcome.Wrap("open session", outcome.Unavailable, outcome.NotAccepted, url, "no connection", err)
	}
	n.inbox = n.nc.NewInbox()
	if _, err = n.nc.ChanSubscribe(n.inbox+".>", n.frames); err == nil {
		err = n.nc.PublishRequest(frame.OpenSubject(cfg.Mesh), n.inbox+".0", hello)
	}
	if err != nil {
		n.close()
		return nil, outcome.Wrap("open session", outcome.Unavailable, outcome.NotAccepted, url, "the hello could not be sent", err)
	}
	return n, nil
}

func timeLeft(ctx context.Context, most time.Duration) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return max(time.Millisecond, min(most, time.Until(at)))
	}
	return most
}

func (n *natsCarrier) read() (incoming, error) {
	var m *nats.Msg
	select {
	case m = <-n.frames: // what has come is read to its end
	default:
		select {
		case m = <-n.frames:
		case <-n.done:
			return incoming{}, nats.ErrConnectionClosed
		}
	}
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	var id uint64
	_, _ = fmt.Sscan(token, &id) // another subject has no number
	if m.Header.Get("Status") == "503" {
		return incoming{id: id, gone: true, err: outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "the session's node has gone")}, nil
	}
	if e := outcome.FromHeaders(m.Header, "", ""); e != nil {
		return incoming{id: id, err: e, gone: e.Kind == outcome.NotFound}, nil
	}
	return incoming{data: m.Data}, nil
}

func (n *natsCarrier) write(id uint64, data []byte) error {
	n.mu.Lock()
	to := n.to
	n.mu.Unlock()
	return n.nc.PublishRequest(to, fmt.Sprintf("%s.%d", n.inbox, id), data)
}

func (n *natsCarrier) close() {
	_ = n.nc.FlushTimeout(time.Second) // the bye, if there is one
	n.nc.Close()
	<-n.done
}
