package fabrictest

import (
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Option changes how StartServer and StartCluster start servers.
type Option func(*settings)

type settings struct {
	asProcess     bool
	durable       bool
	proxiedRoutes bool
	routeFaults   []Fault
	clocks        []time.Duration
	config        string
	options       []func(*server.Options)
}

// AsProcess runs each server in a process of its own, so that Kill is a SIGKILL
// and Freeze and Thaw work. The first use in a test run builds a small program
// with the go command.
func AsProcess() Option { return func(s *settings) { s.asProcess = true } }

// Durable makes servers sync every write to disk before they acknowledge it, as
// they should in production. Without it tests are faster.
func Durable() Option { return func(s *settings) { s.durable = true } }

// WithProxiedRoutes leads the connections between the servers of a cluster
// through proxies, so that Cluster.Link can break them. They have the faults
// given from the start, until they are healed.
func WithProxiedRoutes(fs ...Fault) Option {
	return func(s *settings) { s.proxiedRoutes, s.routeFaults = true, fs }
}

// WithConfig adds text in the form of a nats-server configuration file, like
// "max_payload: 1024" or an authorization block.
func WithConfig(text string) Option {
	return func(s *settings) { s.config += text + "\n" }
}

// WithOptions changes the server's own options just before it is made. It does
// not work with AsProcess: use WithConfig there.
func WithOptions(f func(*server.Options)) Option {
	return func(s *settings) { s.options = append(s.options, f) }
}
