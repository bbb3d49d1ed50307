package bench

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// Quantile returns the value below which the share q (0 to 1) of values lies, interpolated between neighbours. It is
// NaN for no values. The values are not changed.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	at := q * float64(len(v)-1)
	low := int(at)
	if low >= len(v)-1 {
		return v[len(v)-1]
	}
	return v[low] + (at-float64(low))*(v[low+1]-v[low])
}

// Median is the middle value, or the mean of the two middle ones.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Spread says how far values lie apart.
type Spread struct {
	Q1, Q3   float64 // half of the values lie between the quartiles
	Min, Max float64
}

// SpreadOf returns the spread of values; NaN in every field for no values.
func SpreadOf(values []float64) Spread {
	return Spread{
		Q1: Quantile(values, 0.25), Q3: Quantile(values, 0.75),
		Min: Quantile(values, 0), Max: Quantile(values, 1),
	}
}

// IQR is the distance between the quartiles.
func (s Spread) IQR() float64 { return s.Q3 - s.Q1 }

// Ratio returns a/b. Two zeros are alike (1); what can't be divided is NaN.
func Ratio(a, b float64) float64 {
	switch {
	case a == 0 && b == 0:
		return 1
	case b == 0:
		return math.NaN()
	}
	return a / b
}

// Ratios returns the ratio of each pair a[i], b[i], those left out that can't be divided.
func Ratios(a, b []float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		if r := Ratio(a[i], b[i]); !math.IsNaN(r) {
			out = append(out, r)
		}
	}
	return out
}

// Order returns in which order n sides are measured in a round: every side goes first equally often, and two sides
// alternate.
func Order(round, n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (round + i) % n
	}
	return order
}

// Number is a measured value. NaN (nothing to compute it from) is null in JSON.
type Number float64

// MarshalJSON writes six significant digits: more would be noise.
func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	if f != 0 {
		scale := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(f))))
		f = math.Round(f*scale) / scale
	}
	return json.Marshal(f)
}

// percentile returns the value at share q of sorted durations, 0 for none.
func percentile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
