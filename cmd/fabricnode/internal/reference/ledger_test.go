package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/outcome"
)

func TestParseLedger(t *testing.T) {
	for _, good := range []string{
		`{"op":"append","client":"c1","seq":5,"data":"x"}`, `{"op":"append"}`, `{"op":"read"}`, `{"op":"read","from":3,"limit":500}`,
		`{"op":"sleep","ms":0}`, `{"op":"timer","after_ms":5,"data":"x"}`, `{"op":"panic"}`, `{"op":"guard","resource":"r","value":"x"}`,
		`{"op":"append","data":"` + strings.Repeat("x", MaxData) + `"}`,
	} {
		if _, err := parseLedger([]byte(good)); err != nil {
			t.Errorf("%.60s: %v", good, err)
		}
	}
	for bad, c := range map[string]struct {
		kind outcome.Kind
		says string
	}{
		"":                                 {outcome.InvalidOperation, ": it is empty"},
		"hello":                            {outcome.InvalidOperation, "JSON object"},
		"[]":                               {outcome.InvalidOperation, ": it is of the JSON type array"},
		`{"op":"sleep","ms":"x"}`:          {outcome.InvalidOperation, ": ms must be a whole number, not a string"},
		`{"op":7}`:                         {outcome.InvalidOperation, ": op must be a string, not a number"},
		`{"op":"append","sequence":1}`:     {outcome.InvalidOperation, `"sequence"`},
		`{"op":"append","seq":1.5}`:        {outcome.InvalidOperation, "seq must be a whole number, not a number 1.5"},
		`{"op":"read"} {}`:                 {outcome.InvalidOperation, "something follows"},
		`{}`:                               {outcome.InvalidOperation, "the op is missing"},
		`{"op":"burn"}`:                    {outcome.InvalidOperation, `unknown op "burn": it must be append, read`},
		`{"op":"read","from":-1}`:          {outcome.InvalidOperation, "from -1 is not allowed"},
		`{"op":"read","limit":501}`:        {outcome.InvalidOperation, "limit 501 is not allowed: it must be 1 to 500"},
		`{"op":"sleep","ms":-1}`:           {outcome.InvalidOperation, "ms -1"},
		`{"op":"sleep","ms":600001}`:       {outcome.InvalidOperation, "ms 600001"},
		`{"op":"timer","after_ms":600001}`: {outcome.InvalidOperation, "after_ms 600001"},
		`{"op":"guard","value":"x"}`:       {outcome.InvalidOperation, "needs a resource"},
		`{"op":"append","data":"` + strings.Repeat("x", MaxData+1) + `"}`:                {outcome.CapacityExceeded, "65537"},
		`{"op":"append","client":"` + strings.Repeat("x", 256) + `"}`:                    {outcome.CapacityExceeded, "256"},
		`{"op":"guard","resource":"` + strings.Repeat("x", 256) + `"}`:                   {outcome.CapacityExceeded, "256"},
		`{"op":"guard","resource":"r","value":"` + strings.Repeat("x", MaxData+1) + `"}`: {outcome.CapacityExceeded, "65537"},
	} {
		_, err := parseLedger([]byte(bad))
		if !errors.Is(err, c.kind) || !errors.Is(err, outcome.Accepted) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.60s: got %v, want %v, Accepted and %q", bad, err, c.kind, c.says)
		}
	}
}

// A sleep that is cut short says by what: its own deadline, or its node.
func TestSleepIsCutShort(t *testing.T) {
	stopping := errors.New("the node is shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopping)
	if err := sleep(ctx, "sleep", time.Minute); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, outcome.Accepted) || !errors.Is(err, stopping) {
		t.Errorf("got %v, want Unavailable and Accepted by %v", err, stopping)
	}
	past, cancelPast := context.WithTimeout(t.Context(), 0)
	defer cancelPast()
	if err := sleep(past, "sleep", time.Minute); !errors.Is(err, outcome.DeadlineExceeded) || !errors.Is(err, outcome.Accepted) {
		t.Errorf("got %v, want DeadlineExceeded and Accepted", err)
	}
}

// The same (client, seq) is recorded as often as it is run, and pages add up to the whole in the order of appending.
func TestEntriesPages(t *testing.T) {
	var s entries
	const n = 1100
	for i := range n {
		if err := s.add(ledgerEntry{Client: "c", Seq: int64(i / 2), Data: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for from := 0; ; {
		p, err := s.read(from, MaxLimit)
		if err != nil || p.Len != n || len(p.Entries) > MaxLimit || p.Next != from+len(p.Entries) {
			t.Fatalf("from %d: %d entries, len %d, next %d, %v", from, len(p.Entries), p.Len, p.Next, err)
		}
		for _, raw := range p.Entries {
			var e ledgerEntry
			if err := json.Unmarshal(raw, &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e.Data)
		}
		if from = p.Next; from == p.Len {
			break
		}
	}
	for i, data := range all {
		if data != fmt.Sprint(i) {
			t.Fatalf("entry %d is %q", i, data)
		}
	}
	if len(all) != n {
		t.Fatalf("%d entries, want %d", len(all), n)
	}
	if p, err := s.read(n+5, 1); err != nil || len(p.Entries) != 0 || p.Next != n {
		t.Errorf("behind the end: %+v, %v", p, err)
	}
}

// A page stays below any server's payload limit, whatever the entries hold, and holds one at least.
func TestEntriesPageBytes(t *testing.T) {
	var s entries
	for range 10 {
		if err := s.add(ledgerEntry{Data: strings.Repeat("\x01", MaxData)}); err != nil { // six bytes each as JSON
			t.Fatal(err)
		}
	}
	p, err := s.read(0, MaxLimit)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(p)
	if err != nil || len(p.Entries) != 1 || len(data) > 1<<20 {
		t.Errorf("%d entries in %d bytes, %v", len(p.Entries), len(data), err)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	var s entries
	for range MaxEntries {
		if err := s.add(ledgerEntry{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.add(ledgerEntry{}); !errors.Is(err, outcome.CapacityExceeded) {
		t.Errorf("got %v, want CapacityExceeded", err)
	}
	s = entries{}
	var err error
	n := 0
	for ; err == nil && n < MaxEntries; n++ {
		err = s.add(ledgerEntry{Data: strings.Repeat("x", MaxData)})
	}
	if !errors.Is(err, outcome.CapacityExceeded) || n < MaxEntryBytes/MaxData-10 || n > MaxEntryBytes/MaxData {
		t.Errorf("after %d entries: %v, want CapacityExceeded", n, err)
	}
}
