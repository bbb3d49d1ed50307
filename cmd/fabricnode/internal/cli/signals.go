package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.uber.org/zap"
)

// signals turns SIGINT and SIGTERM into the end of a context, and a second one into the end of the process.
type signals struct {
	// ctx ends with the first signal.
	ctx context.Context

	cancel context.CancelFunc
	in     chan os.Signal
	done   chan struct{}

	mu      sync.Mutex
	onAbort func()
}

func catchSignals(log *zap.Logger) *signals {
	s := &signals{in: make(chan os.Signal, 2), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	signal.Notify(s.in, syscall.SIGINT, syscall.SIGTERM)
	go s.wait(log)
	return s
}

func (s *signals) wait(log *zap.Logger) {
	defer close(s.done)
	for first := true; ; first = false {
		sig, ok := <-s.in
		if !ok {
			return
		}
		if first {
			log.Info("stopping: a second signal ends the process at once", zap.Stringer("signal", sig))
			s.cancel()
			continue
		}
		s.mu.Lock()
		abort := s.onAbort
		s.mu.Unlock()
		if abort != nil {
			abort()
		}
		os.Exit(ExitInterrupted)
	}
}

// abortWith sets what a second signal does before it ends the process. It must be quick.
func (s *signals) abortWith(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAbort = f
}

func (s *signals) stop() {
	signal.Stop(s.in)
	close(s.in)
	<-s.done
	s.cancel()
}
