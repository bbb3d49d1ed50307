package session

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"natsfabric/internal/monotime"
)

const (
	// readerPatience is how long a reader that brings a request to its Actor itself leaves the client's next frame unread.
	readerPatience = 20 * time.Millisecond
	// apart is how many requests of a binding go to workers, after one that took longer.
	apart = 1000
)

// reader reads the frames of a client behind a WebSocket. While no other frame waits it brings a request to its Actor
// itself, which saves a change of goroutines; when that takes longer than readerPatience another goroutine goes on reading.
type reader struct {
	s  *Service
	c  *session
	ws webSocket
	br *bufio.Reader // of the connection: what has been read of it and not taken

	mu      sync.Mutex
	number  int  // of the goroutine that reads
	working bool // it brings a request to its Actor
	takes   *time.Timer
	done    chan struct{} // closed when the connection is over
}

// read takes what comes from a client until its session or its connection is over.
func (s *Service) read(c *session, ws webSocket, br *bufio.Reader) {
	r := &reader{s: s, c: c, ws: ws, br: br, done: make(chan struct{})}
	r.run(0)
	<-r.done
}

// run reads until the connection is over, or another goroutine reads.
func (r *reader) run(number int) {
	for {
		data, err := r.ws.Read()
		if err != nil {
			if websocket.CloseStatus(err) == websocket.StatusNormalClosure || websocket.CloseStatus(err) == websocket.StatusGoingAway {
				r.c.end(endLeft)
			} else {
				r.c.end(endLost)
			}
			close(r.done)
			return
		}
		if r.c.isOver() {
			r.c.seen.Store(int64(monotime.Now()))
			continue // what closes the connection goes on reading it
		}
		j := r.c.take(data)
		switch {
		case j.t == nil:
		case r.br.Buffered() > 0 || j.t.isSlow():
			r.s.run(j)
		case !r.work(number, j):
			return
		}
	}
}

// work runs a job; it returns false when another goroutine has taken over the reading.
func (r *reader) work(number int, j job) bool {
	r.mu.Lock()
	r.working = true
	if r.takes == nil {
		r.takes = time.AfterFunc(r.s.patience, r.takeOver)
	} else {
		r.takes.Reset(r.s.patience)
	}
	r.mu.Unlock()
	j.t.work(j.op)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.number != number {
		j.t.slowDown()
		return false
	}
	r.working = false
	r.takes.Stop()
	return true
}

// takeOver goes on reading in the place of a goroutine that works. A Service that stops ends the connection anyway.
func (r *reader) takeOver() {
	r.mu.Lock()
	if !r.working || !r.s.enter() {
		r.mu.Unlock()
		return
	}
	defer r.s.wg.Done()
	r.working = false
	r.number++
	number := r.number
	r.mu.Unlock()
	r.run(number)
}

// isSlow reports whether the Actor may keep a reader waiting.
func (t *tie) isSlow() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.apart > 0 {
		t.apart--
		return true
	}
	return false
}

// slowDown notes that the Actor has kept a reader waiting.
func (t *tie) slowDown() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.apart = apart
}

// hijacker hands a connection over to the WebSocket library and keeps the buffer through which that reads it.
type hijacker struct {
	http.ResponseWriter
	br *bufio.Reader
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		h.br = rw.Reader
	}
	return conn, rw, err
}
