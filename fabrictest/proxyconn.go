package fabrictest

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// lingerTimeout is how long an end that was sent its last message may take to
// close the connection.
const lingerTimeout = 2 * time.Second

// maxSubscriptions bounds the subscriptions remembered for Respond.
const maxSubscriptions = 100_000

// proxyConn is one connection through a proxy. Each direction has two
// goroutines: one cuts the stream into frames, one decides about them in order.
type proxyConn struct {
	proxy *Proxy
	name  string // of the client; guarded by proxy.mu
	dirs  [2]*direction
	state atomic.Pointer[connState]
	done  chan struct{}
	close func()

	// owed are the PONGs that the client misses because of a fault.
	owed atomic.Int32

	// subscriptions by SID: seen and used by the writer to the server only.
	subs map[string]string
}

// connState is what holds for a connection until replaced is closed.
type connState struct {
	faults
	replaced chan struct{}
}

// direction is one way through a connection.
type direction struct {
	dir      Direction
	src, dst net.Conn
	out      *bufio.Writer
	q        *queue
	read     chan struct{} // closed when the source is at its end
	lossy    atomic.Bool   // bytes of a stream that is not understood were lost
}

func newProxyConn(p *Proxy, client, server net.Conn) *proxyConn {
	c := &proxyConn{
		proxy: p,
		done:  make(chan struct{}),
		subs:  make(map[string]string),
	}
	c.dirs[ToServer] = newDirection(ToServer, client, server)
	c.dirs[ToClient] = newDirection(ToClient, server, client)
	c.state.Store(&connState{replaced: make(chan struct{})})
	c.close = sync.OnceFunc(func() {
		close(c.done)
		for _, d := range c.dirs {
			d.src.Close()
			d.q.abort()
		}
	})
	return c
}

func newDirection(dir Direction, src, dst net.Conn) *direction {
	return &direction{
		dir:  dir,
		src:  src,
		dst:  dst,
		out:  bufio.NewWriterSize(dst, chunk),
		q:    newQueue(),
		read: make(chan struct{}),
	}
}

// setFaults is called with proxy.mu held.
func (c *proxyConn) setFaults(fs faults) {
	old := c.state.Swap(&connState{faults: fs, replaced: make(chan struct{})})
	close(old.replaced)
	c.settle()
}

// settle deals with what was lost, once nothing is lost any more.
func (c *proxyConn) settle() {
	st := c.state.Load()
	for _, d := range c.dirs {
		if d.lossy.Load() && !st.drop[d.dir] {
			c.close()
		}
	}
	if st.drop == [2]bool{} {
		for range c.owed.Swap(0) {
			c.toClient(Message{Verb: "PONG"})
		}
	}
}

// toClient sends the client a message that did not come from the server.
func (c *proxyConn) toClient(m Message) {
	c.dirs[ToClient].q.inject(item{frame: frame{raw: m.encode(), msg: m}, arrived: time.Now(), late: true})
}

// run passes the connection on until both ends are closed.
func (c *proxyConn) run() {
	var wg sync.WaitGroup
	for _, d := range c.dirs {
		wg.Go(func() { c.readLoop(d) })
		wg.Go(func() { c.writeLoop(d) })
	}
	wg.Wait()
}

func (c *proxyConn) readLoop(d *direction) {
	defer close(d.read)
	defer d.q.finish()
	fr := newFrameReader(d.src)
	for {
		f, err := fr.next()
		if f.msg.Verb == "CONNECT" && d.dir == ToServer {
			if !c.proxy.setName(c, f.msg.clientName()) {
				c.close()
				return
			}
		}
		if len(f.raw) > 0 && !d.q.push(item{frame: f, arrived: time.Now()}) {
			return
		}
		if err != nil {
			return
		}
	}
}

// writeLoop passes frames on in order. What can't be written is lost: the other
// direction notices the end of that side and closes the connection, after what
// came from there was passed on.
func (c *proxyConn) writeLoop(d *direction) {
	defer c.close()
	for {
		if d.q.empty() {
			_ = d.out.Flush()
		}
		it, ok := d.q.pop()
		if !ok {
			break
		}
		if !c.handle(d, it) {
			return
		}
	}
	_ = d.out.Flush()
	// The end of the stream travels as bytes do.
	for {
		st := c.state.Load()
		if !st.hang && !st.drop[d.dir] {
			return
		}
		if !c.wait(st.replaced, nil) {
			return
		}
	}
}

