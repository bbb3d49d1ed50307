package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
)

// get asks one of a node's pages.
func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	client := http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// ask sends a plain NATS request, as any client may.
func ask(t *testing.T, nc *nats.Conn, subject, payload string) *nats.Msg {
	t.Helper()
	m, err := nc.Request(subject, []byte(payload), soon)
	if err != nil {
		t.Fatalf("request %s: %v", subject, err)
	}
	return m
}

// The pages follow the node: healthy all the time, ready only while it can serve.
func TestHealthPages(t *testing.T) {
	t.Parallel()
	srv := fabrictest.StartServer(t)
	bin := program(t)
	if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
		t.Fatal(r.stderr)
	}
	n := startNode(t, bin, "--mesh", "shop", "--rid", "n1", "--server", srv.URL())
	nc := srv.Connect(t)
	ask(t, nc, "fab.shop.ch.echo", "hello")
	if code, body := get(t, n.HTTP+"/readyz"); code != 200 || !strings.Contains(body, `"state":"Serving"`) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	_, metrics := get(t, n.HTTP+"/metrics")
	for _, line := range []string{
		`fabric_node_info{mesh="shop",rid="n1"} 1`, `fabric_host_state{state="Serving"} 1`,
		`fabric_requests_ran_total{channel="echo"} 1`, `fabric_channel_weight{channel="work"} 1`, `go_goroutines `,
	} {
		if !strings.Contains(metrics, "\n"+line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	srv.Kill()
	fabrictest.Eventually(t, soon, "not ready, but healthy, without its server", func() bool {
		ready, _ := get(t, n.HTTP+"/readyz")
		health, _ := get(t, n.HTTP+"/healthz")
		return ready == 503 && health == 200
	})
	if _, body := get(t, n.HTTP+"/readyz"); !strings.Contains(body, `"reason":"connection lost"`) {
		t.Errorf("/readyz does not say why: %s", body)
	}
	if line := n.WaitOutput(t, "connection to NATS lost"); !strings.Contains(line, "WARN") || !strings.Contains(line, srv.URL()) {
		t.Errorf("the line %q does not say which", line)
	}
	srv.Restart(t)
	fabrictest.Eventually(t, soon, "ready again", func() bool {
		ready, _ := get(t, n.HTTP+"/readyz")
		return ready == 200
	})
	n.WaitOutput(t, "connected to NATS again")
}

func TestReferenceChannels(t *testing.T) {
	t.Parallel()
	n := startNode(t, program(t), "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir())
	nc := fabrictest.Connect(t, n.Server)
	if m := ask(t, nc, "fab.shop.ch.echo", "\x00\xff"); string(m.Data) != "\x00\xff" || m.Header.Get("Fabric-Served-By") != "n1" {
		t.Errorf("echo: %q %v", m.Data, m.Header)
	}
	start := time.Now()
	m := ask(t, nc, "fab.shop.ch.work", `{"sleep_ms":50,"payload":{"a":1}}`)
	if string(m.Data) != `{"a":1}` || m.Header.Get("Fabric-Served-By") != "n1" || time.Since(start) < 50*time.Millisecond {
		t.Errorf("work: %q %v after %v", m.Data, m.Header, time.Since(start))
	}
	m = ask(t, nc, "fab.shop.ch.work", "no json")
	if m.Header.Get("Fabric-Kind") != "InvalidOperation" || m.Header.Get("Fabric-Acceptance") != "Accepted" || m.Header.Get("Nats-Service-Error-Code") != "409" {
		t.Errorf("work with a bad payload: %v", m.Header)
	}
}

// The first signal lets accepted work end; nothing of the node stays behind.
func TestRunStopsInOrder(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			bin, srv := program(t), fabrictest.StartServer(t)
			if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
				t.Fatal(r.stderr)
			}
			n := startNode(t, bin, "--mesh", "shop", "--rid", "n1", "--server", srv.URL())
			if r := run(t, bin, "", "create", "--mesh", "shop", "--server", srv.URL(), "--actor", "alice", "--type", "ledger"); r.code != 0 {
				t.Fatal(r.stderr)
			}
			answered := beginWork(t, n, 5000)
			n.Signal(t, sig)
			if code := n.Wait(t).ExitCode(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			if m := <-answered; m == nil || m.Header.Get("Fabric-Served-By") != "n1" {
				t.Error("the accepted request was not answered")
			}
			if !strings.Contains(n.Stdout(), `{"event":"stopped","rid":"n1"}`) {
				t.Errorf("it did not say that it stopped: %s", n.Stdout())
			}
			if left := fmt.Sprintf("1 object stays with n1/%d, Unavailable until released", n.Lifecycle); !strings.Contains(n.Output(), left) {
				t.Errorf("it did not say %q: %s", left, n.Output())
			}
			if r := run(t, bin, "", "nodes", "--mesh", "shop", "--server", srv.URL(), "--json"); !strings.Contains(r.stdout, `"nodes":[]`) && !strings.Contains(r.stdout, `"nodes":null`) {
				t.Errorf("the node is still listed: %s", r.stdout)
			}
		})
	}
}

