package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t *testing.T, args ...string) (root, error) {
	t.Helper()
	var r root
	_, err := newParser(&r, io.Discard, io.Discard).Parse(args)
	return r, err
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// A flag wins over the environment, the environment over the file, the file over the default.
func TestPrecedence(t *testing.T) {
	conf := file(t, "mesh: from-file\nqueue: 7\nweight: 5\nlease-ttl: 30s\nembedded: true\nroutes: [nats://a:1, nats://b:2]\nlog-level: debug\nchannel: not-a-flag\n")
	if _, err := parse(t, "run", "--config", conf); err == nil || !strings.Contains(err.Error(), `"channel"`) {
		t.Errorf("an argument's name is taken as a key: %v", err)
	}
	conf = file(t, "mesh: from-file\nqueue: 7\nweight: 5\nlease-ttl: 30s\nembedded: true\nroutes: [nats://a:1, nats://b:2]\nlog-level: debug\nset-replicas: true\n")
	t.Setenv("FABRIC_QUEUE", "8")
	t.Setenv("FABRIC_WEIGHT", "6")
	r, err := parse(t, "run", "--config", conf, "--weight", "9")
	if err != nil {
		t.Fatal(err)
	}
	c := r.Run
	if c.Weight != 9 || c.Queue != 8 || c.Mesh != "from-file" || c.LeaseTTL != 30*time.Second || c.Workers != 64 ||
		!c.Embedded || len(c.Routes) != 2 || c.Routes[1] != "nats://b:2" || r.LogLevel != "debug" {
		t.Errorf("got %+v, log level %q", c, r.LogLevel)
	}
	t.Setenv("FABRIC_CONFIG", conf)
	if r, err := parse(t, "run"); err != nil || r.Run.Mesh != "from-file" {
		t.Errorf("$FABRIC_CONFIG is not read: %q, %v", r.Run.Mesh, err)
	}
}

func TestBadFiles(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"unknown key": {"mesh: shop\nwieght: 2\n", `unknown key "wieght"`},
		"no mapping":  {"- a\n- b\n", "must be a YAML mapping"},
		"no YAML":     {"mesh: [\n", "configuration file"},
		"nested":      {"mesh: {name: shop}\n", "mesh: it must be a value or a list"},
		"empty value": {"mesh:\n", "mesh: it has no value"},
		"wrong type":  {"mesh: shop\nqueue: many\n", "queue"},
		"itself":      {"mesh: shop\nconfig: x\n", `unknown key "config"`},
		"too large":   {"mesh: " + strings.Repeat("x", maxConfigFile), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(t, "run", "--config", file(t, c.text)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
	if _, err := parse(t, "run", "--mesh", "shop", "--config", "/nonexistent/node.yaml"); err == nil {
		t.Error("a file that is not there is taken")
	}
}

func TestExitCodes(t *testing.T) {
	of := func(k outcome.Kind, a outcome.Acceptance) error { return outcome.New("request", k, a, "", "") }
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{&embedded.StartError{Subject: "dir"}, 2},
		{startError(of(outcome.Unavailable, outcome.NotAccepted)), 3},
		{startError(outcome.Wrap("acquire", outcome.AlreadyExists, outcome.NotAccepted, "", "", kvlocation.ErrRIDInUse)), 9},
		{of(outcome.NotFound, outcome.NotAccepted), 5},
		{of(outcome.CapacityExceeded, outcome.NotAccepted), 6},
		{of(outcome.InternalFailure, outcome.Accepted), 7},
		{of(outcome.Unavailable, outcome.Unknown), 8},
		{withCode(4, withCode(2, errors.New("the first code stays"))), 2},
		{fmt.Errorf("wrapped: %w", withCode(10, errors.New("x"))), 10},
		{withCode(2, nil), 0},
		{startError(nil), 0},
		{errorStateCode0(kvlocation.ErrSuperseded), 9},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("exit code of %v is %d, want %d", c.err, got, c.want)
		}
	}
}

func errorStateCode0(err error) error { return withCode(errorStateCode(err), err) }

// The table stands in --help, in the program's documentation and in docs/, word for word.
func TestExitTableIsDocumented(t *testing.T) {
	help := regexp.MustCompile(`(?m)^ *(\d+)  (.+)$`).FindAllStringSubmatch(exitTable, -1)
	if len(help) != 14 {
		t.Fatalf("%d rows in the help, want 14", len(help))
	}
	for name, row := range map[string]string{
		"../../main.go": `(?m)^//\t *(\d+)  (.+)$`, "../../../../docs/fabricnode.md": `(?m)^\| (\d+) \| (.+) \|$`,
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile(row).FindAllStringSubmatch(string(text), -1)
		if len(rows) != len(help) {
			t.Fatalf("%s has %d rows, the help %d", name, len(rows), len(help))
		}
		for i := range rows {
			if rows[i][1] != help[i][1] || rows[i][2] != help[i][2] {
				t.Errorf("%s: %v, help: %v", name, rows[i][1:], help[i][1:])
			}
		}
	}
}

// With --json a failure is one object on standard output, also when the command line is wrong.
func TestJSONFailure(t *testing.T) {
	for _, args := range [][]string{{"run", "--json"}, {"call", "--json", "--mesh", "a b", "echo"}, {"--json", "nonsense"}} {
		var out, errs bytes.Buffer
		code := Main(args, strings.NewReader(""), &out, &errs)
		var f failure
		if err := json.Unmarshal(out.Bytes(), &f); err != nil || f.OK || f.Exit != code || code != ExitUsage || f.Error.Text == "" {
			t.Errorf("%v: exit code %d, %v: %s", args, code, err, out.String())
		}
		if !strings.HasPrefix(errs.String(), "fabricnode: ") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%v: standard error is not one line: %q", args, errs.String())
		}
	}
}

