package main

import (
	"encoding/json"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"natsfabric/fabrictest"
	"natsfabric/internal/bench"
)

func TestMain(m *testing.M) { fabrictest.VerifyTestMain(m) }

// wanted are the metrics of each result that a full run has.
var wanted = map[string][]string{
	"channel":              timed,
	"send":                 timed,
	"send-unconfirmed":     {"allocs", "delivered", "throughput"},
	"store":                timed,
	"store-kv":             timed,
	"mesh":                 timed,
	"mesh-floor":           timed,
	"mesh-transport":       timed,
	"actor":                timed,
	"actor-mesh":           timed,
	"actor-mesh-floor":     timed,
	"actor-local":          {"allocs", "fairness", "max", "p50", "p99", "throughput"},
	"actor-local-send":     {"allocs", "delivered", "fairness", "throughput"},
	"create":               timed,
	"create-fresh":         timed,
	"activate":             timed,
	"activate-fresh":       timed,
	"hot":                  paced,
	"hot-control":          loaded,
	"hot-local":            paced,
	"hot-local-control":    loaded,
	"relocate":             timed,
	"relocate-beside":      {"allocs", "load", "max", "p50", "p99", "throughput"},
	"relocate-bulk":        slices.Sorted(slices.Values(slices.Concat(timed, timed))), // of two sizes
	"relocate-3-servers":   timed,
	"follow":               loaded,
	"drain":                {"throughput"},
	"drain-others":         paced,
	"drain-others-control": paced,
	"drain-others-floor":   paced,
	"session":              timed,
	"guard-key":            timed,
	"guard-stream":         timed,
	"idle":                 {"msgs_in", "msgs_out"},
	"idle-objects":         {"heap", "throughput"},
	"idle-stream":          paced,
	"idle-stream-control":  paced,
}

var (
	timed  = []string{"allocs", "p50", "p99", "throughput"}
	paced  = []string{"allocs", "max", "p50", "p99", "throughput"}
	loaded = []string{"allocs", "load", "max", "p50", "p99", "throughput"}
)

// TestEveryScenario runs everything once, too shortly to measure anything: it checks that every scenario works and
// what is printed.
func TestEveryScenario(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), fabrictest.BuildBinary(t, "."), "--json", "--pairs=2", "--slice=50ms",
		"--payload=16", "--callers=2", "--idle-window=50ms", "--idle-nodes=5", "--objects=50", "--others=20", "--drain=20", "--workers=20", "--dir="+t.TempDir())
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v:\n%s", err, log.String())
	}
	got := map[string][]string{}
	for _, r := range results(t, out.String()) {
		if want := []string{"callers", "fabric", "metric", "payload", "ratio", "raw", "scenario", "spread", "unit"}; !slices.Equal(slices.Sorted(maps.Keys(r)), want) {
			t.Errorf("a result has the fields %q, want %q", slices.Sorted(maps.Keys(r)), want)
		}
		scenario, metric := r["scenario"].(string), r["metric"].(string)
		if metric == "cpu" || metric == "rss" { // not everywhere
			continue
		}
		got[scenario] = append(got[scenario], metric)
		checkResult(t, scenario, metric, r)
	}
	delete(got, "supervise") // processor time alone
	for scenario, metrics := range wanted {
		if slices.Sort(got[scenario]); !slices.Equal(got[scenario], metrics) {
			t.Errorf("%s has the metrics %q, want %q", scenario, got[scenario], metrics)
		}
		if !strings.Contains(log.String(), "\n"+scenario+"\n  both:   ") {
			t.Errorf("the configurations of %s are not printed:\n%s", scenario, log.String())
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("scenarios %q", slices.Sorted(maps.Keys(got)))
	}
}

// checkResult checks what can be said of a result without measuring.
func checkResult(t *testing.T, scenario, metric string, r map[string]any) {
	t.Helper()
	columns, payload, callers := []string{"fabric", "raw"}, 16.0, 2.0
	switch scenario {
	case "relocate", "relocate-beside", "relocate-3-servers":
		payload, callers = 1024, 32
	case "relocate-bulk":
		payload, callers = r["payload"].(float64), 1
	case "follow":
		payload, callers = 1024, 1
	case "drain":
		payload, callers = 64, 0
	case "drain-others", "drain-others-control", "drain-others-floor":
		callers = 8
	case "idle":
		return // nothing may happen in a window this short
	case "idle-objects":
		columns, payload, callers = []string{"fabric"}, 0, 64
		if r["raw"] != nil || r["ratio"] != nil {
			t.Errorf("there is nothing to compare with: %v", r)
		}
	case "idle-stream", "idle-stream-control":
		callers = 16
	}
	if r["payload"] != payload || r["callers"] != callers || r["unit"] == "" {
		t.Errorf("%v", r)
	}
	switch metric {
	case "allocs", "fairness", "heap", "load": // a publish allocates nothing; short slices starve; a heap so small may shrink
		return
	}
	for _, column := range columns {
		if v, ok := r[column].(float64); !ok || v <= 0 {
			t.Errorf("%s %s: %s is %v", scenario, metric, column, r[column])
		}
	}
}

// results decodes {"results":[...]} and nothing else.
func results(t *testing.T, text string) []map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	var v struct {
		Results []map[string]any `json:"results"`
	}
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Errorf("there is more than one object in %q", text)
	}
	return v.Results
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--pairs=0x"}, exitUsage, "pairs"},
		{[]string{"--pairs=-1"}, exitUsage, "Pairs -1 is not allowed: it must be 1 to 1000"},
		{[]string{"--slice=1us"}, exitUsage, "Slice 1µs is not allowed"},
		{[]string{"--scenario=speed"}, exitUsage, `Scenarios: "speed" is not known`},
		{[]string{"speed"}, exitUsage, `Scenarios: "speed" is not known`},
		{[]string{"idle", "--objects=1"}, exitUsage, "Objects 1 is not allowed"},
		{[]string{"hot", "--others=-1"}, exitUsage, "Others -1 is not allowed"},
		{[]string{"--json", "--markdown"}, exitUsage, "can't be used together"},
		{[]string{"--payload=-16"}, exitUsage, "Payloads -16 is not allowed"},
		{[]string{"child", "nobody"}, exitFailed, `role "nobody" is not known`},
	} {
		var out, log strings.Builder
		if code := run(c.args, strings.NewReader(""), &out, &log); code != c.code || !strings.Contains(log.String(), c.want) {
			t.Errorf("%q: code %d, want %d; it says %q, want %q", c.args, code, c.code, log.String(), c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	var out, log strings.Builder
	if code := run([]string{"--help"}, nil, &out, &log); code != exitOK {
		t.Fatalf("code %d: %s", code, log.String())
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, info := range bench.Scenarios() {
		if !strings.Contains(text, info.Name+": "+info.Compares) {
			t.Errorf("help does not say what %s compares:\n%s", info.Name, out.String())
		}
	}
	for _, def := range []string{strconv.Itoa(bench.DefaultPairs), bench.DefaultSlice.String(), "--json", "--profile", "--quick", "--markdown", strconv.Itoa(bench.DefaultObjects), strconv.Itoa(bench.DefaultOthers)} {
		if !strings.Contains(text, def) {
			t.Errorf("help lacks %q", def)
		}
	}
}
