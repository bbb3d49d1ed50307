package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/objects"
	"natsfabric/session/internal/frame"
)

const (
	// serviceName is the token of sessions in the node's subjects: fab.<mesh>.node.<rid>.<lifecycle>.ses.<verb>...
	serviceName = "ses"
	// markHeader is the header of a relayed message: its value is the binding's token.
	markHeader = "Fabric-Binding"
	// listenTimeout bounds the subscribing.
	listenTimeout = 10 * time.Second
	// askTimeout bounds one question to another node that no client waits for.
	askTimeout = 2 * time.Second
)

// run is one process run of a node.
type run struct {
	rid       string
	lifecycle uint64
}

func runOf(p objects.Place) run { return run{p.RID, p.Lifecycle} }

// Service is a node's part in the mesh's sessions: it owns the sessions of the clients that connected to this node, and
// knows the bindings of the Actors that live here.
//
// Concurrency: all methods may be called from any goroutine.
type Service struct {
	cfg     Config
	log     *zap.Logger
	router  *channels.Router
	objects *objects.Service
	here    run
	stats   counters

	// mu guards the sessions that are owned here.
	mu       sync.Mutex
	sessions map[string]*session
	made     uint64
	opening  int // handshakes under way
	draining bool
	emptied  chan struct{} // closed once no session is left while draining; nil before

	workers  workers
	order    turnOrder
	suspects suspects
	bound    boundIndex
	tellers  tellers
	owed     tally // notices to other nodes that have not been heard yet
	asked    tally // questions to the application that it has not answered yet

	ctx       context.Context // of the goroutines of this Service; ends with Close
	cancel    context.CancelFunc
	workMu    sync.Mutex // orders wg.Add before Close's wg.Wait
	stopping  bool
	wg        sync.WaitGroup
	drainOnce sync.Once
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// New returns a Service, accompanies the node's objects and subscribes to what other nodes and NATS clients ask. It must
// be called before the router serves. The error names the field of cfg that is wrong, or says why nothing could be
// subscribed.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	s := &Service{
		cfg: cfg, log: cfg.Logger, router: cfg.Router, objects: cfg.Objects, here: run{cfg.RID, cfg.Lifecycle},
		sessions: make(map[string]*session), closed: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.bound.init()
	s.suspects.init()
	s.tellers.by = make(map[run]*teller)
	cfg.Objects.Accompany(markHeader, companion{s})
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	listen := channels.Service{Name: serviceName, Handle: s.handle}
	if s.owns() {
		listen.Shared = []string{frame.OpenSubject(string(cfg.Mesh))}
	}
	err := cfg.Router.Listen(ctx, listen)
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("session: %w", err)
	}
	s.spawn(s.beat)
	s.spawn(s.watch)
	return s, nil
}

// owns reports whether this node takes clients.
func (s *Service) owns() bool { return s.cfg.Authenticate != nil }

// spawn starts a goroutine that Close waits for; it returns false, starting none, once the Service stops.
func (s *Service) spawn(f func()) bool {
	if !s.enter() {
		return false
	}
	go func() {
		defer s.wg.Done()
		f()
	}()
	return true
}

// enter counts a goroutine that Close waits for, and that ends with wg.Done; it returns false once the Service stops.
func (s *Service) enter() bool {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	if s.stopping {
		return false
	}
	s.wg.Add(1)
	return true
}

// Drain asks every client to leave: each gets a go-away with the time that it has, Config.GoAway or what is left of ctx.
// From then on no session is opened and nothing is bound here; what is bound goes on. It returns once every client has
// left; those that have not by then are told so, and their sessions end. The error is that of ctx. A second call waits
// like the first.
func (s *Service) Drain(ctx context.Context) error {
	left := s.cfg.GoAway
	if at, ok := ctx.Deadline(); ok {
		left = max(0, min(left, time.Until(at)))
	}
	s.drainOnce.Do(func() { s.goAway(left) })
	s.mu.Lock()
	emptied := s.emptied
	s.mu.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-emptied:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	for _, c := range s.owned() {
		c.end(endDraining)
	}
	return context.Cause(ctx)
}

// goAway begins the drain.
func (s *Service) goAway(left time.Duration) {
	s.mu.Lock()
	s.draining = true
	s.emptied = make(chan struct{})
	if len(s.sessions) == 0 {
		close(s.emptied)
	}
	s.mu.Unlock()
	for _, c := range s.owned() {
		c.say(&frame.Header{Type: frame.GoAway, MS: left.Milliseconds(), Text: "the node is about to stop: connect to another one"}, nil)
	}
}

// owned returns the sessions that are owned here now.
func (s *Service) owned() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*session, 0, len(s.sessions))
	for _, c := range s.sessions {
		out = append(out, c)
	}
	return out
}

// Close drains the Service, unless that was done, tells the nodes of the sessions that are bound to Actors here that
// these are gone, and stops. A node that does not hear it within 5 s finds out when this node's lease is over. Close may be called any number of times: later calls wait for the first one.
func (s *Service) Close(ctx context.Context) error {
	s.closeOnce.Do(func() {
		defer close(s.closed)
		s.closeErr = s.close(ctx)
	})
	<-s.closed
	return s.closeErr
}

func (s *Service) close(ctx context.Context) error {
	err := s.Drain(ctx)
	s.leaveBindings()
	settled, cancel := context.WithTimeout(ctx, farewellTimeout)
	s.owed.wait(settled)
	cancel()
	s.workMu.Lock()
	s.stopping = true
	s.workMu.Unlock()
	s.router.Mute(serviceName)
	s.cancel()
	s.workers.close()
	s.wg.Wait()
	if s.asked.wait(ctx); s.asked.count() > 0 {
		err = errors.Join(err, fmt.Errorf("session: %d callbacks of the application have not returned", s.asked.count()))
	}
	return err
}

// tally counts what is under way, and tells when nothing is.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n comes to 0; nil while nobody waits
}

func (t *tally) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// wait returns once nothing is under way, or ctx has ended.
func (t *tally) wait(ctx context.Context) {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
	case <-ctx.Done():
	}
}
