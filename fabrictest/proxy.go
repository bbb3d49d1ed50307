package fabrictest

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// dialTimeout bounds how long a proxy tries to reach its target.
const dialTimeout = 5 * time.Second

// Proxy passes connections on to a server and applies faults to them. Its
// methods may be called from any goroutine.
type Proxy struct {
	t        testing.TB
	target   string // host:port
	listener net.Listener
	wg       sync.WaitGroup
	armedNow atomic.Int32 // len(armed), read without the lock

	mu     sync.Mutex
	closed bool
	all    faults            // of every connection
	named  map[string]faults // of those of one client, by its name
	conns  map[*proxyConn]struct{}
	armed  []*Armed
}

// NewProxy starts a proxy in front of target, which is a URL or host:port: a
// server's URL for clients, its cluster address for other servers. It is closed
// when the test ends. A target that is down is no failure: connections are
// closed until it is up again.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	_, l := listenFree(t)
	p := &Proxy{
		t:        t,
		target:   hostOf(target),
		listener: l,
		named:    make(map[string]faults),
		conns:    make(map[*proxyConn]struct{}),
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Proxy starts a proxy in front of the server.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	return NewProxy(t, s.URL())
}

func hostOf(target string) string {
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		return u.Host
	}
	return target
}

// URL is where clients connect to instead of the server.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Apply adds faults to all connections, present and future, until Heal. Cut
// strikes only present ones.
func (p *Proxy) Apply(fs ...Fault) { p.apply("", fs) }

// ApplyTo adds faults to the connections of the client with this connection
// name (nats.Name). A new connection has no name, and so no faults of its own,
// until the client has said CONNECT.
func (p *Proxy) ApplyTo(client string, fs ...Fault) { p.apply(client, fs) }

func (p *Proxy) apply(client string, fs []Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range fs {
		if client == "" {
			p.all = p.all.with(f)
		} else {
			p.named[client] = p.named[client].with(f)
		}
	}
	p.update()
	if slices.Contains(fs, Cut) {
		for c := range p.conns {
			if client == "" || client == c.name {
				c.close()
			}
		}
	}
}

// Heal ends all faults. Triggers stay armed.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = faults{}
	clear(p.named)
	p.update()
}

// update gives each connection the faults that now hold for it.
func (p *Proxy) update() {
	for c := range p.conns {
		c.setFaults(p.faultsOf(c))
	}
}

func (p *Proxy) faultsOf(c *proxyConn) faults {
	return p.all.plus(p.named[c.name])
}

// Arm puts a trigger in place. A message is acted on by one trigger at most,
// the one armed first; those armed later don't count it. What a fault swallows
// or keeps back is not seen by triggers.
func (p *Proxy) Arm(tr Trigger) *Armed {
	p.t.Helper()
	if tr.Answer && tr.Dir != ToServer {
		p.t.Fatalf("fabrictest: a Trigger with Answer selects requests: Dir must be ToServer")
	}
	if tr.Action.kind == actRespond && (tr.Dir != ToServer || tr.Answer) {
		p.t.Fatalf("fabrictest: only requests can be responded to: Dir must be ToServer, without Answer")
	}
	tr.Verb = strings.ToUpper(tr.Verb)
	a := newArmed(p, tr)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, a)
	p.armedNow.Store(int32(len(p.armed)))
	return a
}

func (p *Proxy) disarm(a *Armed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = slices.DeleteFunc(p.armed, func(other *Armed) bool { return other == a })
	p.armedNow.Store(int32(len(p.armed)))
}

// trigger finds the trigger that acts on a message, or nil.
func (p *Proxy) trigger(c *proxyConn, dir Direction, m *Message) *Armed {
	if p.armedNow.Load() == 0 || m.Verb == "" {
		return nil
	}
	p.mu.Lock()
	armed, name := slices.Clone(p.armed), c.name
	p.mu.Unlock()
	for _, a := range armed {
		act, spent := a.take(name, dir, m)
		if spent {
			p.disarm(a)
		}
		if act {
			return a
		}
	}
	return nil
}

// Connections is the number of connections that the proxy passes on now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	refuse := p.closed || p.all.refuse
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	c := newProxyConn(p, client, server)
	p.mu.Lock()
	if p.closed || p.all.refuse {
		p.mu.Unlock()
		reset(client)
		reset(server)
		return
	}
	p.conns[c] = struct{}{}
	c.setFaults(p.faultsOf(c))
	p.mu.Unlock()

	c.run()

	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// named tells that the client of c has said its name. It reports false when
// the client is refused.
func (p *Proxy) setName(c *proxyConn, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.name = name
	fs := p.faultsOf(c)
	c.setFaults(fs)
	return !p.named[name].refuse
}

// reset closes a connection so that the other end sees an error, not an
// orderly end.
func reset(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
