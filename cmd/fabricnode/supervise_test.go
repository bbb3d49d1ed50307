package main_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"natsfabric/fabrictest"
)

func TestDemoOfSupervision(t *testing.T) {
	t.Parallel()
	r := run(t, program(t), "", "demo", "--supervise", "--json", "--scale", "0.02")
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	var res struct {
		OK     bool `json:"ok"`
		Starts int  `json:"starts"`
		Steps  []struct {
			Name     string
			Measured float64 `json:"measured_s"`
		}
		Commands map[string]int
	}
	if err := json.Unmarshal([]byte(r.stdout), &res); err != nil {
		t.Fatal(err)
	}
	if !res.OK || res.Starts != 2 || len(res.Commands) != 2 || len(res.Steps) != 5 {
		t.Errorf("%s", r.stdout)
	}
	for i := 1; i < len(res.Steps); i++ {
		if res.Steps[i].Measured < res.Steps[i-1].Measured {
			t.Errorf("step %s comes before %s", res.Steps[i].Name, res.Steps[i-1].Name)
		}
	}
	if !strings.Contains(r.stderr, "frozen with SIGSTOP") || !strings.Contains(r.stderr, "has recovered") {
		t.Errorf("it told:\n%s", r.stderr)
	}
}

// A worker that reports over standard input hangs; the monitor restarts it with a command, and every step is there to be read.
func TestSuperviseCommands(t *testing.T) {
	t.Parallel()
	bin := program(t)
	flags := []string{"--mesh", "m", "--server", fabrictest.StartServer(t).URL()}
	with := func(args ...string) []string { return append(args, flags...) }
	if r := run(t, bin, "", with("init")...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	monitor := fabrictest.StartProcess(t, command(bin, with("supervise", "run", "--json", "--scale", "0.007", "--breaker", "1", "--restart", "*=/bin/echo restarted {worker}",
		"--logs", "*=/bin/echo last words of {worker}", "--http", "127.0.0.1:0")...))
	line := monitor.WaitOutput(t, `"event":"watching"`)
	var watching struct{ Monitor, HTTP string }
	if err := json.Unmarshal([]byte(line), &watching); err != nil || watching.Monitor == "" {
		t.Fatalf("%s: %v", line, err)
	}
	if r := run(t, bin, "processing job-7 1\nprocessing job-7 2\n", with("supervise", "beat", "gpu/1", "--every", "100ms")...); r.code != 0 || !strings.Contains(r.stderr, "grows old") {
		t.Fatalf("%d %s", r.code, r.stderr)
	}
	monitor.WaitOutput(t, "gpu/1 was restarted")

	var workers struct {
		Workers []struct {
			Worker, State, Job, Verdict string
			Restarts                    int
		}
	}
	ask := func(v any, args ...string) {
		t.Helper()
		r := run(t, bin, "", with(append([]string{"--json"}, args...)...)...)
		if r.code != 0 {
			t.Fatalf("%v: %d %s", args, r.code, r.stderr)
		}
		if err := json.Unmarshal([]byte(r.stdout), v); err != nil {
			t.Fatalf("%v: %v: %s", args, err, r.stdout)
		}
	}
	ask(&workers, "workers", "--scale", "0.007")
	if w := workers.Workers; len(w) != 1 || w[0].Worker != "gpu/1" || w[0].Job != "job-7" || w[0].Verdict != "hung" || w[0].Restarts != 1 {
		t.Errorf("workers: %+v", w)
	}
	var incidents struct {
		Incidents []struct{ State, Verdict string }
		Events    []struct{ Kind, Reason string }
		Logs      struct{ Text string }
	}
	ask(&incidents, "incidents", "gpu/1", "--logs")
	kinds := ""
	for _, e := range incidents.Events {
		kinds += e.Kind + " "
	}
	for _, want := range []string{"confirmed", "armed", "locked", "collected", "intended", "done"} {
		if !strings.Contains(kinds, want+" ") {
			t.Errorf("no step %s: %s", want, kinds)
		}
	}
	if incidents.Logs.Text != "last words of gpu/1\n" || len(incidents.Incidents) != 1 || incidents.Incidents[0].Verdict != "hung" {
		t.Errorf("incidents: %+v", incidents)
	}
	resp, err := http.Get(watching.HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(page), `supervise_commands_total{outcome="done"} 1`) {
		t.Errorf("%v\n%s", err, page)
	}
	http.DefaultClient.CloseIdleConnections()

	var control struct{ Now, Was struct{ Mode, Reason string } }
	ask(&control, "supervise", "pause", "--reason", "a trial", "--for", "1h")
	if control.Now.Mode != "paused" || control.Now.Reason != "a trial" {
		t.Errorf("pause: %+v", control)
	}
	ask(&control, "supervise", "resume")
	if control.Was.Mode != "paused" {
		t.Errorf("resume: %+v", control)
	}
	ask(&struct{}{}, "supervise", "mark", "gpu/1", "--for", "1m", "--action", "upgrade")
	if r := run(t, bin, "", with("workers")...); !strings.Contains(r.stdout, "upgrade until") {
		t.Errorf("workers: %s", r.stdout)
	}
	ask(&struct{}{}, "supervise", "unmark", "gpu/1")
	if r := run(t, bin, "stopped\n", with("supervise", "beat", "gpu/1")...); r.code != 0 {
		t.Errorf("%d %s", r.code, r.stderr)
	}
	if r := run(t, bin, "", with("workers")...); !strings.Contains(r.stdout, "stopped") {
		t.Errorf("workers: %s", r.stdout)
	}
	if r := run(t, bin, "", with("incidents", "nobody")...); r.code != 5 {
		t.Errorf("incidents of nobody: %d %s", r.code, r.stderr)
	}
}

// A worker that runs as a child of fabricnode is restarted there, at a monitor's order.
func TestSuperviseChild(t *testing.T) {
	t.Parallel()
	bin := program(t)
	flags := []string{"--mesh", "m", "--server", fabrictest.StartServer(t).URL()}
	with := func(args ...string) []string { return append(flags[:len(flags):len(flags)], args...) }
	if r := run(t, bin, "", append([]string{"init"}, with()...)...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	child := fabrictest.StartProcess(t, command(bin, append([]string{"--json", "supervise", "child"}, with("w/1", "--", "/bin/sh", "-c", "echo process $$ begins; exec sleep 600")...)...))
	child.WaitOutput(t, `"subject":"fab.m.admin.restart.w=2F1"`)
	child.WaitOutput(t, "begins")
	monitor := fabrictest.StartProcess(t, command(bin, append([]string{"supervise", "run", "--scale", "0.007", "--restart-request", "*=fab.m.admin.restart.{worker}"}, with()...)...))
	monitor.WaitOutput(t, "watches")
	if r := run(t, bin, "processing job-7\n", append([]string{"supervise", "beat"}, with("w/1")...)...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	monitor.WaitOutput(t, "w/1 was restarted")
	child.WaitOutput(t, `"outcome": "done"`)
	fabrictest.Eventually(t, soon, "a second process", func() bool { return strings.Count(child.Output(), "begins") >= 2 })
}
