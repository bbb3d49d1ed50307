package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// echoTime is how long after the first signal another one counts as its echo: who sends one to a process and to its
// group, as timeout(1) does, means one.
const echoTime = 500 * time.Millisecond

// signals turns SIGINT and SIGTERM into the end of a context, and a second one into the end of the process.
type signals struct {
	// ctx ends with the first signal, or when nobody reads the output any more.
	ctx context.Context

	cancel context.CancelFunc
	in     chan os.Signal
	pipe   chan os.Signal
	done   chan struct{}

	mu      sync.Mutex
	onAbort func()
}

func newSignals() *signals {
	s := &signals{in: make(chan os.Signal, 2), pipe: make(chan os.Signal, 1), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// catch begins to take signals.
func (s *signals) catch(log *zap.Logger) {
	signal.Notify(s.in, syscall.SIGINT, syscall.SIGTERM)
	// Caught, so that it does not end the process, and not looked at: a lost network connection raises it too. Where
	// it matters the write itself fails: see output.
	signal.Notify(s.pipe, syscall.SIGPIPE)
	go s.wait(log)
}

func (s *signals) wait(log *zap.Logger) {
	defer close(s.done)
	var first time.Time
	for sig := range s.in {
		switch {
		case first.IsZero():
			first = time.Now()
			log.Info("stopping: a second signal ends the process at once", zap.Stringer("signal", sig))
			s.cancel()
			continue
		case time.Since(first) < echoTime:
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
	signal.Stop(s.pipe)
	close(s.in)
	<-s.done
	s.cancel()
}
