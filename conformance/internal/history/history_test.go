package history

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"natsfabric/channels"
	"natsfabric/conformance/internal/job"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ledger(rid string, ids ...string) Ledger {
	l := Ledger{RID: rid, Ran: map[string]int{}}
	for _, id := range ids {
		l.Ran[id]++
	}
	return l
}

// op is an operation that ended in time with err.
func op(id string, way Way, err error) Op {
	now := time.Now()
	return Op{ID: id, Way: way, Start: now, End: now.Add(time.Millisecond), Deadline: now.Add(time.Second), Ends: 1, Err: err}
}

func fails(acc outcome.Acceptance, remote bool) error {
	e := outcome.New("request", outcome.Unavailable, acc, "", "")
	e.Remote = remote
	return e
}

func traced(target string, attempts, refused int) Op {
	o := op("a", Request, nil)
	o.Target, o.Trace.Attempts, o.Trace.Refused = target, attempts, make([]string, refused)
	return o
}

func ms(n ...int) (d []time.Duration) {
	for _, v := range n {
		d = append(d, time.Duration(v)*time.Millisecond)
	}
	return d
}

// Each validator fails on a history that breaks its promise, with words that name the breach, and passes on one that
// comes close.
func TestValidators(t *testing.T) {
	late := op("a", Request, nil)
	late.End = late.Deadline.Add(slack + 2*time.Second)
	twice := op("a", Request, nil)
	twice.Ends = 2
	open := op("a", Request, nil)
	open.Ends = 0
	direct := op("a", Direct, nil)
	direct.Target = "n1"
	lease := func(rev, life, gen uint64) kvlocation.LeaseState {
		return kvlocation.LeaseState{RID: "n", Live: true, Revision: rev, Lifecycle: life, Generation: gen}
	}
	advising := outcome.New("request", outcome.Unavailable, outcome.NotAccepted, "", "please try again")
	killed := ledger("n1")
	killed.Killed = true
	lapsed, expired := ledger("n1"), ledger("n1")
	lapsed.Lapsed, expired.Expired = 1, 1
	givenUp := op("a", Early, outcome.New("request", outcome.DeadlineExceeded, outcome.Accepted, "", ""))

	for _, c := range []struct {
		name string
		v    Validator
		bad  Evidence
		want string
		good Evidence
	}{
		{"run twice by one", AtMostOnce, Evidence{Ledgers: []Ledger{ledger("n1", "a", "a")}}, "operation a ran 2 times, at [n1]",
			Evidence{Ledgers: []Ledger{ledger("n1", "a"), ledger("n2", "b")}}},
		{"run by two", AtMostOnce, Evidence{Ledgers: []Ledger{ledger("n1", "a"), ledger("n2", "a")}}, "operation a ran 2 times, at [n1 n2]", Evidence{}},
		{"never told", NoLoss, Evidence{Ops: []Op{open}}, "1 sent, 0 told",
			Evidence{Ops: []Op{op("a", Request, fails(outcome.Unknown, false))}}},
		{"replied and not run", NoLoss, Evidence{Ops: []Op{op("a", Request, nil)}}, "told replied, but it ran 0 times",
			Evidence{Ops: []Op{op("a", Request, nil)}, Ledgers: []Ledger{ledger("n1", "a")}}},
		{"replied by a killed member that did not run it", NoLoss, Evidence{Ops: []Op{op("a", Early, nil)}, Ledgers: []Ledger{killed}}, "it ran 0 times", Evidence{}},
		{"accepted send lost", NoLoss, Evidence{Ops: []Op{op("a", Send, nil)}}, "ran nowhere, although no member died",
			Evidence{Ops: []Op{op("a", Send, nil)}, Ledgers: []Ledger{killed}}},
		{"more accepted sends lost than a lease's end took", NoLoss,
			Evidence{Ops: []Op{op("a", Send, nil), op("b", Send, nil)}, Ledgers: []Ledger{lapsed}}, "operations [a b] were accepted and ran nowhere",
			Evidence{Ops: []Op{op("a", Send, nil), op("b", Send, nil)}, Ledgers: []Ledger{lapsed, ledger("n2", "b")}}},
		{"an accepted send cannot be too late", NoLoss, Evidence{Ops: []Op{op("a", Send, nil)}, Ledgers: []Ledger{expired}}, "operations [a] were accepted and ran nowhere",
			Evidence{Ops: []Op{op("a", Send, nil)}, Ledgers: []Ledger{lapsed}}},
		{"accepted, given up, and no member says that it was too late", NoLoss, Evidence{Ops: []Op{givenUp}, Ledgers: []Ledger{ledger("n1")}}, "operations [a] were accepted and ran nowhere",
			Evidence{Ops: []Op{givenUp}, Ledgers: []Ledger{expired}}},
		{"refused and run", NoLoss, Evidence{Ops: []Op{op("a", Request, fails(outcome.NotAccepted, true))}, Ledgers: []Ledger{ledger("n1", "a")}}, "it ran at [n1]",
			Evidence{Ops: []Op{op("a", Request, fails(outcome.NotAccepted, true))}}},
		{"accepted without a cause", NoLoss, Evidence{Ops: []Op{op("a", Early, fails(outcome.Accepted, false))}}, "without a cause stated",
			Evidence{Ops: []Op{op("a", Early, fails(outcome.Accepted, true))}}},
		{"run but never sent", NoLoss, Evidence{Ledgers: []Ledger{ledger("n1", "ghost")}}, "n1 ran ghost, which nobody sent", Evidence{}},
		{"ended twice", OneTerminal, Evidence{Ops: []Op{twice}}, "ended 2 times", Evidence{Ops: []Op{op("a", Request, nil)}}},
		{"ended never", OneTerminal, Evidence{Ops: []Op{open}}, "ended 0 times", Evidence{}},
		{"ended late", OneTerminal, Evidence{Ops: []Op{late}, Stalled: time.Second}, "after its deadline", Evidence{Ops: []Op{late}, Stalled: 3 * time.Second}},
		{"generation back", Monotonic, Evidence{Leases: []kvlocation.LeaseState{lease(9, 1, 5), lease(7, 1, 7)}}, "generation 5 at revision 9 after",
			Evidence{Leases: []kvlocation.LeaseState{lease(9, 1, 7), lease(7, 1, 5)}}},
		{"lifecycle back", Monotonic, Evidence{Leases: []kvlocation.LeaseState{lease(7, 4, 5), lease(8, 1, 5)}}, "lifecycle 1", Evidence{}},
		{"generation before lifecycle", Monotonic, Evidence{Leases: []kvlocation.LeaseState{lease(7, 4, 3)}}, "before the lifecycle 4", Evidence{}},
		{"others slowed", Isolation, Evidence{Undisturbed: ms(1, 2), Disturbed: ms(1, 5000, 5000)}, "p99 of healthy nodes", Evidence{Undisturbed: ms(1), Disturbed: ms(900)}},
		{"others slowed beyond the machine's own halt", Isolation, Evidence{Undisturbed: ms(1), Disturbed: ms(3500, 3500), Stalled: 2 * time.Second}, "p99 of healthy nodes",
			Evidence{Undisturbed: ms(1), Disturbed: ms(2500, 2500), Stalled: 2 * time.Second}},
		{"grown", Bounded, Evidence{Before: map[string]int{"goroutines": 3}, After: map[string]int{"goroutines": 9}, Allowed: map[string]int{"goroutines": 5}},
			"goroutines: 3 before, 9 after, 8 allowed", Evidence{Before: map[string]int{"g": 3}, After: map[string]int{"g": 3}}},
		{"elsewhere", Identity, Evidence{Ops: []Op{direct}, Ledgers: []Ledger{ledger("n2", "a")}}, "named n1 and ran at n2",
			Evidence{Ops: []Op{direct}, Ledgers: []Ledger{ledger("n1", "a")}}},
		{"sent again without a refusal", Reselection, Evidence{Ops: []Op{traced("", 2, 0)}}, "sent 2 times after 0 refusals", Evidence{Ops: []Op{traced("", 3, 2)}}},
		{"a named node was tried again", Reselection, Evidence{Ops: []Op{traced("n1", 2, 1)}}, "at n1, was sent 2 times", Evidence{Ops: []Op{traced("n1", 1, 0)}}},
		{"plain error", NoAdvice, Evidence{Ops: []Op{op("a", Request, errors.New("x"))}}, "says neither", Evidence{Ops: []Op{op("a", Request, fails(outcome.Unknown, false))}}},
		{"no kind", NoAdvice, Evidence{Ops: []Op{op("a", Request, &outcome.Error{})}}, "no valid kind", Evidence{}},
		{"advice", NoAdvice, Evidence{Ops: []Op{op("a", Request, advising)}}, "gives advice", Evidence{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := Judge(&c.bad, c.v)
			if len(broken) == 0 || !strings.Contains(broken[0], c.want) || !strings.HasPrefix(broken[0], c.v.Name) {
				t.Errorf("a history that breaks %s: %q, want %q", c.v.Name, broken, c.want)
			}
			if broken := Judge(&c.good, c.v); len(broken) > 0 {
				t.Errorf("a history that keeps %s: %q", c.v.Name, broken)
			}
		})
	}
}

