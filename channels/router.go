package channels

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/outcome"
)

// tickEvery is the period of the router's own ticker: it shows a freeze, finds attempts that wait long, and lets
// idle workers end. An idle router costs this and nothing else.
const tickEvery = 250 * time.Millisecond

var errClosed = errors.New("the router is closed")

// ErrShutdown is the cause of a handler's context that ended because the router closed before the handler did.
var ErrShutdown = errors.New("the node is shutting down")

// Router is the caller and the member side of every channel on one connection.
//
// Concurrency: all methods may be called from any goroutine.
type Router struct {
	cfg    Config
	nc     *nats.Conn
	log    *zap.Logger
	base   string // of the reply prefixes, without the epoch
	run    string // tells two runs of a client apart; a node's lifecycle does that already
	invoke Invoker

	waiters   waiters
	abandoned abandoned
	links     links
	pulse     pulse
	counters  counters

	// routes is nil while every channel goes through its queue group; else it holds the channels with a member to
	// go around.
	routes atomic.Pointer[map[string]*route]

	epochMu    sync.Mutex
	lastEpoch  uint64
	retired    *epoch
	epochBegan chan struct{} // closed when the next epoch begins; guarded by waiters.mu

	channelMu sync.RWMutex
	channels  map[string]*Channel

	// serveMu serialises Serve, SetServing, weight changes and draining.
	serveMu sync.Mutex
	ended   bool // no Serve any more; guarded by serveMu
	serving atomic.Bool
	servers atomic.Pointer[map[string]*Server]
	// services are those that are listened for.
	services atomic.Pointer[map[string]*service]
	intakes  intakes
	inbox    *intake // of the node's own channel subjects; nil in a client
	hellos   *nats.Subscription
	srv      discovery

	ridBytes []byte // the payload of acceptance notices
	refusals [whyCount]nats.Header
	handlers atomic.Pointer[handlerScope]

	ctx       context.Context // of the router's own goroutines
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	spawnMu   sync.Mutex // orders wg.Add before Close's wg.Wait
	closing   bool
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// New returns a router on an open connection and starts its goroutines: one ticker and one that follows the
// directory. The error names the field of cfg that is wrong, or says why the reply subject could not be subscribed.
// A node's router answers hellos and its own channel subjects at once, but takes no share of any channel before
// SetServing(true).
func New(cfg Config) (*Router, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("channels: %w", err)
	}
	r := &Router{
		cfg: cfg, nc: cfg.Conn, log: cfg.Logger,
		channels: make(map[string]*Channel), epochBegan: make(chan struct{}), closed: make(chan struct{}),
	}
	if cfg.Lifecycle != 0 {
		r.base = cfg.Mesh.Node(cfg.RID, cfg.Lifecycle)
	} else {
		r.base = cfg.Mesh.Client(cfg.ClientName)
		r.run = nuid.New().Next()[:8] + "_"
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.waiters.max = cfg.MaxInFlight
	r.links.init(r)
	r.pulse.init(cfg.Clock)
	r.servers.Store(&map[string]*Server{})
	r.services.Store(&map[string]*service{})
	r.makeRefusals()
	r.handlers.Store(newHandlerScope())
	if len(cfg.CallMiddleware) > 0 {
		r.invoke = r.runCall
		for i := len(cfg.CallMiddleware) - 1; i >= 0; i-- {
			r.invoke = cfg.CallMiddleware[i](r.invoke)
		}
	}
	if err := r.open(); err != nil {
		r.cancel()
		return nil, fmt.Errorf("channels: %w", err)
	}
	r.links.reconcile(cfg.Directory.Members())
	r.spawn(r.tick)
	r.spawn(r.follow)
	return r, nil
}

func (r *Router) open() error {
	r.epochMu.Lock()
	defer r.epochMu.Unlock()
	if err := r.openEpochLocked(); err != nil {
		return err
	}
	if r.cfg.Lifecycle == 0 {
		return nil
	}
	return r.openInbox()
}

// spawn starts a goroutine that Close waits for; it returns false, starting none, when the router closes.
func (r *Router) spawn(f func()) bool {
	r.spawnMu.Lock()
	defer r.spawnMu.Unlock()
	if r.closing {
		return false
	}
	r.wg.Go(f)
	return true
}

// tick runs everything that comes round by time.
func (r *Router) tick() {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for n := uint32(0); ; n++ {
		select {
		case <-r.ctx.Done():
			return
		case <-t.C:
		}
		r.beat()
		r.probeOverdue()
		if n%trimTicks == trimTicks-1 {
			for _, s := range *r.servers.Load() {
				s.queue.trim()
			}
		}
		if n%clockCheckTicks == 0 {
			r.refreshClock()
		}
	}
}

// follow keeps the links in step with the directory.
func (r *Router) follow() {
	for {
		changed := r.cfg.Directory.Changed()
		r.links.reconcile(r.cfg.Directory.Members())
		select {
		case <-r.ctx.Done():
			return
		case <-changed:
		}
	}
}

// SetServing opens the router's share of every channel that it serves, or drains it. While not serving, requests
// that still arrive are refused with Unavailable and NotAccepted; what was accepted runs. A new router does not
// serve. It returns when the NATS server has read the change (within 5 s), or at once while the connection is down: the
// subscriptions follow then with the reconnect. The error is that of the connection.
func (r *Router) SetServing(on bool) error {
	r.serveMu.Lock()
	if r.ended {
		r.serveMu.Unlock()
		return errClosed
	}
	r.serving.Store(on)
	var errs []error
	for _, s := range *r.servers.Load() {
		if err := s.resizeLocked(); err != nil {
			errs = append(errs, err)
		}
	}
	for _, s := range *r.services.Load() {
		if err := s.resizeLocked(); err != nil {
			errs = append(errs, err)
		}
	}
	r.serveMu.Unlock()
	if err := errors.Join(errs...); err != nil || !r.nc.IsConnected() {
		return err
	}
	return r.flush(context.Background())
}

// CancelHandlers ends the contexts of the handlers that run now with the given cause; handlers that start later get
// a fresh one. The node calls it when its ownership is lost.
func (r *Router) CancelHandlers(cause error) {
	r.handlers.Swap(newHandlerScope()).cancel(cause)
}

// AsyncError takes an error that the connection reported for a subscription. It returns false when the subscription
// is not the router's.
func (r *Router) AsyncError(sub *nats.Subscription, err error) bool {
	if sub == nil || !r.owns(sub) {
		return false
	}
	if errors.Is(err, nats.ErrSlowConsumer) {
		r.counters.slowConsumers.Add(1)
		dropped, _ := sub.Dropped()
		r.log.Warn("slow consumer: the client library dropped messages", zap.String("subject", sub.Subject), zap.Int("dropped_in_all", dropped))
		if r.cfg.OnSlowConsumer != nil {
			r.cfg.OnSlowConsumer(sub.Subject, dropped)
		}
		return true
	}
	r.counters.asyncErrors.Add(1)
	r.log.Warn("subscription error", zap.String("subject", sub.Subject), zap.Error(err))
	return true
}

func (r *Router) owns(sub *nats.Subscription) bool {
	r.epochMu.Lock()
	retired := r.retired
	r.epochMu.Unlock()
	if retired != nil && retired.sub == sub {
		return true
	}
	r.waiters.mu.Lock()
	e := r.waiters.epoch
	r.waiters.mu.Unlock()
	return e != nil && e.sub == sub || r.intakes.has(sub) || sub == r.hellos || r.srv.has(sub)
}

// Close drains every server, ends every operation that waits (ShuttingDown, with acceptance Accepted after a notice
// and Unknown otherwise) and stops the router's goroutines. Operations that start later get ShuttingDown and
// NotAccepted. When ctx ends first, the contexts of handlers that still run end with cause ErrShutdown, and Close
// returns an error that says how many did not return within one more second. A second Close waits for the first and
// returns its result.
func (r *Router) Close(ctx context.Context) error {
	r.closeOnce.Do(func() {
		defer close(r.closed)
		r.closeErr = r.close(ctx)
	})
	<-r.closed
	return r.closeErr
}

func (r *Router) close(ctx context.Context) error {
	r.serveMu.Lock()
	r.ended = true
	r.serving.Store(false)
	leaving, err := r.leaveServicesLocked()
	r.serveMu.Unlock()
	if err != nil && !r.nc.IsClosed() {
		r.log.Warn("leaving the services' shared subjects", zap.Error(err))
	}
	for _, in := range leaving {
		awaitClosed(ctx, in)
	}
	err = r.drainAll(ctx)

	r.waiters.mu.Lock()
	r.waiters.closed = true
	e := r.waiters.epoch
	r.waiters.epoch = nil
	r.waiters.sweepLocked(endClosed)
	r.waiters.mu.Unlock()

	r.spawnMu.Lock()
	r.closing = true
	r.spawnMu.Unlock()
	r.cancel()
	r.wg.Wait()

	r.handlers.Load().cancel(ErrShutdown)
	r.closeServices(ctx)
	r.epochMu.Lock()
	defer r.epochMu.Unlock()
	for _, old := range []*epoch{e, r.retired} {
		if old != nil {
			r.unsubscribe(old.sub)
		}
	}
	r.closeInbox()
	return err
}

// fail makes an error of this process.
func fail(op string, kind outcome.Kind, acc outcome.Acceptance, target, format string, args ...any) *outcome.Error {
	return outcome.New(op, kind, acc, target, fmt.Sprintf(format, args...))
}