// handle decides about one frame. It reports false when the connection ends.
func (c *proxyConn) handle(d *direction, it item) bool {
	lost, ok := c.await(d, it)
	if !ok || lost {
		return ok
	}
	if d.dir == ToServer {
		c.noteSubscription(&it.msg)
	}
	if it.late {
		d.write(it.raw)
		return true
	}
	a := c.proxy.trigger(c, d.dir, &it.msg)
	if a == nil {
		d.write(it.raw)
		return true
	}
	it.late = true
	switch action := a.trigger.Action; action.kind {
	case actDrop:
		return true
	case actHold:
		_ = d.out.Flush()
		if !c.wait(a.released, nil) {
			return false
		}
		if lost, ok := c.await(d, it); !ok || lost {
			return ok
		}
	case actHoldAlone:
		c.keep(d, it, a.released, 0)
		return true
	case actDelayAlone:
		c.keep(d, it, a.released, action.delay)
		return true
	case actDuplicate:
		c.keep(d, it, a.released, 0)
	case actCutBefore:
		_ = d.out.Flush()
		return false
	case actCutAfter:
		c.cutAfter(d, it)
		return false
	case actReplace:
		m := action.replace(it.msg)
		it.raw = m.encode()
	case actRespond:
		c.respond(&it.msg, action)
		return true
	}
	d.write(it.raw)
	return true
}

// await waits while the connection hangs or the frame is delayed. It reports
// whether the frame is lost, and whether the connection still is.
func (c *proxyConn) await(d *direction, it item) (lost, ok bool) {
	for {
		st := c.state.Load()
		if st.drop[d.dir] {
			c.lose(d, &it.msg)
			return true, true
		}
		due := st.delay - time.Since(it.arrived)
		if !st.hang && due <= 0 {
			return false, true
		}
		_ = d.out.Flush()
		var timer <-chan time.Time
		if !st.hang {
			timer = time.After(due)
		}
		if !c.wait(st.replaced, timer) {
			return false, false
		}
	}
}

// lose notes what a fault has swallowed.
func (c *proxyConn) lose(d *direction, m *Message) {
	switch {
	case m.Verb == "":
		d.lossy.Store(true)
	case d.dir == ToServer && m.Verb == "PING", d.dir == ToClient && m.Verb == "PONG":
		c.owed.Add(1)
	}
	c.settle() // it may have been healed just now
}

// wait waits for either; it reports false when the connection is closed.
func (c *proxyConn) wait(ch <-chan struct{}, timer <-chan time.Time) bool {
	select {
	case <-ch:
		return true
	case <-timer:
		return true
	case <-c.done:
		return false
	}
}

// write passes bytes on. An error is kept by the writer: all further bytes are
// lost, see writeLoop.
func (d *direction) write(raw []byte) { _, _ = d.out.Write(raw) }

// keep sends a frame later: when released, or after a delay unless it is 0.
func (c *proxyConn) keep(d *direction, it item, released <-chan struct{}, delay time.Duration) {
	d.q.setAside()
	var timer <-chan time.Time
	if delay > 0 {
		timer = time.After(delay)
	}
	it.arrived = time.Time{}
	c.proxy.wg.Go(func() {
		d.q.putBack(it, c.wait(released, timer))
	})
}

// cutAfter writes the frame and ends the connection so that the receiver reads
// the frame before the end.
func (c *proxyConn) cutAfter(d *direction, it item) {
	d.write(it.raw)
	_ = d.out.Flush()
	d.src.Close()
	if tc, ok := d.dst.(*net.TCPConn); ok {
		_ = tc.CloseWrite()
	}
	back := c.dirs[1-d.dir]
	select {
	case <-back.read:
	case <-c.done:
	case <-time.After(lingerTimeout):
	}
}

func (c *proxyConn) noteSubscription(m *Message) {
	switch {
	case m.Verb == "SUB" && len(c.subs) < maxSubscriptions:
		c.subs[m.SID] = m.Subject
	case m.Verb == "UNSUB" && m.Args == "":
		delete(c.subs, m.SID)
	}
}

// respond gives the client an answer that no server sent.
func (c *proxyConn) respond(request *Message, action Action) {
	for sid, subject := range c.subs {
		if request.Reply != "" && subjectMatches(subject, request.Reply) {
			c.toClient(Message{
				Verb:    "MSG",
				Subject: request.Reply,
				SID:     sid,
				Header:  []byte(action.header),
				Payload: []byte(action.payload),
			})
			return
		}
	}
	c.proxy.t.Errorf("fabrictest: proxy: no subscription of the client takes the answer to a message on %q (reply %q)",
		request.Subject, request.Reply)
}
