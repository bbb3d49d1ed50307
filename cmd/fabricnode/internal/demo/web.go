package demo

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
	"natsfabric/session"
	"natsfabric/session/js"
)

//go:embed web
var webFiles embed.FS

// WebOptions say how to run the web demo.
type WebOptions struct {
	// Listener takes the browsers. [RunWeb] closes it.
	Listener net.Listener
	// Ready is called once the page is there, with its address.
	Ready func(url string)
	// Tell, Logger and Abort are those of Options.
	Tell   func(format string, args ...any)
	Logger *zap.Logger
	Abort  func(func())
}

// webStage is everything that one web demo has started.
type webStage struct {
	o      WebOptions
	nodes  []*fabric.Node
	client *fabric.Client
	load   *load
	moving sync.Mutex // one move after the other
	close  []func()   // in reverse order
}

// RunWeb runs the web demo until ctx ends: a server and three nodes, each with a connection of its own, inside this process; a
// counter Actor; a client that asks it 20 times a second; and a page at /demo, whose session node n1 owns, that moves the Actor
// between the nodes. The result is how the client fared.
func RunWeb(ctx context.Context, o WebOptions) (Load, error) {
	s := &webStage{o: o}
	defer func() {
		for _, f := range slices.Backward(s.close) {
			f()
		}
		o.Abort(nil)
	}()
	if err := s.open(ctx); err != nil {
		o.Listener.Close()
		return Load{}, err
	}
	return s.serve(ctx)
}

// atEnd is called with what was started, at the end.
func (s *webStage) atEnd(f func(context.Context) error) {
	s.close = append(s.close, func() {
		ctx, cancel := context.WithTimeout(context.Background(), nodeStopTime)
		defer cancel()
		if err := f(ctx); err != nil {
			s.o.Logger.Warn("the end of the demo", zap.Error(err))
		}
	})
}

func (s *webStage) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "fabricnode-demo-")
	if err != nil {
		return err
	}
	s.o.Abort(func() { _ = os.RemoveAll(dir) }) // what the server writes meanwhile may stay behind
	s.atEnd(func(context.Context) error { return os.RemoveAll(dir) })
	server, err := embedded.Start(ctx, embedded.Config{ServerName: "demo", Port: -1, StoreDir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	s.atEnd(func(context.Context) error { server.Shutdown(); return nil })
	s.o.Tell("NATS server at %s, data in %s (removed at the end)", server.URL(), dir)
	connect := fabric.Connect{URL: server.URL()}
	nc, err := fabric.Dial(ctx, "demo init", connect)
	if err != nil {
		return err
	}
	_, err = kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: Mesh, Replicas: 1})
	nc.Close()
	if err != nil {
		return err
	}
	for _, rid := range nodes {
		n, err := fabric.Start(ctx, fabric.Config{
			Mesh: Mesh, RID: rid, Connect: connect, Types: []objects.Type{counterObject()}, Logger: s.o.Logger,
			Sessions: &session.Config{GoAway: time.Second, Authenticate: func(_ context.Context, h session.Hello) (session.Identity, error) {
				return session.Identity{Subject: h.Client}, nil
			}},
		})
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
		s.atEnd(n.Shutdown)
	}
	if s.client, err = fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: Mesh, Connect: connect, Logger: s.o.Logger}); err != nil {
		return err
	}
	s.atEnd(s.client.Close)
	if _, err := s.client.Actors().Create(ctx, counterType, counterID, nil, objects.AtNode(nodes[0])); err != nil {
		return err
	}
	s.load = &load{client: s.client}
	return nil
}

// serve answers browsers, and runs the load, until ctx ends.
func (s *webStage) serve(ctx context.Context) (Load, error) {
	files, err := fs.Sub(webFiles, "web")
	if err != nil {
		return Load{}, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/demo/", http.StatusFound))
	mux.Handle("GET /demo/", http.StripPrefix("/demo", http.FileServerFS(files)))
	mux.Handle("GET /demo/natsfabric.js", js.Handler())
	mux.HandleFunc("GET /demo/status", s.status)
	mux.HandleFunc("POST /demo/move/{to}", s.move)
	mux.Handle("/session", s.nodes[0].Sessions().Handler())
	page := http.NewCrossOriginProtection().Handler(mux) // a page of another site moves nothing
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src 'self'")
			w.Header().Set("Cache-Control", "no-cache")
			page.ServeHTTP(w, r)
		})}
	var running sync.WaitGroup
	ended := make(chan error, 1)
	running.Go(func() { ended <- server.Serve(s.o.Listener) })
	running.Go(func() { s.load.run(ctx) })
	s.o.Ready("http://" + s.o.Listener.Addr().String() + "/demo/")
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	server.Close()
	if err != nil {
		return Load{}, err
	}
	running.Wait()
	return s.load.snapshot(), nil
}

// webStatus is the answer to GET /demo/status.
type webStatus struct {
	Nodes []string `json:"nodes"`
	Actor string   `json:"actor"`
	Load  Load     `json:"load"`
}

func (s *webStage) status(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, webStatus{Nodes: nodes, Actor: "actor/" + counterID, Load: s.load.snapshot()})
}

// moveFailed is the answer to a move that failed.
type moveFailed struct {
	Error  string          `json:"error"`
	Reason relocate.Reason `json:"reason"`
	Text   string          `json:"text"`
}

// move moves the Actor to the node that the path names.
func (s *webStage) move(w http.ResponseWriter, r *http.Request) {
	s.moving.Lock()
	defer s.moving.Unlock()
	moved, err := s.moveTo(r.Context(), r.PathValue("to"))
	if err != nil {
		reason := relocate.ReasonOf(err)
		answer(w, http.StatusConflict, moveFailed{err.Error(), reason, reason.Text()})
		return
	}
	answer(w, http.StatusOK, moved)
}

func (s *webStage) moveTo(ctx context.Context, to string) (relocate.Moved, error) {
	key := kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: counterID}
	at, err := s.client.Objects().Locate(ctx, key)
	if err != nil {
		return relocate.Moved{}, err
	}
	for _, n := range s.nodes {
		if n.RID() == at.RID {
			return n.Move(ctx, key, at.Generation, to)
		}
	}
	return relocate.Moved{}, fmt.Errorf("the Actor is at node %q, which is none of the demo", at.RID)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A browser that has gone away is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}
