package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Metric is what is measured, as reports name it.
type Metric string

// The metrics.
const (
	Throughput Metric = "throughput" // operations that ended, per second
	P50        Metric = "p50"        // of one operation, at the caller
	P99        Metric = "p99"
	Longest    Metric = "max"       // the longest operation of the slice; reports show the longest of all slices
	Fairness   Metric = "fairness"  // what the slowest caller got through, as a share of the callers' mean
	Load       Metric = "load"      // operations beside those that are measured, per second
	Allocs     Metric = "allocs"    // allocations in the caller's process
	Delivered  Metric = "delivered" // messages that the member's handler got, per second until the last of them
	MsgsIn     Metric = "msgs_in"   // messages that the server got from the node
	MsgsOut    Metric = "msgs_out"  // messages that the server sent to the node
	CPU        Metric = "cpu"       // processor time of the node's process
	Heap       Metric = "heap"      // live heap of the node's process, per object
	RSS        Metric = "rss"       // resident memory of the node's process, per object
)

// metrics are all metrics with their units, in the order of reports.
var metrics = []struct {
	name Metric
	unit string
}{
	{Throughput, "op/s"}, {Delivered, "op/s"}, {P50, "us"}, {P99, "us"}, {Longest, "us"}, {Fairness, "min/mean"},
	{Load, "op/s"}, {Allocs, "allocs/op"}, {MsgsIn, "msg/s"}, {MsgsOut, "msg/s"}, {CPU, "ms/s"}, {Heap, "B/object"}, {RSS, "B/object"},
}

// Sample is what one slice of one side measured.
type Sample map[Metric]float64

// work is what the callers of one side do, again and again. Only op is needed.
type work struct {
	// before runs before the slice.
	before func(ctx context.Context) error
	// op is one operation of one caller; each caller has one under way at a time.
	op func(caller int) error
	// every is the time between two operations of one caller; 0: each begins when the last one has ended. What an
	// operation that took longer delays counts as the next one's latency.
	every time.Duration
	// alone: one caller runs op, whatever the slice's number, which says something else.
	alone bool
	// took, if set, is how long the operation that has just ended took, where that is not from its begin to its end.
	took func() time.Duration
	// after runs after the slice, whether its operations failed or not, and returns what else was measured.
	after func() (Sample, error)
	// pairs: each caller has a counterpart of its own in this process. What the slowest pair got is measured, too, and
	// only some of the operations are timed.
	pairs bool
	// flush ends what op only began. The slice ends with it, and single operations are not timed.
	flush func(ctx context.Context) error
	// settle runs after the slice and returns when what was sent has come to rest: how many messages arrived since
	// before, and when the last one did.
	settle func(ctx context.Context, sent int64) (arrived int64, last time.Time, err error)
}

// untimedBatch is how many untimed operations run between two looks at the clock.
const untimedBatch = 64

// recorder holds the latencies of a slice; it is used again, so that growing does not count as the side's allocation.
type recorder struct{ latencies [][]time.Duration }

