// Package serverproc is what fabrictest and its server processes share: what a
// server is told, how it is started, and the line protocol over the process's
// standard input and output.
//
// The process prints "ready", or "failed" and why, once. It answers a line
// "status N" with "status N" and a Status in JSON. It ends when its input does,
// so that it never outlives the test, however that dies.
package serverproc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"natsfabric/internal/embedded"
)

// SpecVariable is the environment variable with the process's Spec in JSON.
const SpecVariable = "FABRICTEST_SERVER"

// Spec says which server to start.
type Spec struct {
	Name        string
	Port        int
	StoreDir    string
	Durable     bool
	Config      string // text of a nats-server configuration file
	ClusterName string
	ClusterPort int
	Routes      []string
	Advertise   string // cluster address that others hear of; empty: the real one
}

// Status is what a cluster member knows about JetStream.
type Status struct {
	Current bool // there is a meta leader and this server has caught up
	Members int  // servers of the meta group, as this one knows it
	Settled bool // nothing waits to be committed: a server stands for no election while its own entry into the group does
}

// StatusOf asks a running server.
func StatusOf(s *embedded.Server) Status {
	srv := s.NATS()
	st := Status{Current: srv.JetStreamIsLeader() || srv.JetStreamIsCurrent()}
	const meta = "_meta_"
	if groups := srv.Raftz(&server.RaftzOptions{GroupFilter: meta}); groups != nil {
		for _, account := range *groups {
			st.Members = account[meta].Size
			st.Settled = account[meta].PIndex == account[meta].Committed
		}
	}
	return st
}

// Start starts a server. Unlike the embedded server of a node it keeps the stock
// ping interval and write deadline, as a server that somebody else runs has them.
func Start(ctx context.Context, spec Spec, change ...func(*server.Options)) (*embedded.Server, error) {
	var badConfig error
	s, err := embedded.Start(ctx, embedded.Config{
		ServerName:   spec.Name,
		Port:         spec.Port,
		StoreDir:     spec.StoreDir,
		UnsafeNoSync: !spec.Durable,
		ClusterName:  spec.ClusterName,
		ClusterPort:  spec.ClusterPort,
		Routes:       spec.Routes,
		NoAdvertise:  true,
		Options: func(o *server.Options) {
			o.PingInterval, o.MaxPingsOut, o.WriteDeadline = 0, 0, 0
			o.Cluster.PingInterval = 0
			o.Cluster.Advertise = spec.Advertise
			if spec.Config != "" {
				badConfig = o.ProcessConfigString(spec.Config)
			}
			for _, f := range change {
				f(o)
			}
		},
	})
	if badConfig != nil {
		if s != nil {
			s.Shutdown()
		}
		return nil, fmt.Errorf("text of WithConfig: %w", badConfig)
	}
	return s, err
}

// Serve is the process: it starts the server that spec (JSON) describes and
// answers requests until in ends.
func Serve(spec string, in io.Reader, out io.Writer) error {
	var sp Spec
	if err := json.Unmarshal([]byte(spec), &sp); err != nil {
		return fmt.Errorf("%s: %w", SpecVariable, err)
	}
	s, err := Start(context.Background(), sp)
	if err != nil {
		fmt.Fprintf(out, "failed %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	defer s.Shutdown()
	fmt.Fprintln(out, "ready")
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "status ") {
			st, err := json.Marshal(StatusOf(s))
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s %s\n", lines.Text(), st)
		}
	}
	return lines.Err()
}
