package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
	"natsfabric/session/client"
)

// twoNodes starts n1 and n2 on a server of their own; more is for both.
func twoNodes(t *testing.T, more ...string) (c commander, n1, n2 *node) {
	t.Helper()
	bin, srv := program(t), fabrictest.StartServer(t)
	c = commander{t, bin, []string{"--mesh", "shop", "--server", srv.URL()}}
	c.do(0, nil, "init")
	more = append(more, c.mesh...)
	n1, n2 = startNode(t, bin, append(more, "--rid", "n1")...), startNode(t, bin, append(more, "--rid", "n2")...)
	fabrictest.Eventually(t, soon, "both nodes know each other", func() bool {
		for _, n := range []*node{n1, n2} {
			if _, metrics := get(t, n.HTTP+"/metrics"); !strings.Contains(metrics, "\nfabric_members{state=\"Serving\"} 2\n") {
				return false
			}
		}
		return true
	})
	return c, n1, n2
}

// One object moves there and back with what it holds: entries, timers, its incarnation.
func TestRelocateCommand(t *testing.T) {
	t.Parallel()
	c, n1, n2 := twoNodes(t)
	var made struct {
		Ref        string
		Generation uint64
	}
	c.do(0, &made, "create", "--actor", "alice", "--type", "ledger", "--at", "n1")
	c.ledger("--actor", "alice", `{"op":"append","client":"c1","seq":1,"data":"x"}`)
	// It is due when the move is over, also on a machine that takes its time to start a program.
	c.ledger("--actor", "alice", `{"op":"timer","after_ms":20000,"client":"c1","seq":2,"data":"due"}`)

	var moved struct {
		OK    bool
		Ref   string
		Done  bool
		Moved struct {
			From, To        struct{ RID string }
			Generation      uint64
			OwnerGeneration uint64 `json:"owner_generation"`
			Objects, Bytes  int
		}
	}
	c.do(0, &moved, "relocate", "actor/alice", "--to", "n2")
	if m := moved.Moved; !moved.OK || !moved.Done || moved.Ref != made.Ref || m.From.RID != "n1" || m.To.RID != "n2" || m.Generation != made.Generation || m.OwnerGeneration != 2 || m.Objects != 1 || m.Bytes == 0 {
		t.Errorf("relocate: %+v", moved)
	}
	fabrictest.Eventually(t, 2*soon, "the timer fires at n2", func() bool {
		a := c.ledger("--actor", "alice", `{"op":"read"}`)
		return a.Len == 2 && a.Entries[0].Owner == "n1" && a.Entries[1].Owner == "n2" && a.Entries[1].OwnerGeneration == 2 && a.Entries[1].Data == "due"
	})
	if a := c.ledger("--actor", "alice", `{"op":"append","client":"c1","seq":3}`); a.Owner != "n2" || a.Generation != made.Generation || a.OwnerGeneration != 2 || a.Len != 3 {
		t.Errorf("after the move: %+v", a)
	}
	for n, line := range map[*node]string{n1: `fabric_relocation_departed_total{result="moved"} 1`, n2: `fabric_relocation_arrived_total{result="moved"} 1`} {
		if _, metrics := get(t, n.HTTP+"/metrics"); !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("/metrics of %s has no line %s", n.RID, line)
		}
	}
	r := run(t, c.bin, "", append([]string{"relocate", made.Ref}, c.mesh...)...) // the other one fits best
	if want := fmt.Sprintf("%s moved from n2 to n1, owner generation 3\n", made.Ref); r.code != 0 || !strings.HasPrefix(r.stdout, want) || !strings.Contains(r.stdout, "its senders felt ") {
		t.Errorf("exit code %d, it wrote %s%s", r.code, r.stdout, r.stderr)
	}

	for _, bad := range []struct {
		code int
		says string
		args []string
	}{
		{5, "NotFound (NotAccepted", []string{"actor/nobody"}},
		{5, "NotFound (NotAccepted", []string{"actor/alice@99999"}},
		{5, "TargetUnavailable", []string{"actor/alice", "--to", "n7"}},
		{2, "neither Actor nor Spot", []string{"alice"}},
		{2, "no object is named", nil},
		{2, "--to", []string{"actor/alice", "--to", "n 7"}},
	} {
		if r := c.do(bad.code, nil, append([]string{"relocate"}, bad.args...)...); !strings.Contains(r.stderr, bad.says) {
			t.Errorf("relocate %q does not say %q: %s", bad.args, bad.says, r.stderr)
		}
	}
}

type drained struct {
	OK, Done bool
	State    string
	Result   *struct {
		Outcome, Reason string
		Moved, Objects  int
		KeptCount       int `json:"kept_count"`
		Kept            []struct{ Type, Reason, Detail string }
	}
}

