package bench

import (
	"math"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	fabric := []Sample{{Throughput: 100, P50: 30}, {Throughput: 300, P50: 10}, {Throughput: 200, P50: 20}}
	raw := []Sample{{Throughput: 100, P50: 20}, {Throughput: 200, P50: 20}, {Throughput: 100, P50: 20}}
	got := compare("channel", 16, 64, fabric, raw)
	if len(got) != 2 || got[0].Metric != Throughput || got[1].Metric != P50 {
		t.Fatalf("%+v", got)
	}
	r := got[0]
	if r.Scenario != "channel" || r.Payload != 16 || r.Callers != 64 || r.Unit != "op/s" {
		t.Errorf("%+v", r)
	}
	// Ratios 1, 1.5, 2.
	if r.Fabric != 200 || r.Raw != 100 || r.Ratio != 1.5 || r.Spread != 0.5 || r.Range != (Spread{1.25, 1.75, 1, 2}) {
		t.Errorf("%+v", r)
	}
}

func TestCompareWithNothing(t *testing.T) {
	got := compare("idle-objects", 0, 64, []Sample{{Heap: 700}}, nil)
	if len(got) != 1 || got[0].Fabric != 700 || !math.IsNaN(float64(got[0].Raw)) || !math.IsNaN(float64(got[0].Ratio)) {
		t.Errorf("%+v", got)
	}
}

func TestTheLongestIsTheLongestOfAll(t *testing.T) {
	before := []Sample{{P50: 1, Longest: 10}, {P50: 2, Longest: 40}, {P50: 3, Longest: 20}}
	during := []Sample{{P50: 4, Longest: 20}, {P50: 8, Longest: 80}}
	got := compare("idle-stream", 16, 1, during, baseline(before, len(during)))
	if len(got) != 2 || got[0].Metric != P50 || got[1].Metric != Longest {
		t.Fatalf("%+v", got)
	}
	if p := got[0]; p.Fabric != 6 || p.Raw != 2 || p.Ratio != 3 {
		t.Errorf("p50: %+v", p)
	}
	if l := got[1]; l.Fabric != 80 || l.Raw != 40 || l.Range.Max != 2 {
		t.Errorf("max: %+v", l)
	}
}

func TestMemoryPerObject(t *testing.T) {
	s := memory{Heap: 1700, RSS: 5000}.perObject(memory{Heap: 1000, RSS: 3000}, 2)
	if s[Heap] != 350 || s[RSS] != 1000 {
		t.Errorf("%v", s)
	}
	if _, ok := (memory{Heap: 1, RSS: -1}).perObject(memory{RSS: -1}, 2)[RSS]; ok {
		t.Error("what could not be measured is reported")
	}
}

func TestReportOutput(t *testing.T) {
	r := Report{
		Setups: []Setup{{"channel", "one server", "Channel.Request", "nats.Conn.Request"}},
		Results: append(compare("channel", 16, 1, []Sample{{P50: 110}}, []Sample{{P50: 100}}),
			compare("idle", 0, 0, []Sample{{MsgsIn: 1}}, []Sample{{MsgsIn: 0}})...),
	}
	var b strings.Builder
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	want := `{"results":[{"scenario":"channel","payload":16,"callers":1,"metric":"p50","unit":"us","fabric":110,"raw":100,"ratio":1.1,"spread":0},` +
		`{"scenario":"idle","payload":0,"callers":0,"metric":"msgs_in","unit":"msg/s","fabric":1,"raw":0,"ratio":null,"spread":null}]}` + "\n"
	if b.String() != want {
		t.Errorf("JSON\n%s\nwant\n%s", b.String(), want)
	}
	if !math.IsNaN(float64(r.Results[1].Ratio)) {
		t.Errorf("ratio to nothing: %v", r.Results[1].Ratio)
	}
	b.Reset()
	if err := r.WriteSetups(&b); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"both:   one server", "fabric: Channel.Request", "raw:    nats.Conn.Request", "1.10  ", "channel   16"} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("the table lacks %q:\n%s", s, b.String())
		}
	}
	b.Reset()
	if err := r.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"| scenario | bytes | callers | metric | fabric | raw | unit | ratio | quartiles | min..max | sync |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
		"| channel | 16 | 1 | p50 | 110 | 100 | us | 1.10 | 1.10..1.10 | 1.10..1.10 |  |\n",
		"\n**channel**\n\n- both: one server\n- fabric: Channel.Request\n- raw: nats.Conn.Request\n",
	} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("the Markdown lacks %q:\n%s", s, b.String())
		}
	}
	b.Reset()
	if err := (Report{}).WriteJSON(&b); err != nil || b.String() != `{"results":[]}`+"\n" {
		t.Errorf("an empty report: %q, %v", b.String(), err)
	}
}
