package httpd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"natsfabric/fabric"
	"natsfabric/kvlocation"
)

// Off is the address that turns the pages off.
const Off = "off"

// Server serves the pages. Its methods may be called from any goroutine.
type Server struct {
	listener net.Listener // nil when off
	http     *http.Server
	node     atomic.Pointer[fabric.Node]
	done     chan struct{}
}

// Listen starts to serve on addr, HOST:PORT. An empty host means 127.0.0.1, port 0 a free one, and [Off] none at all.
func Listen(addr string) (*Server, error) {
	l, err := ListenAt(addr)
	if err != nil {
		return nil, err
	}
	s := &Server{listener: l, done: make(chan struct{})}
	if l == nil {
		close(s.done)
		return s, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{s})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.page(func(st kvlocation.NodeState) bool { return st != kvlocation.StateError }))
	mux.HandleFunc("GET /readyz", s.page(func(st kvlocation.NodeState) bool { return st == kvlocation.StateServing }))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "/healthz  200 while the process may go on\n/readyz   200 while the node serves\n/metrics  in Prometheus' form")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s.http = &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	go func() {
		defer close(s.done)
		// It ends with ErrServerClosed; any other end shows in the pages not answering.
		_ = s.http.Serve(s.listener)
	}()
	return s, nil
}

// ListenAt takes an address, HOST:PORT, as [Listen] does; there is no listener for [Off].
func ListenAt(addr string) (net.Listener, error) {
	if addr == Off {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q is not allowed: it must look like 127.0.0.1:8480, or be %q", addr, Off)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("address %s is in use by another program: choose another port, or 0 for a free one", addr)
	case err != nil:
		return nil, fmt.Errorf("address %s: cannot listen there: %w", addr, err)
	}
	return l, nil
}

// Observe makes n the node that the pages tell of.
func (s *Server) Observe(n *fabric.Node) { s.node.Store(n) }

// URL is the address of the pages, like http://127.0.0.1:8480; empty when they are off.
func (s *Server) URL() string {
	if s.listener == nil {
		return ""
	}
	return "http://" + s.listener.Addr().String()
}

// Close stops serving at once and waits until that is done. It may be called any number of times.
func (s *Server) Close() {
	if s.http != nil {
		s.http.Close()
	}
	<-s.done
}

func (s *Server) state() kvlocation.NodeState {
	if n := s.node.Load(); n != nil {
		return n.State()
	}
	return kvlocation.StatePreparing
}

// health is what the health pages answer.
type health struct {
	OK     bool                 `json:"ok"`
	State  kvlocation.NodeState `json:"state"`
	Reason string               `json:"reason,omitempty"` // of the last change of the state
	Mesh   string               `json:"mesh,omitempty"`
	RID    string               `json:"rid,omitempty"`
	Error  string               `json:"error,omitempty"`
}

func (s *Server) page(good func(kvlocation.NodeState) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h := health{State: kvlocation.StatePreparing, Reason: "starting"}
		if n := s.node.Load(); n != nil {
			st := n.Status()
			h.Mesh, h.RID, h.State, h.Reason = n.Mesh(), n.RID(), st.State, st.Reason
			if err := n.Err(); err != nil {
				h.Error = err.Error()
			}
		}
		h.OK = good(h.State)
		w.Header().Set("Content-Type", "application/json")
		if !h.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// A client that has gone away is nobody to tell.
		_ = json.NewEncoder(w).Encode(h)
	}
}
