package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every wrong input is refused by its flag, its value and what is allowed, before anything is connected to. No text speaks
// of the parser, or of Go's types.
func TestWrongInput(t *testing.T) {
	dir := t.TempDir()
	plan := func(name, text string) []string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"fence", "test", "--node", "n1", "--plan", file}
	}
	t.Setenv("FABRIC_MESH", "shop")
	t.Setenv("FABRIC_SERVER", "nats://127.0.0.1:1")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"nodes", "--connect-timeout", "-1s"}, `--connect-timeout "-1s" is not allowed: it must not be negative`},
		{[]string{"nodes", "--connect-timeout", "5"}, `--connect-timeout "5" is not allowed: it must be a time like 500ms, 10s or 2m`},
		{[]string{"nodes", "--domain", "a.b"}, `--domain "a.b" is not allowed`},
		{[]string{"nodes", "--config", dir + "/none.yaml"}, "--config: open"},
		{[]string{"objects", "--limit", "many"}, `--limit "many" is not allowed: it must be a number`},
		{[]string{"drain"}, "<rid> is missing: it must be fabricnode drain <rid> (fabricnode drain --help explains)"},
		{[]string{"supervise", "child", "w1"}, "<command> is missing: it must be fabricnode supervise child <worker> <command>"},
		{[]string{"supervise"}, "supervise needs one of run, policy, pause, resume, mark, unmark, child, beat"},
		{[]string{"supervise", "pause", "--reason", "-x"}, "--reason needs a value; one that begins with - is given as --reason=-x"},
		{[]string{"supervise", "pause", "--reason", ""}, `--reason "" is not allowed: it must have 1 to 1000 bytes`},
		{[]string{"supervise", "mark", "w1", "--for", "1m", "--action", ""}, `--action "" is not allowed: it must have 1 to 64 bytes`},
		{[]string{"supervise", "mark", "", "--for", "1m"}, `worker "" is not allowed`},
		{[]string{"supervise", "unmark", ""}, `worker "" is not allowed`},
		{[]string{"supervise", "child", "", "--", "true"}, `worker "" is not allowed`},
		{[]string{"supervise", "beat", "w1", "--every", "0s"}, "--every 0s is not allowed: it must be 50ms to 1h0m0s"},
		{[]string{"supervise", "run"}, "give --restart '*=COMMAND {worker}' or --restart-request '*=SUBJECT.{worker}', or leave error and hung to a person"},
		{[]string{"supervise", "run", "--restart", "[=x"}, `--restart "[=x" is not allowed: "[" is no pattern`},
		{[]string{"fence", "confirm", "db", "--node", "n1", "--reason", ""}, `--reason "" is not allowed`},
		{plan("key", "resources: [db]\nlevels: [[{nmae: x}]]"), `line 2: unknown key "nmae"`},
		{plan("kind", "resources: db"), `line 1: "db" is not allowed: it must be a list`},
		{plan("time", "resources: [db]\nlevels: [[{timeout: soon}]]"), `line 2: "soon" is not allowed: it must be a time like 10s`},
		{plan("mute", "levels: [[{name: x, fence: [x], status: [x]}]]"), `fence device "x": fenced says nothing`},
		{plan("empty", ""), "it is empty: it must name resources and levels"},
		{[]string{"run", "--lease-ttl", "0s"}, "--lease-ttl 0s is not allowed: it must be at least 2s"},
		{[]string{"run", "--lease-renew", "20s"}, "--lease-renew 20s clashes with --lease-ttl 18s less --lease-margin 3s"},
		{[]string{"run", "--origins", "*.example.com"}, "--origins needs --sessions"},
		{[]string{"run", "--sessions", "127.0.0.1:0", "--origins", "http://x"}, `--origins "http://x" is not allowed`},
	} {
		_, errs, code := runCommand(c.args...)
		if code != ExitUsage || !strings.Contains(errs, c.says) || strings.Contains(errs, "cli.") || strings.Contains(errs, "!!") {
			t.Errorf("%q: exit code %d, want 2 and %q: %s", c.args, code, c.says, errs)
		}
	}
}

// What cuts a node off is typed, or it is not done.
func TestFenceIsTyped(t *testing.T) {
	t.Setenv("FABRIC_FENCE", "true")
	r, err := parse(t, "fence", "test", "--plan", "p", "--node", "n1")
	if err != nil || r.Fence.Test.Fence {
		t.Errorf("the environment turns --fence on: %v", err)
	}
	if _, err := parse(t, "fence", "test", "--plan", "p", "--node", "n1", "--config", file(t, "fence: true")); err == nil || !strings.Contains(err.Error(), `"fence"`) {
		t.Errorf("the file may turn --fence on: %v", err)
	}
}