// A whole node is drained; the last one has nowhere to go, and says what stays and why.
func TestDrainCommand(t *testing.T) {
	t.Parallel()
	c, n1, n2 := twoNodes(t)
	const many = 20
	for i := range many {
		c.do(0, nil, "create", "--actor", fmt.Sprintf("a%d", i), "--type", "ledger", "--at", "n1")
	}
	c.ledger("--actor", "a0", `{"op":"append","client":"c1","seq":1,"data":"x"}`)

	for _, bad := range []struct {
		code int
		says string
		args []string
	}{
		{5, `no node "n7"`, []string{"n7"}},
		{2, "--version is missing", []string{"n1", "--mode", "rolling_update"}},
		{2, "--version is for", []string{"n1", "--version", "2.0.0"}},
		{2, "RID", []string{"n 7"}},
		{6, `Version "0.0.0" is not allowed`, []string{"n1", "--mode", "rolling_update", "--version", "0.0.0"}},
	} {
		if r := c.do(bad.code, nil, append([]string{"drain"}, bad.args...)...); !strings.Contains(r.stderr, bad.says) {
			t.Errorf("drain %q does not say %q: %s", bad.args, bad.says, r.stderr)
		}
	}

	var d drained
	if c.do(11, &d, "drain", "n1", "--watch", "--mode", "rolling_update", "--version", "9.0.0"); d.OK || !d.Done || d.Result.Outcome != "Blocked" || d.Result.Reason != "TargetUnavailable" || d.Result.KeptCount != many || len(d.Result.Kept) != many {
		t.Errorf("a rolling update to a version that nobody has: %+v", d)
	}
	c.listed(many, "--owner", "n1")

	r := run(t, c.bin, "", append([]string{"drain", "n1", "--watch"}, c.mesh...)...)
	if r.code != 0 || !strings.HasPrefix(r.stdout, fmt.Sprintf("n1: Relocated: %d moved (%d objects), 0 stayed\n", many, many)) {
		t.Fatalf("exit code %d, it wrote %s%s", r.code, r.stdout, r.stderr)
	}
	c.listed(many, "--owner", "n2")
	if a := c.ledger("--actor", "a0", `{"op":"append"}`); a.Owner != "n2" || a.Len != 2 {
		t.Errorf("after the drain: %+v", a)
	}
	if code, body := get(t, n1.HTTP+"/readyz"); code != 503 || !strings.Contains(body, `"state":"Relocated"`) {
		t.Errorf("/readyz of n1: %d %s", code, body)
	}
	if _, metrics := get(t, n1.HTTP+"/metrics"); !strings.Contains(metrics, "\nfabric_host_state{state=\"Relocated\"} 1\n") || !strings.Contains(metrics, fmt.Sprintf("\nfabric_relocation_drain_units{what=\"moved\"} %d\n", many)) {
		t.Errorf("/metrics of n1 does not tell of the drain")
	}

	r = run(t, c.bin, "", append([]string{"drain", "n2", "--watch"}, c.mesh...)...)
	if r.code != 11 || !strings.HasPrefix(r.stdout, fmt.Sprintf("n2: Blocked (TargetUnavailable): 0 moved (0 objects), %d stayed\n", many)) ||
		strings.Count(r.stdout, "\nactor/a") != many || !strings.Contains(r.stderr, "Blocked by TargetUnavailable") {
		t.Errorf("exit code %d, it wrote %s%s", r.code, r.stdout, r.stderr)
	}
	if code, _ := get(t, n2.HTTP+"/readyz"); code != 200 {
		t.Errorf("a node whose drain was blocked is not ready: %d", code)
	}
}

// tokenFile lets alice in.
func tokenFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func dial(ctx context.Context, url, token string, push func(*client.Binding, client.Push)) (*client.Client, error) {
	return client.Dial(ctx, client.Config{URLs: []string{url}, Name: "test", OnPush: push, Credentials: func(context.Context) ([]byte, error) { return []byte(token), nil }})
}

