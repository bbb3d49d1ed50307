// Command monitor watches the workers of the mesh "m" until it is killed. Tests run it with a wrong wall clock.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

func main() {
	if err := run(os.Getenv("MONITOR_URL"), os.Getenv("MONITOR_POLICY"), os.Getenv("MONITOR_RID")); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func run(url, policy, rid string) error {
	cfg := supervise.Config{Notifiers: []supervise.Notifier{supervise.Log{Logger: zap.NewNop()}}}
	if err := json.Unmarshal([]byte(policy), &cfg.Policy); err != nil {
		return err
	}
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.Timeout(time.Minute))
	if err != nil {
		return err
	}
	store, err := kvlocation.Open(context.Background(), nc, kvlocation.Config{Mesh: "m", RID: rid})
	if err != nil {
		return err
	}
	cfg.Targets = []supervise.Target{{Match: "*", Restarter: supervise.Request{Conn: nc, Subject: "restart.{worker}"}}}
	if _, err := supervise.NewMonitor(context.Background(), store, cfg); err != nil {
		return err
	}
	fmt.Println("watching, at", time.Now().UTC().Format(time.RFC3339))
	select {}
}
