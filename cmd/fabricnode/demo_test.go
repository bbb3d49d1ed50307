package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"natsfabric/examples/data"
	"natsfabric/fabrictest"
)

// demoResult is what a reader of the demo's last line relies on.
type demoResult struct {
	OK         bool `json:"ok"`
	Lines      int  `json:"lines"`
	Replied    int  `json:"replied"`
	Reselected *int `json:"reselected"`
	Failed     int  `json:"failed"`
	Unknown    int  `json:"unknown"`
	Doubled    *int `json:"doubled"`
	Malformed  int  `json:"malformed"`
	Nodes      map[string]struct {
		Replied, Ran int
		Fate         string
	} `json:"nodes"`
	Status  map[string]int `json:"status"`
	Objects struct {
		Clients, Sent, Replied, Failed, Unknown  int
		Doubled, Repeated, Released, Reactivated *int
		LostWithNode                             int `json:"lost_with_node"`
		UnansweredCounted                        int `json:"unanswered_counted"`
		Totals                                   struct {
			Requests int
			Bytes    int64
			Status   map[string]int
		}
		Nodes map[string]struct{ Spots, Counted int }
	} `json:"objects"`
	Proof []struct {
		Claim string
		Holds bool
	} `json:"proof"`
}

// shortLog is the beginning of the real log and its malformed line.
func shortLog(lines int) string {
	all := bytes.SplitAfter(data.AccessLog, []byte("\n"))
	return string(bytes.Join(append(all[:lines-1:lines-1], all[8898]), nil))
}

func TestDemo(t *testing.T) {
	t.Parallel()
	const lines = 600
	r := run(t, program(t), shortLog(lines), "demo", "--json", "--rate", "150", "--input", "-")
	if r.code != 0 {
		t.Fatalf("exit code %d; it wrote:\n%s", r.code, r.stderr)
	}
	out := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var got demoResult
	if err := json.Unmarshal([]byte(out[len(out)-1]), &got); err != nil {
		t.Fatalf("the last line is no JSON object: %v:\n%s", err, out[len(out)-1])
	}
	if !got.OK || got.Lines != lines || got.Replied+got.Failed+got.Unknown != lines || got.Malformed != 1 {
		t.Errorf("got %+v", got)
	}
	if got.Doubled == nil || *got.Doubled != 0 || got.Reselected == nil {
		t.Errorf("doubled and reselected must be there, doubled must be 0: %s", out[len(out)-1])
	}
	sum, status := 0, 0
	for _, n := range []string{"n1", "n2", "n3"} {
		if got.Nodes[n].Replied == 0 || got.Nodes[n].Ran < got.Nodes[n].Replied {
			t.Errorf("node %s: %+v", n, got.Nodes[n])
		}
		sum += got.Nodes[n].Replied
	}
	for _, n := range got.Status {
		status += n
	}
	if sum != got.Replied || len(got.Nodes) != 3 || status != got.Replied-got.Malformed {
		t.Errorf("the parts do not add up: by node %d, by status %d: %+v", sum, status, got)
	}
	got.checkObjects(t)
	if len(got.Proof) < 12 {
		t.Errorf("%d claims", len(got.Proof))
	}
	for _, p := range got.Proof {
		if !p.Holds {
			t.Errorf("does not hold: %s", p.Claim)
		}
	}
	for _, say := range []string{"leases are short", "froze n2", "killed n3", "thawed n2", "n2 serves again", "a call to its Spot now", "the release of its objects ", "released "} {
		if !strings.Contains(r.stderr, say) {
			t.Errorf("it did not say %q; it wrote:\n%s", say, r.stderr)
		}
	}
	noTrace(t, demoDir(t, r.stderr), true)
}

