package channels

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

const (
	// subscribeTimeout bounds the wait for the server to have read new subscriptions, when the caller's context has
	// no deadline.
	subscribeTimeout = 5 * time.Second
	// handlerGrace is how long Close waits for handlers after their contexts have ended.
	handlerGrace = time.Second
	// panicLogEvery bounds how often a handler's panic is logged with its stack.
	panicLogEvery = time.Second
)

// Server is one channel as this node serves it.
type Server struct {
	r       *Router
	spec    Spec
	handler Handler
	queue   queue
	stats   serveStats
	// refusals are the headers of each refusal that this server makes.
	refusals [whyCount]nats.Header
	started  time.Time

	lastPanic atomic.Int64 // Unix nanoseconds of the last one that was logged

	// Guarded by Router.serveMu.
	weight int
	group  group
	gone   chan struct{}
}

// Serve begins to serve a channel. It returns when the NATS server has the subscriptions; they are opened now if the
// router is serving, else with SetServing(true). The error names the field of spec that is wrong, or is an
// *outcome.Error: AlreadyExists when this router serves the channel already, InvalidOperation in a client that is no
// node, ShuttingDown after Close, Unavailable when the connection is down.
func (r *Router) Serve(ctx context.Context, spec Spec) (*Server, error) {
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("channels: %w", err)
	}
	target := "channel " + spec.Name
	if r.cfg.Lifecycle == 0 {
		return nil, fail("serve", outcome.InvalidOperation, outcome.NotAccepted, target, "only a node serves channels, and this is a client")
	}
	s := &Server{r: r, spec: spec, weight: spec.Weight, started: time.Now().UTC(), gone: make(chan struct{})}
	s.group = group{r: r, subject: r.cfg.Mesh.Channel(spec.Name), take: s.take}
	s.handler = spec.Handler
	for i := len(spec.Middleware) - 1; i >= 0; i-- {
		s.handler = spec.Middleware[i](s.handler)
	}
	s.queue.init(&spec, s.handle)
	s.makeRefusals()

	if err := r.begin(s); err != nil {
		return nil, err
	}
	if err := r.flush(ctx); err != nil {
		r.serveMu.Lock()
		defer r.serveMu.Unlock()
		s.removeLocked()
		return nil, outcome.Wrap("serve", outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	return s, nil
}

// begin registers a server and opens its subscriptions.
func (r *Router) begin(s *Server) error {
	target := "channel " + s.spec.Name
	r.serveMu.Lock()
	defer r.serveMu.Unlock()
	if r.ended {
		return outcome.Wrap("serve", outcome.ShuttingDown, outcome.NotAccepted, target, "", errClosed)
	}
	if (*r.servers.Load())[s.spec.Name] != nil {
		return fail("serve", outcome.AlreadyExists, outcome.NotAccepted, target, "this node serves it already")
	}
	if err := r.srv.add(r, s); err != nil {
		return outcome.Wrap("serve", outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	servers := maps.Clone(*r.servers.Load())
	servers[s.spec.Name] = s
	r.servers.Store(&servers)
	if err := s.resizeLocked(); err != nil {
		s.removeLocked()
		return outcome.Wrap("serve", outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	return nil
}

// flush waits until the NATS server has read everything that was sent.
func (r *Router) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	return r.nc.FlushWithContext(ctx)
}

// Name returns the channel's name.
func (s *Server) Name() string { return s.spec.Name }

// Info returns the channel as the node's descriptor should list it.
func (s *Server) Info() kvlocation.ChannelInfo {
	s.r.serveMu.Lock()
	defer s.r.serveMu.Unlock()
	return kvlocation.ChannelInfo{Name: s.spec.Name, Kind: s.spec.Kind, Weight: s.weight}
}

// SetWeight changes the member's share of a RouteMesh channel: 0 to MaxWeight, 0 = out. A lower weight drains
// subscriptions, so that nothing which was given to them is lost. It returns when the NATS server has read the
// change. The descriptor does not change by itself. The error is an *outcome.Error: InvalidOperation for a bad weight
// or a ClientServer channel, ShuttingDown once the server drains, Unavailable when the connection is down; the new
// weight holds then as soon as it is back.
func (s *Server) SetWeight(ctx context.Context, weight int) error {
	const op = "set weight"
	target := "channel " + s.spec.Name
	switch {
	case s.spec.Kind == kvlocation.ClientServer:
		return fail(op, outcome.InvalidOperation, outcome.NotAccepted, target, "a client_server channel has no weights")
	case weight < 0 || weight > MaxWeight:
		return fail(op, outcome.InvalidOperation, outcome.NotAccepted, target, "weight %d is not allowed: it must be 0 to %d", weight, MaxWeight)
	}
	s.r.serveMu.Lock()
	if s.queue.isDraining() {
		s.r.serveMu.Unlock()
		return fail(op, outcome.ShuttingDown, outcome.NotAccepted, target, "the channel is draining here")
	}
	s.weight = weight
	err := s.resizeLocked()
	s.r.serveMu.Unlock()
	if err == nil {
		err = s.r.flush(ctx)
	}
	if err != nil {
		return outcome.Wrap(op, outcome.Unavailable, outcome.Unknown, target, "", err)
	}
	return nil
}

// resizeLocked opens or drains subscriptions until there are as many as the weight says, none while not serving.
func (s *Server) resizeLocked() error {
	want := s.weight
	if s.queue.isDraining() || !s.r.serving.Load() {
		want = 0
	}
	return s.group.resizeLocked(want)
}

// Drain stops serving the channel: it leaves the queue group without losing what was given to it, refuses what still
// arrives, and returns when everything that was accepted has run. Service discovery ends at once. When ctx ends first
// it returns DeadlineExceeded and the draining goes on to its end; it may be called again to wait on.
func (s *Server) Drain(ctx context.Context) error {
	s.r.serveMu.Lock()
	first := s.queue.drain()
	var errs error
	if first {
		s.r.srv.remove(s.r, s)
		errs = s.resizeLocked()
	}
	leaving := slices.Clone(s.group.leaving)
	s.r.serveMu.Unlock()
	if errs != nil && !s.r.nc.IsClosed() {
		s.r.log.Warn("leaving a channel", zap.String("channel", s.spec.Name), zap.Error(errs))
	}
	if first {
		go s.finish(leaving)
	}
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		count, _, busy := s.queue.depth()
		return outcome.FromContext(ctx, "drain", outcome.Accepted, "channel "+s.spec.Name, fmt.Sprintf("%d requests wait and %d handlers run", count, busy))
	}
}

// finish forgets the server once the subscriptions that leave have handled their last message and everything that was
// accepted has run. Close waits for it, for as long as its context allows, by waiting for the draining.
func (s *Server) finish(leaving []*intake) {
	for _, in := range leaving {
		<-in.closed
	}
	<-s.queue.drained()
	s.r.serveMu.Lock()
	defer s.r.serveMu.Unlock()
	s.removeLocked()
}

// Gone returns a channel that is closed once the server has drained.
func (s *Server) Gone() <-chan struct{} { return s.gone }

// removeLocked forgets a server that has nothing left, or that never began.
func (s *Server) removeLocked() {
	select {
	case <-s.gone:
		return
	default:
		close(s.gone)
	}
	s.queue.drain()
	s.r.srv.remove(s.r, s)
	_ = s.resizeLocked() // only a failed Serve has subscriptions left here, on a connection that is down
	servers := maps.Clone(*s.r.servers.Load())
	delete(servers, s.spec.Name)
	s.r.servers.Store(&servers)
	s.queue.stop()
}

// drainAll drains every server; when ctx ends first it ends the handlers' contexts and waits a little longer.
func (r *Router) drainAll(ctx context.Context) error {
	servers := *r.servers.Load()
	results := make(chan error, len(servers))
	begin := func(ctx context.Context) {
		for _, s := range servers {
			go func() { results <- s.Drain(ctx) }()
		}
	}
	collect := func() (err error) {
		for range servers {
			err = errors.Join(err, <-results)
		}
		return err
	}
	begin(ctx)
	err := collect()
	if err == nil || ctx.Err() == nil {
		return err
	}
	r.handlers.Load().cancel(ErrShutdown)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), handlerGrace)
	defer cancel()
	begin(grace)
	if collect() == nil {
		return nil
	}
	return err
}

// handle runs one accepted request to its end and answers it.
func (s *Server) handle(req *Request) {
	r := s.r
	start := time.Now()
	if deadline, ok := req.judgedDeadline(); ok && r.pulse.past(start, deadline) {
		s.stats.expired.Add(1)
		s.answerError(req, outcome.New("", outcome.DeadlineExceeded, outcome.Accepted, "", "the deadline passed in the queue of node "+r.cfg.RID+"; it did not run"))
		return
	}
	// Before the lease is judged: if it lapses afterwards, this is the scope that ends with it.
	scope := r.handlers.Load()
	if r.cfg.Gate != nil && r.cfg.Gate.Admit() != nil {
		s.stats.lapsed.Add(1)
		s.answerError(req, outcome.New("", outcome.Unavailable, outcome.Accepted, "", "the lease of node "+r.cfg.RID+" ended before the request's turn; it did not run"))
		return
	}
	req.ctx.parent, req.ctx.pulse = scope.ctx, &r.pulse
	req.ctx.deadline, _ = req.judgedDeadline()
	s.stats.ran.Add(1)
	reply, err := s.invoke(req)
	s.stats.took(time.Since(start))
	if err != nil {
		s.failed(req, err)
		return
	}
	s.answer(req, reply)
}

// failed ends a request whose handler returned an error.
func (s *Server) failed(req *Request, err error) {
	s.stats.handlerErrors.Add(1)
	s.stats.lastError.Store(&err)
	s.answerError(req, asOutcome(err))
}

// invoke calls the handler and turns a panic into an error.
func (s *Server) invoke(req *Request) (reply Reply, err error) {
	returned := false
	defer func() {
		req.ctx.finish()
		if returned {
			return
		}
		s.stats.panics.Add(1)
		p := recover()
		if now, last := time.Now().UnixNano(), s.lastPanic.Load(); now-last >= int64(panicLogEvery) && s.lastPanic.CompareAndSwap(last, now) {
			s.r.log.Error("a handler panicked", zap.String("channel", s.spec.Name), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
		reply, err = Reply{}, outcome.New("", outcome.InternalFailure, outcome.Accepted, "", "the handler panicked at node "+s.r.cfg.RID)
		if p == nil { // runtime.Goexit: nothing after this runs, so the answer goes out here
			s.answerError(req, err.(*outcome.Error))
		}
	}()
	reply, err = s.handler(&req.ctx, req)
	returned = true
	return reply, err
}

// answer sends a handler's reply.
func (s *Server) answer(req *Request, reply Reply) {
	if !req.OneWay() {
		_ = s.r.reply(req.msg.Reply, reply, &s.stats.answerStats)
	}
}

// answerError sends an error; the request had been accepted.
func (s *Server) answerError(req *Request, e *outcome.Error) {
	if !req.OneWay() {
		_ = s.r.replyError(req.msg.Reply, e, outcome.Accepted, &s.stats.answerStats)
	}
}

// openInbox subscribes the node's own subjects.
func (r *Router) openInbox() (err error) {
	r.ridBytes = []byte(r.cfg.RID)
	own := r.cfg.Mesh.Node(r.cfg.RID, r.cfg.Lifecycle)
	if r.hellos, err = r.nc.Subscribe(r.cfg.Mesh.NodeHello(r.cfg.RID, r.cfg.Lifecycle), r.answerHello); err != nil {
		return fmt.Errorf("subscribing to hellos: %w", err)
	}
	if r.inbox, err = r.subscribe(own+".ch.*", "", r.takeDirect); err != nil {
		return fmt.Errorf("subscribing to the node's inbox: %w", err)
	}
	return nil
}

// closeInbox gives up the node's own subjects. Nothing is lost by it: while closing, all that arrives is refused, and
// what is not answered is Unknown to its caller.
func (r *Router) closeInbox() {
	if r.hellos != nil {
		r.unsubscribe(r.hellos)
	}
	if r.inbox != nil {
		r.unsubscribe(r.inbox.sub)
	}
}
