package channels_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// breakingDialer makes connections whose next large write goes out in full and is then reported as failed in the middle,
// as a socket reports it that breaks while its buffer empties. awaited runs between the two.
type breakingDialer struct {
	armed   atomic.Bool
	awaited func()
}

var errBroken = errors.New("the socket broke")

func (d *breakingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &breakingConn{conn, d}, err
}

type breakingConn struct {
	net.Conn
	d *breakingDialer
}

func (c *breakingConn) Write(b []byte) (int, error) {
	if len(b) < nats.DefaultWriteBufSize || !c.d.armed.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	if n, err := c.Conn.Write(b); err != nil {
		return n, err
	}
	c.d.awaited()
	return len(b) / 2, errBroken
}

// TestFailedWriteIsUnknown: a write of the socket that failed may have gone out, so nothing sent by it is ever said to be
// NotAccepted. Here it has gone out, and ran.
func TestFailedWriteIsUnknown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		call func(context.Context, *node, []byte) error
	}{
		{"request", func(ctx context.Context, n *node, data []byte) error {
			_, err := n.Channel("c").Request(ctx, data)
			return err
		}},
		{"send", func(ctx context.Context, n *node, data []byte) error { return n.Channel("c").Send(ctx, data) }},
		{"unconfirmed send", func(ctx context.Context, n *node, data []byte) error {
			return n.Channel("c").SendUnconfirmed(ctx, data)
		}},
		{"request at a node", func(ctx context.Context, n *node, data []byte) error {
			_, err := n.Channel("c").At("m1").Request(ctx, data)
			return err
		}},
		{"operation at a process run", func(ctx context.Context, n *node, data []byte) error {
			_, err := n.CallRun(ctx, runOf(n, "m1", string(data)))
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := server(t)
			dir := newDirectory(member("m1", 1, "c"))
			m := startMember(t, srv.URL(), dir, "m1", 1)
			ran, release := make(chan struct{}, 1), make(chan struct{})
			serve(t, m, channels.Spec{Name: "c", Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
				ran <- struct{}{}
				<-release // an answer would be first
				return channels.Reply{}, nil
			}})
			listen(t, m, func(*channels.Inbound) { ran <- struct{}{} })

			d := &breakingDialer{awaited: func() { receive(t, ran, "the handler") }}
			caller := startOn(t, dial(t, srv.URL(), nats.SetCustomDialer(d)), channels.Config{Directory: dir})
			d.armed.Store(true)
			err := c.call(within(t, patience), caller, make([]byte, 2*nats.DefaultWriteBufSize))
			close(release)
			if d.armed.Load() {
				t.Fatalf("no write failed; the call ended with %v", err)
			}
			if c.name == "send" {
				// Its acceptance notice was on the way, and may have been read before the write was known to have failed.
				if errors.Is(err, outcome.NotAccepted) {
					t.Errorf("got %v of a send that ran", err)
				}
				return
			}
			wantErr(t, err, outcome.Unavailable, outcome.Unknown)
			if !errors.Is(err, errBroken) {
				t.Errorf("%v does not say why", err)
			}
		})
	}
}
