package frame

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// keep is the greatest buffer that a socket, or the pool, keeps from one frame to the next.
const keep = 16 << 10

// Socket carries frames over a WebSocket, each as one message. Its reads and writes need no context: Cut ends them.
//
// Concurrency: Read is called by one goroutine and Write by one at a time; Cut by any.
type Socket struct {
	conn  *websocket.Conn
	buf   []byte // of Read
	most  time.Duration
	stuck *time.Timer // cuts the connection when a write takes too long
}

// NewSocket returns a Socket on a connection that nobody else reads or writes. A write that takes longer than most ends the
// connection.
func NewSocket(conn *websocket.Conn, most time.Duration) *Socket {
	return &Socket{conn: conn, most: most}
}

// Read returns the next frame, of either type of message. It is valid until the next call.
func (s *Socket) Read() ([]byte, error) {
	_, r, err := s.conn.Reader(context.Background())
	if err != nil {
		return nil, err
	}
	b := s.buf[:0]
	if cap(b) == 0 || cap(b) > keep {
		b = make([]byte, 0, 512)
	}
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			s.buf = b
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}

// Write sends a frame.
func (s *Socket) Write(data []byte) error {
	if s.stuck == nil {
		s.stuck = time.AfterFunc(s.most, s.Cut)
	} else {
		s.stuck.Reset(s.most)
	}
	err := s.conn.Write(context.Background(), websocket.MessageBinary, data)
	s.stuck.Stop()
	return err
}

// Close ends the connection in order, within most, if the other side takes part in that. Nothing may be written meanwhile.
func (s *Socket) Close(code websocket.StatusCode, text string, most time.Duration) {
	stop := time.AfterFunc(most, s.Cut)
	defer stop.Stop()
	_ = s.conn.Close(code, text) // it is over in either case
}

// Cut ends the connection at once.
func (s *Socket) Cut() { _ = s.conn.CloseNow() } // it is over in either case

// Buffer is memory for a frame that is on its way.
type Buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &Buffer{b: make([]byte, 0, 512)} }}

// Borrow returns a Buffer with a frame in it. It is to be given back.
func Borrow(h *Header, payload []byte) *Buffer {
	b := buffers.Get().(*Buffer)
	b.b = Append(b.b[:0], h, payload)
	return b
}

// Frame is the frame.
func (b *Buffer) Frame() []byte { return b.b }

// GiveBack ends the use of the Buffer and its frame.
func (b *Buffer) GiveBack() {
	if cap(b.b) <= keep {
		buffers.Put(b)
	}
}
