package cli

import (
	"errors"
	"strings"
	"testing"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

func TestParseObject(t *testing.T) {
	for word, want := range map[string]named{
		"actor/alice@12": {kvlocation.ObjectKey{Kind: "actor", ID: "alice"}, 12},
		"actor/alice":    {kvlocation.ObjectKey{Kind: "actor", ID: "alice"}, 0},
		"spot/a=2Eb@7":   {kvlocation.ObjectKey{Kind: "spot", ID: "a.b"}, 7},
		"spot/a=2Eb":     {kvlocation.ObjectKey{Kind: "spot", ID: "a.b"}, 0},
		"alice":          {kvlocation.ObjectKey{ID: "alice"}, 0},
		"room/1":         {kvlocation.ObjectKey{ID: "room/1"}, 0},
		"a b":            {kvlocation.ObjectKey{ID: "a b"}, 0},
	} {
		got, err := parseObject(word)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", word, got, err, want)
		}
	}
	for word, says := range map[string]string{
		"actor/a.b":              "--actor and --spot take every ID",
		"actor/":                 "--actor and --spot",
		"actor/alice@":           "generation",
		"actor/alice@x":          "generation",
		"spot/a.b@7":             "spot/ID@GENERATION",
		strings.Repeat("x", 256): "1 to 255 bytes",
		"\xff":                   "valid UTF-8",
	} {
		if _, err := parseObject(word); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want an error that says %q", word, err, says)
		}
	}
}

// A payload is sent as it was typed, whatever its bytes.
func TestPayloadIsVerbatim(t *testing.T) {
	const bytes = "\xff\xfe \xe9"
	r, err := parse(t, "call", "--mesh", "shop", "echo", bytes)
	if err != nil || r.Call.Payload != bytes {
		t.Errorf("%q became %q, %v", bytes, r.Call.Payload, err)
	}
}

// What the command line can know to be wrong is refused before anything is connected to, with exit code 2.
func TestObjectUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"call", "--actor", "a", "--spot", "b"}, "--actor clashes with --spot"},
		{[]string{"call", "--actor", ""}, "1 to 255 bytes"},
		{[]string{"call", "--spot", strings.Repeat("x", 256)}, "1 to 255 bytes"},
		{[]string{"call", "--spot", "\xff"}, "valid UTF-8"},
		{[]string{"call", "--actor", "a", "--to", "n1"}, "--to names a member of a channel"},
		{[]string{"call", "--actor", "a", "--instance", "ledger"}, "an Actor is made by fabricnode create"},
		{[]string{"call", "--actor", "a", "echo", "x"}, "no channel"},
		{[]string{"call", "--instance", "ledger", "echo"}, "needs --spot"},
		{[]string{"call", "--spot", "a", "--instance", "b c"}, `--instance "b c"`},
		{[]string{"call"}, "give a channel, --actor ID or --spot ID"},
		{[]string{"call", "a b"}, `channel name "a b"`},
		{[]string{"call", "actor/alice", "{}"}, `"actor/alice" is no name of a channel (for the object: --actor alice)`},
		{[]string{"call", "spot/a=20b", "{}"}, "--spot 'a b'"},
		{[]string{"create", "--type", "ledger"}, "give --actor ID or --spot ID"},
		{[]string{"create", "--type", "ledger", "actor/x"}, "give --actor ID or --spot ID (for the object: --actor x)"},
		{[]string{"create", "--actor", "a"}, "--type"},
		{[]string{"create", "--actor", "a", "--type", "b c"}, `--type "b c"`},
		{[]string{"create", "--actor", "a", "--type", "ledger", "--at", "b c"}, `--at "b c"`},
		{[]string{"locate"}, "no object is named"},
		{[]string{"explain", "--actor", "a", "spot/b"}, "clashes with"},
		{[]string{"destroy", "alice"}, "says neither Actor nor Spot"},
		{[]string{"destroy", "--actor", "alice"}, "the generation is missing"},
		{[]string{"destroy", "actor/alice@1", "--generation", "2"}, "given twice"},
		{[]string{"destroy", "actor/alice@0"}, "a generation is at least 1"},
		{[]string{"release"}, "no object is named"},
		{[]string{"release", "--owner", "n1/7", "--rate", "0"}, "--rate 0 is not allowed: it must be 1 to 10000"},
		{[]string{"release", "--owner", "n1"}, "RID/LIFECYCLE"},
		{[]string{"release", "--owner", "n1/0"}, "RID/LIFECYCLE"},
		{[]string{"release", "--owner", "n 1/7"}, `"n 1"`},
		{[]string{"release", "--owner", "n1/7", "actor/a@1"}, "clashes"},
		{[]string{"release", "actor/a@1", "--type", "ledger"}, "need --owner"},
		{[]string{"release", "--owner", "n1/7", "--rate", "20000"}, "--rate 20000"},
		{[]string{"objects", "--limit", "0"}, "--limit 0"},
		{[]string{"objects", "--kind", "thing"}, "--kind"},
		{[]string{"run", "--capacity", "0"}, "--capacity 0 is not allowed"},
		{[]string{"run", "--capacity=-1"}, "--capacity -1 is not allowed"},
	} {
		var out, errs strings.Builder
		code := Main(append(c.args, "--mesh", "shop", "--server", "nats://127.0.0.1:1"), strings.NewReader(""), &out, &errs)
		if code != ExitUsage || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%q: exit code %d, want 2 and %q: %s", c.args, code, c.says, errs.String())
		}
	}
}

