package fabric

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// link is a node's or client's hold on its NATS connection: it tells when the connection is lost, back, or gone for
// good, and passes asynchronous errors on.
type link struct {
	nc    *nats.Conn
	owned bool

	// Set before start; called one at a time, on the link's goroutine. They must not wait.
	onDown   func() // the connection is lost
	onUp     func() // it is back
	onClosed func() // it is closed for good

	mu sync.Mutex
	up context.Context // ends when the present connection is lost, before onDown is called

	status    chan nats.Status
	prevError nats.ErrHandler
	stop      context.CancelFunc
	done      chan struct{}
	once      sync.Once
}

// openLink takes conn, or dials when conn is nil.
func openLink(ctx context.Context, name string, conn *nats.Conn, c Connect, log *zap.Logger) (*link, error) {
	if conn != nil {
		if err := CheckConn(conn); err != nil {
			return nil, misconfigured("connection", name, err)
		}
		return &link{nc: conn}, nil
	}
	nc, err := Dial(ctx, name, c)
	if err != nil {
		return nil, err
	}
	// From here to start: what the server refuses meanwhile, for want of a permission, would otherwise be silent.
	nc.SetErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { logAsync(log, sub, err) })
	return &link{nc: nc, owned: true}, nil
}

// logAsync logs an asynchronous error of the connection.
func logAsync(log *zap.Logger, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	log.Warn("NATS reports an error", zap.String("subscription", subject), zap.Error(err))
}

// start begins to follow the connection. asyncError gets the connection's asynchronous errors, before the handler
// that the connection had.
func (l *link) start(asyncError func(*nats.Subscription, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop, l.done = cancel, make(chan struct{})
	l.status = l.nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	l.prevError = l.nc.ErrorHandler()
	prev := l.prevError
	l.nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		asyncError(sub, err)
		if prev != nil && !l.owned {
			prev(nc, sub, err)
		}
	})
	go l.follow(ctx, l.begin(ctx))
}

// connection returns a context that ends when the present connection is lost. While there is none it has ended.
func (l *link) connection() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// begin gives the connection that exists now its context.
func (l *link) begin(ctx context.Context) context.CancelFunc {
	up, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	l.up = up
	l.mu.Unlock()
	return cancel
}

// follow turns status changes into calls. The status channel holds ten events and drops more, so after each event
// the connection itself is asked; the count of reconnects shows a loss that came and went between two events.
func (l *link) follow(ctx context.Context, lost context.CancelFunc) {
	defer close(l.done)
	defer func() { lost() }()
	connected, seen := true, l.nc.Stats().Reconnects
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.status:
		}
		if l.nc.IsClosed() {
			lost()
			if connected {
				l.onDown()
			}
			l.onClosed()
			return
		}
		now, n := l.nc.IsConnected(), l.nc.Stats().Reconnects
		if connected && (!now || n != seen) {
			lost()
			l.onDown()
			connected = false
		}
		if now && !connected {
			connected, seen = true, n
			lost = l.begin(ctx)
			l.onUp()
		}
	}
}

// close ends the following and, when the connection is the fabric's own, the connection.
func (l *link) close() {
	l.once.Do(func() {
		if l.stop != nil {
			l.stop()
			<-l.done
			l.nc.RemoveStatusListener(l.status)
			l.nc.SetErrorHandler(l.prevError)
		}
		if l.owned {
			l.nc.Close()
		}
	})
}
