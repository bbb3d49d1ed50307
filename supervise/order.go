package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fence"
	"natsfabric/internal/wire"
)

// orderMessage is an Order on its way to who runs it.
type orderMessage struct {
	V        int         `json:"v"`
	Worker   string      `json:"worker"`
	Verdict  Verdict     `json:"verdict"`
	Incident string      `json:"incident"`
	Attempt  string      `json:"attempt"`
	Token    fence.Token `json:"token"`
	NotAfter time.Time   `json:"not_after"`
	// Left is how long the sender waits; 0 is no limit of its own.
	Left time.Duration `json:"left_ns"`
}

type resultMessage struct {
	V       int     `json:"v"`
	Outcome Outcome `json:"outcome"`
	Detail  string  `json:"detail,omitempty"`
}

// Request restarts by a request to a program beside the worker, which runs ServeOrders: the supervisor of a child process,
// for instance. "{worker}" in Subject becomes the worker's ID, escaped into one token.
type Request struct {
	Conn    *nats.Conn
	Subject string
}

// Restart sends the order and waits for what came of it. That nobody listens is certain, so it is Broken; no answer is
// Unknown.
func (r Request) Restart(ctx context.Context, o Order) Result {
	token, err := escape(o.Worker)
	if err != nil {
		return Result{Broken, err.Error()}
	}
	msg := orderMessage{schemaVersion, o.Worker, o.Verdict, o.Incident, o.Attempt, o.Token, o.NotAfter, 0}
	if deadline, ok := ctx.Deadline(); ok {
		msg.Left = max(1, time.Until(deadline)) // none would mean no limit
	}
	subject := substitute([]string{r.Subject}, token)[0]
	m, err := r.Conn.RequestWithContext(ctx, subject, encode(msg))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return Result{Broken, "nobody takes orders at " + subject}
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrBadSubject):
		return Result{Broken, clip("not sent: "+err.Error(), maxDetail)}
	case err != nil:
		return Result{Unknown, clip("no answer from "+subject+": "+err.Error(), maxDetail)}
	}
	var res resultMessage
	if err := json.Unmarshal(m.Data, &res); err != nil {
		return Result{Unknown, clip(fmt.Sprintf("%s answered %.100q", subject, m.Data), maxDetail)}
	}
	return Result{res.Outcome, res.Detail}
}

// maxOrderTime bounds an order whose sender names no time.
const maxOrderTime = 10 * time.Minute

// ServeOrders takes the orders that Request sends to a subject and gives them to r, until stop is called, which waits for
// those under way. Orders for the same worker run one at a time, and one with a token lower than the highest seen is refused
// (Broken): it comes from a monitor that was frozen between its decision and its command. That an order comes late while no
// newer one has come is seen by r alone: give it InTime.
func ServeOrders(nc *nats.Conn, subject string, r Restarter) (stop func(), err error) {
	s := &orderServer{restarter: r, guards: map[string]*fence.Guard{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var o orderMessage
		if m.Reply == "" || !wire.Answerable(m.Reply) || json.Unmarshal(m.Data, &o) != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.closed: // a sender that hears nothing takes it as unknown
		case s.orders == maxOrders:
			_ = m.Respond(encode(resultMessage{schemaVersion, Broken, fmt.Sprintf("%d orders are under way here already", maxOrders)}))
		default:
			s.orders++
			s.wg.Go(func() {
				_ = m.Respond(encode(s.run(o)))
				s.mu.Lock()
				defer s.mu.Unlock()
				s.orders--
			})
		}
	})
	if err != nil {
		s.cancel()
		return nil, err
	}
	return func() {
		_ = sub.Unsubscribe() // a connection that is closed has none
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.wg.Wait()
		s.cancel()
	}, nil
}

// orderServer runs orders.
type orderServer struct {
	restarter Restarter
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu     sync.Mutex
	guards map[string]*fence.Guard // guarded by mu; by worker
	orders int                     // guarded by mu; those that run, and those that wait for one of the same worker
	closed bool                    // guarded by mu
}

// maxServed bounds the workers of one orderServer, maxOrders the orders that run or wait at the same time.
const (
	maxServed = 10_000
	maxOrders = 1_000
)

func (s *orderServer) guard(worker string) *fence.Guard {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.guards[worker]
	if g == nil && len(s.guards) < maxServed {
		g = fence.NewGuard("restarts of "+worker, "")
		s.guards[worker] = g
	}
	return g
}

func (s *orderServer) run(m orderMessage) resultMessage {
	g := s.guard(m.Worker)
	if g == nil {
		return resultMessage{schemaVersion, Broken, fmt.Sprintf("orders for more than %d workers came here", maxServed)}
	}
	limit := maxOrderTime
	if m.Left > 0 {
		limit = min(limit, m.Left)
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	var res Result
	err := g.DoToken(ctx, m.Token, func() error {
		res = order(ctx, s.restarter, Order{m.Worker, m.Verdict, m.Incident, m.Attempt, m.Token, m.NotAfter})
		return nil
	})
	if err != nil { // nothing was called
		res = Result{Broken, clip("refused: "+err.Error(), maxDetail)}
	}
	return resultMessage{schemaVersion, res.Outcome, res.Detail}
}

// order runs a restarter and makes what it says one of the outcomes that there are.
func order(ctx context.Context, r Restarter, o Order) (res Result) {
	defer func() {
		if p := recover(); p != nil {
			res = Result{Unknown, fmt.Sprintf("the restarter panicked: %v", p)}
		}
		if res.Outcome != Done && res.Outcome != Broken && res.Outcome != Unknown {
			res = Result{Unknown, fmt.Sprintf("the restarter said %q: %s", res.Outcome, res.Detail)}
		}
		res.Detail = clip(res.Detail, maxDetail)
	}()
	return r.Restart(ctx, o)
}