func TestJudgeBoundsItsList(t *testing.T) {
	l := Ledger{RID: "n", Ran: map[string]int{}}
	for i := range 50 {
		l.Ran[strings.Repeat("x", i+1)] = 2
	}
	if broken := Judge(&Evidence{Ledgers: []Ledger{l}}, All()...); len(broken) > 2*(maxListed+1) {
		t.Errorf("%d lines", len(broken))
	}
}

func TestRecorder(t *testing.T) {
	r := NewRecorder("x")
	a := r.Begin(Request, "", time.Now().Add(time.Second))
	b := r.Begin(Send, "", time.Now().Add(time.Second))
	if a == b {
		t.Fatal("two operations have one identity")
	}
	r.End(a, []byte("n1 x"), nil, channels.Trace{Reselected: 1})
	got := Sum(r.Ops())
	if got.Sent != 2 || got.Replied != 1 || got.Reselected != 1 {
		t.Errorf("totals %+v", got)
	}
	if r.Get(a).Reply != "n1 x" || r.Get("nobody").ID != "" {
		t.Errorf("got %+v", r.Get(a))
	}
}

func TestReadLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(job.RanLine("a") + job.RanLine("a") + job.EndLine("a", "it\tis\nover") + job.RanLine("b") + job.TakenLine(job.LineLapsed, 2) +
		job.TakenLine(job.LineExpired, 3) + job.TakenLine(job.LineExpired, 1) + "end\tb\t\"half")
	l, err := ReadLedger("n1", path)
	if err != nil || l.Lapsed != 2 || l.Expired != 4 || l.Ran["a"] != 2 || l.Ran["b"] != 1 || l.Ended["a"] != "it\tis\nover" {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []string{"something else\n", "end\ta\tunquoted\n", "lapsed\tmany\n"} {
		write(bad)
		if _, err := ReadLedger("n1", path); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if _, err := ReadLedger("n1", path+"none"); err == nil {
		t.Error("a file that does not exist was read")
	}
}
