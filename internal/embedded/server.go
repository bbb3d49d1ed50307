package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startTimeout bounds Start when its context has no deadline. Recovering a
// large store takes long; it is not a matter of seconds.
const startTimeout = 5 * time.Minute

// pollInterval is how often the server, which has no signal for it, is asked
// whether it got ready.
const pollInterval = 10 * time.Millisecond

// Server is a running nats-server. Its methods may be called from any
// goroutine.
type Server struct {
	srv      *server.Server
	unlock   func()
	shutdown func()
}

// Start checks cfg, the addresses and the store directory, and starts a
// server. When it returns without an error, clients may connect, and on a
// server that is not part of a cluster JetStream may be used. A [*StartError]
// says what a person can put right; otherwise the error is the server's own or
// the context's. ctx governs the start only. Call Shutdown to stop the server.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded nats-server: %w", context.Cause(ctx))
	}
	opts, err := cfg.serverOptions()
	if err != nil {
		return nil, err
	}
	if err := checkAddress(opts.Host, opts.Port); err != nil {
		return nil, err
	}
	if opts.Cluster.Name != "" {
		if err := checkAddress(opts.Cluster.Host, opts.Cluster.Port); err != nil {
			return nil, err
		}
	}
	if err := checkStoreDir(opts.StoreDir); err != nil {
		return nil, err
	}
	unlock, err := lockStoreDir(opts.StoreDir)
	if err != nil {
		return nil, err
	}

	srv, err := server.NewServer(opts)
	if err != nil {
		unlock()
		return nil, fmt.Errorf("embedded nats-server: %w", err)
	}
	log := newLogger(cfg.Log)
	srv.SetLoggerV2(log, opts.Debug, opts.Trace, opts.TraceVerbose)
	s := &Server{srv: srv, unlock: unlock}
	s.shutdown = sync.OnceFunc(s.stop)

	srv.Start()
	if err := s.waitReady(ctx, log.fatal); err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("embedded nats-server: %w", err)
	}
	return s, nil
}

func (s *Server) waitReady(ctx context.Context, fatal <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		select {
		case err := <-fatal:
			return err
		default:
		}
		if s.srv.ReadyForConnections(pollInterval) {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("not ready for connections: %w", err)
		}
	}
	// A fatal error may come after the listener: JetStream is not optional.
	select {
	case err := <-fatal:
		return err
	default:
	}
	if !s.srv.JetStreamEnabled() {
		return errors.New("JetStream did not start")
	}
	return nil
}

// WaitJetStream waits until JetStream answers: in a cluster, until there is a
// leader and this server has caught up with it. It returns the context's error
// when that does not come to pass in time.
func (s *Server) WaitJetStream(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if !s.srv.JetStreamIsClustered() || s.srv.JetStreamIsLeader() || s.srv.JetStreamIsCurrent() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("embedded nats-server: JetStream has no leader (are the other servers of the cluster up?): %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Ready reports whether clients may connect and JetStream is enabled.
func (s *Server) Ready() bool {
	return s.srv.Running() && s.srv.JetStreamEnabled()
}

// URL is where clients connect to, like nats://127.0.0.1:4222.
func (s *Server) URL() string { return s.srv.ClientURL() }

// ClusterURL is the URL that other servers name in their Routes; empty for a
// server that is not part of a cluster.
func (s *Server) ClusterURL() string {
	a := s.srv.ClusterAddr()
	if a == nil {
		return ""
	}
	return "nats://" + a.String()
}

// InProcess makes nats.Connect reach this server through memory instead of the
// network, whatever URL is given.
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(s.srv) }

// NATS is the server itself.
func (s *Server) NATS() *server.Server { return s.srv }

// Shutdown stops the server and waits until it has closed its files. Clients
// see their connections close. It may be called any number of times, by
// several goroutines; all of them wait.
func (s *Server) Shutdown() { s.shutdown() }

func (s *Server) stop() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.unlock()
}
