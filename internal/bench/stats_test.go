package bench

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		values              []float64
		median              float64
		q1, q3, least, most float64
	}{
		{[]float64{7}, 7, 7, 7, 7, 7},
		{[]float64{4, 1}, 2.5, 1.75, 3.25, 1, 4},
		{[]float64{5, 1, 3}, 3, 2, 4, 1, 5},
		{[]float64{9, 1, 3, 2, 1000}, 3, 2, 9, 1, 1000}, // one outlier moves neither median nor quartiles
	} {
		before := slices.Clone(c.values)
		if got := Median(c.values); got != c.median {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.median)
		}
		want := Spread{Q1: c.q1, Q3: c.q3, Min: c.least, Max: c.most}
		got := SpreadOf(c.values)
		if got != want {
			t.Errorf("SpreadOf(%v) = %+v, want %+v", c.values, got, want)
		}
		if got.IQR() != c.q3-c.q1 {
			t.Errorf("IQR of %v = %v", c.values, got.IQR())
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("the values were changed: %v", c.values)
		}
	}
	if !math.IsNaN(Median(nil)) || !math.IsNaN(SpreadOf(nil).Max) {
		t.Error("nothing has a median or a spread")
	}
}

func TestRatio(t *testing.T) {
	if got := Ratios([]float64{1, 3, 0, 5}, []float64{2, 2, 0, 0}); !slices.Equal(got, []float64{0.5, 1.5, 1}) {
		t.Errorf("ratios %v: a pair without a divisor is left out, two zeros are alike", got)
	}
	// The median of the ratios is not the ratio of the medians: a slow moment of the machine slows both of a pair.
	fabric, raw := []float64{10, 20, 300}, []float64{10, 25, 300}
	if got := Median(Ratios(fabric, raw)); got != 1 {
		t.Errorf("median of ratios %v, want 1", got)
	}
}

func TestOrder(t *testing.T) {
	for _, sides := range []int{1, 2, 3} {
		first := make([]int, sides)
		for round := range 6 * sides {
			order := Order(round, sides)
			first[order[0]]++
			if s := slices.Sorted(slices.Values(order)); s[0] != 0 || s[sides-1] != sides-1 || len(slices.Compact(s)) != sides {
				t.Fatalf("round %d of %d sides: %v", round, sides, order)
			}
		}
		for side, n := range first {
			if n != 6 {
				t.Errorf("of %d sides, side %d went first %d times in %d rounds", sides, side, n, 6*sides)
			}
		}
	}
	if slices.Equal(Order(0, 2), Order(1, 2)) {
		t.Error("two sides must alternate")
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[Number]string{
		0: "0", 1.0000004: "1", 123456.789: "123457", 0.00012345678: "0.000123457", -2.5: "-2.5", 6: "6",
		Number(math.Inf(1)): "null",
	} {
		b, err := json.Marshal(n)
		if err != nil || string(b) != want {
			t.Errorf("%v is %s, %v; want %s", float64(n), b, err, want)
		}
	}
	if b, _ := json.Marshal(Number(math.NaN())); string(b) != "null" {
		t.Errorf("NaN is %s", b)
	}
}

func TestPercentile(t *testing.T) {
	d := make([]time.Duration, 100)
	for i := range d {
		d[i] = time.Duration(i + 1)
	}
	if p := percentile(d, 0.5); p != 51 {
		t.Errorf("p50 of 1..100 = %d", p)
	}
	if p := percentile(d, 0.99); p != 100 {
		t.Errorf("p99 of 1..100 = %d", p)
	}
	if p := percentile(nil, 0.99); p != 0 {
		t.Errorf("p99 of nothing = %d", p)
	}
}
