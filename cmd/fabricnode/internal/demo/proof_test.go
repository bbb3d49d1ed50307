package demo

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"natsfabric/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func replied(by string) outcomeOf { return outcomeOf{ended: 1, verdict: Verdict{Node: by}} }

func failed(a outcome.Acceptance) outcomeOf {
	return outcomeOf{ended: 1, err: outcome.New("request", outcome.Unavailable, a, "", "")}
}

// A proof that cannot fail proves nothing: each claim is broken once, and only that claim must fall.
func TestProveSeesEachLie(t *testing.T) {
	good := []outcomeOf{replied("n1"), replied("n2"), failed(outcome.NotAccepted), failed(outcome.Unknown), failed(outcome.Unknown), failed(outcome.Accepted)}
	ran := func() map[int][]string { return map[int][]string{1: {"n1"}, 2: {"n2"}, 5: {"n3"}, 6: {"n3"}} }
	for _, p := range prove(good, ran()) {
		if !p.Holds {
			t.Fatalf("a true story is refused: %+v", p)
		}
	}
	for name, c := range map[string]struct {
		lie   func(out []outcomeOf, ran map[int][]string)
		claim string
		line  string
	}{
		"never ended":             {func(out []outcomeOf, _ map[int][]string) { out[3] = outcomeOf{} }, "exactly once", "line 4"},
		"ended twice":             {func(out []outcomeOf, _ map[int][]string) { out[3].ended = 2 }, "exactly once", "line 4"},
		"run twice by two":        {func(_ []outcomeOf, ran map[int][]string) { ran[5] = []string{"n1", "n3"} }, "run twice", "line 5"},
		"run twice by one":        {func(_ []outcomeOf, ran map[int][]string) { ran[5] = []string{"n3", "n3"} }, "run twice", "line 5"},
		"replied, never ran":      {func(_ []outcomeOf, ran map[int][]string) { delete(ran, 2) }, "every replied line", "line 2"},
		"another one replied":     {func(_ []outcomeOf, ran map[int][]string) { ran[2] = []string{"n3"} }, "every replied line", "line 2"},
		"not accepted, but ran":   {func(_ []outcomeOf, ran map[int][]string) { ran[3] = []string{"n1"} }, "not accepted", "line 3"},
		"ran, and was never sent": {func(_ []outcomeOf, ran map[int][]string) { ran[7] = []string{"n1"} }, "not sent", "line 7"},
	} {
		t.Run(name, func(t *testing.T) {
			out, ran := append([]outcomeOf(nil), good...), ran()
			c.lie(out, ran)
			for _, p := range prove(out, ran) {
				if broken := strings.Contains(p.Claim, c.claim); broken == p.Holds {
					t.Errorf("claim %q: holds is %v", p.Claim, p.Holds)
				} else if broken && !strings.HasPrefix(p.Against, c.line+":") && !strings.HasPrefix(p.Against, c.line+" ") {
					t.Errorf("against it stands %q, which does not name %s", p.Against, c.line)
				}
			}
		})
	}
}

func TestJournalsSurviveInPieces(t *testing.T) {
	dir := t.TempDir()
	for rid, lines := range map[string][]int{"n1": {1, 3}, "n2": {2, 3}} {
		ran, err := openJournal(dir, rid, ranSuffix)
		if err != nil {
			t.Fatal(err)
		}
		counts, err := openJournal(dir, rid, countedSuffix)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range lines {
			err := errors.Join(ran.noteRan(n), counts.noteCounted(counted{line: n, generation: 7, ownerGeneration: 1, status: 200, bytes: 9, client: "a \"b\"\n"}))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(ran.close(), counts.close()); err != nil {
			t.Fatal(err)
		}
	}
	j, err := readJournals(dir)
	if err != nil || len(j.ran) != 3 || len(j.ran[3]) != 2 || j.ran[1][0] != "n1" || j.ran[2][0] != "n2" {
		t.Fatalf("got %v, %v", j.ran, err)
	}
	if want := (counted{"n2", 2, 7, 1, 200, 9, "a \"b\"\n"}); len(j.counted) != 3 || len(j.counted[3]) != 2 || j.counted[2][0] != want {
		t.Fatalf("got %+v, want %+v", j.counted, want)
	}
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", maxLine+5)
	lines, err := ReadLines(strings.NewReader("a\r\n\nb\n" + long))
	if err != nil || len(lines) != 4 || lines[0] != "a" || lines[1] != "" || len(lines[3]) != maxLine {
		t.Fatalf("got %d lines, %v", len(lines), err)
	}
	if _, err := ReadLines(strings.NewReader("")); err == nil {
		t.Error("an empty input is taken")
	}
	boom := errors.New("boom")
	if _, err := ReadLines(failing{boom}); !errors.Is(err, boom) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestLineRoundTrip(t *testing.T) {
	for _, text := range []string{"", " ", "a b c", "\xff\x00\n"} {
		n, got, err := decodeLine(encodeLine(42, text))
		if n != 42 || got != text || err != nil {
			t.Errorf("%q came back as %d, %q, %v", text, n, got, err)
		}
	}
	for _, bad := range []string{"", "42", "x y", "0 a", "-1 a"} {
		if _, _, err := decodeLine([]byte(bad)); err == nil {
			t.Errorf("payload %q is taken", bad)
		}
	}
}
