package fabrictest

import "testing"

// Link is the network between two servers of a cluster that was started
// WithProxiedRoutes.
type Link struct {
	// Either server may have made the connection that is in use.
	forward, back *Proxy
}

// Link returns the network between server from and server to. Faults in both
// directions don't care about the order; DropToServer loses what goes to the
// server named second, DropToClient what comes back.
func (c *Cluster) Link(t testing.TB, from, to int) Link {
	t.Helper()
	if c.routes == nil {
		t.Fatalf("fabrictest: Cluster.Link needs a cluster started WithProxiedRoutes")
	}
	if from == to {
		t.Fatalf("fabrictest: there is no link between server %d and itself", from)
	}
	return Link{forward: c.routes[from][to], back: c.routes[to][from]}
}

// Apply adds faults, until Heal. A Cut alone lasts only until the servers
// connect again, at once: combine it with RefuseReconnect. Note that HalfOpen
// and Hang are noticed by the servers' pings only, as in real life.
func (l Link) Apply(fs ...Fault) {
	l.forward.Apply(fs...)
	turned := make([]Fault, len(fs))
	for i, f := range fs {
		switch f {
		case DropToServer:
			f = DropToClient
		case DropToClient:
			f = DropToServer
		}
		turned[i] = f
	}
	l.back.Apply(turned...)
}

// Heal ends all faults of the link.
func (l Link) Heal() {
	l.forward.Heal()
	l.back.Heal()
}

// Isolate applies faults to all links of one server.
func (c *Cluster) Isolate(t testing.TB, server int, fs ...Fault) {
	t.Helper()
	for other := range c.servers {
		if other != server {
			c.Link(t, server, other).Apply(fs...)
		}
	}
}

// Heal ends all faults between servers.
func (c *Cluster) Heal() {
	for _, row := range c.routes {
		for _, p := range row {
			if p != nil {
				p.Heal()
			}
		}
	}
}
