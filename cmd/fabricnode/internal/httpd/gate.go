package httpd

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"natsfabric/session/js"
)

// Gate serves the WebSockets of clients, and the JavaScript client beside them. Its methods may be called from any goroutine.
type Gate struct {
	listener net.Listener // nil when off
	http     *http.Server
	done     chan struct{} // nil until it serves
}

// ListenSessions takes the address, which is given as to [Listen]; it answers once [Gate.Serve] is called.
func ListenSessions(addr string) (*Gate, error) {
	g := &Gate{}
	l, err := ListenAt(addr)
	g.listener = l
	return g, err
}

// Serve begins to answer: sessions is what serves WebSockets. It is called once.
func (g *Gate) Serve(sessions http.Handler) {
	if g.listener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/session", sessions)
	mux.Handle("/natsfabric.js", js.Handler())
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "/session        WebSockets of sessions\n/natsfabric.js  the client for browsers")
	})
	g.http = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	g.done = make(chan struct{})
	go func() {
		defer close(g.done)
		// It ends with ErrServerClosed; any other end shows in nobody being let in.
		_ = g.http.Serve(g.listener)
	}()
}

// URL is where sessions are opened, like ws://127.0.0.1:8490/session; empty when that is off.
func (g *Gate) URL() string {
	if g.listener == nil {
		return ""
	}
	return "ws://" + g.listener.Addr().String() + "/session"
}

// Close lets nobody in any more; the node ends the sessions themselves. It may be called any number of times.
func (g *Gate) Close() {
	switch {
	case g.http != nil:
		g.http.Close()
		<-g.done
	case g.listener != nil:
		g.listener.Close()
	}
}
