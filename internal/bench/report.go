package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Result is one metric of one comparison.
type Result struct {
	Scenario string `json:"scenario"`
	// Payload is in bytes; 0 where there is none.
	Payload int `json:"payload"`
	// Callers is the number of operations under way at the same time; 0 where there are none.
	Callers int    `json:"callers"`
	Metric  Metric `json:"metric"`
	Unit    string `json:"unit"`
	// Fabric and Raw are the medians of the two sides; of the metric max the largest. Raw is null where there is
	// nothing to compare with.
	Fabric Number `json:"fabric"`
	Raw    Number `json:"raw"`
	// Ratio is the median of the pairs' fabric/raw; null when no pair could be divided.
	Ratio Number `json:"ratio"`
	// Spread is the distance between the quartiles of the pairs' ratios.
	Spread Number `json:"spread"`

	// Range is the whole spread behind Spread.
	Range Spread `json:"-"`
	// Sync is the server's sync setting, which says when an acknowledged write is on disk.
	Sync string `json:"-"`
}

// compare turns the samples of two sides, one of each per round, into results. Without samples of a raw side the
// fabric's stand alone.
func compare(scenario string, payload, callers int, fabric, raw []Sample) []Result {
	var out []Result
	for _, m := range metrics {
		a, b := column(fabric, m.name), column(raw, m.name)
		if len(a) == 0 || len(raw) > 0 && len(a) != len(b) {
			continue
		}
		ratios := Ratios(a, b)
		spread := SpreadOf(ratios)
		out = append(out, Result{
			Scenario: scenario, Payload: payload, Callers: callers, Metric: m.name, Unit: m.unit,
			Fabric: Number(middle(m.name, a)), Raw: Number(middle(m.name, b)),
			Ratio: Number(Median(ratios)), Spread: Number(spread.IQR()), Range: spread,
		})
	}
	return out
}

// middle is what stands for all samples of a metric: the median, but of the longest operations the longest.
func middle(m Metric, values []float64) float64 {
	if m == Longest {
		return Quantile(values, 1)
	}
	return Median(values)
}

func column(samples []Sample, m Metric) []float64 {
	var out []float64
	for _, s := range samples {
		if v, ok := s[m]; ok {
			out = append(out, v)
		}
	}
	return out
}

// Setup says what a scenario compared.
type Setup struct {
	Scenario string
	// Common is what both sides share, Fabric and Raw what is their own.
	Common, Fabric, Raw string
}

// Report is what Run measured.
type Report struct {
	Setups  []Setup
	Results []Result
	// Distributions are what WritePlot draws.
	Distributions []Distribution
}

// WriteJSON writes {"results":[...]} in one line.
func (r Report) WriteJSON(w io.Writer) error {
	results := r.Results
	if results == nil {
		results = []Result{}
	}
	return json.NewEncoder(w).Encode(map[string]any{"results": results})
}

// WriteSetups writes both configurations of every scenario.
func (r Report) WriteSetups(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Setups {
		fmt.Fprintf(&b, "%s\n  both:   %s\n  fabric: %s\n  raw:    %s\n", s.Scenario, s.Common, s.Fabric, s.Raw)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteTable writes the results for people.
func (r Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.rows() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// WriteMarkdown writes the results and both configurations of every scenario as docs/benchmarks.md has them.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("### Figures\n\n")
	for i, row := range r.rows() {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	b.WriteString("\n### Configurations\n")
	for _, s := range r.Setups {
		fmt.Fprintf(&b, "\n**%s**\n\n- both: %s\n- fabric: %s\n- raw: %s\n", s.Scenario, s.Common, s.Fabric, s.Raw)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rows are the results as tables show them, under a row of titles.
func (r Report) rows() [][]string {
	rows := [][]string{{"scenario", "bytes", "callers", "metric", "fabric", "raw", "unit", "ratio", "quartiles", "min..max", "sync"}}
	for _, x := range r.Results {
		rows = append(rows, []string{
			x.Scenario, strconv.Itoa(x.Payload), strconv.Itoa(x.Callers), string(x.Metric),
			digits(float64(x.Fabric)), digits(float64(x.Raw)), x.Unit, ratio(float64(x.Ratio)),
			ratio(x.Range.Q1) + ".." + ratio(x.Range.Q3), ratio(x.Range.Min) + ".." + ratio(x.Range.Max), x.Sync,
		})
	}
	return rows
}

func ratio(f float64) string {
	if math.IsNaN(f) {
		return "-"
	}
	return fmt.Sprintf("%.2f", f)
}

func digits(f float64) string {
	switch {
	case math.IsNaN(f):
		return "-"
	case math.Abs(f) >= 100:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}