// measure runs w with the given number of callers for d.
func (r *recorder) measure(ctx context.Context, callers int, d time.Duration, w work) (_ Sample, err error) {
	if w.alone {
		callers = 1
	}
	for len(r.latencies) < callers {
		r.latencies = append(r.latencies, make([]time.Duration, 0, 1<<14))
	}
	lat := r.latencies[:callers]
	if w.before != nil {
		if err := w.before(ctx); err != nil {
			return nil, err
		}
	}
	ops, errs, longest := make([]int64, callers), make([]error, callers), make([]time.Duration, callers)
	var (
		before, after runtime.MemStats
		wg            sync.WaitGroup
	)
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	end := start.Add(d)
	for c := range callers {
		lat[c] = lat[c][:0]
		wg.Go(func() {
			switch {
			case w.flush != nil:
				ops[c], errs[c] = repeat(c, end, w.op)
			case w.pairs:
				lat[c], ops[c], longest[c], errs[c] = sampled(c, d, w.op, lat[c])
			default:
				// Callers with a pace begin one after the other, not all at once.
				first := start.Add(w.every * time.Duration(c) / time.Duration(callers))
				lat[c], errs[c] = timed(c, first, end, w, lat[c])
				ops[c] = int64(len(lat[c]))
			}
		})
	}
	wg.Wait()
	if w.flush != nil {
		if err := w.flush(ctx); err != nil {
			return nil, err
		}
	}
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	var more Sample
	if w.after != nil {
		if more, err = w.after(); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}

	var done int64
	for c := range callers {
		if errs[c] != nil {
			return nil, fmt.Errorf("operation %d of caller %d failed: %w", ops[c]+1, c, errs[c])
		}
		done += ops[c]
	}
	s := Sample{
		Throughput: float64(done) / elapsed.Seconds(),
		Allocs:     hundredths(float64(after.Mallocs-before.Mallocs) / float64(max(done, 1))),
	}
	if w.flush == nil {
		all := slices.Concat(lat...)
		slices.Sort(all)
		s[P50], s[P99] = micros(percentile(all, 0.50)), micros(percentile(all, 0.99))
		switch {
		case w.pairs:
			s[Longest] = micros(slices.Max(longest))
		case w.every > 0 || w.took != nil:
			s[Longest] = micros(percentile(all, 1))
		}
	}
	if w.pairs {
		s[Fairness] = float64(slices.Min(ops)) * float64(callers) / float64(max(done, 1))
	}
	maps.Copy(s, more)
	if w.settle != nil {
		arrived, last, err := w.settle(ctx, done)
		if err != nil {
			return nil, err
		}
		s[Delivered] = float64(arrived) / max(last.Sub(start), time.Microsecond).Seconds()
	}
	return s, nil
}

// timed runs one caller's operations until end and appends their latencies to lat, which on an error has those that
// ended before. first is when the caller begins.
func timed(caller int, first, end time.Time, w work, lat []time.Duration) ([]time.Duration, error) {
	t, due := first, first
	for {
		if w.every > 0 {
			t = due // when the last operation took longer
			if wait := time.Until(due); wait > 0 {
				time.Sleep(wait)
				t = time.Now() // the timer's delay is not the operation's
			}
			due = due.Add(w.every)
		}
		if !t.Before(end) {
			return lat, nil
		}
		if err := w.op(caller); err != nil {
			return lat, err
		}
		now := time.Now()
		took := now.Sub(t)
		if w.took != nil {
			took = w.took()
		}
		lat = append(lat, took)
		t = now
	}
}

// sampleEvery is how many operations of a pair in one process there are for each one that is timed: a look at the clock
// costs as much as a good part of such an operation.
const sampleEvery = 8

// sampled runs one caller's operations for d, and times one in sampleEvery of them. longest is an upper bound of the
// longest of all: that of what ran between two looks at the clock.
func sampled(caller int, d time.Duration, op func(int) error, lat []time.Duration) (_ []time.Duration, n int64, longest time.Duration, err error) {
	start := time.Now()
	for last := time.Duration(0); last < d; {
		for range sampleEvery - 1 {
			if err := op(caller); err != nil {
				return lat, n, longest, err
			}
			n++
		}
		begin := time.Since(start)
		if err := op(caller); err != nil {
			return lat, n, longest, err
		}
		n++
		end := time.Since(start)
		lat = append(lat, end-begin)
		longest = max(longest, begin-last, end-begin)
		last = end
	}
	return lat, n, longest, nil
}

// repeat calls op until end without timing each call.
func repeat(caller int, end time.Time, op func(int) error) (n int64, err error) {
	for time.Now().Before(end) {
		for range untimedBatch {
			if err := op(caller); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// hundredths rounds to what is the operation's own: a slice as a whole allocates, too.
func hundredths(f float64) float64 { return math.Round(f*100) / 100 }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
