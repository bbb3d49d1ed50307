package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest/internal/serverproc"
	"natsfabric/internal/embedded"
)

// readyTimeout bounds every wait for a server or cluster. It is generous for
// the sake of slow machines under the race detector.
const readyTimeout = 60 * time.Second

// Server is a nats-server with JetStream, in this process or, with AsProcess,
// in one of its own. Its methods may be called from any goroutine, except that
// those that take or use the test's failure functions belong on the test's
// goroutine, as testing.TB demands.
type Server struct {
	name string
	port int
	spec serverproc.Spec
	set  settings

	ahead time.Duration // of the machine's clock

	started bool // it has run once

	mu      sync.Mutex
	inner   *embedded.Server // running in this process
	process *serverProcess   // running in its own
}

// StartServer starts one server on a free port of loopback, with its data in a
// temporary directory of the test, and stops it when the test ends.
func StartServer(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := newServer(t, 0, newSettings(opts))
	s.start(t)
	return s
}

func newSettings(opts []Option) settings {
	var set settings
	for _, o := range opts {
		o(&set)
	}
	return set
}

// newServer prepares the i-th server.
func newServer(t testing.TB, i int, set settings) *Server {
	t.Helper()
	switch {
	case set.asProcess && len(set.options) > 0:
		t.Fatalf("fabrictest: WithOptions does not work with AsProcess: use WithConfig")
	case !set.asProcess && len(set.clocks) > 0:
		t.Fatalf("fabrictest: WithClocks needs AsProcess")
	}
	name := fmt.Sprintf("server-%d", i)
	port := freePort(t)
	s := &Server{
		name:  name,
		port:  port,
		set:   set,
		ahead: set.clockAhead(i),
		spec: serverproc.Spec{
			Name:     name,
			Port:     port,
			StoreDir: filepath.Join(t.TempDir(), name),
			Durable:  set.durable,
			Config:   set.config,
		},
	}
	t.Cleanup(s.stop)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	err := s.tryStart(t)
	// Only before its first start may a server move to another port: nobody knows the first one yet.
	for range maxPortTries {
		if s.started || !errors.Is(err, syscall.EADDRINUSE) || s.spec.ClusterName != "" {
			break
		}
		s.port = freePort(t)
		s.spec.Port = s.port
		err = s.tryStart(t)
	}
	if err != nil {
		t.Fatalf("fabrictest: start server %s: %v", s.name, err)
	}
}

// maxPortTries bounds the ports that a server tries when another program is faster.
const maxPortTries = 5

func (s *Server) tryStart(t testing.TB) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner != nil || s.process != nil {
		t.Fatalf("fabrictest: server %s is already running", s.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	var err error
	if s.set.asProcess {
		s.process, err = startServerProcess(t, s.spec, s.ahead)
	} else {
		s.inner, err = serverproc.Start(ctx, s.spec, s.set.options...)
	}
	s.started = s.started || err == nil
	return err
}

// Name is the server's name; JetStream reports leaders and replicas by it.
func (s *Server) Name() string { return s.name }

// URL is where clients connect to. It stays the same over Kill and Restart.
func (s *Server) URL() string { return natsURL(s.port) }

// StoreDir is the directory in which the server keeps its data.
func (s *Server) StoreDir() string { return s.spec.StoreDir }

// NATS is the server itself, or nil while it is stopped or when it runs in a
// process of its own.
func (s *Server) NATS() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner == nil {
		return nil
	}
	return s.inner.NATS()
}

// Connect connects a client, which is closed when the test ends.
func (s *Server) Connect(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return Connect(t, s.URL(), opts...)
}

// Connect connects a client to url (a server's or a proxy's), which is closed
// when the test ends. An attempt that takes too long, as on a slow machine, is
// made again for up to a minute; any other failure fails the test.
func Connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	deadline := time.Now().Add(readyTimeout)
	nc, err := nats.Connect(url, opts...)
	for isTimeout(err) && time.Now().Before(deadline) {
		nc, err = nats.Connect(url, opts...)
	}
	if err != nil {
		t.Fatalf("fabrictest: connect to %s: %v", url, err)
	}
	t.Cleanup(func() { closeAndWait(nc) })
	return nc
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, nats.ErrTimeout) || errors.As(err, &ne) && ne.Timeout()
}

// closeAndWait closes nc and waits until its callbacks have run, so that no
// goroutine of it outlives the test.
func closeAndWait(nc *nats.Conn) {
	if nc.IsClosed() {
		return
	}
	closed := nc.StatusChanged(nats.CLOSED)
	nc.Close()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
	}
}

// Kill stops the server at once, without lame duck mode. Its data stays. In a
// process of its own it dies by SIGKILL; inside the test process it closes
// everything and gives up its JetStream leaderships first.
func (s *Server) Kill() { s.stop() }

// Restart starts a stopped server again, with its data and on its port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.start(t)
}

// Running reports whether the server was started and not stopped since. A
// frozen server counts as running.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inner != nil || s.process != nil
}

// Freeze stops a server that runs in a process of its own where it stands
// (SIGSTOP): its connections stay, nothing is answered.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	s.own(t).Freeze(t)
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	s.own(t).Thaw(t)
}

func (s *Server) own(t testing.TB) *Process {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		t.Fatalf("fabrictest: server %s has no running process of its own: start it with AsProcess", s.name)
	}
	return s.process.Process
}

// status asks the server about JetStream.
func (s *Server) status() (serverproc.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.inner != nil:
		return serverproc.StatusOf(s.inner), nil
	case s.process != nil:
		return s.process.status()
	}
	return serverproc.Status{}, fmt.Errorf("server %s is stopped", s.name)
}

func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner != nil {
		s.inner.Shutdown()
		s.inner = nil
	}
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
}

func (s *Server) String() string { return fmt.Sprintf("%s (%s)", s.name, s.URL()) }
