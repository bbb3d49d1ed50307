package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/bed"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
)

var (
	matrix = flag.String("matrix", "quick", "which cells TestMatrix runs: quick (short leases, one server where one is enough) or whole (default leases, one server and three)")
	table  = flag.String("matrix.table", "", "file to which TestMatrix writes its table")
)

// cell is one row of the table: what the callers of one way saw and what the members ran.
type cell struct {
	fault   string
	servers int
	way     history.Way
	totals  history.Totals
	ran     int
	doubled int
	// again is how long after the fault's end the callers were served as before.
	again  time.Duration
	broken []string
}

// TestMatrix strikes a mesh of three members with each fault, under steady callers of each way to call, and judges every
// way by itself. Quick cells run with each change; the whole matrix is run by scripts/faults.
func TestMatrix(t *testing.T) {
	var mu sync.Mutex
	rows := map[string][]cell{}
	var order []string
	t.Run("cells", func(t *testing.T) {
		for _, servers := range []int{1, 3} {
			for _, f := range faults {
				if servers < f.servers || *matrix == "quick" && servers > max(1, f.servers) {
					continue
				}
				name := fmt.Sprintf("%s, servers=%d", f.name, servers)
				order = append(order, name)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					cells := []cell{{fault: f.name, servers: servers, way: "all", broken: []string{"the cell did not come to its end"}}}
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						rows[name] = cells
					}()
					cells = strike(t, f, servers, *matrix == "whole")
				})
			}
		}
	})
	if *table == "" {
		return
	}
	var all []cell
	for _, name := range order {
		all = append(all, rows[name]...)
	}
	if err := os.WriteFile(*table, []byte(markdown(all)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// strike runs the cells of one fault and number of servers: one mesh, and callers of every way at the same time.
func strike(t *testing.T, f fault, servers int, whole bool) (cells []cell) {
	o := bed.Options{Servers: servers, AsProcess: true}
	if !whole {
		o.Brief = []string{"victim"}
	}
	b := bed.New(t, o)
	s := setting{b: b, victim: b.Member(t, "victim"), long: 4 * time.Second}
	switch {
	case whole && f.beyond:
		s.long = 22 * time.Second
	case whole:
		s.long = 12 * time.Second // suspicion and 5 s of liveness deadline pass; the lease of 18 s does not
	case f.beyond:
		s.long = 8 * time.Second
	}
	b.Member(t, "b")
	b.Member(t, "c")
	client := b.Client(t)
	bed.Sees(t, client, bed.Channel, "victim", "b", "c")
	b.WatchLeases(t, client.Store(), "victim", "b", "c")

	callers := map[history.Way]*bed.Caller{}
	var stops []func()
	for _, way := range history.Ways() {
		c := bed.NewCaller(t, strings.ReplaceAll(string(way), " ", "-"), client)
		callers[way] = c
		stops = append(stops, c.Steady(4, 20*time.Millisecond, func(n int) bed.Do {
			return doing(way, n)
		}))
	}
	healthy := bed.NewCaller(t, "healthy", client)
	stops = append(stops, healthy.Steady(2, 20*time.Millisecond, func(int) bed.Do { return bed.Do{RID: "b", Timeout: 2 * time.Second} }))
	stop := sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
	})
	defer stop()

	pass(t, callers, 50)
	struck := time.Now()
	end := f.strike(t, s)
	if !f.passes {
		lasts, cancel := context.WithTimeout(t.Context(), s.long)
		<-lasts.Done()
		cancel()
	}
	if end != nil {
		end()
	}
	ended := time.Now()
	again := recovered(t, callers, ended, f.kills)
	stop()

	e := collect(t, b, callers, healthy)
	together := history.Judge(e, history.AtMostOnce, history.NoLoss, history.Monotonic)
	e.Undisturbed, e.Disturbed = spans(healthy.Ops(), struck, ended)
	if !f.passes && f.servers == 0 {
		together = append(together, history.Judge(e, history.Isolation)...)
	}
	for _, way := range history.Ways() {
		ops := callers[way].Ops()
		own := *e
		own.Ops = ops
		row := cell{fault: f.name, servers: servers, way: way, totals: history.Sum(ops), again: again[way]}
		row.broken = append(history.Judge(&own, history.OneTerminal, history.Identity, history.Reselection, history.NoAdvice), together...)
		for i := range ops {
			n, _ := e.Runs(ops[i].ID)
			row.ran += n
			row.doubled += max(0, n-1)
		}
		for _, why := range row.broken {
			t.Errorf("%s: %s", way, why)
		}
		cells = append(cells, row)
	}
	return cells
}

