package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/fence/fencetest"
	"natsfabric/kvlocation"
)

// runCommand runs a command and returns what it wrote and its exit code.
func runCommand(args ...string) (string, string, int) {
	var stdout, stderr bytes.Buffer
	code := Main(args, strings.NewReader(""), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

// The devices of a plan are asked; with --fence they cut off, level by level, and only what was seen counts.
func TestFenceTest(t *testing.T) {
	dir := t.TempDir()
	strip := filepath.Join(dir, "n1")
	if err := os.WriteFile(strip, []byte("on"), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := filepath.Join(dir, "plan.yaml")
	text := `
resources: [db]
levels:
  - - name: broken
      fence: [/bin/false]
      status: [/bin/cat, "` + dir + `/{node}"]
      fenced: {output: "^off$"}
      not_fenced: {output: "^on$"}
  - - name: strip
      timeout: 10s
      resources: [db]
      fence: [/bin/sh, -c, 'echo off >"$1"', sh, "` + dir + `/{node}"]
      status: [/bin/cat, "` + dir + `/{node}"]
      fenced: {output: "^off$"}
      not_fenced: {output: "^on$"}
`
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := runCommand("fence", "test", "--plan", plan, "--node", "n1")
	if code != ExitOK || !strings.Contains(out, "level 2, strip: not fenced") || !strings.Contains(out, "node n1 is not fenced") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	out, errs, code = runCommand("--json", "fence", "test", "--plan", plan, "--node", "n1", "--fence")
	var r fenceTestReply
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != ExitOK || !r.Fenced || len(r.Devices) != 2 || r.Devices[0].Answer != fence.NotFenced || r.Devices[1].Answer != fence.Fenced {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if _, _, code = runCommand("fence", "test", "--plan", plan, "--node", "n2"); code != ExitFailure {
		t.Fatalf("a node that nobody knows: exit %d", code)
	}
	for name, wrong := range map[string]string{
		"resources": "resources: [db, nats]\nlevels: [[{name: x, fence: [x], status: [x], fenced: {codes: [0]}, resources: [db]}]]",
		"key":       "levels: [[{nam: x}]]",
		"status":    "levels: [[{name: x, fence: [x], fenced: {codes: [0]}}]]",
		"nothing":   "",
	} {
		if err := os.WriteFile(plan, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := runCommand("fence", "test", "--plan", plan, "--node", "n1"); code != ExitUsage {
			t.Errorf("%s: exit %d: %s", name, code, errs)
		}
	}
}

// Status shows a fencing that does not succeed, and a person's confirmation ends it.
func TestFenceStatusAndConfirm(t *testing.T) {
	server := fabrictest.StartServer(t)
	nc := server.Connect(t, nats.ReconnectBufSize(-1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: "shop"}); err != nil {
		t.Fatal(err)
	}
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "shop", RID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	to := []string{"--mesh", "shop", "--server", server.URL()}
	if out, errs, code := runCommand(append([]string{"fence", "status"}, to...)...); code != ExitOK || !strings.Contains(out, "no leaderships") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	dev := fencetest.New("power", nil)
	dev.Set(fencetest.Fails)
	stand := func(node string) *fence.Election {
		e, err := fence.NewElection(store, fence.ElectionConfig{
			Name: "db", Node: node, TTL: time.Second, Poll: 20 * time.Millisecond, AllowUnreplicated: true,
			Fencing: &fence.Plan{Levels: []fence.Level{{{Device: dev, Timeout: time.Second}}}}, Backoff: 50 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	// a leads from a program that ends without a word; its renewals end with the store.
	other, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "shop", RID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := fence.NewElection(other, fence.ElectionConfig{
		Name: "db", Node: "a", TTL: time.Second, AllowUnreplicated: true, Fencing: &fence.Plan{Levels: []fence.Level{{{Device: dev}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	term, err := a.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	defer term.Resign(ctx) //nolint:errcheck // its store is closed; it ends the term's goroutine
	b := stand("b")
	promoted := make(chan error, 1)
	go func() {
		t, err := b.Campaign(ctx)
		if err == nil {
			err = t.Resign(ctx)
		}
		promoted <- err
	}()
	fabrictest.Eventually(t, 30*time.Second, "fencing to fail", func() bool { return b.Snapshot().FenceFailures > 0 })
	out, errs, code := runCommand(append([]string{"fence", "status", "db"}, to...)...)
	if code != ExitOK || !strings.Contains(out, "b fences a") || !strings.Contains(out, "nobody leads until it is confirmed") || !strings.Contains(out, "power: not fenced") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if _, errs, code := runCommand(append([]string{"fence", "confirm", "db", "--node", "b", "--reason", "wrong one"}, to...)...); code != ExitNotAccepted || !strings.Contains(errs, `"a" is being fenced`) {
		t.Fatalf("another node: exit %d: %s", code, errs)
	}
	if _, _, code := runCommand(append([]string{"fence", "status", "other"}, to...)...); code != ExitNotFound {
		t.Fatalf("another leadership: exit %d", code)
	}
	out, errs, code = runCommand(append([]string{"--json", "fence", "confirm", "db", "--node", "a", "--reason", "pulled the plug", "--by", "jo"}, to...)...)
	var r fenceConfirmReply
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != ExitOK || r.Confirmed.By != "jo" || r.Confirmed.Reason != "pulled the plug" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if err := <-promoted; err != nil {
		t.Fatal(err)
	}
	out, _, _ = runCommand(append([]string{"--json", "fence", "status"}, to...)...)
	var s fenceStatusReply
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Leaderships) != 1 || s.Leaderships[0].Holder.Node != "b" {
		t.Fatalf("%s, %v", out, err)
	}
}