// A command that is not there is named as it was typed, with the one that was meant.
func TestUnknownCommand(t *testing.T) {
	for word, says := range map[string]string{
		"objetcs":  `fabricnode: unknown command "objetcs", did you mean "objects"? (`,
		"nonsense": `fabricnode: unknown command "nonsense": it must be one of run, init, `,
	} {
		var out, errs bytes.Buffer
		if code := Main([]string{word}, strings.NewReader(""), &out, &errs); code != ExitUsage || !strings.HasPrefix(errs.String(), says) {
			t.Errorf("%s: exit code %d, %q", word, code, errs.String())
		}
	}
}

// What stays with a node that ends is counted and can be released by what is said.
func TestLeftObjects(t *testing.T) {
	c := &runCmd{RID: "n6"}
	for owned, want := range map[int]string{
		0: "",
		1: "1 object stays with n6/12, Unavailable until released: fabricnode release --owner n6/12",
		3: "3 objects stay with n6/12, Unavailable until released: fabricnode release --owner n6/12",
	} {
		var before, after objects.Snapshot
		before.Types = []objects.TypeSnapshot{{Owned: owned}, {Owned: 3}}
		before.Closed, after.Closed, after.CreateFailed = 5, 7, 1
		if got := c.left(before, after, 12); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTypesText(t *testing.T) {
	d := &kvlocation.Descriptor{Types: []kvlocation.TypeInfo{{Name: "ledger", Class: "actor", Full: true}, {Name: "ledger", Class: "user_spot"}}}
	if got := typesText(d); got != "ledger (actor (full), user_spot)" {
		t.Errorf("got %q", got)
	}
}

// Waiting for input that does not come is no reason to need two signals.
func TestReadStdinEndsWithASignal(t *testing.T) {
	in, typist := io.Pipe()
	defer typist.Close()
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{stdin: in, sig: &signals{ctx: ctx}}
	cancel()
	if _, err := a.readStdin(10); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	a = &app{stdin: strings.NewReader("0123456789ABC"), sig: &signals{ctx: t.Context()}}
	if data, err := a.readStdin(10); string(data) != "0123456789" || err != nil {
		t.Errorf("got %q, %v", data, err)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"help"}, {"help", "run"}, {"run", "--help"}} {
		var out, errs bytes.Buffer
		if code := Main(args, strings.NewReader(""), &out, &errs); code != 0 || !strings.Contains(out.String(), "Usage: fabricnode") || errs.Len() > 0 {
			t.Errorf("%v: exit code %d, standard error %q", args, code, errs.String())
		}
		if strings.Contains(out.String(), "demo-node") {
			t.Errorf("%v: the help shows what is not for people", args)
		}
	}
}

func TestVersion(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"version", "--json"}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var v versionReply
	if err := json.Unmarshal(out.Bytes(), &v); err != nil || !v.OK || v.Version == "" || v.NATSServer == "" || v.MinServer != kvlocation.MinServer {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	if code := Main([]string{"--version"}, strings.NewReader(""), &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "fabricnode ") {
		t.Errorf("--version: exit code %d: %s", code, out.String())
	}
}

func TestServerFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string // empty: allowed
	}{
		"alone":              {[]string{"--embedded"}, ""},
		"cluster":            {[]string{"--embedded", "--rid", "n1", "--cluster-listen", "127.0.0.1:6222", "--routes", "nats://127.0.0.1:6223"}, ""},
		"routes alone":       {[]string{"--embedded", "--rid", "n1", "--routes", "nats://127.0.0.1:6223"}, "belong together"},
		"cluster, no name":   {[]string{"--embedded", "--cluster-listen", "127.0.0.1:6222", "--routes", "nats://127.0.0.1:6223"}, "--rid is missing"},
		"routes, no server":  {[]string{"--routes", "nats://127.0.0.1:6223"}, "need --embedded"},
		"no port":            {[]string{"--embedded", "--listen", "127.0.0.1"}, `--listen "127.0.0.1" is not allowed`},
		"no number":          {[]string{"--embedded", "--listen", "127.0.0.1:http"}, "--listen"},
		"weight":             {[]string{"--embedded", "--weight", "257"}, "--weight 257 is not allowed"},
		"stop at once":       {[]string{"--embedded", "--stop-timeout", "0s"}, "--stop-timeout 0s is not allowed"},
		"two wrong at once":  {[]string{"--embedded", "--weight=-1", "--start-timeout", "2h"}, "--start-timeout 2h0m0s is not allowed"},
		"data, no server":    {[]string{"--data", "x"}, "--listen and --data need --embedded"},
		"no route":           {[]string{"--embedded", "--rid", "n1", "--cluster-listen", "127.0.0.1:6222", "--routes", "foo"}, `--routes "foo"`},
		"replicas alone":     {[]string{"--embedded", "--replicas", "3"}, "--replicas 3"},
		"replicas":           {[]string{"--embedded", "--replicas", "2"}, "--replicas 2"},
		"no queue":           {[]string{"--embedded", "--queue", "0"}, "--queue 0"},
		"no workers":         {[]string{"--embedded", "--workers", "0"}, "--workers 0"},
		"long queue":         {[]string{"--embedded", "--queue", "2000000"}, "--queue 2000000 is not allowed: it must be 1 to 1048576"},
		"no time":            {[]string{"--embedded", "--connect-timeout", "0s"}, "--connect-timeout 0s"},
		"two credentials":    {[]string{"--user", "a", "--token", "b"}, "several credentials"},
		"several at the URL": {[]string{"--server", "nats://a:1,nats://b:2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parse(t, append([]string{"run", "--mesh", "shop"}, c.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			c0 := &r.Run
			if c0.RID == "" {
				c0.RID, c0.ridIsFresh = freshRID(), true
			}
			err = c0.validate(c0.config(&app{}))
			switch {
			case c.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || exitCode(err) != ExitUsage):
				t.Errorf("got %v, want a usage error that says %q", err, c.says)
			}
		})
	}
}
