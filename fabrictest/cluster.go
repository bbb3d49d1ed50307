package fabrictest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Cluster is a NATS cluster with JetStream.
type Cluster struct {
	servers []*Server
	routes  [][]*Proxy // by the server that connects, then the one it connects to
}

// StartCluster starts n servers (3 is the usual number) that form a cluster,
// and returns when streams with n replicas can be made: after about a second.
func StartCluster(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	set := newSettings(opts)
	c := &Cluster{}
	for i := range n {
		s := newServer(t, i, set)
		s.spec.ClusterName = "fabrictest"
		s.spec.ClusterPort = freePort(t)
		c.servers = append(c.servers, s)
	}
	if set.proxiedRoutes {
		c.routes = make([][]*Proxy, n)
	}
	for i, s := range c.servers {
		if c.routes != nil {
			c.routes[i] = make([]*Proxy, n)
			// Servers tell each other where they have heard others to be, and
			// would connect around the proxies: nobody listens there.
			s.spec.Advertise = loopback(freePort(t))
		}
		for j, other := range c.servers {
			if i == j {
				continue
			}
			route := natsURL(other.spec.ClusterPort)
			if c.routes != nil {
				c.routes[i][j] = NewProxy(t, route)
				c.routes[i][j].Apply(set.routeFaults...)
				route = c.routes[i][j].URL()
			}
			s.spec.Routes = append(s.spec.Routes, route)
		}
	}
	for _, s := range c.servers {
		s.start(t)
	}
	c.WaitReady(t)
	return c
}

// Servers are the servers of the cluster, also those that are stopped.
func (c *Cluster) Servers() []*Server { return c.servers }

// Server is the i-th server, counted from 0.
func (c *Cluster) Server(i int) *Server { return c.servers[i] }

// URL names all servers of the cluster, separated by commas, as nats.Connect
// takes it. The client picks one at random and moves on to another when it
// loses it.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.servers))
	for i, s := range c.servers {
		urls[i] = s.URL()
	}
	return strings.Join(urls, ",")
}

// Connect connects a client to any of the servers. It is closed when the test
// ends.
func (c *Cluster) Connect(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return Connect(t, c.URL(), opts...)
}

// WaitReady waits until all servers run, a stream with a replica on each can be
// made, and each of them may be stopped: whichever half remains elects a leader.
// It fails the test when that takes too long: when a server is stopped, for
// example.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	Eventually(t, readyTimeout, "JetStream ready on all servers of the cluster", func() bool {
		for _, s := range c.servers {
			st, err := s.status()
			if err != nil || !st.Current || !st.Settled || st.Members < len(c.servers) {
				return false
			}
		}
		return true
	})
}

// StreamLeader is the server that leads the stream (a KV bucket b is the stream
// KV_b). It waits for a leader while there is none.
func (c *Cluster) StreamLeader(t testing.TB, stream string) *Server {
	t.Helper()
	nc := c.Connect(t)
	defer closeAndWait(nc)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("fabrictest: %v", err)
	}
	var leader *Server
	Eventually(t, readyTimeout, "a leader of stream "+stream, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		str, err := js.Stream(ctx, stream)
		if err != nil || str.CachedInfo().Cluster == nil {
			return false
		}
		for _, s := range c.servers {
			if s.name == str.CachedInfo().Cluster.Leader {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}