// doing is the n-th operation of a way. Those at a named node go to the victim.
func doing(way history.Way, n int) bed.Do {
	d := bed.Do{Timeout: 2 * time.Second, Send: way == history.Send, Early: way == history.Early,
		Job: job.Job{Do: job.Sleep, Millis: n % 5}}
	if way == history.Direct {
		d.RID = "victim"
	}
	return d
}

// pass waits until n more operations of every way have succeeded.
func pass(t *testing.T, callers map[history.Way]*bed.Caller, n int) {
	t.Helper()
	began := time.Now()
	for way, c := range callers {
		fabrictest.Eventually(t, bed.Long, fmt.Sprintf("%d operations (%s)", n, way), func() bool {
			good, _ := inARow(c.Ops(), began)
			return good >= n
		})
	}
}

// inARow returns how many operations since a moment were successful in a row, up to now, and when that row began.
func inARow(ops []history.Op, since time.Time) (n int, from time.Time) {
	from = since
	for i := range ops {
		switch op := &ops[i]; {
		case op.Ends == 0 || op.Start.Before(since):
		case op.Err != nil:
			n, from = 0, op.End
		default:
			n++
		}
	}
	return n, from
}

// recovered waits until every way is served again without a failure, and returns how long after the fault's end that
// began. A way that names a victim which is gone for good is not waited for.
func recovered(t *testing.T, callers map[history.Way]*bed.Caller, ended time.Time, kills bool) map[history.Way]time.Duration {
	t.Helper()
	again := map[history.Way]time.Duration{}
	for way, c := range callers {
		if kills && way == history.Direct {
			again[way] = -1
			continue
		}
		fabrictest.Eventually(t, bed.Long, fmt.Sprintf("callers (%s) are served as before", way), func() bool {
			good, from := inARow(c.Ops(), ended)
			again[way] = max(0, from.Sub(ended))
			return good >= 100
		})
	}
	return again
}

// collect collects the evidence of all callers.
func collect(t *testing.T, b *bed.Bed, callers map[history.Way]*bed.Caller, more ...*bed.Caller) *history.Evidence {
	t.Helper()
	for _, c := range callers {
		more = append(more, c)
	}
	var ops []history.Op
	for _, c := range more {
		ops = append(ops, c.Ops()...)
	}
	b.Settle(t, ops)
	return b.Evidence(t, ops)
}

// spans returns the times of operations that were made before a fault and while it lasted.
func spans(ops []history.Op, struck, ended time.Time) (before, during []time.Duration) {
	for i := range ops {
		switch op := &ops[i]; {
		case op.Start.Before(struck) && op.End.Before(struck):
			before = append(before, op.Took())
		case op.Start.After(struck) && op.Start.Before(ended):
			during = append(during, op.Took())
		}
	}
	return before, during
}

// markdown is the table of the cells.
func markdown(cells []cell) string {
	var out strings.Builder
	out.WriteString("| Fault | Servers | Way to call | Sent | Replied or accepted | Not accepted | Failed, accepted | Unknown | Ran | Doubled | Selected again | Longest | Served as before after | Promises |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		again, promises := fmt.Sprintf("%.1f s", c.again.Seconds()), "kept"
		if c.again < 0 {
			again = "never: the node is gone"
		}
		if len(c.broken) > 0 {
			promises = "BROKEN: " + strings.Join(c.broken, "; ")
		}
		t := c.totals
		fmt.Fprintf(&out, "| %s | %d | %s | %d | %d | %d | %d | %d | %d | %d | %d | %.1f s | %s | %s |\n", c.fault, c.servers, c.way,
			t.Sent, t.Replied, t.Refused, t.FailedAccepted, t.Unknown, c.ran, c.doubled, t.Reselected, t.Longest.Seconds(), again, promises)
	}
	return out.String()
}
