package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/kvlocation"
)

// Service is one program's part in the mesh's objects: in a node the owner's side of its objects, and everywhere the
// caller's side of all.
//
// Concurrency: all methods may be called from any goroutine.
type Service struct {
	cfg    Config
	log    *zap.Logger
	store  *kvlocation.Store
	router *channels.Router
	rt     *runtime
	actors Actors
	spots  Spots
	invoke Invoker
	routes routes

	flights flights
	proofs  proofs
	stats   protocolStats
	moves   moves
	follows follows
	owed    gauge // answers of moved work, to callers of this process
	// closedToNew: SetPlacing(false).
	closedToNew atomic.Bool
	// companion is set before anything runs.
	companion *companionPart
	move      MoveFunc // set before anything runs

	ctx       context.Context // of the goroutines of this Service; ends with Close
	cancel    context.CancelFunc
	pool      pool
	wg        sync.WaitGroup
	workMu    sync.Mutex // orders wg.Add before Close's wg.Wait
	stopping  bool
	working   atomic.Int64 // operations from other nodes that have a goroutine
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// New returns a Service and, in a node, subscribes to what other nodes ask of it and to the gateway. It takes no work
// before the router serves. The error names the field of cfg that is wrong, or says why nothing could be subscribed.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("objects: %w", err)
	}
	s := &Service{cfg: cfg, log: cfg.Logger, store: cfg.Store, router: cfg.Router, closed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.pool = newPool(s.ctx.Done())
	s.actors, s.spots = Actors{s}, Spots{s}
	s.routes.init(cfg.RouteCache, cfg.RouteTTL)
	s.flights.init()
	s.moves.init()
	s.follows.init()
	s.proofs.by = make(map[ownerRun]*proof)
	rt, err := newRuntime(runtimeConfig{
		mesh: string(cfg.Mesh), rid: cfg.RID, lifecycle: cfg.Lifecycle, epoch: cfg.Store.Epoch(), types: cfg.Types,
		capacity: cfg.Capacity, maxTurns: cfg.MaxTurns, defaultTimeout: cfg.DefaultTimeout, maxTimeout: channels.MaxTimeout, log: cfg.Logger,
	}, s)
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("objects: %w", err)
	}
	s.rt = rt
	if len(cfg.CallMiddleware) > 0 {
		s.invoke = s.invokeCall
		for i := len(cfg.CallMiddleware) - 1; i >= 0; i-- {
			s.invoke = cfg.CallMiddleware[i](s.invoke)
		}
	}
	if cfg.Lease == nil {
		return s, nil
	}
	err = s.openEntry()
	if err == nil {
		err = s.listen()
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), listenTimeout)
		defer cancel()
		return nil, fmt.Errorf("objects: %w", errors.Join(err, s.Close(ctx)))
	}
	return s, nil
}

// Actors returns the caller's side of the mesh's Actors.
func (s *Service) Actors() *Actors { return &s.actors }

// Spots returns the caller's side of the mesh's Spots.
func (s *Service) Spots() *Spots { return &s.spots }

// Lapsed is called when the node's lease has lapsed: no turn, timer or factory starts any more, and the contexts of the
// running ones end with cause kvlocation.ErrOwnershipLost. It does not wait.
func (s *Service) Lapsed() { s.rt.lapse() }

// Regained is called when the node has a lease of a new generation: each object is adopted at its next turn. It does
// not wait.
func (s *Service) Regained() { s.rt.regained() }

// Types returns the types that this node hosts, as its descriptor lists them.
func (s *Service) Types() []kvlocation.TypeInfo { return s.rt.types() }

// TypesChanged returns a channel that tells its one reader when what Types returns may have changed: a type has no free
// slot any more, or has one again.
func (s *Service) TypesChanged() <-chan struct{} { return s.rt.typesChanged() }

// channel returns a channel to call.
func (s *Service) channel(name string) *channels.Channel { return s.router.Channel(name) }

// spawn starts a goroutine that Close waits for; it returns false, starting none, once the Service stops.
func (s *Service) spawn(f func()) bool {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	if s.stopping {
		return false
	}
	s.wg.Add(1)
	s.pool.run(func() {
		defer s.wg.Done()
		f()
	})
	return true
}

// Close ends the Service in order: it refuses what is new, lets what was accepted run, closes the objects whose type says
// so (Type.CloseOnShutdown), and stops. The records of the others stay Ready with this node as their owner. When ctx ends
// first, the contexts of the turns that still run end, and the error says how much was cut off. It may be called any number
// of times: later calls wait for the first one.
func (s *Service) Close(ctx context.Context) error {
	s.closeOnce.Do(func() {
		defer close(s.closed)
		s.closeErr = s.close(ctx)
	})
	<-s.closed
	return s.closeErr
}

func (s *Service) close(ctx context.Context) error {
	if s.cfg.Lease != nil {
		s.router.Mute(serviceName)
	}
	err := s.rt.drain(ctx)
	for f := s.flights.any(); f != nil && err == nil; f = s.flights.any() {
		select { // a creation that is cut off would leave a record that nobody serves
		case <-f.done:
		case <-ctx.Done():
			err = fmt.Errorf("%d creations are under way: %w", s.flights.count(), context.Cause(ctx))
		}
	}
	if err == nil {
		err = s.rt.drain(ctx) // what waited for them
	}
	err = errors.Join(err, s.endMoves(ctx))
	if err == nil {
		err = s.owed.wait(ctx) // answers of work that has moved, to callers here
	}
	if err == nil {
		err = s.closeAsked(ctx)
	}
	s.workMu.Lock()
	s.stopping = true
	s.workMu.Unlock()
	s.cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- s.rt.stop(withGrace(ctx)) }()
	s.wg.Wait()
	return errors.Join(err, <-stopped)
}

// stopGrace is how long turns whose contexts have ended may take to return.
const stopGrace = time.Second

// withGrace is a context that ends stopGrace after ctx.
func withGrace(ctx context.Context) context.Context {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return out
}

// closeAsked closes the objects whose type says so: first those that speak for themselves, for a SpotWide Spot ends its members,
// then the members that are left. The error says how many it could not close, and why one of them.
func (s *Service) closeAsked(ctx context.Context) error {
	var failed atomic.Int64
	var first atomic.Pointer[error]
	for _, members := range []bool{false, true} {
		s.closeEach(ctx, members, func(o *object, err error) {
			failed.Add(1)
			first.CompareAndSwap(nil, &err)
			s.log.Debug("an object was not closed at shutdown", zap.String("object", o.target()), zap.Error(err))
		})
	}
	if n := failed.Load(); n > 0 {
		return fmt.Errorf("%d objects were not closed: their records stay: one of them: %w", n, *first.Load())
	}
	return nil
}

// closeEach closes the members of SpotWide Spots, or all others.
func (s *Service) closeEach(ctx context.Context, members bool, failed func(*object, error)) {
	const concurrency = 64
	var wg sync.WaitGroup
	next := make(chan *object)
	for range concurrency {
		wg.Go(func() {
			for o := range next {
				if err := s.endInGap(ctx, o, o.generation.Load(), CloseShutdown); err != nil {
					failed(o, renamed(err, "close", o.key()))
				}
			}
		})
	}
	s.rt.each(func(o *object) {
		if o.reg.CloseOnShutdown && !isEntry(o.key()) && !o.isCreating() && s.isSpotWideMember(o) == members {
			next <- o
		}
	})
	close(next)
	wg.Wait()
}