// checkObjects checks that the parts of the clients' Spots add up, and that there was something to see.
func (r demoResult) checkObjects(t *testing.T) {
	t.Helper()
	o := r.Objects
	if o.Sent != r.Replied-r.Malformed || o.Replied+o.Failed+o.Unknown != o.Sent || o.Clients == 0 {
		t.Errorf("objects: sent, replied, failed, unknown and the lines do not add up: %+v", o)
	}
	if o.Doubled == nil || *o.Doubled != 0 || o.Repeated == nil || o.Released == nil || *o.Released == 0 || o.Reactivated == nil || *o.Reactivated == 0 {
		t.Errorf("objects: doubled must be 0, and some must be released and made again: %+v", o)
	}
	counted, status := 0, 0
	for _, n := range []string{"n1", "n2", "n3"} {
		if o.Nodes[n].Spots == 0 || o.Nodes[n].Counted < o.Nodes[n].Spots {
			t.Errorf("objects: node %s: %+v", n, o.Nodes[n])
		}
		counted += o.Nodes[n].Counted
	}
	for _, n := range o.Totals.Status {
		status += n
	}
	if counted != o.Replied+o.UnansweredCounted || o.Totals.Requests+o.LostWithNode != counted || status != o.Totals.Requests || o.Totals.Bytes == 0 {
		t.Errorf("objects: %d counted, %d by status do not add up with %+v", counted, status, o)
	}
}

// A demo that is interrupted leaves neither processes nor files, whatever state its nodes are in.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	bin := program(t)
	for _, c := range []struct {
		name  string
		when  string // what the demo has said
		end   func(*testing.T, *fabrictest.Process)
		code  int // -1: killed
		files bool
	}{
		{"while it starts", "NATS server at", interrupt, 130, false},
		{"with a frozen node", "froze n2", interrupt, 130, false},
		{"twice at once", "froze n2", func(t *testing.T, p *fabrictest.Process) { interrupt(t, p); interrupt(t, p) }, 130, false},
		{"killed", "froze n2", func(_ *testing.T, p *fabrictest.Process) { p.Kill() }, -1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			input := filepath.Join(t.TempDir(), "access.log")
			if err := os.WriteFile(input, []byte(shortLog(100)), 0o644); err != nil {
				t.Fatal(err)
			}
			p := fabrictest.StartProcess(t, command(bin, "demo", "--json", "--input", input))
			p.WaitOutput(t, c.when)
			c.end(t, p)
			if code := p.Wait(t).ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			dir := demoDir(t, p.Output())
			noTrace(t, dir, !c.files)
			if c.files {
				os.RemoveAll(dir) // nobody promises to remove it then
			}
		})
	}
}

// A reader that has seen enough is like Ctrl-C.
func TestDemoNobodyReads(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(program(t), "demo")
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	r.Close()
	if werr := cmd.Wait(); err != nil || werr == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("it ended with %v, want exit code 130 (%v)", werr, err)
	}
	noTrace(t, demoDir(t, line), true)
}

func interrupt(t *testing.T, p *fabrictest.Process) { p.Signal(t, os.Interrupt) }

func demoDir(t *testing.T, output string) string {
	t.Helper()
	m := regexp.MustCompile(`data in (\S+) `).FindStringSubmatch(output)
	if m == nil {
		t.Fatalf("it does not say where its data is:\n%s", output)
	}
	return m[1]
}

// noTrace fails the test while a node of the demo with this directory lives, or, if files is set, while it is there.
func noTrace(t *testing.T, dir string, files bool) {
	t.Helper()
	fabrictest.Eventually(t, soon, "no node of the demo lives", func() bool {
		return len(processesOf(t, dir)) == 0
	})
	if _, err := os.Stat(dir); files && err == nil {
		t.Errorf("%s is still there", dir)
	}
}

// processesOf returns the processes that have dir among their arguments.
func processesOf(t *testing.T, dir string) (pids []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(names) == 0 {
		t.Fatalf("there is no /proc to look into: %v", err)
	}
	for _, name := range names {
		args, err := os.ReadFile(name)
		if err == nil && bytes.Contains(args, []byte(dir+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// The demo's nodes are for the demo only: without its pipe they say so.
func TestDemoNodeAlone(t *testing.T) {
	t.Parallel()
	r := run(t, program(t), "", "demo-node", "--mesh", "demo", "--rid", "n1", "--server", "nats://127.0.0.1:1", "--dir", t.TempDir())
	if want := "started by fabricnode demo only"; r.code == 0 || !strings.Contains(r.stderr, want) {
		t.Errorf("exit code %d, want another than 0; it wrote %q, want %q", r.code, r.stderr, want)
	}
}
