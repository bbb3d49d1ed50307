package cli

import (
	"strings"
	"testing"

	"natsfabric/kvlocation"
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
		"spot/a.b@7":             "spot/<escaped id>@<generation>",
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
		{[]string{"call"}, "channel name"},
		{[]string{"create", "--type", "ledger"}, "give --actor ID or --spot ID"},
		{[]string{"create", "--actor", "a"}, "--type"},
		{[]string{"create", "--actor", "a", "--type", "b c"}, `--type "b c"`},
		{[]string{"create", "--actor", "a", "--type", "ledger", "--at", "b c"}, `--at "b c"`},
		{[]string{"locate"}, "no object is named"},
		{[]string{"explain", "--actor", "a", "spot/b"}, "clashes with"},
		{[]string{"destroy", "alice"}, "says neither Actor nor Spot"},
		{[]string{"destroy", "--actor", "alice"}, "the generation is missing"},
		{[]string{"destroy", "actor/alice@1", "--generation", "2"}, "given twice"},
		{[]string{"release"}, "no object is named"},
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
