package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
)

// serverFlags describe the NATS server inside the process.
type serverFlags struct {
	Embedded      bool     `group:"Embedded server" help:"Run a NATS server with JetStream in this process, and make the mesh's streams."`
	Listen        filled   `group:"Embedded server" placeholder:"HOST:PORT" help:"Where it takes clients; port 0 takes a free one. Default ${listen}."`
	Data          filled   `group:"Embedded server" placeholder:"DIR" help:"Directory of its data, which is synced to disk at every write. Default ${data}."`
	ClusterListen string   `group:"Embedded server" placeholder:"HOST:PORT" help:"Where it takes the other servers of its cluster."`
	Routes        []string `group:"Embedded server" placeholder:"URL" help:"The other servers' cluster addresses, like nats://host:6222. Needs --rid."`
}

// Defaults of serverFlags.
const (
	defaultListen = "127.0.0.1:4222"
	defaultData   = "fabric-data"
)

func (f *serverFlags) clustered() bool { return f.ClusterListen != "" || len(f.Routes) > 0 }

func (f *serverFlags) validate(c *runCmd) error {
	switch {
	case !f.Embedded && f.clustered():
		return errors.New("--cluster-listen and --routes need --embedded")
	case !f.Embedded && (f.Listen != "" || f.Data != ""):
		return errors.New("--listen and --data need --embedded")
	}
	if err := c.setupFlags.validate(); err != nil || !f.Embedded {
		return err
	}
	switch {
	case c.Server != "" || c.Context != "":
		return errors.New("--embedded clashes with --server and --context: give one of them")
	case f.clustered() && (f.ClusterListen == "" || len(f.Routes) == 0):
		return errors.New("--cluster-listen and --routes belong together: give both or neither")
	case f.clustered() && c.ridIsFresh:
		return errors.New("--rid is missing: a server of a cluster needs a name that stays the same, and takes the node's")
	}
	if c.Replicas > 1 && !f.clustered() {
		return fmt.Errorf("--replicas %d needs as many servers: one that stands alone keeps one; give --cluster-listen and --routes for more", c.Replicas)
	}
	for _, r := range f.Routes {
		u, err := url.Parse(r)
		if err != nil || u.Scheme == "" || u.Hostname() == "" || u.Port() == "" {
			return fmt.Errorf("--routes %q is not allowed: it must look like nats://host:6222", r)
		}
	}
	_, _, err := hostPort("--listen", cmp.Or(string(f.Listen), defaultListen))
	if f.clustered() {
		_, _, clusterErr := hostPort("--cluster-listen", f.ClusterListen)
		err = errors.Join(err, clusterErr)
	}
	return err
}

// hostPort splits an address. Port 0 becomes -1, which is the server's sign for a free one.
func hostPort(flag, addr string) (string, int, error) {
	host, text, err := net.SplitHostPort(addr)
	port, perr := strconv.ParseUint(text, 10, 16)
	if err != nil || perr != nil {
		return "", 0, fmt.Errorf("%s %q is not allowed: it must look like 127.0.0.1:4222", flag, addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if port == 0 {
		return host, -1, nil
	}
	return host, int(port), nil
}

func (c *runCmd) startServer(ctx context.Context, log *serverLog) (*embedded.Server, error) {
	listen := cmp.Or(string(c.Listen), defaultListen)
	host, port, err := hostPort("--listen", listen)
	if err != nil {
		return nil, err
	}
	cfg := embedded.Config{ServerName: "fabricnode", Host: host, Port: port, StoreDir: cmp.Or(string(c.Data), defaultData), Log: log.line}
	if c.clustered() {
		cfg.ServerName, cfg.ClusterName, cfg.Routes = c.RID, "fabric-"+c.Mesh, c.Routes
		if cfg.ClusterHost, cfg.ClusterPort, err = hostPort("--cluster-listen", c.ClusterListen); err != nil {
			return nil, err
		}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		log.to.Warn("the embedded server takes clients from other machines without credentials", zap.String("listen", listen))
	}
	srv, err := embedded.Start(ctx, cfg)
	return srv, withCode(embeddedCode(err), err)
}

func embeddedCode(err error) int {
	var start *embedded.StartError
	if errors.As(err, &start) {
		return ExitUsage
	}
	return ExitNATS
}

// Forming a cluster is a matter of attempts: a request that a server gets before there is a leader is not answered.
const (
	formPause   = 250 * time.Millisecond
	formAttempt = 1500 * time.Millisecond
)

// initEmbedded makes the mesh's streams on the embedded server. In a cluster it goes on trying while the other servers
// come up.
func (c *runCmd) initEmbedded(ctx context.Context, srv *embedded.Server, connect fabric.Connect, log *zap.Logger) error {
	if c.clustered() {
		log.Info("waiting for the other servers of the cluster", zap.Strings("routes", c.Routes))
		if err := srv.WaitJetStream(ctx); err != nil {
			return withCode(ExitNATS, err)
		}
	}
	nc, err := fabric.Dial(ctx, "fabricnode init", connect)
	if err != nil {
		return withCode(ExitNATS, err)
	}
	defer nc.Close()
	setup, err := c.setup(&c.meshFlags, nc)
	if err != nil {
		return err
	}
	var report kvlocation.Report
	err = c.forming(ctx, log, func() (err error) {
		attempt := ctx
		if c.clustered() {
			var cancel context.CancelFunc
			attempt, cancel = context.WithTimeout(ctx, formAttempt)
			defer cancel()
		}
		report, err = kvlocation.Init(attempt, nc, setup)
		return err
	})
	for _, b := range report.Buckets {
		for _, d := range b.Drift {
			log.Warn("stream is not as it should be", zap.String("bucket", b.Bucket), zap.Stringer("drift", d))
		}
	}
	return withCode(ExitNATS, err)
}

// forming calls f; in a cluster again and again, until it succeeds or ctx ends, while the other servers come up.
func (c *runCmd) forming(ctx context.Context, log *zap.Logger, f func() error) error {
	for {
		err := f()
		if err == nil || !c.clustered() || errors.Is(err, kvlocation.ErrRIDInUse) {
			return err
		}
		log.Debug("the cluster is still forming", zap.Error(err))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(formPause):
		}
	}
}

// freshRID names a node that was given no name.
func freshRID() string { return "node-" + nuid.Next() }

// errorStateCode is the exit code of a node that ended itself.
func errorStateCode(err error) int {
	if errors.Is(err, kvlocation.ErrSuperseded) {
		return ExitHeld
	}
	return ExitFailure
}
