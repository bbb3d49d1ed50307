package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Ports that stand for zero in a Config.
const (
	DefaultPort        = 4222
	DefaultClusterPort = 6222
)

const loopback = "127.0.0.1"

// Config says how to run a server. StoreDir is required, all else has a
// default. A Config is a plain value and may be used again.
type Config struct {
	// ServerName is unique in the cluster and keeps its meaning over
	// restarts: JetStream knows its members by it. Required in a cluster.
	ServerName string

	// Host is the address on which clients are taken. Default 127.0.0.1.
	Host string

	// Port for clients; -1 takes a free one. Default 4222.
	Port int

	// StoreDir is the directory of all that JetStream keeps. It is created
	// when missing. Required.
	StoreDir string

	// UnsafeNoSync leaves it to the operating system when a write reaches the
	// disk: faster, and a power failure may lose up to two minutes of
	// acknowledged writes. The death of the process alone loses nothing.
	UnsafeNoSync bool

	// ClusterName makes the server part of the NATS cluster of this name.
	// Empty: a server on its own.
	ClusterName string

	// ClusterHost is the address on which the other servers are taken.
	// Default: Host.
	ClusterHost string

	// ClusterPort for the other servers; -1 takes a free one. Default 6222.
	ClusterPort int

	// Routes are the URLs (nats://host:port) of the other servers' cluster
	// ports. JetStream in a cluster needs at least one.
	Routes []string

	// NoAdvertise keeps the server from telling others the addresses it has
	// learned: needed when the routes lead through proxies.
	NoAdvertise bool

	// Log, when set, is given each line that the server logs. It is called
	// from many goroutines and must not block.
	Log func(level slog.Level, line string)

	// Options, when set, may change what the fields above amount to, just
	// before the server is made.
	Options func(*server.Options)
}

// StartError is a reason why a server can't start that a person can put right.
type StartError struct {
	// Subject is the address or directory concerned.
	Subject string
	// Reason says what is wrong and what may be done.
	Reason string
	// Err is the cause, or nil.
	Err error
}

func (e *StartError) Error() string {
	msg := fmt.Sprintf("embedded nats-server: %s: %s", e.Subject, e.Reason)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

func (e *StartError) Unwrap() error { return e.Err }

// serverOptions turns c into the server's own options, with the settings
// recommended for a mesh: dead connections are noticed within seconds, and
// there is room for as many open batches as a busy mesh has.
func (c Config) serverOptions() (*server.Options, error) {
	if c.StoreDir == "" {
		return nil, errors.New("embedded nats-server: Config.StoreDir is empty: JetStream needs a directory to keep its data in")
	}
	opts := &server.Options{
		ServerName:    c.ServerName,
		Host:          or(c.Host, loopback),
		Port:          or(c.Port, DefaultPort),
		NoSigs:        true,
		JetStream:     true,
		StoreDir:      c.StoreDir,
		SyncAlways:    !c.UnsafeNoSync,
		PingInterval:  2 * time.Second,
		MaxPingsOut:   2,
		WriteDeadline: 2 * time.Second,
		JetStreamLimits: server.JSLimitOpts{
			MaxBatchInflightPerStream: 1000,
			MaxBatchInflightTotal:     10_000,
		},
	}
	if c.ClusterName != "" {
		if c.ServerName == "" {
			return nil, errors.New("embedded nats-server: Config.ServerName is empty: in a cluster each server needs a name of its own that stays the same")
		}
		if len(c.Routes) == 0 {
			return nil, errors.New("embedded nats-server: Config.Routes is empty: in a cluster name at least one other server")
		}
		opts.Cluster.Name = c.ClusterName
		opts.Cluster.Host = or(c.ClusterHost, opts.Host)
		opts.Cluster.Port = or(c.ClusterPort, DefaultClusterPort)
		opts.Cluster.NoAdvertise = c.NoAdvertise
		opts.Cluster.PingInterval = 2 * time.Second
		for _, r := range c.Routes {
			u, err := url.Parse(r)
			if err != nil || u.Host == "" {
				return nil, fmt.Errorf("embedded nats-server: Config.Routes: %q is not a URL like nats://host:6222", r)
			}
			opts.Routes = append(opts.Routes, u)
		}
	} else if len(c.Routes) > 0 {
		return nil, errors.New("embedded nats-server: Config.Routes given without Config.ClusterName")
	}
	if c.Options != nil {
		c.Options(opts)
	}
	return opts, nil
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func hostPort(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(port))
}
