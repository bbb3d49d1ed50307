package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
)

type versionCmd struct{}

type versionReply struct {
	OK         bool   `json:"ok"`
	Version    string `json:"version"`
	Revision   string `json:"revision,omitempty"`
	Go         string `json:"go"`
	NATSServer string `json:"nats_server"`
	NATSClient string `json:"nats_client"`
	MinServer  string `json:"min_server"`
}

func (versionCmd) Run(a *app) error {
	v := versions()
	return a.print(v, v.write)
}

// write prints the versions for people.
func (v versionReply) write(w io.Writer) {
	fmt.Fprintf(w, "fabricnode %s", v.Version)
	if v.Revision != "" {
		fmt.Fprintf(w, " (%s)", v.Revision)
	}
	fmt.Fprintf(w, "\n%s, embedded nats-server %s, nats.go %s\nneeds nats-server %s or newer\n", v.Go, v.NATSServer, v.NATSClient, v.MinServer)
}

func versions() versionReply {
	v := versionReply{
		OK: true, Version: "(devel)", Go: runtime.Version(), NATSServer: server.VERSION, NATSClient: nats.Version,
		MinServer: kvlocation.MinServer,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}
