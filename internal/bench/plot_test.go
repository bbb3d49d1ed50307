package bench

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

func TestWritePlot(t *testing.T) {
	var b strings.Builder
	r := Report{Distributions: []Distribution{{"one <server>", []float64{3, 1, 2}}, {"three", []float64{40}}}}
	if err := r.WritePlot(&b); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			for _, a := range e.Attr {
				if a.Name.Local == "fill" && a.Value == "none" {
					lines++
				}
			}
		}
	}
	if lines != 2 {
		t.Errorf("%d lines for 2 distributions", lines)
	}
	for _, want := range []string{"one &lt;server&gt;: median 2.0 ms", "three: median 40.0 ms", "(n = 3)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if err := (Report{}).WritePlot(&b); err == nil {
		t.Error("a plot of nothing was drawn")
	}
}
