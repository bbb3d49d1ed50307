package device

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

// gate is the servers' own authentication: it lets in who has the password and is not denied, "sys" to the system account,
// and the test's tools, which have no name.
type gate struct {
	denied *DenyList
	system atomic.Pointer[server.Account]
}

func (g *gate) Check(c server.ClientAuthentication) bool {
	switch o := c.GetOpts(); {
	case o.Username == "":
		return true
	case o.Password != "secret" || g.denied.Denied(o.Username):
		return false
	case o.Username == "sys":
		c.RegisterUser(&server.User{Username: "sys", Account: g.system.Load()})
	default:
		c.RegisterUser(&server.User{Username: o.Username})
	}
	return true
}

// startGated starts servers, a cluster if there are more than one, that ask the list.
func startGated(t *testing.T, n int, denied *DenyList) []*fabrictest.Server {
	t.Helper()
	var mu sync.Mutex
	gates := map[string]*gate{}
	gated := fabrictest.WithOptions(func(o *server.Options) {
		mu.Lock()
		defer mu.Unlock()
		gates[o.ServerName] = &gate{denied: denied}
		o.CustomClientAuthentication = gates[o.ServerName]
	})
	var servers []*fabrictest.Server
	if n == 1 {
		servers = append(servers, fabrictest.StartServer(t, gated))
	} else {
		servers = fabrictest.StartCluster(t, n, gated).Servers()
	}
	for _, s := range servers {
		mu.Lock()
		gates[s.Name()].system.Store(s.NATS().SystemAccount())
		mu.Unlock()
	}
	return servers
}

func connect(t *testing.T, url, user string, opts ...nats.Option) (*nats.Conn, error) {
	t.Helper()
	nc, err := nats.Connect(url, append([]nats.Option{nats.UserInfo(user, "secret"), nats.ReconnectWait(20 * time.Millisecond), nats.MaxReconnects(-1), nats.Timeout(time.Minute)}, opts...)...)
	if err == nil {
		t.Cleanup(nc.Close)
	}
	return nc, err
}

// usersOf asks the servers themselves, apart from the device.
func usersOf(t *testing.T, servers []*fabrictest.Server, user string) int {
	t.Helper()
	n := 0
	for _, s := range servers {
		z, err := s.NATS().Connz(&server.ConnzOptions{Username: true, User: user})
		if err != nil {
			t.Fatal(err)
		}
		n += len(z.Conns)
	}
	return n
}

// The permission goes first, then every connection on every server, and the node cannot come back.
func TestNATS(t *testing.T) {
	denied := &DenyList{}
	c := startGated(t, 3, denied)
	sys, err := connect(t, c[0].URL(), "sys")
	if err != nil {
		t.Fatal(err)
	}
	suspect := fence.Target{Node: "n1", Labels: map[string]string{LabelUser: "n1"}}
	var lost []chan error
	for i := range 3 {
		ch := make(chan error, 1)
		lost = append(lost, ch)
		if _, err := connect(t, c[i].URL(), "n1", nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			select {
			case ch <- err:
			default:
			}
		})); err != nil {
			t.Fatal(err)
		}
	}
	bystander, err := connect(t, c[1].URL(), "n2")
	if err != nil {
		t.Fatal(err)
	}
	d := NewNATS("kick", sys, 3, denied, nil)
	if r := d.Check(testContext(t), suspect); r.Answer != fence.NotFenced {
		t.Fatalf("before: %+v", r)
	}
	denied.Revoke(testContext(t), "n1") //nolint:errcheck // it never fails
	if r := d.Check(testContext(t), suspect); r.Answer != fence.NotFenced || usersOf(t, c, "n1") != 3 {
		t.Fatalf("it may not come back, and is connected: %+v", r)
	}
	denied.Allow("n1")
	if r := d.Fence(testContext(t), suspect); r.Answer != fence.Fenced {
		t.Fatalf("%+v", r)
	}
	if n := usersOf(t, c, "n1"); n != 0 {
		t.Fatalf("the device says fenced, and the servers have %d connections", n)
	}
	if r := d.Check(testContext(t), suspect); r.Answer != fence.Fenced {
		t.Fatalf("after: %+v", r)
	}
	for i, ch := range lost {
		select {
		case <-ch:
		case <-time.After(20 * time.Second):
			t.Fatalf("connection %d was not ended", i)
		}
	}
	if _, err := connect(t, c[2].URL(), "n1"); err == nil {
		t.Fatal("the node has connected again")
	}
	if !bystander.IsConnected() {
		t.Fatal("another node was kicked")
	}
	// A number of servers that is wrong confirms nothing: any other one may have the node connected.
	for _, n := range []int{-1, 0, 4} {
		if r := NewNATS("kick", sys, n, denied, nil).Check(testContext(t), suspect); r.Answer != fence.Unknown {
			t.Errorf("of 3 servers, said to be %d: %+v", n, r)
		}
	}
	fabrictest.Eventually(t, 20*time.Second, "one server more than there are said to be answers in time", func() bool {
		return NewNATS("kick", sys, 2, denied, nil).Check(testContext(t), suspect).Answer == fence.Unknown
	})
	denied.Allow("n1")
	if r := d.Check(testContext(t), suspect); r.Answer != fence.NotFenced {
		t.Fatalf("allowed again: %+v", r)
	}
}

// A server that does not answer may have the node connected; a permission that cannot be taken, or is only said to be taken,
// confirms nothing.
func TestNATSUnknown(t *testing.T) {
	denied := &DenyList{}
	c := startGated(t, 1, denied)
	sys, err := connect(t, c[0].URL(), "sys")
	if err != nil {
		t.Fatal(err)
	}
	suspect := fence.Target{Node: "n1", Labels: map[string]string{LabelUser: "n1"}}
	short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	missing := NewNATS("kick", sys, 2, denied, nil)
	if r := missing.Fence(short, suspect); r.Answer == fence.Fenced {
		t.Fatalf("one of two servers has answered: %+v", r)
	}
	if r := missing.Check(testContext(t), suspect); r.Answer != fence.Unknown {
		t.Fatalf("one of two servers has answered: %+v", r)
	}
	for name, p := range map[string]Permission{"fails": denyNot{errors.New("no")}, "lies": denyNot{}} {
		d := NewNATS("kick", sys, 1, p, nil)
		if r := d.Fence(testContext(t), suspect); r.Answer == fence.Fenced {
			t.Errorf("%s: %+v", name, r)
		}
		if r := d.Check(testContext(t), suspect); r.Answer != fence.NotFenced {
			t.Errorf("%s: the check: %+v", name, r)
		}
	}
	if r := NewNATS("kick", sys, 1, denied, nil).Fence(testContext(t), fence.Target{Node: "n9"}); r.Answer != fence.Unknown {
		t.Errorf("a node without a user: %+v", r)
	}
}

// denyNot is a permission that says yes and does nothing.
type denyNot struct{ err error }

func (d denyNot) Revoke(context.Context, string) error          { return d.err }
func (d denyNot) Revoked(context.Context, string) (bool, error) { return false, nil }
