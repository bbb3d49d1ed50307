package fabric

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// link is a node's or client's hold on its NATS connection: it tells when the connection is lost, back, or gone for
// good, and passes asynchronous errors on.
type link struct {
	nc    *nats.Conn
	owned bool
	log   *zap.Logger

	// Set before start; called one at a time, on the link's goroutine. They must not wait.
	onDown   func() // the connection is lost
	onUp     func() // it is back
	onClosed func() // it is closed for good

	mu     sync.Mutex
	up     context.Context // ends when the present connection is lost, before onDown is called
	server string          // of the present connection, or of the last one
	// refusals are the texts of the refused permissions that were logged.
	refusals map[string]bool

	status    chan nats.Status
	prevError nats.ErrHandler
	prevLost  nats.ConnErrHandler
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
		return &link{nc: conn, log: log}, nil
	}
	nc, err := Dial(ctx, name, c)
	if err != nil {
		return nil, err
	}
	l := &link{nc: nc, owned: true, log: log}
	// From here to start: what the server refuses meanwhile, for want of a permission, would otherwise be silent.
	nc.SetErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { l.logAsync(sub, err) })
	return l, nil
}

// maxRefusals bounds the refused permissions that are remembered. Beyond it all are forgotten, and may be told again.
const maxRefusals = 256

// logAsync logs an asynchronous error of the connection; a permission that is refused again and again, once.
func (l *link) logAsync(sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		l.mu.Lock()
		told := l.refusals[err.Error()]
		if l.refusals == nil || len(l.refusals) >= maxRefusals {
			l.refusals = map[string]bool{}
		}
		l.refusals[err.Error()] = true
		l.mu.Unlock()
		if told {
			return
		}
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.log.Warn("NATS reports an error", zap.String("subscription", subject), zap.Error(err))
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
	if l.owned {
		prev := l.nc.DisconnectErrHandler()
		l.prevLost = prev
		l.nc.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
			l.lost(err)
			if prev != nil {
				prev(nc, err)
			}
		})
	}
	go l.follow(ctx, l.begin(ctx))
}

// lost tells the operator that the connection is lost, and why.
func (l *link) lost(why error) {
	l.mu.Lock()
	server := l.server
	l.mu.Unlock()
	reason := "the server closed it, or was killed"
	switch {
	case why == nil:
		reason = "given up"
	case !errors.Is(why, io.EOF):
		reason = why.Error()
	}
	l.log.Warn("connection to NATS lost", zap.String("server", server), zap.String("reason", reason))
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
	l.server = cmp.Or(l.nc.ConnectedUrlRedacted(), l.server)
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
			if !l.owned { // else the library says so, with the reason
				l.lost(l.nc.LastError())
			}
			l.onDown()
			connected = false
		}
		if now && !connected {
			connected, seen = true, n
			lost = l.begin(ctx)
			l.log.Info("connected to NATS again", zap.String("server", l.nc.ConnectedUrlRedacted()))
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
			if l.owned {
				l.nc.SetDisconnectErrHandler(l.prevLost)
			}
		}
		if l.owned {
			l.nc.Close()
		}
	})
}
