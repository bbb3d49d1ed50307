package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Several writers of one file, as several processes are: every line is whole, and each writer's lines keep their order.
func TestWritersShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	const writers, each = 8, 200
	var wg sync.WaitGroup
	for n := range writers {
		w, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer w.Close()
			for i := range each {
				if err := w.Note(Event{What: Turn, Object: "actor/\n\"x\"", RID: fmt.Sprint(n), Generation: uint64(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	events, err := NewReader(path).Events()
	if err != nil || len(events) != writers*each {
		t.Fatalf("%d events, %v", len(events), err)
	}
	next := map[string]uint64{}
	for _, e := range events {
		if e.Generation != next[e.RID] || e.Object != "actor/\n\"x\"" {
			t.Fatalf("event %+v, want number %d", e, next[e.RID])
		}
		next[e.RID]++
	}
}

func TestReadJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	r := NewReader(path)
	if events, err := r.Events(); err != nil || len(events) != 0 {
		t.Errorf("a journal that nobody began: %v, %v", events, err)
	}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"what":"turn","object":"a"}` + "\n" + `{"what":"tu`)
	first, err := r.Events()
	if err != nil || len(first) != 1 || first[0].What != Turn {
		t.Errorf("a line that is being written: %v, %v", first, err)
	}
	write(`rn end","object":"a"}` + "\n")
	if events, err := r.Events(); err != nil || len(events) != 2 || events[0].What != Turn || events[1].What != TurnEnd || len(first) != 1 {
		t.Errorf("a journal that grew: %v, %v", events, err)
	}
	write("no event\n")
	if _, err := r.Events(); err == nil {
		t.Error("a broken line was read")
	}
}
