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
	if err := (Report{}).WriteJSON(&b); err != nil || b.String() != `{"results":[]}`+"\n" {
		t.Errorf("an empty report: %q, %v", b.String(), err)
	}
}
