package conformance

import (
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/fabrictest"
)

// setting is what a fault of the matrix strikes.
type setting struct {
	b      *bed.Bed
	victim *bed.Member
	// long is how long a fault lasts.
	long time.Duration
}

// fault is one row of the matrix. strike makes it, and returns how it ends; nil when it does not end by itself.
type fault struct {
	name string
	// servers is the number of servers that it needs at least.
	servers int
	strike  func(t *testing.T, s setting) (end func())
	// kills is true when the victim is gone for good.
	kills bool
	// beyond is true for a fault that lasts longer than the lease.
	beyond bool
	// passes is true for a fault that is over as soon as it was made.
	passes bool
}

// faults are the rows of the matrix.
var faults = []fault{
	{name: "member killed", kills: true, strike: func(_ *testing.T, s setting) func() {
		s.victim.Kill9()
		return nil
	}},
	{name: "member frozen and thawed", strike: func(t *testing.T, s setting) func() {
		s.victim.Freeze(t)
		return func() { s.victim.Thaw(t) }
	}},
	{name: "member frozen beyond its lease", beyond: true, strike: func(t *testing.T, s setting) func() {
		s.victim.Freeze(t)
		return func() { s.victim.Thaw(t) }
	}},
	{name: "member's connection cut", strike: network(fabrictest.Cut, fabrictest.RefuseReconnect)},
	{name: "member half-open", strike: network(fabrictest.HalfOpen)},
	{name: "only what the member sends lost", strike: network(fabrictest.DropToServer)},
	{name: "only what the member gets lost", strike: network(fabrictest.DropToClient)},
	{name: "member slow by 50 ms each way", strike: network(fabrictest.Delay(50 * time.Millisecond))},
	{name: "server killed and started again", passes: true, strike: func(t *testing.T, s setting) func() {
		home := s.home(t)
		home.Kill()
		home.Restart(t)
		return nil
	}},
	{name: "server killed in a cluster", servers: 3, passes: true, strike: func(t *testing.T, s setting) func() {
		s.home(t).Kill()
		return nil
	}},
	{name: "leader frozen and thawed", servers: 3, strike: func(t *testing.T, s setting) func() {
		leader := s.b.Cluster.StreamLeader(t, "KV_FABRIC_"+bed.Mesh+"_NODES")
		leader.Freeze(t)
		return func() { leader.Thaw(t) }
	}},
}

// home is the server to which the victim is connected.
func (s setting) home(t *testing.T) *fabrictest.Server {
	t.Helper()
	for i, p := range s.victim.Proxies {
		if p.Connections() > 0 && s.b.Cluster != nil {
			return s.b.Cluster.Server(i)
		}
	}
	return s.b.Server
}

// network applies network faults to the victim's connection.
func network(fs ...fabrictest.Fault) func(*testing.T, setting) func() {
	return func(_ *testing.T, s setting) func() {
		s.victim.Proxies.Apply(fs...)
		return s.victim.Proxies.Heal
	}
}
