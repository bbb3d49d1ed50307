package monotime

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNowNeverGoesBack(t *testing.T) {
	last := Now()
	for range 100_000 {
		n := Now()
		if n < last {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
	}
}

// The clock runs at the speed of Go's own while the machine is awake.
func TestNowKeepsTime(t *testing.T) {
	goBegin, begin := time.Now(), Now()
	<-time.After(50 * time.Millisecond)
	inner := Since(begin)
	outer := time.Since(goBegin) // taken outside of the other two readings: never shorter
	if inner < 50*time.Millisecond || inner > outer+time.Millisecond {
		t.Errorf("%v passed on this clock, %v on Go's", inner, outer)
	}
}

func TestArithmetic(t *testing.T) {
	a := Time(5 * time.Second)
	if b := a.Add(1500 * time.Millisecond); b.Sub(a) != 1500*time.Millisecond || a.Sub(b) != -1500*time.Millisecond {
		t.Errorf("%d, %d", a, b)
	}
}

func TestNowAllocates(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Now() }); n != 0 {
		t.Errorf("Now allocates %v times", n)
	}
}

func BenchmarkNow(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Now()
	}
}
