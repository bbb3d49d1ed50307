package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
)

// Distribution is all that was measured of one thing, for a plot.
type Distribution struct {
	Name string
	// Millis are the values, in milliseconds.
	Millis []float64
}

// The plot's measures, in the units of the picture.
const (
	plotWidth, plotHeight = 760, 380
	plotLeft, plotRight   = 60, 20
	plotTop, plotBottom   = 20, 80
)

// plotColors tell the lines apart, for those too who see fewer colours.
var plotColors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// WritePlot draws the distributions of blackouts as a picture (SVG): for each, the share of values (upwards) that are at most so long (to
// the right, logarithmic). It fails when there is nothing to draw.
func (r Report) WritePlot(w io.Writer) error {
	low, high := math.Inf(1), 0.0
	for _, d := range r.Distributions {
		for _, v := range d.Millis {
			low, high = min(low, max(v, 0.01)), max(high, v)
		}
	}
	if high == 0 {
		return fmt.Errorf("there is nothing to draw: the scenario relocate measures what a plot shows")
	}
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if first == last {
		last++
	}
	x := func(ms float64) float64 {
		return plotLeft + (math.Log10(max(ms, low))-first)/(last-first)*(plotWidth-plotLeft-plotRight)
	}
	y := func(share float64) float64 {
		return plotHeight - plotBottom - share*(plotHeight-plotTop-plotBottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	for decade := first; decade <= last; decade++ {
		at := x(math.Pow(10, decade))
		fmt.Fprintf(&b, `<path d="M%.1f %.1fV%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="middle">%g ms</text>`+"\n",
			at, y(0), y(1), at, y(0)+16, math.Pow(10, decade))
	}
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 0.99} {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g %%</text>`+"\n",
			plotLeft, y(share), plotWidth-plotRight, plotLeft-6, y(share)+4, 100*share)
	}
	for i, d := range r.Distributions {
		values := slices.Sorted(slices.Values(d.Millis))
		color := plotColors[i%len(plotColors)]
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="2" d="`, color)
		for n, v := range values {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(n, 1)], x(v), y(float64(n+1)/float64(len(values))))
		}
		row := plotHeight - plotBottom + 36 + 18*(i/2)
		column := plotLeft + (i%2)*(plotWidth-plotLeft)/2
		fmt.Fprintf(&b, `"/><rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s: median %.1f ms, 99 %% %.1f ms (n = %d)</text>`+"\n",
			column, row, color, column+18, row+10, html.EscapeString(d.Name), Median(values), Quantile(values, 0.99), len(values))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
