package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// atOnce is how many tests run at a time at least: they wait for processes and leases, and compute little themselves.
const atOnce = 4

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) { // nobody has set it
		if err := f.Value.Set(strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err)
		}
	}
	fabrictest.VerifyTestMain(m)
}

// ran is what one run of the program left.
type ran struct {
	stdout, stderr string
	code           int
}

// program builds fabricnode, without the race detector.
func program(t testing.TB) string { return fabrictest.BuildBinary(t, "natsfabric/cmd/fabricnode") }

// run runs the program to its end.
func run(t testing.TB, bin, stdin string, args ...string) ran {
	t.Helper()
	cmd := command(bin, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	return ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// command is the program with an environment that has no settings of the person who runs the test.
func command(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(bin, args...)
	cmd.Env = []string{"HOME=/nonexistent", "TMPDIR=" + os.TempDir()}
	return cmd
}

// node is a running `fabricnode run`.
type node struct {
	*fabrictest.Process
	RID       string   `json:"rid"`
	Lifecycle uint64   `json:"lifecycle"`
	Server    string   `json:"server"`
	HTTP      string   `json:"http"`
	Sessions  string   `json:"sessions"`
	Channels  []string `json:"channels"`
}

// startNode starts `fabricnode run --json` and waits until it serves.
func startNode(t testing.TB, bin string, args ...string) *node {
	t.Helper()
	n := &node{Process: fabrictest.StartProcess(t, command(bin, append([]string{"run", "--json"}, args...)...))}
	n.awaitServing(t)
	return n
}

func (n *node) awaitServing(t testing.TB) {
	t.Helper()
	line := n.WaitOutput(t, `"event":"serving"`)
	if err := json.Unmarshal([]byte(line), n); err != nil {
		t.Fatalf("the line %s is no JSON: %v", line, err)
	}
}

// freeAddresses returns n addresses of loopback that nobody listens on. They are outside the ranges from which the operating
// system and fabrictest take ports, so that nobody is given them meanwhile.
func freeAddresses(t testing.TB, n int) (out []string) {
	t.Helper()
	for range 1000 {
		if len(out) == n {
			return out
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(7_000+rand.IntN(3_000)))
		if slices.Contains(out, addr) {
			continue
		}
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			out = append(out, addr)
		}
	}
	t.Fatal("no free addresses")
	return nil
}

const soon = 30 * time.Second
