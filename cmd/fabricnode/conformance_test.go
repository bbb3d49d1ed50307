package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
)

// TestConformance/CA-7: the library, the reference worker and the stock tools' own ways of looking meet on one mesh.
// What the stock nats CLI itself prints is checked by scripts/e2e-nats-cli; the benchmark tool has its own test.
func TestConformance(t *testing.T) {
	t.Run("CA-7", func(t *testing.T) {
		t.Parallel()
		n := startNode(t, program(t), "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir())

		// The library reaches the reference worker.
		client, err := fabric.ConnectClient(t.Context(), fabric.ClientConfig{Mesh: "shop", Connect: fabric.Connect{URL: n.Server}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(t.Context())
		reply, err := client.Channel("echo").Request(t.Context(), []byte("hello"))
		if err != nil || string(reply.Data) != "hello" || reply.Header.Get("Fabric-Served-By") != "n1" {
			t.Errorf("%q %v, %v", reply.Data, reply.Header, err)
		}

		// The records are plain JSON in plain KV buckets.
		nc := fabrictest.Connect(t, n.Server)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.KeyValue(t.Context(), "FABRIC_shop_NODES")
		if err != nil {
			t.Fatal(err)
		}
		entry, err := kv.Get(t.Context(), "desc.n1")
		if err != nil {
			t.Fatal(err)
		}
		var desc struct {
			V         int
			RID       string
			Lifecycle uint64
			State     string
			Channels  []struct{ Name, Kind string }
		}
		if err := json.Unmarshal(entry.Value(), &desc); err != nil {
			t.Fatal(err)
		}
		if desc.V != 1 || desc.RID != "n1" || desc.Lifecycle != n.Lifecycle || desc.State != "Serving" || len(desc.Channels) != 2 {
			t.Errorf("desc.n1 is %s", entry.Value())
		}
		if _, err := kv.Get(t.Context(), "lease.n1"); err != nil {
			t.Errorf("lease.n1: %v", err)
		}

		// The channels are NATS micro services.
		for _, channel := range []string{"echo", "work"} {
			m, err := nc.Request("$SRV.PING."+channel, nil, 10*time.Second)
			if err != nil || !strings.Contains(string(m.Data), `"name":"`+channel+`"`) {
				t.Errorf("$SRV.PING.%s: %v, %v", channel, m, err)
			}
		}
	})
}
