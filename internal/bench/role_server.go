package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
)

// serverRole is one server of its own with the product's defaults, and the buckets of some meshes.
type serverRole struct{ srv *embedded.Server }

type serverStart struct {
	Dir    string   `json:"dir"`
	Meshes []string `json:"meshes"`
	NoSync bool     `json:"no_sync"` // leave it to the system when writes reach the disk
	// Name, Port and Routes make it one server of a cluster; "init" then makes the buckets.
	Name   string   `json:"name,omitempty"`
	Port   int      `json:"port,omitempty"`
	Routes []string `json:"routes,omitempty"`
}

type serverStarted struct {
	URL     string `json:"url"`
	Version string `json:"version"`
	Sync    string `json:"sync"` // the server's sync_interval
}

// traffic is what a server counted on one connection, in messages.
type traffic struct {
	In  int64 `json:"in"`
	Out int64 `json:"out"`
}

func (r *serverRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[serverStart](raw)
		if err != nil {
			return nil, err
		}
		return r.start(ctx, a)
	case "init":
		a, err := decode[initArgs](raw)
		if err != nil {
			return nil, err
		}
		if err := r.srv.WaitJetStream(ctx); err != nil {
			return nil, err
		}
		return nil, r.init(ctx, a)
	case "traffic":
		return r.traffic()
	}
	return nil, unknownOp(op)
}

func (r *serverRole) start(ctx context.Context, a serverStart) (started serverStarted, err error) {
	cfg := embedded.Config{StoreDir: a.Dir, UnsafeNoSync: a.NoSync}
	if a.Name != "" {
		cfg.ServerName, cfg.ClusterName, cfg.ClusterPort, cfg.Routes = a.Name, "bench", a.Port, a.Routes
	}
	if r.srv, err = startServer(ctx, cfg); err != nil {
		return started, err
	}
	v, err := r.srv.NATS().Varz(nil)
	if err != nil {
		return started, err
	}
	started = serverStarted{URL: r.srv.URL(), Version: v.Version, Sync: syncAlways}
	if a.NoSync {
		started.Sync = syncSystem
	}
	if a.Name != "" {
		return started, nil // the others of the cluster are not there yet
	}
	return started, r.init(ctx, initArgs{Meshes: a.Meshes, Replicas: 1})
}

// initArgs says which buckets to make.
type initArgs struct {
	Meshes   []string `json:"meshes"`
	Replicas int      `json:"replicas"`
}

func (r *serverRole) init(ctx context.Context, a initArgs) error {
	nc, err := nats.Connect(r.srv.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	for _, mesh := range a.Meshes {
		if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: mesh, Replicas: a.Replicas}); err != nil {
			return err
		}
	}
	return nil
}

// What a server's sync_interval can be.
const (
	syncAlways = "always"
	syncSystem = "2m" // the server's own default
)

// startServer starts a server on loopback with the product's defaults; its warnings go to standard error.
func startServer(ctx context.Context, cfg embedded.Config) (*embedded.Server, error) {
	cfg.Port = -1
	cfg.Log = func(level slog.Level, line string) {
		if level >= slog.LevelWarn {
			fmt.Fprintln(os.Stderr, line)
		}
	}
	return embedded.Start(ctx, cfg)
}

// traffic returns the counts of every connection by its name.
func (r *serverRole) traffic() (map[string]traffic, error) {
	z, err := r.srv.NATS().Connz(nil)
	if err != nil {
		return nil, err
	}
	out := make(map[string]traffic, len(z.Conns))
	for _, c := range z.Conns {
		out[c.Name] = traffic{In: c.InMsgs, Out: c.OutMsgs}
	}
	return out, nil
}

func (r *serverRole) close(context.Context) error {
	if r.srv != nil {
		r.srv.Shutdown()
	}
	return nil
}