// A client with a token is bound to a ledger, through a WebSocket, while that moves; one without a token is not let in.
func TestRunSessions(t *testing.T) {
	t.Parallel()
	c, n1, _ := twoNodes(t, "--sessions", "127.0.0.1:0", "--session-tokens", tokenFile(t, "# who may come in\n\ncorrect-horse alice in chains\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	if code, body := get(t, strings.Replace(strings.TrimSuffix(n1.Sessions, "session"), "ws://", "http://", 1)+"natsfabric.js"); code != 200 || !strings.Contains(body, "export function connect") {
		t.Errorf("the JavaScript client: %d %.60s", code, body)
	}
	if _, err := dial(ctx, n1.Sessions, "wrong", nil); !errors.Is(err, outcome.Rejected) || !strings.Contains(err.Error(), "the token is not one of those") {
		t.Errorf("a wrong token: %v", err)
	}
	c.do(0, nil, "create", "--actor", "a", "--type", "ledger", "--at", "n1")
	if r := c.do(5, nil, "call", "--actor", "a", `{"op":"push","data":"x"}`); !strings.Contains(r.stderr, "no session is bound") {
		t.Errorf("push without a session: %s", r.stderr)
	}
	pushes := make(chan string, 10)
	cl, err := dial(ctx, n1.Sessions, "correct-horse", func(_ *client.Binding, p client.Push) { pushes <- string(p.Data) })
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	b, err := cl.Bind(ctx, "actor/a")
	if err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{"n2", "n1", "n2"} {
		c.do(0, nil, "relocate", "actor/a", "--to", to)
		reply, err := b.Request(ctx, []byte(`{"op":"append"}`))
		var a ledgerAnswer
		if err != nil || json.Unmarshal(reply, &a) != nil || a.Owner != to || a.Len != i+1 {
			t.Errorf("after move %d: %s, %v", i, reply, err)
		}
		c.ledger("--actor", "a", `{"op":"push","data":"from `+to+`"}`)
		select {
		case got := <-pushes:
			if got != "from "+to {
				t.Errorf("pushed %q", got)
			}
		case <-ctx.Done():
			t.Fatal("no push came")
		}
	}
	var list struct {
		OK       bool
		Sessions []struct {
			Subject, Transport string
			Bindings           []struct{ Actor, RID string }
		}
	}
	if c.do(0, &list, "sessions", "n1"); !list.OK || len(list.Sessions) != 1 || list.Sessions[0].Subject != "alice in chains" || list.Sessions[0].Transport != "websocket" || len(list.Sessions[0].Bindings) != 1 || list.Sessions[0].Bindings[0].RID != "n2" {
		t.Errorf("sessions: %+v", list)
	}
	r := run(t, c.bin, "", append([]string{"sessions", "n1"}, c.mesh...)...)
	if r.code != 0 || !strings.Contains(r.stdout, "n1 owns 1 session;") || !strings.Contains(r.stdout, `"alice in chains"`) {
		t.Errorf("exit code %d, it wrote %s%s", r.code, r.stdout, r.stderr)
	}
	c.do(5, nil, "sessions", "n7")
	if _, metrics := get(t, n1.HTTP+"/metrics"); !strings.Contains(metrics, "\nfabric_sessions 1\n") || !strings.Contains(metrics, "\nfabric_sessions_refused_total 1\n") {
		t.Error("/metrics of n1 does not tell of the session")
	}
	if strings.Contains(n1.Output(), "SESSIONS ARE OPEN") {
		t.Error("a node with tokens says that it is open")
	}
}

// A node that lets everybody in says so; one that cannot read its tokens does not start.
func TestRunSessionsOpen(t *testing.T) {
	t.Parallel()
	bin := program(t)
	embedded := []string{"--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir()}
	for _, bad := range []struct{ args, says string }{
		{"--session-tokens=/nonexistent/tokens", "no such file"},
		{"--session-tokens=" + tokenFile(t, "# nobody\n"), "there is no token in it"},
		{"--session-tokens=" + tokenFile(t, "correct-horse\n"), "line 1: no name follows"},
		{"--session-tokens=" + tokenFile(t, "short alice\n"), "line 1: the token has 5 bytes"},
		{"--sessions=nowhere", `--sessions: address "nowhere" is not allowed`},
		{"--origins=[", `--origins "[" is not allowed`},
	} {
		r := run(t, bin, "", append([]string{"run", bad.args}, embedded...)...)
		if r.code != 2 || !strings.Contains(r.stderr, bad.says) {
			t.Errorf("%s: exit code %d, want 2 and %q; it wrote %s", bad.args, r.code, bad.says, r.stderr)
		}
	}
	n := startNode(t, bin, append(embedded, "--sessions", "127.0.0.1:0")...)
	n.WaitOutput(t, "SESSIONS ARE OPEN")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	cl, err := dial(ctx, n.Sessions, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	cl.Close()
}

// Under systemd the node says when it is ready and when it stops, and feeds the unit's watchdog; it reports as a worker.
func TestRunUnderSystemd(t *testing.T) {
	t.Parallel()
	bin := program(t)
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	// Read all the time, as systemd does: its queue has room for ten messages, and a node waits a second for room at most.
	heard, read := make(chan string, 10_000), make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 4096); ; {
			n, err := l.Read(buf)
			if err != nil {
				return // closed
			}
			heard <- string(buf[:n])
		}
	}()
	defer func() { l.Close(); <-read }()
	said := func(want string) {
		t.Helper()
		over := time.After(soon)
		for {
			select {
			case got := <-heard:
				if got == want {
					return
				}
			case <-over:
				t.Fatalf("it does not say %s", want)
			}
		}
	}
	cmd := command(bin, "run", "--json", "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--report", "--self-fence")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=600000")
	n := &node{Process: fabrictest.StartProcess(t, cmd)}
	n.awaitServing(t)
	said("READY=1")
	said("WATCHDOG=1")
	said("WATCHDOG=1")
	c := commander{t, bin, []string{"--mesh", "shop", "--server", n.Server}}
	fabrictest.Eventually(t, soon, "the node reports as a worker", func() bool {
		return strings.Contains(c.do(0, nil, "workers").stdout, `"n1"`)
	})
	n.Signal(t, syscall.SIGTERM)
	said("STOPPING=1")
	if code := n.Wait(t).ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