// Tables for people: what may be long stands last, and the rows about one object have the same columns.
func TestObjectTexts(t *testing.T) {
	at := objects.Location{Kind: "actor", ID: "alice", Class: "actor", Type: "ledger", Phase: "ready", RID: "n1", Lifecycle: 7, Generation: 3, OwnerGeneration: 1, Alive: true}
	var out strings.Builder
	printObjects(&out, objects.ListPage{Objects: []objects.Location{at}})
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if !strings.HasSuffix(line, "  OBJECT") && !strings.HasSuffix(line, "  actor/alice@3") {
			t.Errorf("the object is not the last column: %q", line)
		}
	}
	out.Reset()
	printExplanation(&out, named{ObjectKey: at.Key()}, objects.Explanation{
		WouldSucceed: true, Rule: "FO-4.1", Why: "it is Ready", Location: &at, Object: &objects.ObjectFacts{State: "ready", LeaseAdmits: true, Mail: 1, MailBytes: 50},
	})
	if !strings.Contains(out.String(), "ready; waiting: 1 message (50 bytes); no turn is running; 0 timers\n") {
		t.Errorf("got %s", out.String())
	}
	column := func(row, text string) int {
		for _, line := range strings.Split(out.String(), "\n") {
			if strings.HasPrefix(line, "  "+row) {
				return strings.Index(line, text)
			}
		}
		return -1
	}
	if owner, memory := column("owner", "n1, lifecycle"), column("in memory", "ready;"); owner < 0 || owner != memory {
		t.Errorf("columns %d and %d:\n%s", owner, memory, out.String())
	}
}

// An incarnation that is not there any more is not explained, nor located, by another one.
func TestOtherIncarnation(t *testing.T) {
	n := named{kvlocation.ObjectKey{Kind: "actor", ID: "bob"}, 99}
	if err := n.is("explain", 99); err != nil {
		t.Errorf("its own generation: %v", err)
	}
	for present, says := range map[uint64]string{3: "the present generation is 3", 0: "there is none now"} {
		if err := n.is("explain", present); !errors.Is(err, outcome.NotFound) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want NotFound and %q", err, says)
		}
	}
	n.generation = 0
	if err := n.is("explain", 3); err != nil {
		t.Errorf("no generation was given: %v", err)
	}
}
