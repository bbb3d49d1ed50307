package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// badConfig reads a server's configuration as nats-server does and says which recommended setting it lacks.
func badConfig(file string) []string {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	want := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	want(o.JetStream, "jetstream is on")
	want(o.SyncAlways, "sync_interval: always")
	want(o.PingInterval == 2*time.Second && o.MaxPingsOut == 2, "ping_interval 2s, ping_max 2")
	want(o.WriteDeadline == 2*time.Second, "write_deadline 2s")
	want(o.Cluster.PingInterval == 2*time.Second, "cluster ping_interval 2s")
	want(len(o.Routes) == 2, "routes to the two other servers")
	for what, host := range map[string]string{"listen": o.Host, "http": o.HTTPHost, "cluster listen": o.Cluster.Host} {
		want(host == "127.0.0.1", what+" on loopback")
	}
	return out
}

func TestServerConfiguration(t *testing.T) {
	for i := 1; i <= 3; i++ {
		file := filepath.Join(root, "deploy", "nats", fmt.Sprintf("fabric-%d.conf", i))
		for _, what := range badConfig(file) {
			t.Errorf("%s: not so: %s", file, what)
		}
	}
}

// The check sees a setting that is missing, and one that a later block of the same name has replaced: nats-server
// takes the last one and does not merge them.
func TestServerConfigurationCheckFails(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"not synced", "sync_interval: always", "", "sync_interval: always"},
		{"replaced block", "cluster {", "jetstream { store_dir: x }\ncluster {", "sync_interval: always"},
		{"open to the network", `listen: "127.0.0.1:4222"`, `listen: "0.0.0.0:4222"`, "listen on loopback"},
		{"no include", `include "recommended.conf"`, "", "ping_interval 2s, ping_max 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"recommended.conf", "fabric-1.conf"} {
				b, err := os.ReadFile(filepath.Join(root, "deploy", "nats", name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(b), c.old, c.new, 1)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := badConfig(filepath.Join(dir, "fabric-1.conf")); len(got) == 0 || got[0] != c.want {
				t.Errorf("found %q, want first %q", got, c.want)
			}
		})
	}
}