// beginWork sends a work request and returns once a handler runs it.
func beginWork(t *testing.T, n *node, sleepMS int) <-chan *nats.Msg {
	t.Helper()
	nc := fabrictest.Connect(t, n.Server)
	answered := make(chan *nats.Msg, 1)
	go func() {
		m, _ := nc.Request("fab.shop.ch.work", fmt.Appendf(nil, `{"sleep_ms":%d,"payload":1}`, sleepMS), soon)
		answered <- m
	}()
	fabrictest.Eventually(t, soon, "the request runs", func() bool {
		_, metrics := get(t, n.HTTP+"/metrics")
		return strings.Contains(metrics, "\nfabric_requests_running{channel=\"work\"} 1\n")
	})
	return answered
}

func TestRunSecondSignal(t *testing.T) {
	t.Parallel()
	n := startNode(t, program(t), "--mesh", "shop", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--stop-timeout", "5m")
	answered := beginWork(t, n, 60_000) // it and the turn outlast the test
	c := commander{t, program(t), []string{"--mesh", "shop", "--server", n.Server}}
	c.do(0, nil, "create", "--actor", "alice", "--type", "ledger")
	c.do(0, nil, "call", "--send", "--actor", "alice", `{"op":"sleep","ms":60000}`)
	c.do(0, nil, "call", "--send", "--actor", "alice", `{"op":"append"}`)
	fabrictest.Eventually(t, soon, "the turn runs", func() bool {
		_, metrics := get(t, n.HTTP+"/metrics")
		return strings.Contains(metrics, "\nfabric_objects_turns_running{class=\"actor\",type=\"ledger\"} 1\n")
	})
	n.Signal(t, os.Interrupt)
	n.WaitOutput(t, "a second signal ends the process at once")
	const says = "ended at once: requests cut off: 1, turns of objects: 1, with 1 message waiting; the lease of "
	fabrictest.Eventually(t, soon, "a second signal, later than an echo of the first, ends it", func() bool {
		n.Signal(t, os.Interrupt)
		return strings.Contains(n.Output(), says)
	})
	if code := n.Wait(t).ExitCode(); code != 130 || !strings.Contains(n.Output(), fmt.Sprintf("1 object stays with %s/%d", n.RID, n.Lifecycle)) {
		t.Errorf("exit code %d, want 130; it wrote:\n%s", code, n.Output())
	}
	go func() { <-answered }()
}

// timeout(1) signals its child and the child's group: two signals at once are one.
func TestRunEchoedSignal(t *testing.T) {
	t.Parallel()
	n := startNode(t, program(t), "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir())
	n.Signal(t, syscall.SIGTERM)
	n.Signal(t, syscall.SIGINT)
	if code := n.Wait(t).ExitCode(); code != 0 || !strings.Contains(n.Stdout(), `{"event":"stopped","rid":"n1"}`) {
		t.Errorf("exit code %d, want 0; it wrote:\n%s", code, n.Output())
	}
}

// A stop that cuts accepted work off says so, and is no success.
func TestRunStopCutsOff(t *testing.T) {
	t.Parallel()
	n := startNode(t, program(t), "--mesh", "shop", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--stop-timeout", "1s")
	answered := beginWork(t, n, 20_000)
	n.Signal(t, os.Interrupt)
	if code := n.Wait(t).ExitCode(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	for _, say := range []string{`requests that were accepted are cut off`, `channel "work": 1 running, 0 waiting`, "shutdown, not in order"} {
		if !strings.Contains(n.Output(), say) {
			t.Errorf("it did not say %q:\n%s", say, n.Output())
		}
	}
	if m := <-answered; m == nil || m.Header.Get("Fabric-Acceptance") != "Accepted" {
		t.Errorf("the caller was not told: %v", m)
	}
}

// The bound of a call covers connecting and opening, also when nobody answers there.
func TestCallIsBounded(t *testing.T) {
	t.Parallel()
	bin, srv := program(t), fabrictest.StartServer(t)
	if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
		t.Fatal(r.stderr)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	for _, c := range []struct {
		name, says string
		drop       string
	}{
		{"server", "--timeout is 5s, connecting included", ""},
		{"JetStream", "JetStream has no leader at the moment", "$JS.API.INFO"},
		{"writes", "the store does not take writes (stream KV_FABRIC_shop_NODES): context deadline exceeded", "$KV.FABRIC_shop_NODES.>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := "nats://" + mute.Addr().String()
			if c.drop != "" {
				p := fabrictest.NewProxy(t, srv.URL())
				p.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: c.drop, Times: -1, Action: fabrictest.Drop})
				url = p.URL()
			}
			start := time.Now()
			r := run(t, bin, "", "call", "--mesh", "shop", "--server", url, "--timeout", "5s", "--connect-timeout", "1m", "echo", "x")
			if r.code != 3 || !strings.Contains(r.stderr, c.says) {
				t.Errorf("exit code %d, want 3 and %q: %s", r.code, c.says, r.stderr)
			}
			if took := time.Since(start); took > 20*time.Second { // each wait of its own is 30 s or more
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A process that loses its RID to another one ends, and says so by its code.
func TestRunSuperseded(t *testing.T) {
	t.Parallel()
	bin, srv := program(t), fabrictest.StartServer(t)
	if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
		t.Fatal(r.stderr)
	}
	args := []string{"--mesh", "shop", "--rid", "n1", "--server", srv.URL(), "--lease-ttl", "10s", "--lease-renew", "1s", "--lease-margin", "1s"}
	first := startNode(t, bin, args...)
	first.Freeze(t)
	second := startNode(t, bin, args...)
	if second.Lifecycle <= first.Lifecycle {
		t.Errorf("lifecycle %d after %d", second.Lifecycle, first.Lifecycle)
	}
	if !strings.Contains(second.Output(), "waiting for its lease to expire") {
		t.Errorf("it did not say that it waits:\n%s", second.Output())
	}
	first.Thaw(t)
	if code := first.Wait(t).ExitCode(); code != 9 {
		t.Errorf("exit code %d, want 9", code)
	}
	if r := run(t, bin, "", "call", "--mesh", "shop", "--server", srv.URL(), "--to", "n1", "echo", "x"); r.code != 0 || r.stdout != "x" {
		t.Errorf("the second one does not serve: %d %s %s", r.code, r.stdout, r.stderr)
	}
}

func TestForgetAndNodes(t *testing.T) {
	t.Parallel()
	bin, srv := program(t), fabrictest.StartServer(t)
	common := []string{"--mesh", "shop", "--server", srv.URL()}
	do := func(command string, more ...string) ran {
		return run(t, bin, "", append(append([]string{command}, common...), more...)...)
	}
	if r := do("check", "--json"); r.code != 4 || !strings.Contains(r.stdout, `"missing":true`) {
		t.Errorf("check before init: %d %s", r.code, r.stdout)
	}
	for range 2 { // init is safe to repeat
		if r := do("init"); r.code != 0 {
			t.Fatalf("init: %d %s", r.code, r.stderr)
		}
	}
	if r := do("check"); r.code != 0 {
		t.Errorf("check after init: %d %s", r.code, r.stdout)
	}
	n := startNode(t, bin, append(common, "--rid", "n1", "--wave", "blue", "--weight", "3", "--app-version", "1.2.3",
		"--lease-ttl", "4s", "--lease-renew", "500ms", "--lease-margin", "1s")...)
	var listed struct {
		OK    bool
		Nodes []struct {
			RID        string
			Alive      bool
			Descriptor struct {
				Wave       string
				AppVersion string `json:"app_version"`
				Channels   []struct{ Weight int }
			}
		}
	}
	r := do("nodes", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || len(listed.Nodes) != 1 {
		t.Fatalf("nodes: %v: %s", err, r.stdout)
	}
	if l := listed.Nodes[0]; l.RID != "n1" || !l.Alive || l.Descriptor.Wave != "blue" || l.Descriptor.AppVersion != "1.2.3" ||
		len(l.Descriptor.Channels) != 2 || l.Descriptor.Channels[0].Weight != 3 {
		t.Errorf("nodes: %s", r.stdout)
	}
	n.Kill()
	fabrictest.Eventually(t, soon, "the dead node can be forgotten", func() bool { return do("forget", "n1").code == 0 })
	if r := do("nodes"); r.code != 0 || strings.TrimSpace(r.stdout) != "no nodes" {
		t.Errorf("nodes afterwards: %d %q", r.code, r.stdout)
	}
}

// Three processes are a NATS cluster of their own and outlive one of them.
func TestRunCluster(t *testing.T) {
	t.Parallel()
	bin := program(t)
	names := []string{"n1", "n2", "n3"}
	ports := map[string]string{}
	for i, addr := range freeAddresses(t, len(names)) {
		ports[names[i]] = addr
	}
	procs := make([]*node, len(names))
	for i, name := range names {
		var routes []string
		for _, other := range names {
			if other != name {
				routes = append(routes, "nats://"+ports[other])
			}
		}
		procs[i] = &node{Process: fabrictest.StartProcess(t, command(bin, "run", "--json", "--mesh", "shop", "--rid", name,
			"--embedded", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), name),
			"--cluster-listen", ports[name], "--routes", strings.Join(routes, ",")))}
	}
	for _, p := range procs {
		p.awaitServing(t)
	}
	last := procs[2].Server
	if r := run(t, bin, "", "check", "--mesh", "shop", "--server", last, "--json"); r.code != 0 || strings.Count(r.stdout, `"replicas":3`) < 2 {
		t.Errorf("check: %d %s %s", r.code, r.stdout, r.stderr)
	}
	served := map[string]bool{}
	fabrictest.Eventually(t, soon, "every node serves", func() bool {
		r := run(t, bin, "", "call", "--mesh", "shop", "--server", last, "--json", "echo", "x")
		var reply struct{ Header map[string][]string }
		if err := json.Unmarshal([]byte(r.stdout), &reply); err == nil && r.code == 0 {
			served[reply.Header["Fabric-Served-By"][0]] = true
		}
		return len(served) == 3
	})
	procs[0].Kill()
	fabrictest.Eventually(t, soon, "calls and lists without n1", func() bool {
		call := run(t, bin, "", "call", "--mesh", "shop", "--server", last, "echo", "x")
		list := run(t, bin, "", "nodes", "--mesh", "shop", "--server", last)
		return call.code == 0 && call.stdout == "x" && list.code == 0
	})
}

// The ways to authenticate that a flag, the environment and a context of the nats CLI give reach the server.
func TestCredentials(t *testing.T) {
	t.Parallel()
	bin := program(t)
	user := fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { user: app, password: right }`))
	token := fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { token: secret }`))
	home := t.TempDir()
	contexts := filepath.Join(home, ".config", "nats", "context")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"url":%q,"user":"app","password":"right"}`, user.URL())
	if err := os.WriteFile(filepath.Join(contexts, "shop.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		env  []string
	}{
		{"user and password", []string{"--server", user.URL(), "--user", "app", "--password", "right"}, nil},
		{"password from the environment", []string{"--server", user.URL(), "--user", "app"}, []string{"FABRIC_PASSWORD=right"}},
		{"token", []string{"--server", token.URL(), "--token", "secret"}, nil},
		{"context of the nats CLI", []string{"--context", "shop"}, []string{"HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(bin, append([]string{"init", "--mesh", "shop"}, c.args...)...)
			cmd.Env = append(cmd.Env, c.env...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// A right that the user lacks is told once, however often the request behind it is sent again.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	bin := program(t)
	srv := fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { users: [
		{ user: all, password: p }
		{ user: reader, password: p, permissions: { publish: { deny: "$KV.>" } } }
	] }`))
	to := []string{"--mesh", "shop", "--server", srv.URL(), "--password", "p"}
	if r := run(t, bin, "", append([]string{"init", "--user", "all"}, to...)...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	r := run(t, bin, "", append([]string{"workers", "--user", "reader"}, to...)...)
	if r.code != 6 || strings.Count(r.stderr, "the NATS user lacks a right") != 1 || strings.Count(r.stderr, "Violation") != 1 || !strings.Contains(r.stderr, "$KV.FABRIC_shop_SUPERVISE.probe.") {
		t.Errorf("exit code %d; it wrote:\n%s", r.code, r.stderr)
	}
}
